// The inner loops of the non-uniform FFT; nufft_rows.cpp is compiled for each instruction set, with the same bits in all.
#pragma once

#include "nufft.hpp"

namespace plugstream::nufft {

constexpr int most_degree = 31;
constexpr int padded = 24;  // taps in a row of coefficients, a multiple of eight

// What the loops need of a call: the coefficients padded with zeros.
struct Work {
    const Grid& grid;
    const Points& points;
    const float (*coefficients)[padded];
    int degree;
};

struct Rows {
    // The values at the points order[0], order[1], ... of all images.
    void (*read)(const Work& work, const float* cells, const int* order, long count, float* values);
    // Add what those points leave on the planes low <= a < high of the first axis of all images.
    void (*write)(const Work& work, float* cells, const int* order, long count, const float* values, long low,
                  long high);
};

// Loops for kernels of a width along the last axis, 1 to `widest`.
PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows rows[widest + 1];)

}  // namespace plugstream::nufft
