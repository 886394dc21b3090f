// The inner loops of TNRD, one row of an image at a time; tnrd_rows.cpp is compiled for each instruction set.
#pragma once

#include "level.hpp"

namespace plugstream::tnrd {

// Rows of 48 filters are `pitch` apart. Whole vectors are read and written: up to 15 values beyond `width` are, and
// the inputs are read 6 further than that.
struct Rows {
    // responses[i][x] = sum over (a, b) of forward[i][a][b] u[a][x + b], for x < width; u[a] = u + a pitch.
    void (*respond)(const float* u, long pitch, long width, const float* forward, float* responses);
    // Every response replaced by the value of its filter's influence function.
    void (*influence)(float* responses, long pitch, long width, const float* table);
    // To force[a][x], add the sum over (i, b) of backward[i][b][a] values[i][x + b], for x < width. force[0] is set.
    void (*spread)(const float* values, long pitch, long width, const float* backward, float* const* force);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows rows;)

}  // namespace plugstream::tnrd
