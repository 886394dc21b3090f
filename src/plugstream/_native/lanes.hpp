// Vectors as wide as the instruction set that this file is compiled for. Everything is in an unnamed namespace: each
// instruction set must keep its own copy.
#pragma once

#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace plugstream {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * lanes)));
typedef int Ints __attribute__((vector_size(4 * lanes)));
typedef float FloatsAnywhere __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
typedef int IntsAnywhere __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
typedef float Eight __attribute__((vector_size(32)));
typedef float EightAnywhere __attribute__((vector_size(32), aligned(4), may_alias));

#define PLUGSTREAM_INLINE __attribute__((always_inline)) inline
#define PLUGSTREAM_APART __attribute__((noinline))  // compiled once, however many call it

PLUGSTREAM_INLINE Floats load(const float* p) { return *reinterpret_cast<const FloatsAnywhere*>(p); }
PLUGSTREAM_INLINE void store(float* p, Floats v) { *reinterpret_cast<FloatsAnywhere*>(p) = v; }
PLUGSTREAM_INLINE Ints load(const int* p) { return *reinterpret_cast<const IntsAnywhere*>(p); }
PLUGSTREAM_INLINE void store(int* p, Ints v) { *reinterpret_cast<IntsAnywhere*>(p) = v; }

// Whether any lane of a comparison holds.
PLUGSTREAM_INLINE bool any(Ints holds) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)holds) != 0;
#elif defined(__aarch64__)
    return vmaxvq_u32((uint32x4_t)holds) != 0;
#else
    return (holds[0] | holds[1] | holds[2] | holds[3]) != 0;
#endif
}

// exp(t) for t <= 0, relative error 2e-7. Values below -80 count as that: smaller results would be slow to work with.
PLUGSTREAM_INLINE Floats exponential(Floats t) {
    constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, left in the lowest bits
    t = t < -80.0f ? Floats{} - 80.0f : t;
    const Floats shifted = t * 1.44269504f + rounder, n = shifted - rounder;
    // ln 2 in two parts, the first of so few bits that n times it is exact.
    const Floats r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats sum = Floats{} + 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    return (Floats)((Ints)sum + ((Ints)shifted << 23));
}

template <int i>
struct Index {
    static constexpr int value = i;
};

// f(Index<0>), f(Index<1>), ...: unrolled before anything else, so that arrays of vectors become registers.
template <int n, class Function>
PLUGSTREAM_INLINE void repeat(Function&& f) {
    [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
        (f(Index<i>{}), ...);
    }(std::make_integer_sequence<int, n>{});
}

}  // namespace
}  // namespace plugstream
