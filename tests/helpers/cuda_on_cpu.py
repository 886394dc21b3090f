"""CUDA kernels that do not synchronise threads, compiled for the CPU and run thread by thread."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from torch import Tensor

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile CUDA kernels for the CPU")

SHIM = r"""
#include <algorithm>
#include <cmath>
using std::max; using std::min;
#define __global__
#define __device__
#define __launch_bounds__(...)
struct dim3 { unsigned x, y, z; };
static dim3 blockIdx, threadIdx, blockDim, gridDim;
struct alignas(16) float4 { float x, y, z, w; };
static float __fadd_rd(float a, float whole) { return std::floor(a) + whole; }  // for the number that has no fraction
static float __fadd_ru(float a, float whole) { return std::ceil(a) + whole; }
static float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
static float __fdividef(float a, float b) { return a / b; }
static unsigned __float_as_uint(float a) { unsigned bits; __builtin_memcpy(&bits, &a, 4); return bits; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
"""

RUN = r"""
extern "C" void run(void (*kernel)(Problem, const float*, float*), const unsigned* sizes, const Problem* problem,
                    const float* source, float* target) {
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    for (unsigned block = 0; block < sizes[0] * sizes[1] * sizes[2]; ++block)
        for (unsigned thread = 0; thread < sizes[3] * sizes[4] * sizes[5]; ++thread) {
            blockIdx = {block % sizes[0], block / sizes[0] % sizes[1], block / sizes[0] / sizes[1]};
            threadIdx = {thread % sizes[3], thread / sizes[3] % sizes[4], thread / sizes[3] / sizes[4]};
            kernel(*problem, source, target);
        }
}
"""


class CpuKernels:
    """Launches kernels on the CPU, with the call of `plugstream.base.cuda_source.CudaKernels`."""

    def __init__(self, source: str, folder: Path, *, shim: str = SHIM, run: str = RUN) -> None:
        text = shim + source + run
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        code, library = folder / f"{name}.cpp", folder / f"{name}.so"
        code.write_text(text)
        flags = [
            "-std=c++17",
            "-O2",
            "-ffp-contract=off",
            "-shared",
            "-fPIC",
            "-w",
            "-fsanitize-undefined-trap-on-error",
        ]
        subprocess.run(["g++", *flags, "-o", str(library), str(code)], check=True, timeout=120)
        self._library = ctypes.CDLL(str(library))

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        problem: ctypes.Structure,
        source: Tensor | None,
        target: Tensor | None,
        *,
        together: bool = False,
    ) -> None:
        sizes = (ctypes.c_uint * 6)(*grid, *block)
        addresses = (ctypes.c_void_p(0 if tensor is None else tensor.data_ptr()) for tensor in (source, target))
        self._library.run(getattr(self._library, name), sizes, ctypes.byref(problem), *addresses)
