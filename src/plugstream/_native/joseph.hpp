// Line integrals of images by Joseph's method, and their adjoint. models/ct_joseph.py is the specification.
#pragma once

#include "level.hpp"

namespace plugstream::joseph {

// The rays of some views, (views, 4, 3) numbers as `Rays.vectors` of models/ct_geometry.py has them.
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

// The voxels of a volume; everything along z, y, then x.
struct Box {
    long size[3];
    double spacing[3], origin[3];
};

// Volumes, (D, H, W), and their data, (views, rows, columns), of detectors whose columns are vertical (v along z) and
// whose rows are horizontal (u without z), for rays that advance along y or x.
void project_volume(const Beam& beam, long rows, const Box& box, const float* volume, float* data, int threads,
                    Level level);
void back_project_volume(const Beam& beam, long rows, const Box& box, const float* data, float* volume, int threads,
                         Level level);

// The same for rays in any direction from flat detectors in any position, and volumes of fewer than 2^31 voxels.
void project_oblique(const Beam& beam, long rows, const Box& box, const float* volume, float* data, int threads,
                     Level level);
void back_project_oblique(const Beam& beam, long rows, const Box& box, const float* data, float* volume, int threads,
                          Level level);

// The rays of one view, (rows, columns), as `Lines` of models/ct_lines.py has them: the axis along which each advances,
// and along every axis its place on plane 0 and the way to the next one. Arrays of numbers have 16 more at their end, of
// any value; `pitch` is the length of a row of start and slope.
struct Crossed {
    long rows, columns, pitch;
    const int* axis;
    const float *start, *slope, *step;
};

// (A A')_{j, j + d} for every ray j and `count` offsets d, each of rows and columns: bands (count, rows, columns), 0
// where there is no such ray. A volume has `size` voxels along z, y and x.
void find_overlaps(const Crossed& lines, const long (&size)[3], const int* offsets, long count, float* bands,
                   int threads, Level level);

// Gives back the memory that is kept between calls.
void forget();

}  // namespace plugstream::joseph
