// What the inner loops of Joseph's method share: windows of neighbouring numbers of which every lane may take any, and
// rounding. As lanes.hpp, everything is in an unnamed namespace.
#pragma once

#include "lanes.hpp"

namespace plugstream::joseph {
namespace {

constexpr float magic = 12582912.0f;  // 1.5 2^23: adding it rounds to an integer, which the last bits then are
constexpr int magic_bits = 0x4B400000;
constexpr int none = -(1 << 30);
// How many vectors a window may have, and how far its indices may be apart. Without permutations they are addresses, and
// the margin limits them.
#if defined(__aarch64__)
constexpr int most_vectors = 4;
#else
constexpr int most_vectors = 2;
#endif
constexpr int reach = lanes >= 8 || most_vectors > 2 ? most_vectors * lanes : 32;

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
#elif defined(__aarch64__)
    return (Floats)vminnmq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return a < b ? a : b;
#endif
}
PLUGSTREAM_INLINE Floats greater(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__aarch64__)
    return (Floats)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return a > b ? a : b;
#endif
}
PLUGSTREAM_INLINE float lesser(float a, float b) { return b < a ? b : a; }
PLUGSTREAM_INLINE float greater(float a, float b) { return a < b ? b : a; }
PLUGSTREAM_INLINE float absolute(float v) { return __builtin_fabsf(v); }
PLUGSTREAM_INLINE Floats absolute(Floats v) { return (Floats)((Ints)v & 0x7fffffff); }
// |a - b|
PLUGSTREAM_INLINE Floats apart(Floats a, Floats b) {
#if defined(__aarch64__)
    return (Floats)vabdq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return absolute(a - b);
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

// Where lanes look into a window. Permutations of x86 look at no more than an index's last bits, those of ARM at the
// numbers of its four bytes.
struct Places {
    Ints at;

    PLUGSTREAM_INLINE explicit Places(Ints index)
#if defined(__aarch64__)
        : at(index * 0x04040404 + 0x03020100) {
    }
#else
        : at(index) {
    }
#endif
    // The integer that was rounded to by adding magic.
    PLUGSTREAM_INLINE explicit Places(Floats rounded)
#if defined(__AVX512F__) || defined(__AVX2__)
        : Places(bits(rounded)) {
    }
#else
        : Places(bits(rounded) - magic_bits) {
    }
#endif
    // So many numbers further on.
    PLUGSTREAM_INLINE Ints next(int count) const {
#if defined(__aarch64__)
        return at + count * 0x04040404;
#else
        return at + count;
#endif
    }
};

#if defined(__aarch64__)
// Loaded as one, so that the compiler need not bring vectors into neighbouring registers.
PLUGSTREAM_INLINE uint8x16x2_t load_table(Index<2>, const float* p) { return vld1q_u8_x2((const uint8_t*)p); }
PLUGSTREAM_INLINE uint8x16x3_t load_table(Index<3>, const float* p) { return vld1q_u8_x3((const uint8_t*)p); }
PLUGSTREAM_INLINE uint8x16x4_t load_table(Index<4>, const float* p) { return vld1q_u8_x4((const uint8_t*)p); }
PLUGSTREAM_INLINE uint8x16_t look_up(uint8x16x2_t table, uint8x16_t at) { return vqtbl2q_u8(table, at); }
PLUGSTREAM_INLINE uint8x16_t look_up(uint8x16x3_t table, uint8x16_t at) { return vqtbl3q_u8(table, at); }
PLUGSTREAM_INLINE uint8x16_t look_up(uint8x16x4_t table, uint8x16_t at) { return vqtbl4q_u8(table, at); }
#endif

// A few vectors of neighbouring numbers, of which each lane may take any.
template <int vectors>
struct Window {
#if defined(__AVX512F__) || defined(__AVX2__)
    Floats low, high;
    PLUGSTREAM_INLINE explicit Window(const float* p) : low(load(p)), high(load(p + lanes)) {}
    // To (1 - part) times itself and part times what is at q.
    PLUGSTREAM_INLINE void blend(const float* q, float part) {
        low += part * (load(q) - low);
        high += part * (load(q + lanes) - high);
    }
#elif defined(__aarch64__)
    decltype(load_table(Index<vectors>{}, nullptr)) table;
    PLUGSTREAM_INLINE explicit Window(const float* p) : table(load_table(Index<vectors>{}, p)) {}
    PLUGSTREAM_INLINE void blend(const float* q, float part) {
        repeat<vectors>([&](auto k) __attribute__((always_inline)) {
            const Floats here = (Floats)table.val[k.value];
            table.val[k.value] = (uint8x16_t)(here + part * (load(q + k.value * lanes) - here));
        });
    }
#else
    const float* p;
    PLUGSTREAM_INLINE explicit Window(const float* p) : p(p) {}
#endif
    // What is so many numbers after the places.
    PLUGSTREAM_INLINE Floats take(const Places& places, int after = 0) const {
        const Ints at = places.next(after);
#if defined(__AVX512F__)
        return (Floats)_mm512_permutex2var_ps((__m512)low, (__m512i)at, (__m512)high);
#elif defined(__AVX2__)
        const __m256 a = _mm256_permutevar8x32_ps((__m256)low, (__m256i)at);
        const __m256 b = _mm256_permutevar8x32_ps((__m256)high, (__m256i)at);
        return (Floats)_mm256_blendv_ps(a, b, (__m256)(at << 28));  // by the bit that says 8
#elif defined(__aarch64__)
        return (Floats)look_up(table, (uint8x16_t)at);
#else
        return gather(p, at);
#endif
    }
};

PLUGSTREAM_INLINE bool fits(float numbers, int vectors) { return numbers <= static_cast<float>(vectors * lanes); }
PLUGSTREAM_INLINE bool fits(Floats numbers, int vectors) { return !any(numbers > static_cast<float>(vectors * lanes)); }

// Calls f with how many vectors a window of so many numbers, or of the most in any lane, takes; false if too many.
template <class Numbers, class Function>
PLUGSTREAM_INLINE bool with_window(Numbers numbers, Function&& f) {
    if (!fits(numbers, reach / lanes)) return false;
    if constexpr (most_vectors == 2)
        f(Index<2>{});
    else if (fits(numbers, 2))
        f(Index<2>{});
    else if (fits(numbers, 3))
        f(Index<3>{});
    else
        f(Index<4>{});
    return true;
}

}  // namespace
}  // namespace plugstream::joseph
