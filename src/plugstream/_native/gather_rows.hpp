// The inner loops of back-projection by voxels, a row of them at a time; gather_rows.cpp is compiled for each
// instruction set.
#pragma once

#include "level.hpp"

namespace plugstream::gather {

// A linear form along a row of voxels.
struct Form {
    float start, step;
};

// One view's, for one row of voxels.
struct Line {
    Form column, row, scale, depth;
};

// To out[x], x < width, is added what data shows there. Data begins with its padding, rows are `pitch` apart.
struct Rows {
    void (*parallel)(const float* data, long columns, const Line& line, long width, float* out);
    void (*fan)(const float* data, long columns, const Line& line, long width, float* out);
    void (*cone)(const float* data, long rows, long columns, const Line& line, long width, float* out);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows rows;)

}  // namespace plugstream::gather
