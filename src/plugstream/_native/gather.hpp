// Back-projection by voxels: each reads the place on every view's detector that sees it; baselines/voxel_views.py says
// what it computes.
#pragma once

#include "level.hpp"

namespace plugstream::gather {

// Data has zeros around it: one before and two after the pixels of a row, and, where there are rows, the same of rows.
// (images, views, rows + 3, columns + 3), or (images, views, columns + 3) for rows = 0.
struct Data {
    const float* values;
    long images, views, rows, columns;
};

// (images, depth, height, width)
struct Volume {
    float* values;
    long depth, height, width;
};

// To every voxel the sum over views of data at its place, linearly, over U^2, is added. Place and U follow from four
// linear forms a + b x + c y + d z of the voxel's indices, (views, 4, 4): column times scale, row times scale, scale, U.
// Of parallel beams scale and U are 1, and those forms are not looked at. What a form gives beside the detector, or
// where it is not a number, reads 0.
void add_views(const Data& data, const double* forms, bool parallel, const Volume& volume, int threads, Level level);

}  // namespace plugstream::gather
