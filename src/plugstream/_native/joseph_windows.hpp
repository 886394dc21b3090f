// What the inner loops of Joseph's method share: windows of neighbouring numbers of which every lane may take any, and
// rounding. As lanes.hpp, everything is in an unnamed namespace.
#pragma once

#include "lanes.hpp"

namespace plugstream::joseph {
namespace {

constexpr float magic = 12582912.0f;  // 1.5 2^23: adding it rounds to an integer, which the last bits then are
constexpr int magic_bits = 0x4B400000;
constexpr int none = -(1 << 30);
// How far the indices of a window may be apart. Without permutations they are addresses, and the margin limits them.
constexpr int reach = lanes >= 8 ? 2 * lanes : 32;

PLUGSTREAM_INLINE Floats spread(float x) { return Floats{} + x; }
PLUGSTREAM_INLINE Ints bits(Floats v) { return (Ints)v; }
PLUGSTREAM_INLINE Floats lane_numbers() {
    Floats v;
    for (int k = 0; k < lanes; ++k) v[k] = static_cast<float>(k);
    return v;
}
// The compiler makes two instructions of a selection, for which there is one.
PLUGSTREAM_INLINE Floats lesser(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}
PLUGSTREAM_INLINE Floats greater(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}
PLUGSTREAM_INLINE Floats absolute(Floats v) { return (Floats)((Ints)v & 0x7fffffff); }

// Whether any lane of a comparison holds.
PLUGSTREAM_INLINE bool any(Ints holds) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)holds, (__m512i)holds) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)holds) != 0;
#else
    return (holds[0] | holds[1] | holds[2] | holds[3]) != 0;
#endif
}

PLUGSTREAM_INLINE Floats gather(const float* from, Ints at) {
#if defined(__AVX512F__)
    return (Floats)_mm512_i32gather_ps((__m512i)at, from, 4);
#elif defined(__AVX2__)
    return (Floats)_mm256_i32gather_ps(from, (__m256i)at, 4);
#else
    Floats v;
    for (int k = 0; k < lanes; ++k) v[k] = from[at[k]];
    return v;
#endif
}

// The integer that was rounded to by adding magic, as `Window::take` wants it: permutations look at no more than its last
// bits, which are there already.
PLUGSTREAM_INLINE Ints place_of(Floats rounded) {
#if defined(__AVX512F__) || defined(__AVX2__)
    return bits(rounded);
#else
    return bits(rounded) - magic_bits;
#endif
}

// Twice as many neighbouring numbers as there are lanes, of which each lane may take any.
struct Window {
#if defined(__AVX512F__) || defined(__AVX2__)
    Floats low, high;
    PLUGSTREAM_INLINE explicit Window(const float* p) : low(load(p)), high(load(p + lanes)) {}
    // To (1 - part) times itself and part times what is at q.
    PLUGSTREAM_INLINE void blend(const float* q, float part) {
        low += part * (load(q) - low);
        high += part * (load(q + lanes) - high);
    }
#else
    const float* p;
    PLUGSTREAM_INLINE explicit Window(const float* p) : p(p) {}
#endif
    PLUGSTREAM_INLINE Floats take(Ints at) const {
#if defined(__AVX512F__)
        return (Floats)_mm512_permutex2var_ps((__m512)low, (__m512i)at, (__m512)high);
#elif defined(__AVX2__)
        const __m256 a = _mm256_permutevar8x32_ps((__m256)low, (__m256i)at);
        const __m256 b = _mm256_permutevar8x32_ps((__m256)high, (__m256i)at);
        return (Floats)_mm256_blendv_ps(a, b, (__m256)(at << 28));  // by the bit that says 8
#else
        return gather(p, at);
#endif
    }
};

}  // namespace
}  // namespace plugstream::joseph
