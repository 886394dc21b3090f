// Trained nonlinear reaction diffusion on a batch of images; denoisers/tnrd/model.py says what it computes.
#pragma once

#include "level.hpp"

namespace plugstream::tnrd {

// The sizes of the published models, for which the kernels are written.
constexpr int taps = 7, filters = 48, degree = 5, cells = 76;
// Filters whose taps stand together in memory, and the room for a column of seven taps.
constexpr int together = 12, column = 8;

// Contiguous arrays: images, out (count, height, width); gain (count), by which an image is multiplied to bring its
// noise to what the model was trained for, 0 to leave it as it is.
struct Batch {
    long count, height, width;
    const float *images, *gain;
    float* out;
};

// Contiguous arrays, a first axis over the stages. forward (4, 7, 7, 12): tap (a, b) of filter 12 g + k at [g, a, b, k].
// backward (48, 7, 8): tap (6 - a, 6 - b) of filter i at [i, b, a]. reaction (). table (48, 6, 76): the coefficients of
// the influence functions, as `polynomials` of denoisers/tnrd/influence.py gives them for degree 5 and step 10.
struct Model {
    int stages;
    const float *forward, *backward, *reaction, *table;
};

// Denoises every image. Neither the number of threads nor the other images change a bit of the result.
void denoise(const Batch& batch, const Model& model, int threads, Level level);

// Frees the memory that calls keep for those to come.
void forget();

}  // namespace plugstream::tnrd
