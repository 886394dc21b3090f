// Block matching, compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it and no contraction to fused
// multiply-adds: all forms of BM3D must find the same blocks. It calls no function of the standard library on purpose:
// an inline one compiled here for AVX-512 could be the copy that the linker keeps for everyone.
//
// Vectors run over the candidates of a row of the window, or of two rows. The squared differences of neighbouring reference columns
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

// The candidates of a row of the window, in so many vectors; `step` is that of the profile with a name which has such
// windows, for which there is a loop of its own, or 0.
template <int count>
struct OneRow {
    static constexpr int rows = 1, vectors = count, step = count * lanes == 32 ? 4 : lanes < 16 ? 3 : 0;
    const float *first, *second;  // pixels of the rows; there is no second
    static constexpr int place(int, int column) { return column; }
    static constexpr int row(int) { return 0; }
    static constexpr int column(int place) { return place; }
    // Vector v at pixel x of the candidates' blocks.
    template <int v>
    PLUGSTREAM_INLINE Floats at(int x) const {
        return load(first + v * lanes + x);
    }
};

#if defined(__AVX512F__)
// Of two rows with 33 to 40 candidates, whose last eight share a vector: five vectors, not six.
struct TwoRows {
    static constexpr int rows = 2, vectors = 5, step = 3, whole = 2 * lanes, rest = lanes / 2;
    const float *first, *second;
    static constexpr int place(int row, int column) {
        return column < whole ? row * whole + column : 2 * whole + row * rest + column - whole;
    }
    static constexpr int row(int place) { return place < 2 * whole ? place / whole : (place - 2 * whole) / rest; }
    static constexpr int column(int place) { return place < 2 * whole ? place % whole : whole + place % rest; }
    template <int v>
    PLUGSTREAM_INLINE Floats at(int x) const {
        if constexpr (v < 4)
            return load((v < 2 ? first : second) + v % 2 * lanes + x);
        else
            return (Floats)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(first + whole + x)),
                                              _mm256_loadu_ps(second + whole + x), 1);
    }
};
#endif

// sums[c][v]: over the 8 pixels from columns[c] on, of (reference - candidate)^2, added as a tree, for the candidates
// in vector v. `reference` and the candidates are pixel rows at columns[0], without and with the window's left margin.
template <class Candidates>
PLUGSTREAM_INLINE void sum_row(const float* reference, const Candidates& candidates, const int* columns, int count,
                               float* fours, float* sums) {
    const int length = columns[count - 1] - columns[0] + block;
    repeat<Candidates::vectors>([&](auto k) __attribute__((always_inline)) {
        constexpr int v = decltype(k)::value;
        auto square = [&](int x) __attribute__((always_inline)) {
            const Floats difference = candidates.template at<v>(x) - reference[x];
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
            store(sums + (c * Candidates::vectors + v) * lanes, load(at) + load(at + 4 * lanes));
        }
    });
}

// The same for eight columns Candidates::step apart, all in registers.
template <class Candidates>
PLUGSTREAM_INLINE void sum_regular_row(const float* reference, const Candidates& candidates, float* sums) {
    constexpr int step = Candidates::step;
    constexpr int length = (columns_at_once - 1) * step + block;
    repeat<Candidates::vectors>([&](auto w) __attribute__((always_inline)) {
        constexpr int v = decltype(w)::value;
        Floats one[length], two[length], four[length];
        repeat<length>([&](auto k) __attribute__((always_inline)) {
            constexpr int x = decltype(k)::value;
            const Floats difference = candidates.template at<v>(x) - reference[x];
            one[x] = difference * difference;
            if constexpr (x >= 1) two[x - 1] = one[x - 1] + one[x];
            if constexpr (x >= 3) four[x - 3] = two[x - 3] + two[x - 1];
            if constexpr (x >= 7 && (x - 7) % step == 0)
                store(sums + ((x - 7) / step * Candidates::vectors + v) * lanes, four[x - 7] + four[x - 3]);
        });
    });
}

