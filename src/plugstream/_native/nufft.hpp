// Reading and writing the cells of a non-uniform FFT around points: plugstream/models/nufft_points.py says what is
// computed.
#pragma once

#include "level.hpp"

namespace plugstream::nufft {

constexpr int widest = 17;  // cells that a point touches along an axis

// Complex cells, real and imaginary part one behind the other, (images, size[0], size[1], size[2]).
struct Grid {
    long images;
    long size[3];
};

// Points: the first cell that each touches along the three axes, and how far that lies inside the kernel's support.
struct Points {
    long count;
    const int* first;              // (count, 3)
    const float* offset;           // (count, 3)
    const unsigned char* flipped;  // (count), whose values are conjugated; null for none
    int width[3];                  // of the cells: each 1, or the width of the kernel; the last one is none narrower
};

// The kernel's weights as polynomials in 2 offset - 1, lowest power first, (degree + 1, width).
struct Taps {
    const float* coefficients;
    int degree;
    int width;
};

// What is wrong with a call, or null: every cell that a point touches must be there.
const char* fault(const Grid& grid, const Points& points, const Taps& taps);

void read(const Grid& grid, const Points& points, const Taps& taps, const float* cells, float* values, int threads,
          Level level);
void write(const Grid& grid, const Points& points, const Taps& taps, const float* values, float* cells, int threads,
           Level level);

// A sparse matrix in rows, of real numbers, with which complex vectors are multiplied; their imaginary parts times
// column_sign before that and row_sign after it, where these are not null. Every index must be that of a column.
template <class T>
struct Table {
    long images, rows, columns;
    const int *starts, *index;  // (rows + 1), (entries)
    const T *values, *row_sign, *column_sign;
};

// What is wrong with where rows start, or null.
template <class T>
const char* fault(const Table<T>& table, long entries);

// (images, columns, 2) to (images, rows, 2). The number of threads changes no bit.
template <class T>
void multiply(const Table<T>& table, const T* vectors, T* out, int threads);

}  // namespace plugstream::nufft
