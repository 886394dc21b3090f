"""Which fast form of a denoiser serves, native on the CPU or Triton on CUDA, and how a native kernel is called."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from plugstream import _native


def differentiated(*tensors: Tensor | None) -> bool:
    """Whether gradients of these are asked for, which only the torch forms have."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def native_serves(*tensors: Tensor | None, double: bool = False) -> bool:
    """Whether the kernels are built and take these: on the CPU, float32 (or float64 with `double`), no gradients."""
    kinds = (torch.float32, torch.float64) if double else (torch.float32,)
    fit = all(t is None or (t.device.type == "cpu" and t.dtype in kinds) for t in tensors)
    return fit and _native.load() is not None and not differentiated(*tensors)


def call_native(kernel: str, *tensors: Tensor, level: str = "", **options: Any) -> None:
    """Run a native kernel on contiguous tensors, without a copy and with torch's number of threads.

    Neither that number nor the other images of a batch change a bit of a result.

    Arguments: kernel, its name; level, the instruction set, for tests: the best that the machine has if empty.
    """
    arrays = [tensor.detach().numpy() for tensor in tensors]
    getattr(_native.kernels(), kernel)(*arrays, threads=torch.get_num_threads(), level=level, **options)


@cache
def has_triton() -> bool:
    """Whether Triton is installed; modules with kernels are imported only then."""
    return importlib.util.find_spec("triton") is not None


def triton_serves(images: Tensor) -> bool:
    """Whether the Triton kernels take these images: float32 on CUDA, with Triton installed."""
    return images.is_cuda and images.dtype == torch.float32 and has_triton()


def cover(size: int, part: int) -> int:
    """How many programs of this part it takes to cover a size."""
    return -(-size // part)
