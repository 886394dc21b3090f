// BM4D on a batch of volumes; denoisers/bm4d/reference.py says what it computes.
#pragma once

#include <cstdint>
#include <functional>

#include "level.hpp"

namespace plugstream::bm4d {

// The parameters of `Profile`, and the fixed arrays, row by row.
struct Settings {
    int step[2], radius, group[2];
    double alike[2], threshold, wiener;
    const float *analysis[2], *synthesis[2];  // (4, 4) of stage 1 and of stage 2
    const float* correlations[2];             // (4, 4, 4, 64): what cubes share that are |dz|, |dy| and |dx| apart
    const float* kaiser;                      // (4): the window of three dimensions is its outer product
    const int32_t* order;                     // ((2 radius + 1)^3): the number in the window of each rank
};

// One volume. Contiguous arrays: volume, out (channels, depth, height, width), sigma (depth, height, width) or one
// number. Each axis has at least 4 voxels.
struct Volume {
    long channels, depth, height, width;
    const float *volume, *sigma;
    bool map;  // whether sigma is one
    float* out;
};

// Called now and then, by the thread that called, with the part of the work that is done; false stops it.
using Progress = std::function<bool(double)>;

// `stages` is 1 or 2. The result has the same bits whatever the number of threads. False if it was stopped.
bool denoise(const Volume& volume, const Settings& settings, int stages, int threads, Level level, const Progress& progress);

// Gives back the memory that is kept between calls.
void forget();

long references(const Volume& volume, int step);
int group_size(const Volume& volume, int radius, int wanted);

// The cubes most like each reference cube of a stage, itself first: `found` is (references, group size), of positions.
void match(const Volume& volume, const Settings& settings, int stage, Level level, int64_t* found);

}  // namespace plugstream::bm4d
