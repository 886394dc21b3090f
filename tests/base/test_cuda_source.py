"""Launches of CUDA kernels, on a driver that only writes down what it is asked."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from plugstream.base import cuda_source


class Problem(ctypes.Structure):
    _fields_ = (("size", ctypes.c_int),)


class Driver:
    """Two GPUs, whose contexts are 100 and 101; the thread's own stack of contexts."""

    def __init__(self, stack: list[int]) -> None:
        self.stack, self.launched_in = stack, list[int | None]()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context._obj.value = 100 + device
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.stack[-1] if self.stack else None
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.stack.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self.stack.pop()
        return 0

    def cuLaunchKernel(self, *arguments: Any) -> int:
        self.launched_in.append(self.stack[-1])
        return 0


@pytest.mark.parametrize("stack", [[], [100], [101]])
def test_a_launch_is_in_the_context_of_its_device(stack: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever device the thread uses, or none; and the thread then uses it again."""
    driver, before = Driver(stack), list(stack)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(cuda_source, "stream_handle", lambda device: 0)
    kernels = cuda_source.CudaKernels(b"", torch.device("cuda", 1))
    kernels.launch("any", (1, 1, 1), (1, 1, 1), Problem(), None, None)
    assert driver.launched_in == [101]
    assert driver.stack == before
