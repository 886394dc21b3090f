"""CUDA kernels that synchronise threads, compiled for the CPU: a thread is a fiber, and waits by letting others run."""

from __future__ import annotations

from cuda_on_cpu import CpuKernels

SHIM = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>
#include <ucontext.h>
using std::max; using std::min;
#define ON_CPU
#define __global__
#define __device__
#define __launch_bounds__(...)
#define SHARED(type, name, count) \
    type* const name = (type*)this_fiber->block->shared(__LINE__, count * sizeof(type))
struct dim3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
static dim3 gridDim, blockDim;

struct Meeting {  // of so many fibers
    unsigned size = 0, arrived = 0, round = 0;
};
struct Warp { Meeting meeting; unsigned a[2][32][4], b[2][32][2]; };
struct Team {
    Meeting meeting;
    std::map<int, std::vector<double>> memory;
    std::vector<Warp> warps;
    void* shared(int line, size_t bytes) {
        std::vector<double>& found = memory[line];
        if (found.empty()) found.resize(bytes / 8 + 1);
        return found.data();
    }
};
struct Fiber {
    ucontext_t context;
    dim3 thread, number;
    Team* block;
    Warp* warp;
    unsigned turn = 0;
    bool done = false;
};
static ucontext_t scheduler;
static Fiber* this_fiber;
#define threadIdx (this_fiber->thread)
#define blockIdx (this_fiber->number)

static void relax() { Fiber* self = this_fiber; swapcontext(&self->context, &scheduler); this_fiber = self; }
static void meet_at(Meeting& m) {
    const unsigned round = m.round;
    if (++m.arrived == m.size) { m.arrived = 0; ++m.round; return; }
    while (m.round == round) relax();
}
static void __syncthreads() { meet_at(this_fiber->block->meeting); }
static void __threadfence() {}
static int __clz(int v) { return __builtin_clz(v); }
static float __fdividef(float a, float b) { return a / b; }
template <class T> static T __ldg(const T* p) { return *p; }
template <class T> static T __ldcg(const T* p) { return *p; }
template <class T> static T atomicExch(T* p, T v) { T old = *p; *p = v; return old; }
template <class T> static T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }
static float __saturatef(float v) { return v > 0 ? std::min(v, 1.0f) : 0.0f; }
static int __float_as_int(float v) { int i; std::memcpy(&i, &v, 4); return i; }
static float __int_as_float(int i) { float v; std::memcpy(&v, &i, 4); return v; }
static unsigned half_bits(float v) {
    const float size = std::fabs(v);
    const unsigned sign = std::signbit(v) ? 0x8000 : 0;
    if (!(size < 65520.0f)) return sign | (size > 0 ? 0x7C00 : 0x7E00);
    if (size < std::ldexp(1.0f, -14)) return sign | (unsigned)std::nearbyint(std::ldexp(size, 24));
    int power;
    std::frexp(size, &power);
    return sign | (unsigned)((power + 13) * 1024 + (int)std::nearbyint(std::ldexp(size, 11 - power)));
}
static unsigned pack(float low, float high) { return half_bits(low) | half_bits(high) << 16; }
static float unpack(unsigned both, bool high) {
    const unsigned bits = (high ? both >> 16 : both) & 0xFFFF, power = bits / 1024 % 32, rest = bits % 1024;
    float size = power ? std::ldexp(1024.0f + rest, (int)power - 25) : std::ldexp((float)rest, -24);
    if (power == 31) size = rest ? NAN : INFINITY;
    return bits & 0x8000 ? -size : size;
}
static void __syncwarp() { meet_at(this_fiber->warp->meeting); }
// What lane `from(lane)` has, for each lane.
template <class T, class From> static T from_lane(T value, From from) {
    Warp& w = *this_fiber->warp;
    const unsigned turn = this_fiber->turn++ % 2, lane = this_fiber->thread.x % 32;
    std::memcpy(w.a[turn][lane], &value, sizeof(T));
    meet_at(w.meeting);
    std::memcpy(&value, w.a[turn][from(lane) % 32], sizeof(T));
    return value;
}
template <class T> static T __shfl_sync(unsigned, T v, int lane, int width = 32) {
    return from_lane(v, [&](int k) { return k / width * width + lane % width; });
}
template <class T> static T __shfl_xor_sync(unsigned, T v, int by) {
    return from_lane(v, [&](int k) { return k ^ by; });
}
template <class T> static T __shfl_up_sync(unsigned, T v, int by) {
    return from_lane(v, [&](int k) { return k < by ? k : k - by; });
}
// PTX ISA, mma.m16n8k16: of the lane 4 g + t, rows g and g + 8 of a, column g of b, columns 2 t and 2 t + 1 of c.
static void multiply(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    Warp& w = *this_fiber->warp;
    const unsigned turn = this_fiber->turn++ % 2, lane = this_fiber->thread.x % 32, g = lane / 4, t = lane % 4;
    std::memcpy(w.a[turn][lane], a, 16);
    w.b[turn][lane][0] = b0;
    w.b[turn][lane][1] = b1;
    meet_at(w.meeting);
    for (unsigned i = 0; i < 4; ++i) {
        double sum = 0;
        for (unsigned k = 0; k < 16; ++k) {
            const unsigned part = k % 8 / 2, column = 2 * t + i % 2;
            sum += (double)unpack(w.a[turn][4 * g + part][i / 2 + k / 8 * 2], k % 2) *
                   unpack(w.b[turn][4 * column + part][k / 8], k % 2);
        }
        c[i] += (float)sum;
    }
}
"""

RUN = r"""
typedef void (*Kernel)(Problem, const float*, float*);
static Kernel kernel;
static const Problem* problem;
static void body() { kernel(*problem, nullptr, nullptr); this_fiber->done = true; }

extern "C" void run(Kernel which, const unsigned* sizes, const Problem* given, const float*, float*) {
    kernel = which;
    problem = given;
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], 1, 1};
    const unsigned count = sizes[0] * sizes[1] * sizes[2];
    std::vector<Team> blocks(count);
    std::vector<std::unique_ptr<Fiber>> fibers;
    const size_t stack = 1 << 16;
    std::vector<char> stacks(stack * count * sizes[3]);
    for (unsigned block = 0; block < count; ++block) {
        blocks[block].meeting.size = sizes[3];
        blocks[block].warps.resize(sizes[3] / 32);
        for (unsigned thread = 0; thread < sizes[3]; ++thread) {
            auto fiber = std::make_unique<Fiber>();
            fiber->thread = {thread, 0, 0};
            fiber->number = {block % sizes[0], block / sizes[0] % sizes[1], block / sizes[0] / sizes[1]};
            fiber->block = &blocks[block];
            fiber->warp = &blocks[block].warps[thread / 32];
            fiber->warp->meeting.size = 32;
            getcontext(&fiber->context);
            fiber->context.uc_stack.ss_sp = stacks.data() + stack * (block * sizes[3] + thread);
            fiber->context.uc_stack.ss_size = stack;
            fiber->context.uc_link = &scheduler;
            makecontext(&fiber->context, body, 0);
            fibers.push_back(std::move(fiber));
        }
    }
    for (bool left = true; left;) {
        left = false;
        for (auto& fiber : fibers)
            if (!fiber->done) {
                left = true;
                this_fiber = fiber.get();
                swapcontext(&scheduler, &fiber->context);
            }
    }
}
"""


class CpuWarps(CpuKernels):
    """Launches kernels of one-dimensional blocks on the CPU, all threads of a grid at once."""

    def __init__(self, source: str) -> None:
        super().__init__(source, shim=SHIM, run=RUN)
