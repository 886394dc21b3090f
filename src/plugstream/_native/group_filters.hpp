// Filters of groups of similar blocks, or cubes: the Haar transform along a group, how much noise each of its coefficients
// holds, and the two ways to shrink them. A block of an image and a cube of a volume both have 64 coefficients.
//
// Haar along the group is done without its factors: sums and differences only. A difference of level l (pairs of 2^l
// blocks) is then sqrt(2)^l times its coefficient and its variance 2^l times as large; on the way back it is multiplied
// by 2^-l, which is exact.
#pragma once

#include "block_variances.hpp"
#include "bm3d_kernels.hpp"
#include "lanes.hpp"

namespace plugstream::bm3d {
namespace {

constexpr int most = 32;  // blocks of a group

constexpr int log2_of(int n) { return n > 1 ? 1 + log2_of(n / 2) : 0; }
// The level of the number that `haar` leaves at index i: of the sum at 0, of the differences elsewhere.
constexpr int level_of(int i, int group) {
    if (i == 0) return log2_of(group);
    return i % 2 != 0 ? 1 : 1 + level_of(i / 2, group / 2);
}
constexpr float power_of_half(int level) { return level == 0 ? 1.0f : 0.5f * power_of_half(level - 1); }

template <int group, int half = 1>
PLUGSTREAM_INLINE void haar(Floats (&x)[group]) {
    if constexpr (half < group) {
        repeat<group / (2 * half)>([&](auto k) __attribute__((always_inline)) {
            constexpr int a = decltype(k)::value * 2 * half, b = a + half;
            const Floats difference = x[a] - x[b];
            x[a] = x[a] + x[b];
            x[b] = difference;
        });
        haar<group, 2 * half>(x);
    }
}

template <int group, int half = group / 2>
PLUGSTREAM_INLINE void haar_back(Floats (&x)[group]) {
    if constexpr (half > 0) {
        repeat<group / (2 * half)>([&](auto k) __attribute__((always_inline)) {
            constexpr int a = decltype(k)::value * 2 * half, b = a + half;
            const Floats difference = x[a] - x[b];
            x[a] = x[a] + x[b];
            x[b] = difference;
        });
        haar_back<group, half / 2>(x);
    }
}

template <int group>
PLUGSTREAM_INLINE void gather(const float* spectra, const int32_t* positions, int chunk, Floats (&x)[group]) {
    repeat<group>([&](auto k) __attribute__((always_inline)) {
        constexpr int i = decltype(k)::value;
        x[i] = load(spectra + static_cast<long>(positions[i]) * coefficients + chunk);
    });
}

// Back from the filtered numbers to blocks, which are added where they came from.
template <int group>
PLUGSTREAM_INLINE void add_back(const float* filtered, const int32_t* positions, float weight, float* total,
                                float* weights) {
    for (int chunk = 0; chunk < coefficients; chunk += lanes) {
        Floats x[group];
        repeat<group>([&](auto k) __attribute__((always_inline)) {
            constexpr int i = decltype(k)::value;
            x[i] = load(filtered + i * coefficients + chunk);
        });
        haar_back(x);
        repeat<group>([&](auto k) __attribute__((always_inline)) {
            constexpr int i = decltype(k)::value;
            float* at = total + static_cast<long>(positions[i]) * coefficients + chunk;
            store(at, load(at) + weight * x[i]);
        });
    }
    for (int k = 0; k < group; ++k) weights[positions[k]] += weight;
}

// How much noise each number that `haar` leaves of a group of cubes holds: as `block_variances`, with `table` for each
// |dz|, |dy| and |dx| below 4.
PLUGSTREAM_APART void cube_variances(int group, const int32_t* positions, const Groups& groups, float* v) {
    constexpr int vectors = coefficients / lanes, far = 1 << 24, block = 4;
    const float* table = groups.correlations;
    const int across = static_cast<int>(groups.across), plane = static_cast<int>(groups.plane);
    alignas(64) int z[most], y[most], x[most];
    for (int k = 0; k < group; ++k) {
        z[k] = positions[k] / plane;
        const int in_plane = positions[k] - z[k] * plane;
        y[k] = in_plane / across;
        x[k] = in_plane - y[k] * across;
    }
    for (int k = group; k < most; ++k) z[k] = y[k] = x[k] = far;
    uint32_t near[most];  // bit j: cubes i and j overlap
    for (int i = 0; i < group; ++i) {
        near[i] = 0;
        for (int j = 0; j < group; j += lanes) {
#if defined(__AVX512F__)
            const __m512i reach = _mm512_set1_epi32(2 * block - 1);
            const __m512i dz = _mm512_sub_epi32(_mm512_load_si512(z + j), _mm512_set1_epi32(z[i] - block + 1));
            const __m512i dy = _mm512_sub_epi32(_mm512_load_si512(y + j), _mm512_set1_epi32(y[i] - block + 1));
            const __m512i dx = _mm512_sub_epi32(_mm512_load_si512(x + j), _mm512_set1_epi32(x[i] - block + 1));
            const __mmask16 flat = _mm512_mask_cmplt_epu32_mask(_mm512_cmplt_epu32_mask(dy, reach), dx, reach);
            near[i] |= static_cast<uint32_t>(_mm512_mask_cmplt_epu32_mask(flat, dz, reach)) << j;
#else
            for (int k = j; k < j + lanes; ++k)
                if (k < group)
                    near[i] |= static_cast<uint32_t>((static_cast<unsigned>(z[k] - z[i] + block - 1) < 2 * block - 1) &
                                                     (static_cast<unsigned>(y[k] - y[i] + block - 1) < 2 * block - 1) &
                                                     (static_cast<unsigned>(x[k] - x[i] + block - 1) < 2 * block - 1))
                               << k;
#endif
        }
    }
    for (int half = 1; half < group; half *= 2) {
        const uint32_t right = (uint32_t{1} << half) - 1;
        for (int a = 0; a < group; a += 2 * half) {
            const int b = a + half;
            Floats shared[vectors] = {};
            for (int i = a; i < b; ++i)
                for (uint32_t pairs = near[i] & (right << b); pairs != 0; pairs &= pairs - 1) {
                    const int j = __builtin_ctz(pairs), dz = z[i] - z[j], dy = y[i] - y[j], dx = x[i] - x[j];
                    const int down = (dz < 0 ? -dz : dz) * block + (dy < 0 ? -dy : dy);
                    const float* row = table + (down * block + (dx < 0 ? -dx : dx)) * coefficients;
                    for (int c = 0; c < vectors; ++c) shared[c] += load(row + c * lanes);
                }
            join_halves(shared, half, v + a * coefficients);
        }
    }
    finish_sum(group, v);
}

template <int group, bool volume>
PLUGSTREAM_INLINE void variances(const int32_t* positions, const Groups& groups, float* v) {
    if constexpr (volume)
        cube_variances(group, positions, groups, v);
    else if (groups.reach != 0)
        coloured_variances(group, positions, groups.across, groups.correlations, groups.reach, v);
    else
        block_variances<group>(positions, groups.across, groups.correlations, v);
}

// By how much a group counts: 1 / variance of its remaining noise.
template <bool volume>
PLUGSTREAM_INLINE float share(float left, const Groups& groups, long n) {
    return 1.0f / (volume ? left * groups.levels[n] : left);
}

// x * scale where (x / bound)^2 > least, else 0; adds up v * scale of the former.
PLUGSTREAM_INLINE Floats keep(Floats x, Floats v, Floats least, float per_bound, float scale, Floats& kept) {
    const Floats ratio = x * per_bound;
#if defined(__AVX512F__)
    const __mmask16 large = _mm512_cmp_ps_mask(ratio * ratio, least, _CMP_GT_OQ);
    kept = _mm512_mask3_fmadd_ps(v, _mm512_set1_ps(scale), kept, large);
    return _mm512_maskz_mul_ps(large, x, _mm512_set1_ps(scale));
#else
    const Ints large = ratio * ratio > least;
    kept += reinterpret_cast<Floats>(reinterpret_cast<Ints>(v * scale) & large);
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x * scale) & large);
#endif
}

