// The accelerated dual iteration of total variation on a batch of images; denoisers/tv.py says what it computes.
#pragma once

#include "level.hpp"

namespace plugstream::tv {

// An image has `components` that share their edges, each of (depth, height, width) pixels. With two axes the depth is 1
// and differences are taken down and across; with three, along the depth first.
struct Shape {
    long images, components, axes, depth, height, width;
};

// Contiguous arrays: z, x (images, components, depth, height, width); p, s (images, components, axes, depth, height,
// width); low, high (images, components) or, with `maps`, as z; strength, rate, active, gap (images); momentum (count), one
// for each iteration.
// p and s are updated in place; x and gap are written for the active images.
template <class T>
struct Batch {
    Shape shape;
    long count;
    const T *z, *strength, *rate, *momentum;
    const bool* active;
    const T *low, *high;
    bool maps;
    T *p, *s, *x;
    double* gap;
    bool isotropic;
};

// Contiguous arrays as above; warm may be null. energy, (images), is set to ||z||^2, and p and s both to the feasible
// dual nearest to warm, or to zero where there is none or z is zero.
template <class T>
struct Start {
    Shape shape;
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
