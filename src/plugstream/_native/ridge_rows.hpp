// The inner loops of the ridge prior, one row of an image at a time; ridge_rows.cpp is compiled for each instruction set.
#pragma once

#include "level.hpp"

namespace plugstream::ridge {

// A row is cut into as many strips as a vector has lanes. Vector c of a row holds column c of every strip, so that a
// shift across is a shift by whole vectors. `half` vectors more at either end hold what lies beside the strips.
struct Strips {
    long width, columns, vectors;  // pixels of the row; columns of a strip, an even number, and with those beside it
    long pitch;                    // values from one row to the next
    int half;
};

// Filters as the loops read them, and profiles of one image. `block` filters, an even number, are done at once; `blocks` of
// them are all, with zeros at the end. forward: for even and odd filters and each block, the taps that do not change
// across, (a, b), and those that do, `block` values each. backward: for rows that do not change downwards and those that do, for each a,
// the taps (pairs, half + 1) that do not change across, and (pairs, half) that do.
struct Prior {
    int half, pairs, ratios, block, blocks;
    const float *forward, *backward;
    const float *slopes, *reaches;  // (2, pairs, ratios)
};

// A stretch of a row whose values are those of another.
struct Run {
    long beside, inside, length;
};

// One row of an iteration: x, z, the gradient, and where the next x goes, which holds the one before x for the heavy
// ball. Nesterov's method keeps its own point in `kept`, which is x where it begins.
struct Step {
    const float *x, *z;
    float *gradient, *next, *kept;
    float rate, momentum;
    bool heavy_ball, begins;
};

struct Rows {
    int lanes, most_filters;  // of a vector, and of a block
    // Values of `scratch` that `spread` needs.
    long (*scratch)(const Prior& prior, const Strips& strips);
    // From the rows around a row, rows[-half] .. rows[half], what it gives to the gradient there, added to gradient[-half]
    // .. gradient[half], where a null takes nothing.
    void (*spread)(const Prior& prior, const Strips& strips, const float* const* rows, float* const* gradient,
                   float* scratch);
    // Completes the gradient and takes the step; the sum of squares of x - z + gradient. The gradient is zero after it.
    double (*step)(const Step& step, const Strips& strips, const Run* runs, long count);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows rows;)

}  // namespace plugstream::ridge
