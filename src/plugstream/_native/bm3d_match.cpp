// Block matching, compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it and no contraction to fused
// multiply-adds: all forms of BM3D must find the same blocks. It calls no function of the standard library on purpose:
// an inline one compiled here for AVX-512 could be the copy that the linker keeps for everyone.
//
// Vectors run over the candidates of one row of the window. The squared differences of neighbouring reference columns
// share their sums of four, and the sums of eight of a row are shared by all reference rows that it belongs to: with a
// step of 3, a distance of 64 terms takes about 50 operations.
#include "bm3d_kernels.hpp"
#include "bm3d_select.hpp"
#include "lanes.hpp"

namespace plugstream::bm3d {
namespace {

// A few reference columns of the tile, and a few of its rows.
struct Part {
    const Matching& tile;
    int first_row, row_count, first_column, column_count;
};

// sums[c][v]: over the 8 pixels from columns[c] on, of (reference - candidate)^2, added as a tree, for the candidates
// in vector v. `reference` and `candidate` are pixel rows at columns[0], without and with the window's left margin.
template <int vectors>
PLUGSTREAM_INLINE void sum_row(const float* reference, const float* candidate, const int* columns, int count,
                               float* fours, float* sums) {
    const int length = columns[count - 1] - columns[0] + block;
    for (int v = 0; v < vectors; ++v) {
        const float* moved = candidate + v * lanes;
        auto square = [&](int x) {
            const Floats difference = load(moved + x) - reference[x];
            return difference * difference;
        };
        const Floats d0 = square(0), d1 = square(1), d2 = square(2);
        Floats two_before = d0 + d1, one_before = d1 + d2, last = d2;
#pragma GCC unroll 4
        for (int x = 3; x < length; ++x) {
            const Floats d = square(x), two = last + d;
            store(fours + (x - 3) * lanes, two_before + two);
            two_before = one_before;
            one_before = two;
            last = d;
        }
        for (int c = 0; c < count; ++c) {
            const float* at = fours + (columns[c] - columns[0]) * lanes;
            store(sums + (c * vectors + v) * lanes, load(at) + load(at + 4 * lanes));
        }
    }
}

// The same for eight columns `step` apart, all in registers.
template <int vectors, int step>
PLUGSTREAM_INLINE void sum_regular_row(const float* reference, const float* candidate, float* sums) {
    constexpr int length = (columns_at_once - 1) * step + block;
    for (int v = 0; v < vectors; ++v) {
        Floats one[length], two[length], four[length];
        repeat<length>([&](auto k) __attribute__((always_inline)) {
            constexpr int x = decltype(k)::value;
            const Floats difference = load(candidate + v * lanes + x) - reference[x];
            one[x] = difference * difference;
            if constexpr (x >= 1) two[x - 1] = one[x - 1] + one[x];
            if constexpr (x >= 3) four[x - 3] = two[x - 3] + two[x - 1];
            if constexpr (x >= 7 && (x - 7) % step == 0)
                store(sums + ((x - 7) / step * vectors + v) * lanes, four[x - 7] + four[x - 3]);
        });
    }
}

// The keys of all candidates of the part's references: keys (rows, columns, row of the window, column of the window).
template <int vectors>
void form_keys(const Part& part) {
    const Matching& tile = part.tile;
    const int span = 2 * tile.radius + 1, count = part.column_count;
    const int *columns = tile.columns + part.first_column, *rows = tile.rows + part.first_row;
    const int *top = tile.top + part.first_row, *bottom = tile.bottom + part.first_row;
    constexpr int width = vectors * lanes;
    const long window = static_cast<long>(span) * width;
    float* const ring = tile.sums;
    float* const fours = ring + block * columns_at_once * width;
    bool regular = count == columns_at_once;
    for (int c = 1; c < count; ++c) regular = regular && columns[c] - columns[c - 1] == columns[1] - columns[0];
    const int step = regular ? columns[1] - columns[0] : 0;
    alignas(64) int32_t keep[columns_at_once * width], number[columns_at_once * width];
    for (int c = 0; c < count; ++c)
        for (int i = 0; i < width; ++i) {
            const bool inside = i >= tile.left[part.first_column + c] && i <= tile.right[part.first_column + c];
            keep[c * width + i] = inside ? ~((1 << index_bits) - 1) : 0;
        }
    alignas(64) float added[width] = {};
    for (int down = 0; down < span; ++down) {
        if (tile.offsets != nullptr)
            for (int i = 0; i < span; ++i) added[i] = tile.offsets[down * span + i];
        // key = distance & keep | number
        for (int c = 0; c < count; ++c)
            for (int i = 0; i < width; ++i)
                number[c * width + i] = keep[c * width + i] != 0 ? down * span + i : never;
        const long moved = (down - tile.radius) * tile.pitch;
        int next = 0;  // the first row of pixels whose sums are not in the ring
        for (int r = 0; r < part.row_count; ++r) {
            if (down < top[r] || down > bottom[r]) continue;
            const int row = rows[r];
            for (next = next > row ? next : row; next < row + block; ++next) {
                const float* candidate = tile.guide + next * tile.pitch + columns[0];
                const float *reference = candidate + tile.radius, *other = candidate + moved;
                float* sums = ring + (next % block) * count * width;
                if (step == 3)  // the steps of the profiles that have names
                    sum_regular_row<vectors, 3>(reference, other, sums);
                else if (step == 4)
                    sum_regular_row<vectors, 4>(reference, other, sums);
                else
                    sum_row<vectors>(reference, other, columns, count, fours, sums);
            }
            const float* eight[block];
            for (int i = 0; i < block; ++i) eight[i] = ring + ((row + i) % block) * count * width;
            for (int c = 0; c < count; ++c)
                for (int v = 0; v < vectors; ++v) {
                    const int at = (c * vectors + v) * lanes;
                    Floats distance =
                        ((load(eight[0] + at) + load(eight[1] + at)) + (load(eight[2] + at) + load(eight[3] + at))) +
                        ((load(eight[4] + at) + load(eight[5] + at)) + (load(eight[6] + at) + load(eight[7] + at)));
                    if (tile.offsets != nullptr) distance += load(added + v * lanes);
                    const Ints key = (reinterpret_cast<Ints>(distance) & load(keep + at)) | load(number + at);
                    store(tile.keys + (r * columns_at_once + c) * window + down * width + v * lanes, key);
                }
        }
    }
}

template <int vectors>
void match_with(const Matching& tile) {
    const int span = 2 * tile.radius + 1, itself = tile.radius * span + tile.radius;
    constexpr int width = vectors * lanes;
    for (int r = 0; r < tile.row_count; r += rows_at_once)
        for (int c = 0; c < tile.column_count; c += columns_at_once) {
            const int rows = tile.row_count - r < rows_at_once ? tile.row_count - r : rows_at_once;
            const int columns = tile.column_count - c < columns_at_once ? tile.column_count - c : columns_at_once;
            form_keys<vectors>({tile, r, rows, c, columns});
            for (int i = 0; i < rows; ++i)
                for (int j = 0; j < columns; ++j) {
                    int32_t* keys = tile.keys + (i * columns_at_once + j) * static_cast<long>(span) * width;
                    int32_t* out = tile.found + ((r + i) * static_cast<long>(tile.column_count) + c + j) * tile.group;
                    keys[tile.radius * width + tile.radius] = -1;
                    const int top = tile.top[r + i], inside = tile.bottom[r + i] - top + 1;
                    smallest<vectors>(keys + top * width, inside, tile.group, tile.candidates, out);
                    out[0] = itself;
                    for (int k = 1; k < tile.group; ++k) out[k] &= (1 << index_bits) - 1;
                }
        }
}

// Rows of the window are padded to 16, 32 or 48 candidates.
void match(const Matching& tile) {
    constexpr int sixteen = 16 / lanes;
    const int span = 2 * tile.radius + 1;
    if (span <= 16)
        match_with<sixteen>(tile);
    else if (span <= 32)
        match_with<2 * sixteen>(tile);
    else
        match_with<3 * sixteen>(tile);
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const MatchKernel match_kernel = {match};
}

}  // namespace plugstream::bm3d
