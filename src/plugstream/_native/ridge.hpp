// The proximal operator of the ridge prior on a batch of images; denoisers/ridge_prior.py says what it computes.
#pragma once

#include "level.hpp"

namespace plugstream::ridge {

// Contiguous arrays. taps (4, pairs, side, side), side = half + 1: what `fold_kernels` of denoisers/ridge_fold.py gives
// as `backward`. Its four parts are those of even filters that change under no mirror and under both, and those of odd
// filters that change downwards and across.
struct Filters {
    int half, pairs, ratios;
    const float* taps;
};

// Contiguous arrays: images, out (count, height, width); start (same) or null; active, rests (count); slopes, reaches
// (count, 2, pairs, ratios), of even and of odd filters: sigma psi'(u / sigma) = sum_j slope_j clip(u, -reach_j, reach_j);
// rates (count, 4), step and momentum of the heavy ball and of Nesterov's method; height, width >= half.
struct Batch {
    long count, height, width;
    const float *images, *start;
    const bool* active;
    const float *slopes, *reaches, *rates;
    double tol;
    long patience, most;  // iterations of the heavy ball, and of all
    float* out;
    bool* rests;
};

// Solves for every active image, and copies the others; `rests` says which came as near as tol. Neither the number of
// threads nor the other images change a bit of the result.
void solve(const Batch& batch, const Filters& filters, int threads, Level level);

// Frees the memory that calls keep for those to come.
void forget();

}  // namespace plugstream::ridge