// The keys of all candidates of the part's references: keys (rows, columns, rows of candidates, their vectors).
template <class Candidates>
void form_keys(const Part& part) {
    const Matching& tile = part.tile;
    const int span = 2 * tile.radius + 1, count = part.column_count, turns = (span + Candidates::rows - 1) / Candidates::rows;
    const int *columns = tile.columns + part.first_column, *rows = tile.rows + part.first_row;
    const int *top = tile.top + part.first_row, *bottom = tile.bottom + part.first_row;
    constexpr int vectors = Candidates::vectors, width = vectors * lanes;
    const long window = static_cast<long>(turns) * width;
    float* const ring = tile.sums;
    float* const fours = ring + block * columns_at_once * width;
    bool regular = count == columns_at_once;
    for (int c = 1; c < count; ++c) regular = regular && columns[c] - columns[c - 1] == columns[1] - columns[0];
    const int step = regular ? columns[1] - columns[0] : 0;
    alignas(64) int32_t keep[columns_at_once * width], number[columns_at_once * width], hide[2][width];
    for (int i = 0; i < width; ++i)
        for (int row = 0; row < 2; ++row) hide[row][i] = Candidates::row(i) == row ? never : 0;
    for (int c = 0; c < count; ++c)
        for (int i = 0; i < width; ++i) {
            const int column = Candidates::column(i);
            const bool inside = column >= tile.left[part.first_column + c] && column <= tile.right[part.first_column + c];
            keep[c * width + i] = inside ? ~((1 << index_bits) - 1) : 0;
        }
    int last_pixels = 0;  // that a candidate within the image has
    for (int r = 0; r < part.row_count; ++r) {
        const int last = rows[r] + bottom[r] - tile.radius + block - 1;
        last_pixels = last > last_pixels ? last : last_pixels;
    }
    alignas(64) float added[width] = {};
    for (int turn = 0; turn < turns; ++turn) {
        const int down = turn * Candidates::rows;
        if (tile.offsets != nullptr)
            for (int i = 0; i < width; ++i) {
                const int row = down + Candidates::row(i), column = Candidates::column(i);
                added[i] = row < span && column < span ? tile.offsets[row * span + column] : 0;
            }
        // key = distance & keep | number
        for (int c = 0; c < count; ++c)
            for (int i = 0; i < width; ++i) {
                const int row = down + Candidates::row(i);
                number[c * width + i] = keep[c * width + i] != 0 && row < span ? row * span + Candidates::column(i) : never;
            }
        // Of two rows one may be outside: its pixels are those of another, and its keys are hidden.
        auto pixels = [&](int row) {
            row = row < 0 ? 0 : row > last_pixels ? last_pixels : row;
            return tile.guide + row * tile.pitch + columns[0];
        };
        int next = 0;  // the first row of pixels whose sums are not in the ring
        for (int r = 0; r < part.row_count; ++r) {
            if (down + Candidates::rows - 1 < top[r] || down > bottom[r]) continue;
            const int row = rows[r];
            for (next = next > row ? next : row; next < row + block; ++next) {
                const float* reference = tile.guide + next * tile.pitch + columns[0] + tile.radius;
                const int moved = next + down - tile.radius;
                const Candidates candidates = {pixels(moved), pixels(moved + Candidates::rows - 1)};
                float* sums = ring + (next % block) * count * width;
                if constexpr (Candidates::step > 0)
                    if (step == Candidates::step) {
                        sum_regular_row(reference, candidates, sums);
                        continue;
                    }
                sum_row(reference, candidates, columns, count, fours, sums);
            }
            const float* eight[block];
            for (int i = 0; i < block; ++i) eight[i] = ring + ((row + i) % block) * count * width;
            const int32_t* hidden = nullptr;
            if (Candidates::rows == 2 && (down < top[r] || down + 1 > bottom[r])) hidden = hide[down < top[r] ? 0 : 1];
            for (int c = 0; c < count; ++c)
                for (int v = 0; v < vectors; ++v) {
                    const int at = (c * vectors + v) * lanes;
                    Floats distance =
                        ((load(eight[0] + at) + load(eight[1] + at)) + (load(eight[2] + at) + load(eight[3] + at))) +
                        ((load(eight[4] + at) + load(eight[5] + at)) + (load(eight[6] + at) + load(eight[7] + at)));
                    if (tile.offsets != nullptr) distance += load(added + v * lanes);
                    Ints key = (reinterpret_cast<Ints>(distance) & load(keep + at)) | load(number + at);
                    if (Candidates::rows == 2 && hidden != nullptr) key |= load(hidden + v * lanes);
                    store(tile.keys + (r * columns_at_once + c) * window + turn * width + v * lanes, key);
                }
        }
    }
}

template <class Candidates>
void match_with(const Matching& tile) {
    const int span = 2 * tile.radius + 1, itself = tile.radius * span + tile.radius;
    constexpr int width = Candidates::vectors * lanes, height = Candidates::rows;
    const long window = static_cast<long>((span + height - 1) / height) * width;
    const int own = tile.radius / height * width + Candidates::place(tile.radius % height, tile.radius);
    for (int r = 0; r < tile.row_count; r += rows_at_once)
        for (int c = 0; c < tile.column_count; c += columns_at_once) {
            const int rows = tile.row_count - r < rows_at_once ? tile.row_count - r : rows_at_once;
            const int columns = tile.column_count - c < columns_at_once ? tile.column_count - c : columns_at_once;
            form_keys<Candidates>({tile, r, rows, c, columns});
            for (int i = 0; i < rows; ++i)
                for (int j = 0; j < columns; ++j) {
                    int32_t* keys = tile.keys + (i * columns_at_once + j) * window;
                    int32_t* out = tile.found + ((r + i) * static_cast<long>(tile.column_count) + c + j) * tile.group;
                    keys[own] = -1;
                    const int top = tile.top[r + i] / height, inside = tile.bottom[r + i] / height - top + 1;
                    smallest<Candidates::vectors>(keys + top * width, inside, tile.group, tile.candidates, out);
                    out[0] = itself;
                    for (int k = 1; k < tile.group; ++k) out[k] &= (1 << index_bits) - 1;
                }
        }
}

// Rows of the window are padded to 32 or 48 candidates, or two rows to 80.
void match(const Matching& tile) {
    constexpr int sixteen = 16 / lanes;
    const int span = 2 * tile.radius + 1;
    if (span <= 32)
        match_with<OneRow<2 * sixteen>>(tile);
#if defined(__AVX512F__)
    else if (span <= TwoRows::whole + TwoRows::rest)
        match_with<TwoRows>(tile);
#endif
    else
        match_with<OneRow<3 * sixteen>>(tile);
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const MatchKernel match_kernel = {match};
}

}  // namespace plugstream::bm3d
