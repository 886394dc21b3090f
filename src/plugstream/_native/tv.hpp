// The exact prox of total variation for a batch of images; denoisers/tv.py says what it computes.
#pragma once

#include "level.hpp"

namespace plugstream::tv {

// An image has `components` that share their edges, each of (depth, height, width) pixels. With two axes the depth is 1
// and differences are taken down and across; with three, along the depth first.
struct Shape {
    long images, components, axes, depth, height, width;
};

// Contiguous arrays: z, x (images, components, depth, height, width); warm, p (images, components, axes, depth, height,
// width); strength, rate, gap (images); momentum (most), one for each iteration; low_map, high_map (depth, height, width).
template <class T>
struct Batch {
    Shape shape;
    const T *z, *strength, *rate;
    double low, high;                // the box
    const T *low_map, *high_map;     // the box of each pixel instead, or null
    const T* warm;                   // a dual to start near, or null for zero
    const T* momentum;
    long most, check;                // iterations at most, and between two looks at the gap
    double tol;                      // of the error, relative to ||z - mean(z)||; 0 for just `most` iterations
    bool isotropic;
    T *x, *p;                        // out
    double* gap;                     // out: of p
};

// Solves for every image, and says whether all are within the tolerance. The result has the same bits whatever the number
// of threads, the level and the other images.
template <class T>
bool solve(const Batch<T>& batch, int threads, Level level);

// Gives back the memory that is kept between calls.
void forget();

}  // namespace plugstream::tv
