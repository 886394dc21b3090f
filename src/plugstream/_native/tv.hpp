// The accelerated dual iteration of total variation on a batch of images; denoisers/tv.py says what it computes.
#pragma once

#include "level.hpp"

namespace plugstream::tv {

// Contiguous arrays: z, x (images, height, width); p, s (images, 2, height, width); strength, rate, active, gap
// (images); momentum (count), one for each iteration. p and s are updated in place; x and gap are written for the active images.
template <class T>
struct Batch {
    long images, height, width, count;
    const T *z, *strength, *rate, *momentum;
    const bool* active;
    T *p, *s, *x;
    double* gap;
    T low, high;
    bool isotropic;
};

// Contiguous arrays as above; warm may be null. energy, (images), is set to ||z||^2, and p and s both to the feasible
// dual nearest to warm, or to zero where there is none or z is zero.
template <class T>
struct Start {
    long images, height, width;
    const T *z, *warm;
    T *p, *s;
    double* energy;
    bool isotropic;
};

template <class T>
void start(const Start<T>& batch, Level level);

// Takes `count` iterations on every active image, then forms its x and its duality gap. The result has the same bits
// whatever the number of threads and the level.
template <class T>
void advance(const Batch<T>& batch, int threads, Level level);

}  // namespace plugstream::tv
