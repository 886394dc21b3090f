// Cube matching, compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it and no contraction to fused
// multiply-adds: all forms of BM4D must find the same cubes. It calls no function of the standard library, as in
// bm3d_match.cpp.
//
// Vectors run over the candidates of one row of the window. For one such row, the sums of four squares along a line of
// voxels serve all rows of references that the line belongs to, and the sums over 4 x 4 voxels of a plane all planes of
// references: with a step of 2, a distance of 64 terms takes about 40 operations. No distance is stored: each reference
// keeps its best candidates so far, and few of those to come are better.
#include "bm4d_kernels.hpp"
#include "lanes.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace plugstream::bm4d {
namespace {

#if defined(__AVX512F__)
PLUGSTREAM_INLINE bool any_below(Ints key, int32_t bound) {
    return _mm512_cmplt_epi32_mask(reinterpret_cast<__m512i>(key), _mm512_set1_epi32(bound)) != 0;
}
#elif defined(__AVX2__)
PLUGSTREAM_INLINE bool any_below(Ints key, int32_t bound) {
    return _mm256_movemask_epi8(reinterpret_cast<__m256i>(key < bound)) != 0;
}
#elif defined(__aarch64__)
PLUGSTREAM_INLINE bool any_below(Ints key, int32_t bound) { return vminvq_s32(reinterpret_cast<int32x4_t>(key)) < bound; }
#else
PLUGSTREAM_INLINE bool any_below(Ints key, int32_t bound) {
    const Ints below = key < bound;
    return (below[0] | below[1] | below[2] | below[3]) != 0;
}
#endif

// sums[c][v]: over the 4 voxels of reference column c, of (reference - candidate)^2 added over the channels, as a tree, for
// the candidates in vector v. Columns that overlap share squares.
template <int vectors, bool several>
PLUGSTREAM_INLINE void sum_line(const Matching& tile, const float* reference, const float* candidate, float* sums) {
    const Along& columns = tile.columns;
    for (int v = 0; v < vectors; ++v) {
        auto square = [&](int x) __attribute__((always_inline)) {
            const Floats difference = load(candidate + v * lanes + x) - reference[x];
            Floats sum = difference * difference;
            if constexpr (several)
                for (int c = 1; c < tile.channels; ++c) {
                    const long at = c * tile.channel + x;
                    const Floats other = load(candidate + at + v * lanes) - reference[at];
                    sum += other * other;
                }
            return sum;
        };
        Floats d0{}, d1{}, d2{}, d3{};
        for (int c = 0, before = -block; c < columns.count; ++c) {
            const int x = columns.at[c], step = x - before;
            if (step == 2) {
                d0 = d2, d1 = d3, d2 = square(x + 2);
            } else if (step == 3) {
                d0 = d3, d1 = square(x + 1), d2 = square(x + 2);
            } else if (step == 1) {
                d0 = d1, d1 = d2, d2 = d3;
            } else {
                d0 = square(x), d1 = square(x + 1), d2 = square(x + 2);
            }
            d3 = square(x + 3);
            store(sums + (c * vectors + v) * lanes, (d0 + d1) + (d2 + d3));
            before = x;
        }
    }
}

PLUGSTREAM_INLINE void insert(int32_t* best, int count, int32_t key) {
    int place = count - 1;
    for (; place > 0 && best[place - 1] > key; --place) best[place] = best[place - 1];
    best[place] = key;
}

// All references against the candidates of one row of their windows.
template <int vectors, bool several>
void match_row(const Matching& tile, int deep, int down) {
    constexpr int width = vectors * lanes;
    const Along &planes = tile.planes, &rows = tile.rows, &columns = tile.columns;
    const int span = 2 * tile.radius + 1;
    const long of_line = static_cast<long>(columns.count) * width;
    const long moved = (deep - tile.radius) * tile.plane + (down - tile.radius) * tile.pitch;
    const long of_plane = rows.count * of_line;
    Ints rank[vectors];
    for (int v = 0; v < vectors; ++v) rank[v] = load(tile.ranks + (deep * span + down) * widest + v * lanes);
    int next_plane = 0;  // the first plane of voxels whose sums are not in the ring
    for (int k = 0; k < planes.count; ++k) {
        if (deep < planes.first[k] || deep > planes.last[k]) continue;
        const int top = planes.at[k];
        for (next_plane = next_plane > top ? next_plane : top; next_plane < top + block; ++next_plane) {
            const float* start = tile.guide + next_plane * tile.plane;
            float* sums = tile.sums + (next_plane % block) * of_plane;
            int next_line = 0;
            for (int r = 0; r < rows.count; ++r) {
                if (down < rows.first[r] || down > rows.last[r]) continue;
                const int row = rows.at[r];
                for (next_line = next_line > row ? next_line : row; next_line < row + block; ++next_line) {
                    const float* line = start + next_line * tile.pitch;
                    sum_line<vectors, several>(tile, line + tile.radius, line + moved,
                                               tile.lines + (next_line % block) * of_line);
                }
                const float* four[block];
                for (int i = 0; i < block; ++i) four[i] = tile.lines + ((row + i) % block) * of_line;
                for (long at = 0; at < of_line; at += lanes)
                    store(sums + r * of_line + at,
                          (load(four[0] + at) + load(four[1] + at)) + (load(four[2] + at) + load(four[3] + at)));
            }
        }
        const float* four[block];
        for (int i = 0; i < block; ++i) four[i] = tile.sums + ((top + i) % block) * of_plane;
        for (int r = 0; r < rows.count; ++r) {
            if (down < rows.first[r] || down > rows.last[r]) continue;
            for (int c = 0; c < columns.count; ++c) {
                const long reference = (static_cast<long>(k) * rows.count + r) * columns.count + c;
                const Floats floor = Floats{} + tile.floors[reference];
                int32_t bound = tile.bounds[reference];
                for (int v = 0; v < vectors; ++v) {
                    const long at = ((r * columns.count + c) * vectors + v) * lanes;
                    const Floats sum =
                        (load(four[0] + at) + load(four[1] + at)) + (load(four[2] + at) + load(four[3] + at));
                    const Floats distance = sum > floor ? sum : floor;
                    const Ints valid = load(tile.valid + c * widest + v * lanes);
                    const Ints key = (((reinterpret_cast<Ints>(distance) & ~((1 << index_bits) - 1)) | rank[v]) & valid) |
                                     (~valid & never);
                    if (!any_below(key, bound)) continue;
                    int32_t* best = tile.found + reference * tile.group;
                    for (int i = 0; i < lanes; ++i)
                        if (key[i] < best[tile.group - 1]) insert(best, tile.group, key[i]);
                    tile.bounds[reference] = bound = best[tile.group - 1];
                }
            }
        }
    }
}

template <int vectors>
void match_with(const Matching& tile) {
    const long references = static_cast<long>(tile.planes.count) * tile.rows.count * tile.columns.count;
    for (long k = 0; k < references * tile.group; ++k) tile.found[k] = never;
    for (long k = 0; k < references; ++k) tile.bounds[k] = never;
    for (int c = 0; c < tile.columns.count; ++c)
        for (int i = 0; i < widest; ++i)
            tile.valid[c * widest + i] = i >= tile.columns.first[c] && i <= tile.columns.last[c] ? -1 : 0;
    // From the middle of the window on: what is near is often alike, and leaves little to insert later.
    for (int far = 0; far <= tile.radius; ++far)
        for (int deep = tile.radius - far; deep <= tile.radius + far; ++deep)
            for (int down = tile.radius - far; down <= tile.radius + far; ++down) {
                const int a = deep - tile.radius, b = down - tile.radius;
                if ((a < 0 ? -a : a) == far || (b < 0 ? -b : b) == far) tile.channels > 1 ? match_row<vectors, true>(tile, deep, down) : match_row<vectors, false>(tile, deep, down);
            }
}

// With as few vectors as hold a row of the window.
template <int vectors>
void match(const Matching& tile) {
    if constexpr (vectors * lanes < widest)
        if (2 * tile.radius + 1 > vectors * lanes) return match<vectors + 1>(tile);
    match_with<vectors>(tile);
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const MatchKernel match_kernel = {match<1>};
}

}  // namespace plugstream::bm4d
