// Filters of groups of similar blocks, or cubes: the Haar transform along a group, how much noise each of its coefficients
// holds, and the two ways to shrink them. A block of an image and a cube of a volume both have 64 coefficients.
//
// Haar along the group is done without its factors: sums and differences only. A difference of level l (pairs of 2^l
// blocks) is then sqrt(2)^l times its coefficient and its variance 2^l times as large; on the way back it is multiplied
// by 2^-l, which is exact.
#pragma once

#include "bm3d_kernels.hpp"
#include "lanes.hpp"

namespace plugstream::bm3d {
namespace {

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

typedef signed char Bytes __attribute__((vector_size(16)));

// Bit k: lane k of a comparison holds.
PLUGSTREAM_INLINE uint16_t bits_of(Bytes holds) {
#if defined(__x86_64__)
    return static_cast<uint16_t>(_mm_movemask_epi8((__m128i)holds));
#elif defined(__aarch64__)
    constexpr uint8x16_t weights = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t sums = vandq_u8((uint8x16_t)holds, weights);
    for (int k = 0; k < 3; ++k) sums = vpaddq_u8(sums, sums);
    return vgetq_lane_u16((uint16x8_t)sums, 0);
#else
    uint16_t bits = 0;
    for (int k = 0; k < 16; ++k) bits |= static_cast<uint16_t>((holds[k] & 1) << k);
    return bits;
#endif
}

// The pairs of blocks that a node of the tree of `haar` compares, one of its left and one of its right half. They are
// numbered through: level by level from the leaves, node by node, by the left block and then by the right one.
constexpr int pairs_of(int group) { return group * (group - 1) / 2; }
constexpr int first_pair(int group, int half) { return group / 2 * (half - 1); }
constexpr int block_of(int group, int pair, bool right) {
    if (pair >= pairs_of(group)) return 0;
    int half = 1;
    while (2 * half < group && pair >= first_pair(group, 2 * half)) half *= 2;
    const int within = pair - first_pair(group, half), node = within / (half * half), rest = within % (half * half);
    return node * 2 * half + (right ? half + rest % half : rest / half);
}

// Of each pair: whether its blocks overlap, as bits, and if so where the table has what they share, 8 |dy| + |dx|, or
// for cubes 16 |dz| + 4 |dy| + |dx|.
template <int group, bool volume>
struct Pairs {
    static constexpr int vectors = (pairs_of(group) + 15) / 16;
    static constexpr signed char side = volume ? 4 : block;
    uint16_t overlap[vectors + 4];
    alignas(16) unsigned char place[16 * vectors];

    PLUGSTREAM_INLINE Pairs(const int32_t* positions, const Groups& groups) {
        // Rows by a product, since divisions are slow: positions of a tile are few enough for it to be right.
        const float inverse = 1.0f / static_cast<float>(groups.across);
        const int width = static_cast<int>(groups.across);
        alignas(16) signed char z[32] = {}, y[32] = {}, x[32] = {};
        int rows[group];
        for (int k = 0; k < group; ++k) rows[k] = static_cast<int>((static_cast<float>(positions[k]) + 0.5f) * inverse);
        const int row = rows[0], column = positions[0] - row * width;
        if constexpr (volume) {
            const float per_plane = 1.0f / static_cast<float>(groups.rows);
            const int height = static_cast<int>(groups.rows);
            int planes[group];
            for (int k = 0; k < group; ++k) planes[k] = static_cast<int>((static_cast<float>(rows[k]) + 0.5f) * per_plane);
            const int first = row - planes[0] * height;
            for (int k = 0; k < group; ++k) {
                z[k] = static_cast<signed char>(planes[k] - planes[0]);
                y[k] = static_cast<signed char>(rows[k] - planes[k] * height - first);
            }
        } else {
            for (int k = 0; k < group; ++k) y[k] = static_cast<signed char>(rows[k] - row);
        }
        for (int k = 0; k < group; ++k)  // the window is small
            x[k] = static_cast<signed char>(positions[k] - rows[k] * width - column);
        repeat<vectors>([&](auto v) __attribute__((always_inline)) {
            const Bytes dy = apart<v.value>(y), dx = apart<v.value>(x);
            Bytes near = (dy < side) & (dx < side);
            Bytes down = dy + dy;
            down = down + down;
            if constexpr (volume) {
                const Bytes dz = apart<v.value>(z), twice = dz + dz, four = twice + twice, eight = four + four;
                near &= dz < side;
                down = eight + eight + down;
            } else {
                down = down + down;
            }
            overlap[v.value] = bits_of(near);
            *reinterpret_cast<Bytes*>(place + 16 * v.value) = (down + dx) & near;
        });
        for (int v = vectors; v < vectors + 4; ++v) overlap[v] = 0;
    }

