// The smallest keys of a window, in order.
#pragma once

#include "bm3d_kernels.hpp"
#include "lanes.hpp"

namespace plugstream::bm3d {
namespace {

#if defined(__AVX512F__)

// One comparison of a bitonic network: lane i with lane i ^ distance; `span` is the length of the runs being sorted.
template <int span, int distance>
PLUGSTREAM_INLINE __m512i exchange(__m512i v) {
    constexpr auto larger = [] {
        unsigned mask = 0;
        for (int i = 0; i < 16; ++i)
            if (((i & span) == 0) != ((i & distance) == 0)) mask |= 1u << i;
        return static_cast<__mmask16>(mask);
    }();
    __m512i other;
    if constexpr (distance == 1)
        other = _mm512_shuffle_epi32(v, static_cast<_MM_PERM_ENUM>(0xB1));
    else if constexpr (distance == 2)
        other = _mm512_shuffle_epi32(v, static_cast<_MM_PERM_ENUM>(0x4E));
    else if constexpr (distance == 4)
        other = _mm512_shuffle_i32x4(v, v, 0xB1);
    else
        other = _mm512_shuffle_i32x4(v, v, 0x4E);
    return _mm512_mask_max_epi32(_mm512_min_epi32(v, other), larger, v, other);
}

// Sorts what rises and then falls (or is a rotation of that).
PLUGSTREAM_INLINE __m512i merge(__m512i v) {
    return exchange<16, 1>(exchange<16, 2>(exchange<16, 4>(exchange<16, 8>(v))));
}

PLUGSTREAM_INLINE __m512i sort(__m512i v) {
    v = exchange<2, 1>(v);
    v = exchange<4, 1>(exchange<4, 2>(v));
    v = exchange<8, 1>(exchange<8, 2>(exchange<8, 4>(v)));
    return merge(v);
}

PLUGSTREAM_INLINE __m512i reverse(__m512i v) {
    return _mm512_permutexvar_epi32(_mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), v);
}

// The smallest 16 or 32 keys seen so far, sorted.
template <bool two>
struct Smallest {
    __m512i low = _mm512_set1_epi32(never), high = _mm512_set1_epi32(never);