PLUGSTREAM_INLINE float sum_of(Floats x) {
    float all = 0;
    for (int i = 0; i < lanes; ++i) all += x[i];
    return all;
}

// e / (e + noise)
PLUGSTREAM_INLINE Floats gain_of(Floats energy, Floats noise) {
    const Floats sum = energy + noise;
#if defined(__AVX512F__)
    // An estimate of 14 bits and one step of Newton's: a division would take as long as all the rest.
    const Floats guess = _mm512_rcp14_ps(sum);
    return energy * (guess * (2.0f - sum * guess));
#else
    return energy / sum;
#endif
}

template <int group, bool volume>
void threshold_groups(const float* noisy, const Groups& groups, float threshold, float* total, float* weights) {
    float per_bound = 1.0f / threshold;
    alignas(64) float filtered[group * coefficients], v[group * coefficients];
    const int32_t* positions = groups.positions;
    for (long n = 0; n < groups.count; ++n, positions += group) {
        variances<group, volume>(positions, groups, v);
        if constexpr (volume) per_bound = 1.0f / (threshold * __builtin_sqrtf(groups.levels[n]));
        Floats kept[4] = {};  // several, so that no addition waits for the one before
        for (int chunk = 0; chunk < coefficients; chunk += lanes) {
            Floats x[group];
            gather<group>(noisy, positions, chunk, x);
            haar(x);
            repeat<group>([&](auto k) __attribute__((always_inline)) {
                constexpr int i = decltype(k)::value, at = i * coefficients;
                constexpr float scale = power_of_half(level_of(i, group));
                const Floats variance = load(v + at + chunk);
                Floats least = variance;
                if constexpr (i == 0)
                    if (chunk == 0) least[0] = -1;  // the mean is kept whatever it is
                store(filtered + at + chunk, keep(x[i], variance, least, per_bound, scale, kept[i % 4]));
            });
        }
        const float all = sum_of((kept[0] + kept[1]) + (kept[2] + kept[3]));
        add_back<group>(filtered, positions, share<volume>(all > 1 ? all : 1, groups, n), total, weights);
    }
}

