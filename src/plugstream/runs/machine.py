"""What a run is computed on and with, for its log and its report."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from plugstream.base.version import __version__
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Machine, Start
from plugstream.runs.identity import files_read
from plugstream.runs.liveness import this_process
from plugstream.settings import Settings, used_sections

__all__ = ["describe_machine", "log_start"]


def log_start(log: EventLog, settings: Settings, processes: int, iterations: int | None = None) -> None:
    """Write to the log of a run that a process begins with it, or goes on.

    Arguments: processes, that share the work; iterations in all, those of the settings if not given.
    """
    me, versions = this_process(), (__version__, torch.__version__, platform.python_version())
    steps = settings.algorithm.iterations if iterations is None else iterations
    content = (steps, used_sections(settings), files_read(settings))
    log.add(Start(*content, *versions, pid=me.pid, started=me.started, machine=me.machine))
    log.add(describe_machine(settings.compute.device, processes))


def describe_machine(device: str, processes: int) -> Machine:
    """This machine, with the device that the run uses and how many processes share its work."""
    return Machine(
        platform.node(),
        f"{platform.system()} {platform.release()}",
        _processor(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        _memory(),
        torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        torch.get_num_threads(),
        processes,
    )


def _processor() -> str:
    """The processor's name, as the kernel tells it; of machines where it does not, its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
