// The inner loops of Joseph's method for volumes, along columns of voxels; joseph_columns.cpp is compiled for each
// instruction set.
//
// Neighbouring pixels of a column of the detector meet a plane of voxels in a vertical line, at heights
// rise * (k - rows / 2) + start for pixel k, counted from the middle voxel and half a voxel too low.
#pragma once

#include "joseph_rows.hpp"

namespace plugstream::joseph {

struct Columns {
    // To the sums of `rows` pixels, padded to whole blocks, add what they see of (1 - part) near + part far, two columns
    // of `depth` voxels with a margin of zeros on either side.
    void (*project)(const float* near, const float* far, float part, long depth, float start, float rise, long rows,
                    float* sums);
    // The transpose: add to both columns, up to whole blocks, what the pixels' data leave on them. The data has margins
    // of zeros.
    void (*back_project)(const float* data, long rows, float start, float rise, float part, long depth, float* near,
                         float* far);
    // The same where pixel k sees voxel k alone, for whole blocks: no margins are needed.
    void (*project_level)(const float* near, const float* far, float part, long rows, float* sums);
    void (*back_project_level)(const float* data, float part, long rows, float* near, float* far);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Columns columns;)

}  // namespace plugstream::joseph
