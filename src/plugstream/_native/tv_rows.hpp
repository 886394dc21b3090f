// The inner loops of total variation, one row of an image at a time; tv_rows.cpp is compiled for each instruction set.
#pragma once

#include "level.hpp"

namespace plugstream::tv {

// How the arrays of a row lie. A row of x has `components` parts of width + 1 values each, one after the other; the last
// value is a copy of the one before, so that the difference across the border is zero without a special case. A dual has
// components x axes rows, `field` values apart. Axes are, from the slowest: outer, middle (with three axes only), across.
// A dual must be zero where a difference would cross the border. `scratch` has 2 x width values.
template <class T>
struct Layout {
    long components, axes, width, field;
    bool isotropic;
    T* scratch;
};

// Rows of x: this one, and the next along the middle and the outer axis (this one again at the end of an axis).
template <class T>
struct Near {
    const T *x, *middle, *outer;
};

template <class T>
struct Rows {
    // x = clip(z - strength D^T s) for one component of a row. outer_before and middle_before are the rows of those duals
    // before this one; middle and middle_before are null with two axes. low and high have one value, or where `maps` is
    // true one for each pixel of the row.
    void (*primal)(const T* z, const T* outer_before, const T* outer, const T* middle_before, const T* middle,
                   const T* across, T strength, const T* low, const T* high, bool maps, long width, T* x);
    // p+ = project(s + rate D x), s+ = p+ + momentum (p+ - p), both in place.
    void (*dual)(const Layout<T>& layout, const Near<T>& near, T rate, T momentum, T* p, T* s);
    // The sum over one row of |Dx| - <Dx, p>, every term at least zero.
    double (*gap)(const Layout<T>& layout, const Near<T>& near, const T* p);
    // The nearest dual that the gap is meant for: zero across the border, and of length at most 1. last_outer and
    // last_middle: whether the row is the last along that axis.
    void (*feasible)(const Layout<T>& layout, const T* warm, bool last_outer, bool last_middle, T* p);
    // The sum of squares of one component of a row.
    double (*energy)(const T* z, long width);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows<float> rows32; extern const Rows<double> rows64;)

}  // namespace plugstream::tv
