// Non-local means as a symmetric, doubly stochastic matrix; denoisers/nlm/reference.py says what it computes.
#pragma once

#include "level.hpp"

namespace plugstream::nlm {

struct Shape {
    long height, width;
    int search, patch;
};

// W = diag(scale) A diag(scale) + diag(rest), where A has ones on its diagonal. Of its other entries one half is kept,
// those of a pixel with the pixels after it: `affinity` has `size(shape)` numbers in an order of its own. scale, rest
// (height, width).
struct Matrix {
    float *affinity, *scale, *rest;
};

// How many numbers `affinity` has.
long size(const Shape& shape);

// Forms the matrix of a guide, (height, width): affinities exp(-rate ||P_s - P_r||^2) times the pyramid, with `balance`
// steps of balancing. Where the matrix is made of null pointers, memory of our own is used and it is lost. Where image is
// not null, out = W image, both (height, width).
// The number of threads changes no bit of the result, here and below.
void form(const Shape& shape, const float* guide, float rate, int balance, const Matrix& matrix, const float* image,
          float* out, int threads, Level level);

// out = W image for a matrix that was formed.
void apply(const Shape& shape, const Matrix& matrix, const float* image, float* out, int threads, Level level);

// Frees the memory that calls keep for those to come.
void forget();

}  // namespace plugstream::nlm
