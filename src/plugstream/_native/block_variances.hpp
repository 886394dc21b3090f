// How much noise each coefficient of a group of blocks holds: because blocks overlap, and where noise is not white.
#pragma once

#include "bm3d_kernels.hpp"
#include "lanes.hpp"

namespace plugstream::bm3d {
namespace {

typedef signed char Bytes __attribute__((vector_size(16)));
typedef unsigned char UnsignedBytes __attribute__((vector_size(16)));

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

// Of each pair: whether its blocks overlap, as bits, and if so where the table has what they share, 8 |dy| + |dx|.
template <int group>
struct Pairs {
    static constexpr int vectors = (pairs_of(group) + 15) / 16;
    uint16_t overlap[vectors + 4];
    alignas(16) unsigned char place[16 * vectors];

    PLUGSTREAM_INLINE Pairs(const int32_t* positions, long across) {
        // Rows by a product, since divisions are slow: positions of a tile are few enough for it to be right.
        const float inverse = 1.0f / static_cast<float>(across);
        const int width = static_cast<int>(across);
        alignas(16) signed char y[32] = {}, x[32] = {};
        int rows[group];
        for (int k = 0; k < group; ++k) rows[k] = static_cast<int>((static_cast<float>(positions[k]) + 0.5f) * inverse);
        const int row = rows[0], column = positions[0] - row * width;
        for (int k = 0; k < group; ++k) {  // the window is small
            y[k] = static_cast<signed char>(rows[k] - row);
            x[k] = static_cast<signed char>(positions[k] - rows[k] * width - column);
        }
        repeat<vectors>([&](auto v) __attribute__((always_inline)) {
            const Bytes dy = apart<v.value>(y), dx = apart<v.value>(x), near = (dy < block) & (dx < block);
            overlap[v.value] = bits_of(near);
            const UnsignedBytes twice = (UnsignedBytes)dy + (UnsignedBytes)dy, four = twice + twice;  // which may wrap
            *reinterpret_cast<UnsignedBytes*>(place + 16 * v.value) =
                (four + four + (UnsignedBytes)dx) & (UnsignedBytes)near;
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

// Of a node of white noise, whose halves of `half` blocks share `shared`: the variance of its difference, in place of the
// right half's numbers, and what all pairs within it share, in place of the left half's. `block_variances` has the formula.
PLUGSTREAM_INLINE void join_halves(const Floats* shared, int half, float* left) {
    const float count = static_cast<float>(2 * half);
    for (int c = 0; c < coefficients / lanes; ++c, left += lanes) {
        float* right = left + half * coefficients;
        const Floats within = half == 1 ? Floats{} : load(left) + load(right);
        const Floats variance = count + 2.0f * (within - shared[c]), least = Floats{} + least_variance * count;
        store(right, variance > least ? variance : least);
        store(left, within + shared[c]);
    }
}

// The variance of the sum of all blocks, when all halves are joined.
PLUGSTREAM_INLINE void finish_sum(int group, float* v) {
    for (int c = 0; c < coefficients; c += lanes) {
        const float count = static_cast<float>(group);
        const Floats variance = count + (group > 1 ? 2.0f * load(v + c) : Floats{}), least = Floats{} + least_variance * count;
        store(v + c, variance > least ? variance : least);
    }
}

// How much noise each number that `haar` leaves holds, in units of sigma^2: v[group][64], in the order of `haar`.
//
// Blocks that overlap share noise: `table` has, for each |dy| and |dx| below 8, what their 64 coefficients share. With
// X the sum of that over the pairs of a node's left and right half, and S over all pairs within a node, the difference
// of a node of n blocks has the variance n + 2 (S_left + S_right - X), the sum n + 2 (S_left + S_right + X).
template <int group>
PLUGSTREAM_APART void block_variances(const int32_t* positions, long across, const float* table, float* v) {
    constexpr int vectors = coefficients / lanes;
    const Pairs<group> pairs(positions, across);
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
            join_halves(shared, half, v + a * coefficients);
        }
    }
    finish_sum(group, v);
}

// The same for noise that is not white, of which all blocks may share some: `table` has it for dy of 0 .. reach and dx
// of -reach .. reach; a block with itself shares its own variance.
PLUGSTREAM_APART void coloured_variances(int group, const int32_t* positions, long across, const float* table, int reach,
                                         float* v) {
    constexpr int vectors = coefficients / lanes;
    const int span = 2 * reach + 1;
    const float* own = table + reach * coefficients;
    int y[32], x[32];
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

}  // namespace
}  // namespace plugstream::bm3d