    // The bits of up to 64 pairs, from the first on.
    PLUGSTREAM_INLINE uint64_t bits(int first, int count) const {
        uint64_t word;
        __builtin_memcpy(&word, reinterpret_cast<const char*>(overlap) + first / 8, sizeof word);
        return count == 64 ? word : (word >> first % 8) & ((uint64_t{1} << count) - 1);
    }

  private:
    template <int v>
    PLUGSTREAM_INLINE static Bytes apart(const signed char* along) {
        const Bytes low = *reinterpret_cast<const Bytes*>(along), high = *reinterpret_cast<const Bytes*>(along + 16);
        return [&]<int... k>(std::integer_sequence<int, k...>) __attribute__((always_inline)) {
            const Bytes left = __builtin_shufflevector(low, high, block_of(group, 16 * v + k, false)...);
            const Bytes right = __builtin_shufflevector(low, high, block_of(group, 16 * v + k, true)...);
            const Bytes difference = left - right, sign = difference < 0;
            return (difference ^ sign) - sign;
        }(std::make_integer_sequence<int, 16>{});
    }
};

// How much noise each number that `haar` leaves holds, in units of sigma^2: v[group][64], in the order of `haar`.
//
// Blocks that overlap share noise: `table` has, for each |dy| and |dx| below 8, what their 64 coefficients share. With
// X the sum of that over the pairs of a node's left and right half, and S over all pairs within a node, the difference
// of a node of n blocks has the variance n + 2 (S_left + S_right - X), the sum n + 2 (S_left + S_right + X).
template <int group, bool volume>
PLUGSTREAM_INLINE void variances(const int32_t* positions, const Groups& groups, float* v) {
    constexpr int vectors = coefficients / lanes;
    const float* table = groups.correlations;
    const Pairs<group, volume> pairs(positions, groups);
    for (int half = 1; half < group; half *= 2) {
        const int each = half * half;
        int first = first_pair(group, half);
        for (int a = 0; a < group; a += 2 * half, first += each) {
            Floats shared[vectors] = {};
            if (each <= 4) {  // without a jump, which nobody could foresee
                const uint64_t bits = pairs.bits(first, each);
                for (int k = 0; k < each; ++k) {
                    const Ints mask = Ints{} - static_cast<int>(bits >> k & 1);
                    const float* row = table + pairs.place[first + k] * coefficients;
                    for (int c = 0; c < vectors; ++c) shared[c] += (Floats)((Ints)load(row + c * lanes) & mask);
                }
            } else {
                for (int part = 0; part < each; part += 64)
                    for (uint64_t bits = pairs.bits(first + part, each < 64 ? each : 64); bits != 0; bits &= bits - 1) {
                        const float* row = table + pairs.place[first + part + __builtin_ctzll(bits)] * coefficients;
                        for (int c = 0; c < vectors; ++c) shared[c] += load(row + c * lanes);
                    }
            }
            const float count = static_cast<float>(2 * half);
            for (int c = 0; c < vectors; ++c) {
                float *left = v + a * coefficients + c * lanes, *at = left + half * coefficients;
                const Floats within = half == 1 ? Floats{} : load(left) + load(at);
                const Floats variance = count + 2.0f * (within - shared[c]), least = Floats{} + least_variance * count;
                store(at, variance > least ? variance : least);
                store(left, within + shared[c]);
            }
        }
    }
    for (int c = 0; c < coefficients; c += lanes) {
        const float count = static_cast<float>(group);
        const Floats variance = count + (group > 1 ? 2.0f * load(v + c) : Floats{}), least = Floats{} + least_variance * count;
        store(v + c, variance > least ? variance : least);
    }
}

// The same for noise that is not white, of which all blocks may share some: `table` has it for dy of 0 .. reach and dx
// of -reach .. reach; a block with itself shares its own variance.
template <int group>
void coloured_variances(const int32_t* positions, long across, const float* table, int reach, float* v) {
    constexpr int vectors = coefficients / lanes;
    const int span = 2 * reach + 1;
    const float* own = table + reach * coefficients;
    int y[group], x[group];
    for (int k = 0; k < group; ++k) {
        y[k] = static_cast<int>(positions[k] / static_cast<int>(across));
        x[k] = positions[k] - y[k] * static_cast<int>(across);
    }
    for (int half = 1; half <= group; half *= 2) {  // the last round is for the sum of all
        for (int a = 0; a < group; a += 2 * half) {
            const int b = a + half;
            Floats shared[vectors] = {};
            for (int i = a; i < b && b < group; ++i)
                for (int j = b; j < b + half; ++j) {
                    int dy = y[j] - y[i], dx = x[j] - x[i];
                    if (dy < 0) dy = -dy, dx = -dx;
                    if (dy > reach || dx > reach || dx < -reach) continue;
                    const float* row = table + (dy * span + reach + dx) * coefficients;
                    for (int c = 0; c < vectors; ++c) shared[c] += load(row + c * lanes);
                }
            const float count = static_cast<float>(b < group ? 2 * half : group);
            const Floats least = Floats{} + least_variance * count;
            for (int c = 0; c < vectors; ++c) {
                const Floats alone = count * load(own + c * lanes);
                float* left = v + a * coefficients + c * lanes;
                if (b < group) {
                    float* at = v + b * coefficients + c * lanes;
                    const Floats within = half == 1 ? Floats{} : load(left) + load(at);
                    const Floats variance = alone + 2.0f * (within - shared[c]);
                    store(at, variance > least ? variance : least);
                    store(left, within + shared[c]);
                } else {
                    const Floats variance = alone + (group > 1 ? 2.0f * load(left) : Floats{});
                    store(left, variance > least ? variance : least);
                }
            }
        }
    }
}

template <int group, bool volume>
PLUGSTREAM_INLINE void noise_of(const int32_t* positions, const Groups& groups, float* v) {
    if (!volume && groups.reach != 0)
        coloured_variances<group>(positions, groups.across, groups.correlations, groups.reach, v);
    else
        variances<group, volume>(positions, groups, v);
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
template <bool exact>
PLUGSTREAM_INLINE Floats gain_of(Floats energy, Floats noise) {
    const Floats sum = energy + noise;
#if defined(__AVX512F__)
    if constexpr (!exact) {
        // An estimate of 14 bits and one step of Newton's: a division would take as long as all the rest.
        const Floats guess = _mm512_rcp14_ps(sum);
        return energy * (guess * (2.0f - sum * guess));
    }
#endif
    return energy / sum;
}

template <int group, bool volume>
void threshold_groups(const float* noisy, const Groups& groups, float threshold, float* total, float* weights) {
    float per_bound = 1.0f / threshold;
    alignas(64) float filtered[group * coefficients], v[group * coefficients];
    const int32_t* positions = groups.positions;
    for (long n = 0; n < groups.count; ++n, positions += group) {
        noise_of<group, volume>(positions, groups, v);
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

template <int group, bool volume, bool exact>
void wiener_groups(const float* noisy, const float* guide, const Groups& groups, float whole_noise, float* total,
                   float* weights) {
    alignas(64) float filtered[group * coefficients], v[group * coefficients];
    const int32_t* positions = groups.positions;
    for (long n = 0; n < groups.count; ++n, positions += group) {
        noise_of<group, volume>(positions, groups, v);
        const float noise = volume ? whole_noise * groups.levels[n] : whole_noise;
        Floats left[4] = {};
        for (int chunk = 0; chunk < coefficients; chunk += lanes) {
            Floats x[group];
            gather<group>(guide, positions, chunk, x);
            haar(x);
            repeat<group>([&](auto k) __attribute__((always_inline)) {
                constexpr int i = decltype(k)::value;
                constexpr float scale = power_of_half(level_of(i, group));
                const Floats variance = load(v + i * coefficients + chunk);
                Floats gain = gain_of<exact>(x[i] * x[i], noise * variance);
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

template <bool volume, bool exact>
void wiener_with(const float* noisy, const float* guide, const Groups& groups, float noise, float* total,
                 float* weights) {
    switch (groups.size) {
        case 1: return wiener_groups<1, volume, exact>(noisy, guide, groups, noise, total, weights);
        case 2: return wiener_groups<2, volume, exact>(noisy, guide, groups, noise, total, weights);
        case 4: return wiener_groups<4, volume, exact>(noisy, guide, groups, noise, total, weights);
        case 8: return wiener_groups<8, volume, exact>(noisy, guide, groups, noise, total, weights);
        case 16: return wiener_groups<16, volume, exact>(noisy, guide, groups, noise, total, weights);
        default: return wiener_groups<32, volume, exact>(noisy, guide, groups, noise, total, weights);
    }
}

template <bool volume>
void wiener(const float* noisy, const float* guide, const Groups& groups, float noise, float* total, float* weights) {
#if defined(__AVX512F__)
    // The estimated reciprocal overflows for the very smallest numbers.
    if (noise > 1e-30f) return wiener_with<volume, false>(noisy, guide, groups, noise, total, weights);
#endif
    wiener_with<volume, true>(noisy, guide, groups, noise, total, weights);
}

}  // namespace
}  // namespace plugstream::bm3d
