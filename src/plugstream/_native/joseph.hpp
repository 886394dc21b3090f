// Line integrals of images by Joseph's method, and their adjoint. models/ct_joseph.py is the specification.
#pragma once

#include "level.hpp"

namespace plugstream::joseph {

// The rays of some views of a 2D scan: (views, 4, 3) numbers, as `Rays.vectors` of models/ct_geometry.py has them.
struct Beam {
    const double* vectors;
    long views, columns;
    bool parallel;
    double curvature;  // infinite for a flat detector
};

// The pixels of an image; everything along y, then x.
struct Grid {
    long size[2];
    double spacing[2], origin[2];
};

// Images that lie one after the other, and their data: that of view v of image n begins at n * image + v * view.
struct Layout {
    long images, image, view;
};

// Both overwrite what they find. The number of threads changes no bit of the result.
void project(const Beam& beam, const Grid& grid, const Layout& layout, const float* images, float* data, int threads,
             Level level);
void back_project(const Beam& beam, const Grid& grid, const Layout& layout, const float* data, float* images,
                  int threads, Level level);

// Gives back the memory that is kept between calls.
void forget();

}  // namespace plugstream::joseph
