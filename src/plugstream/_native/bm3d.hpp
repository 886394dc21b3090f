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
};

// Contiguous arrays: images, out (count, height, width), sigma (count). height and width are at least 8.
struct Batch {
    long count, height, width;
    const float *images, *sigma;
    float* out;
};

// `stages` is 1 or 2. The result has the same bits whatever the number of threads, and whatever the batch.
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
