"""CUDA kernels compiled for the CPU and run thread by thread; those that synchronise, from barrier to barrier."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor


def emulated(test: Any) -> Any:
    """Marks a test of CUDA kernels that g++ compiles for the CPU."""
    compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile CUDA kernels for the CPU")
    return pytest.mark.emulated(compiled(test))


SHIM = r"""
#include <algorithm>
#include <cmath>
#include <vector>
#include <setjmp.h>
#include <ucontext.h>
using std::max; using std::min;
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static
struct dim3 { unsigned x, y, z; };
static dim3 blockIdx, threadIdx, blockDim, gridDim;
struct alignas(16) float4 { float x, y, z, w; };
static float __fadd_rd(float a, float whole) { return std::floor(a) + whole; }  // for the number that has no fraction
static float __fadd_ru(float a, float whole) { return std::ceil(a) + whole; }
static float __fadd_rn(float a, float b) { return a + b; }
static float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
static float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
static float __fdividef(float a, float b) { return a / b; }
static unsigned __float_as_uint(float a) { unsigned bits; __builtin_memcpy(&bits, &a, 4); return bits; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Fiber { ucontext_t context; jmp_buf place; std::vector<char> stack; bool begun, done; int shuffles; };
static std::vector<Fiber> fibers;
static jmp_buf scheduler;  // swapcontext, which calls the system, only enters a fiber
static unsigned running;
static float slots[2][1024];  // what threads show to their neighbours, in turn
static void __syncthreads() { if (!_setjmp(fibers[running].place)) _longjmp(scheduler, 1); }
static float shuffle(float value, int from) {
    float* const slot = slots[fibers[running].shuffles++ % 2];
    slot[running] = value;
    __syncthreads();
    return from >= 0 && from < 32 ? slot[running / 32 * 32 + from] : value;
}
static float __shfl_up_sync(unsigned, float value, int by) { return shuffle(value, int(running % 32) - by); }
static float __shfl_down_sync(unsigned, float value, int by) { return shuffle(value, int(running % 32) + by); }
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

static void (*chosen)(Problem, const float*, float*);
static const Problem* given;
static const float* given_source;
static float* given_target;
static void enter() {
    chosen(*given, given_source, given_target);
    fibers[running].done = true;
    _longjmp(scheduler, 1);
}
static void go_on() {
    Fiber& fiber = fibers[running];
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
}
// All threads of a block go on in turn, each to its next barrier or shuffle.
extern "C" void run_together(void (*kernel)(Problem, const float*, float*), const unsigned* sizes,
                             const Problem* problem, const float* source, float* target) {
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    chosen = kernel, given = problem, given_source = source, given_target = target;
    fibers.resize(sizes[3] * sizes[4] * sizes[5]);
    for (unsigned block = 0; block < sizes[0] * sizes[1] * sizes[2]; ++block) {
        blockIdx = {block % sizes[0], block / sizes[0] % sizes[1], block / sizes[0] / sizes[1]};
        for (Fiber& fiber : fibers) {
            fiber.stack.resize((1 << 14) + 320 * (&fiber - &fibers[0]));  // so that caches hold the ends of all
            fiber.begun = fiber.done = false, fiber.shuffles = 0;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data(), fiber.context.uc_stack.ss_size = fiber.stack.size();
            makecontext(&fiber.context, enter, 0);
        }
        while (!fibers[0].done)  // as all of them are, then
            for (running = 0; running < fibers.size(); ++running) {
                threadIdx = {running % sizes[3], running / sizes[3] % sizes[4], running / sizes[3] / sizes[4]};
                go_on();
            }
    }
}
"""


_FLAGS = [
    "-std=c++17",
    "-O1",  # which compiles in two thirds of the time of -O2, and tests run small problems
    "-U_FORTIFY_SOURCE",  # which takes a jump to another stack for a mistake
    "-ffp-contract=off",
    "-shared",
    "-fPIC",
    "-w",
    "-fsanitize-undefined-trap-on-error",
]
COMPILED = Path(__file__).parents[2] / "build" / "cuda-on-cpu"
"""What was compiled, by a hash of all that it is made of, for several test files and for the next time."""


@functools.cache
def _compiler() -> str:
    """Which compiler this is, and for what."""
    said = subprocess.run(["g++", "--version"], check=True, timeout=60, capture_output=True, text=True).stdout
    return platform.machine() + said


def _compile(text: str) -> Path:
    """The library of this text; two processes may make it at once, and no one sees half of it."""
    everything = "\n".join([_compiler(), *_FLAGS, text])
    library = COMPILED / f"{hashlib.sha256(everything.encode()).hexdigest()}.so"
    if not library.exists():
        COMPILED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=COMPILED) as folder:
            code, made = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
            code.write_text(text)
            subprocess.run(["g++", *_FLAGS, "-o", str(made), str(code)], check=True, timeout=120)
            os.replace(made, library)
    return library


class CpuKernels:
    """Launches kernels on the CPU, with the call of `plugstream.base.cuda_source.CudaKernels`.

    Arguments: source; together, the kernels that synchronise threads. Every thread of a block must reach the same
    barriers and shuffles.
    """

    def __init__(self, source: str, together: tuple[str, ...] = (), *, shim: str = SHIM, run: str = RUN) -> None:
        self._together = together
        self._library = ctypes.CDLL(str(_compile(shim + source + run)))

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
        run = self._library.run_together if name in self._together else self._library.run
        run(getattr(self._library, name), sizes, ctypes.byref(problem), *addresses)
