// The inner loops of Joseph's method; joseph_rows.cpp is compiled for each instruction set.
//
// Places along a row are counted from the row's middle pixel, which keeps them small and their rounding with them, and
// are half a pixel too low: rounding such a place to the nearest integer gives the pixel below it. A ray is at
// scale q + shift on a row, q being its place where scale is 1 and shift 0.
#pragma once

#include "level.hpp"

namespace plugstream::joseph {

constexpr long margin = 48;  // zeros on either side of rows of pixels and of rays, for windows that reach beyond
constexpr int tile = 32;     // rows that `project` looks at together
constexpr int block = 16;    // pixels and rays are padded to a multiple of it

// Rays of one view that are neighbours and run the same way, and the rows that they cross.
struct Fan {
    const float *scale, *shift;  // of each row
    const float* place;          // of each ray, rising or falling; as many beyond the ends as the margin, of any value
    long count;
    // For the adjoint: how far neighbours are apart at least, how much that changes from one to the next at most (both
    // at scale 1), and the ray at a place: entries from `low` on, `rate` of them a pixel.
    float least, bend;
    const float* table;
    int entries;
    float low, rate;
};

struct Rows {
    // To the sums of `blocks` blocks of rays add their integrals over up to `tile` rows, in pixels: `image` is the first
    // pixel of the first row. Scale and shift are those of the rows.
    void (*project)(const float* image, long pitch, long width, const float* scale, const float* shift, int rows,
                    const float* place, int blocks, float* sums);
    // To a row of pixels, padded to whole blocks, add what the rays' data leave on it. `scratch` has
    // room for the width and eight blocks.
    void (*back_project)(const Fan& fan, long row, const float* data, long width, float* scratch, float* out);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows rows;)

}  // namespace plugstream::joseph