template <int group, bool volume>
void wiener_groups(const float* noisy, const float* guide, const Groups& groups, float whole_noise, float* total,
                   float* weights) {
    alignas(64) float filtered[group * coefficients], v[group * coefficients];
    const int32_t* positions = groups.positions;
    for (long n = 0; n < groups.count; ++n, positions += group) {
        variances<group, volume>(positions, groups, v);
        float noise = volume ? whole_noise * groups.levels[n] : whole_noise;
        noise = noise < 1e-34f ? 1e-34f : noise;  // the estimated reciprocal of the very smallest numbers overflows
        Floats left[4] = {};
        for (int chunk = 0; chunk < coefficients; chunk += lanes) {
            Floats x[group];
            gather<group>(guide, positions, chunk, x);
            haar(x);
            repeat<group>([&](auto k) __attribute__((always_inline)) {
                constexpr int i = decltype(k)::value;
                constexpr float scale = power_of_half(level_of(i, group));
                const Floats variance = load(v + i * coefficients + chunk);
                Floats gain = gain_of(x[i] * x[i], noise * variance);
                if constexpr (i == 0)
                    if (chunk == 0) gain[0] = 1;
                const Floats scaled = gain * scale;
                left[i % 4] += gain * scaled * variance;
                store(filtered + i * coefficients + chunk, scaled);
            });
            gather<group>(noisy, positions, chunk, x);
            haar(x);
            repeat<group>([&](auto k) __attribute__((always_inline)) {
                constexpr int i = decltype(k)::value;
                float* at = filtered + i * coefficients + chunk;
                store(at, load(at) * x[i]);
            });
        }
        const float all = sum_of((left[0] + left[1]) + (left[2] + left[3]));
        constexpr float least = 1.17549435e-38f;  // the smallest normal number, as in the reference
        add_back<group>(filtered, positions, share<volume>(all < least ? least : all, groups, n), total, weights);
    }
}

template <bool volume>
void threshold(const float* noisy, const Groups& groups, float bound, float* total, float* weights) {
    switch (groups.size) {
        case 1: return threshold_groups<1, volume>(noisy, groups, bound, total, weights);
        case 2: return threshold_groups<2, volume>(noisy, groups, bound, total, weights);
        case 4: return threshold_groups<4, volume>(noisy, groups, bound, total, weights);
        case 8: return threshold_groups<8, volume>(noisy, groups, bound, total, weights);
        case 16: return threshold_groups<16, volume>(noisy, groups, bound, total, weights);
        default: return threshold_groups<32, volume>(noisy, groups, bound, total, weights);
    }
}

template <bool volume>
void wiener(const float* noisy, const float* guide, const Groups& groups, float noise, float* total, float* weights) {
    switch (groups.size) {
        case 1: return wiener_groups<1, volume>(noisy, guide, groups, noise, total, weights);
        case 2: return wiener_groups<2, volume>(noisy, guide, groups, noise, total, weights);
        case 4: return wiener_groups<4, volume>(noisy, guide, groups, noise, total, weights);
        case 8: return wiener_groups<8, volume>(noisy, guide, groups, noise, total, weights);
        case 16: return wiener_groups<16, volume>(noisy, guide, groups, noise, total, weights);
        default: return wiener_groups<32, volume>(noisy, guide, groups, noise, total, weights);
    }
}

}  // namespace
}  // namespace plugstream::bm3d