    PLUGSTREAM_INLINE void add(__m512i v) {
        v = reverse(sort(v));
        if constexpr (two) {
            const __m512i rest = _mm512_min_epi32(high, v);
            high = merge(_mm512_max_epi32(low, rest));
            low = merge(_mm512_min_epi32(low, rest));
        } else {
            low = merge(_mm512_min_epi32(low, v));
        }
    }
};

// Each lane's least key over the even rows, and over the odd rows, belongs to another candidate: so the K-th smallest
// of these bounds the K-th smallest of all, and few keys besides those wanted are below it.
template <int vectors, bool two>
inline void smallest_of(const int32_t* keys, int rows, int count, int32_t* candidates, int32_t* out) {
    constexpr int parts = vectors < 5 ? 2 : 1;  // five vectors are of two rows already
    __m512i lowest[parts * vectors];
    repeat<parts * vectors>([&](auto k) { lowest[k.value] = _mm512_set1_epi32(never); });
    auto lower = [&](auto k, int row) __attribute__((always_inline)) {
        lowest[k.value] = _mm512_min_epi32(lowest[k.value], _mm512_load_si512(keys + (row * vectors + k.value) * 16));
    };
    int row = 0;
    for (; row + parts <= rows; row += parts)
        repeat<parts * vectors>([&](auto k) __attribute__((always_inline)) { lower(k, row); });
    if (row < rows) repeat<vectors>([&](auto k) __attribute__((always_inline)) { lower(k, row); });
    alignas(64) int32_t sorted[32];
    Smallest<two> least;
    repeat<parts * vectors>([&](auto k) __attribute__((always_inline)) { least.add(lowest[k.value]); });
    _mm512_store_si512(sorted, least.low);
    _mm512_store_si512(sorted + 16, least.high);
    const int32_t last = sorted[count - 1];
    const __m512i bound = _mm512_set1_epi32(last < never ? last : never - 1);
    int found = 0;
    for (int k = 0; k < rows * vectors; ++k) {
        const __m512i v = _mm512_load_si512(keys + k * 16);
        const __mmask16 below = _mm512_cmple_epi32_mask(v, bound);
        _mm512_storeu_si512(candidates + found, _mm512_maskz_compress_epi32(below, v));
        found += __builtin_popcount(below);
    }
    _mm512_storeu_si512(candidates + found, _mm512_set1_epi32(never));
    Smallest<two> best;
    for (int k = 0; k < found; k += 16) best.add(_mm512_loadu_si512(candidates + k));
    _mm512_store_si512(sorted, best.low);
    _mm512_store_si512(sorted + 16, best.high);
    for (int k = 0; k < count; ++k) out[k] = sorted[k];
}

template <int vectors>
inline void smallest(const int32_t* keys, int rows, int count, int32_t* candidates, int32_t* out) {
    if (count > 16)
        smallest_of<vectors, true>(keys, rows, count, candidates, out);
    else
        smallest_of<vectors, false>(keys, rows, count, candidates, out);
}

#else

PLUGSTREAM_INLINE Ints lesser(Ints a, Ints b) {
#if defined(__AVX2__)
    return (Ints)_mm256_min_epi32((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    return (Ints)vminq_s32((int32x4_t)a, (int32x4_t)b);
#else
    return a < b ? a : b;
#endif
}

// A bound that at least `count` of the candidates are not above, and few more: each lane's least key over the even rows,
// and over the odd ones, belongs to another candidate, and halving finds about the count-th of these.
template <int vectors>
PLUGSTREAM_INLINE int32_t bound_smallest(const int32_t* keys, int rows, int count) {
    Ints least[2 * vectors];
    repeat<2 * vectors>([&](auto k) { least[k.value] = Ints{} + never; });
    for (int row = 0; row < rows; ++row, keys += vectors * lanes) {
        if (row % 2 == 0)
            repeat<vectors>([&](auto v) { least[v.value] = lesser(least[v.value], load(keys + v.value * lanes)); });
        else
            repeat<vectors>([&](auto v) {
                least[vectors + v.value] = lesser(least[vectors + v.value], load(keys + v.value * lanes));
            });
    }
    auto at_most = [&](int32_t bound) {
        Ints holds{};
        repeat<2 * vectors>([&](auto k) { holds += least[k.value] <= bound; });
        int sum = 0;
        for (int i = 0; i < lanes; ++i) sum -= holds[i];
        return sum >= count;
    };
    constexpr int32_t last = never - 1;  // of a candidate within the image
    if (!at_most(last)) return last;
    Ints lowest = Ints{} + never;  // but for the reference's own, -1
    repeat<2 * vectors>([&](auto k) { lowest = lesser(lowest, least[k.value] < 0 ? Ints{} + never : least[k.value]); });
    int32_t low = never, high = last;
    for (int i = 0; i < lanes; ++i) low = lowest[i] < low ? lowest[i] : low;
    // Keys are distances as bits, which grow about as their logarithms do: the first step leaves a factor of four.
    if (low < last - (1 << 24) && at_most(low + (1 << 24))) high = low + (1 << 24);
    for (int turn = 0; turn < 7 && low < high; ++turn) {
        const int32_t middle = low + (high - low) / 2;
        if (at_most(middle))
            high = middle;
        else
            low = middle + 1;
    }
    return high;
}

// By insertion of the few that are not above the bound.
template <int vectors>
inline void smallest(const int32_t* keys, int rows, int count, int32_t*, int32_t* out) {
    for (int k = 0; k < count; ++k) out[k] = never;
    int32_t last = bound_smallest<vectors>(keys, rows, count);
    constexpr int step = 16;
    for (int k = 0; k < rows * vectors * lanes; k += step) {
        Ints below{};
        for (int i = 0; i < step; i += lanes) below |= load(keys + k + i) <= last;
        if (!any(below)) continue;
        for (int i = k; i < k + step; ++i) {
            const int32_t key = keys[i];
            if (key > last) continue;
            int place = count - 1;
            for (; place > 0 && out[place - 1] > key; --place) out[place] = out[place - 1];
            out[place] = key;
            last = out[count - 1] < last ? out[count - 1] : last;
        }
    }
}

#endif

}  // namespace
}  // namespace plugstream::bm3d
