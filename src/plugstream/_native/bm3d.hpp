// BM3D on a batch of images; denoisers/bm3d/reference.py says what it computes.
#pragma once

#include <cstdint>

#include "level.hpp"

namespace plugstream::bm3d {

// The parameters of `Profile`, and the fixed matrices, row by row.
struct Settings {
    int step, radius, group[2];
    double threshold, wiener;
    const float *analysis[2], *synthesis[2];  // (8, 8) of stage 1 and of stage 2
    const float* correlations[2];             // (8, 8, 64): what blocks share that are |dy| and |dx| apart
    const float* kaiser;                      // (8): the window of two dimensions is its outer product
    // Images of the batch that share their groups, found on the first of them.
    int channels = 1;
    // Noise that is not white: of each stage, for one or for each of the channels, what spectra share that are dy =
    // 0 .. reach and dx = -reach .. reach apart, (tables, reach + 1, 2 reach + 1, 64), and what is added to the
    // distance of each candidate of the window, (2 radius + 1)^2 numbers; `correlations` is then not read.
    int reach = 0, tables = 0;
    const float* shared[2] = {nullptr, nullptr};
    const float* offsets[2] = {nullptr, nullptr};
};

// Contiguous arrays: images, out (count, height, width), sigma (count). height and width are at least 8.
struct Batch {
    long count, height, width;
    const float *images, *sigma;
    float* out;
};

// `stages` is 1 or 2, or 3 for the second alone, with the basic estimate in out. The result has the same bits whatever the number of threads, and whatever the batch.
void denoise(const Batch& batch, const Settings& settings, int stages, int threads, Level level);

// Gives back the memory that is kept between calls.
void forget();

long references(long height, long width, int step);
int group_size(long height, long width, int radius, int wanted);

// The blocks most like each reference block, itself first: `found` is (references, group size), of row * (width - 7) +
// column.
void match(const float* guide, long height, long width, const Settings& settings, int wanted, Level level,
           int64_t* found);

}  // namespace plugstream::bm3d
