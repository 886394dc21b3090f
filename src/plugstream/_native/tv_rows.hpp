// The inner loops of total variation, one row of an image at a time; tv_rows.cpp is compiled for each instruction set.
#pragma once

#include "level.hpp"

namespace plugstream::tv {

// A row of x carries one value more than its width, a copy of the last, so that the difference across the border is
// zero without a special case. Dual rows must be zero where a difference would cross the border.
template <class T>
struct Rows {
    // x = clip(z - strength D^T s) for one row; `above` is the row of s_down before this one.
    void (*primal)(const T* z, const T* above, const T* s_down, const T* s_across, T strength, T low, T high,
                   long width, T* x);
    // p+ = project(s + rate D x), s+ = p+ + momentum (p+ - p), both in place; `below` is the next row of x.
    void (*dual)(const T* x, const T* below, T rate, T momentum, bool isotropic, long width, T* p_down, T* p_across,
                 T* s_down, T* s_across);
    // The sum over one row of |Dx| - <Dx, p>, every term at least zero.
    double (*gap)(const T* x, const T* below, const T* p_down, const T* p_across, bool isotropic, long width);
    // The nearest dual that the gap is meant for: zero across the border, and of length at most 1.
    void (*feasible)(const T* down, const T* across, bool last, bool isotropic, long width, T* p_down, T* p_across);
    // The sum of squares of one row.
    double (*energy)(const T* z, long width);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows<float> rows32; extern const Rows<double> rows64;)

}  // namespace plugstream::tv
