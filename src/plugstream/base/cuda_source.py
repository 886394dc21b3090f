"""CUDA C++ compiled when it is first used, with the compiler that torch brings (NVRTC), and launched by the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import torch

from plugstream.base.cuda_graphs import stream_handle

Size = tuple[int, int, int]
Fields = ctypes.Structure
Data = torch.Tensor | None


class Kernels(Protocol):
    """What launches the kernels of a source: a GPU's, or in tests a CPU's."""

    def launch(
        self, name: str, grid: Size, block: Size, problem: Fields, source: Data, target: Data, *, together: bool = False
    ) -> None:
        """Start a kernel; with `together`, all blocks run at the same time, as those that wait for each other need."""


class CudaKernels:
    """The kernels of one source on one device, each called with a structure and two addresses.

    Arguments: binary for the device's architecture; device.
    """

    def __init__(self, binary: bytes, device: torch.device) -> None:
        self.device = device
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._module, self._context = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device.index or 0))
        with self._entered():
            self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), binary))

    def launch(
        self, name: str, grid: Size, block: Size, problem: Fields, source: Data, target: Data, *, together: bool = False
    ) -> None:
        """Start a kernel on torch's current stream; the tensors must stay until it has been launched.

        With `together`, all blocks run at the same time; there must not be more than the device has room for.
        """
        addresses = [ctypes.c_void_p(0 if tensor is None else tensor.data_ptr()) for tensor in (source, target)]
        arguments = (ctypes.c_void_p * 3)(
            ctypes.addressof(problem), *(ctypes.addressof(address) for address in addresses)
        )
        stream = ctypes.c_void_p(stream_handle(self.device))
        with self._entered():
            function = self._find(name)
            if together:
                self._check(self._driver.cuLaunchCooperativeKernel(function, *grid, *block, 0, stream, arguments))
                return
            self._check(self._driver.cuLaunchKernel(function, *grid, *block, 0, stream, arguments, None))

    def _find(self, name: str) -> ctypes.c_void_p:
        function = self._functions.get(name)
        if function is None:
            function = ctypes.c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
            self._functions[name] = function
        return function

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Within the device's context, which is not that of threads that use another GPU, or none yet."""
        current = ctypes.c_void_p()
        self._check(self._driver.cuCtxGetCurrent(ctypes.byref(current)))
        if current.value == self._context.value:
            yield
            return
        self._check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            yield
        finally:
            self._check(self._driver.cuCtxPopCurrent_v2(ctypes.byref(current)))

    def _check(self, code: int) -> None:
        if code:
            message = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(message))
            raise RuntimeError(f"CUDA: {(message.value or b'unknown error').decode()}")


def takes(values: torch.Tensor, source: str) -> bool:
    """Whether kernels of a source can have these: float32 on CUDA, not differentiated, and there is a compiler."""
    return (
        values.is_cuda
        and values.dtype == torch.float32
        and not (values.requires_grad and torch.is_grad_enabled())
        and compile_kernels(source, values.device) is not None
    )


@cache
def compile_kernels(source: str, device: torch.device) -> CudaKernels | None:
    """Kernels of a source text; None where torch has no CUDA compiler. What does not compile is a RuntimeError.

    Nothing is fused that the source does not fuse (`--fmad=false`), so that two kernels which find the same number find
    the same bits.
    """
    compiler = _find_compiler()
    if compiler is None:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}".encode(), b"--fmad=false", b"--ftz=true", b"--std=c++17"]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"plugstream.cu", 0, None, None)
    failed = compiler.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    what = "ProgramLog" if failed else "CUBIN"
    getattr(compiler, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(compiler, f"nvrtcGet{what}")(program, text)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(f"NVRTC: {text.value.decode(errors='replace')}")
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes the device's context
        return CudaKernels(text.raw, device)


def has_compiler() -> bool:
    """Whether torch has a CUDA compiler."""
    return _find_compiler() is not None


@cache
def _find_compiler() -> Any:
    """The library of NVRTC, which torch has loaded; None for a torch without CUDA."""
    if torch.version.cuda is None:
        return None
    for name in (f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
