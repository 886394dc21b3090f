"""What `plugstream --version` prints: all that a bug report should contain."""

from __future__ import annotations

import argparse
from typing import Any

from plugstream.base.version import __version__


class ShowVersion(argparse.Action):
    """Print the version and end. It is put together only on request, since that may import torch."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(nargs=0, **keywords)

    def __call__(self, parser: argparse.ArgumentParser, *values: Any, **more: Any) -> None:
        print(describe_version())
        parser.exit()


def describe_version() -> str:
    """In one line: plugstream, the instruction set of its native kernels, torch, GPUs, Python and the machine."""
    import platform

    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return f"plugstream {__version__} ({_native()}, {_torch()}, {system})"


def _native() -> str:
    """The best instruction set of this machine that the kernels were built for."""
    from plugstream._native import load

    try:
        kernels = load()
    except ImportError as error:
        return f"native kernels broken: {str(error).splitlines()[0]}"
    return "no native kernels" if kernels is None else f"native {kernels.levels()[0]}"


def _torch() -> str:
    """torch's version, and the GPU; torch itself is imported only where it was built for one."""
    from importlib import metadata  # which --help need not wait for

    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "no torch"
    if version.endswith("+cpu"):
        return f"torch {version}, no GPU"
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch {version} broken: {str(error).splitlines()[0]}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__}, no GPU"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    counted = [name if names.count(name) == 1 else f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return f"torch {torch.__version__}, {', '.join(counted)}"
