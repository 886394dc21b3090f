// The inner loops of BM3D on one tile of an image; bm3d_match.cpp and bm3d_filter.cpp are compiled for each instruction
// set. A tile is a rectangle of reference blocks with all the blocks that their windows reach.
#pragma once

#include <cstdint>

#include "level.hpp"

namespace plugstream::bm3d {

constexpr int block = 8;
constexpr int coefficients = block * block;
constexpr int index_bits = 11;        // of a key; the rest are the distance's
constexpr int widest = 48;            // numbers in a row of the widest window, padded to whole vectors,
constexpr int widest_two = 80;        // and in two rows that share a vector
constexpr int longest = 45;           // rows of the highest window
constexpr int columns_at_once = 8;    // reference columns matched together, so that they share sums
constexpr int rows_at_once = 24;      // and rows: as many as leave the keys in an L2 cache of 2 MB
constexpr float least_variance = 1e-3f;  // as in the reference
constexpr int32_t never = INT32_MAX;  // the key of a candidate outside the image

struct Matching {
    const float* guide;  // pixels of the tile, padded so that row + [0, widest + 8) can be read from every window
    long pitch;
    int radius, group;
    const float* offsets;  // added to the distances, a number for each candidate; may be null
    // Of each reference row: its first pixel row in `guide`, and which rows of its window (0 .. 2 radius) are inside.
    const int *rows, *top, *bottom;
    // Of each reference column: where its window begins in a row of `guide`, and which columns of it are inside.
    const int *columns, *left, *right;
    int row_count, column_count;
    // What the loops need for themselves; see the sizes below. 64-byte aligned.
    int32_t* keys;
    float* sums;
    int32_t* candidates;
    // Out: the numbers (row by row in the window) of the group of each reference, best first, (rows, columns, group).
    int32_t* found;
};

constexpr long keys_size = long{columns_at_once} * rows_at_once * longest * widest;
constexpr long sums_size = (long{block} * columns_at_once + 1 + columns_at_once * block + 2 * block) * widest_two;
constexpr long candidates_size = longest * widest + 64;

struct MatchKernel {
    void (*match)(const Matching& tile);
};

// Spectra are 64 numbers for each position, positions row by row.
struct Groups {
    const int32_t* positions;  // (count, size)
    long count;
    int size;
    long across;                // positions in a row
    const float* correlations;  // (8, 8, 64): what blocks share that are |dy| and |dx| apart
    // Of volumes only, whose correlations are (4, 4, 4, 64): positions in a plane, and each group's share of the noise.
    long plane = 0;
    const float* levels = nullptr;
    int reach = 0;              // if not 0, `correlations` is (reach + 1, 2 reach + 1, 64), of dy >= 0 and dx
};

struct FilterKernels {
    // A b A^T of the block at each of rows x columns positions. `ring` has 64 columns numbers.
    void (*forward)(const float* image, long pitch, long rows, long columns, const float* analysis, float* ring,
                    float* spectra);
    // Each block as S c S^T times the window, added up: `top` is (rows + 7, columns + 7), `bottom` the same for the
    // weights. Sets spectra and weights to zero. `ring` has 64 columns + 2 (columns + 32) numbers.
    void (*inverse)(float* spectra, float* weights, long rows, long columns, const float* synthesis,
                    const float* kaiser, float* ring, float* top, float* bottom);
    // Filters groups and adds them, weighted, to `total` and `weights`.
    void (*threshold)(const float* noisy, const Groups& groups, float threshold, float* total, float* weights);
    void (*wiener)(const float* noisy, const float* guide, const Groups& groups, float noise, float* total,
                   float* weights);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const MatchKernel match_kernel; extern const FilterKernels filter_kernels;)

}  // namespace plugstream::bm3d
