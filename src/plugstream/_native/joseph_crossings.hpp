// The inner loops of Joseph's method for rays in any direction through a volume; joseph_crossings.cpp is compiled for
// each instruction set.
#pragma once

#include "joseph_rows.hpp"

namespace plugstream::joseph {

// The planes of a volume that are perpendicular to one axis, and the two axes within them.
struct Planes {
    long count, stride;
    long size[2], strides[2];
};

// A block of rays that advance along that axis: their places on plane 0 and from plane to plane, along both axes.
struct Bundle {
    const float *start[2], *slope[2];
};

struct Crossings {
    // To the sums of a block of rays add what they see on the planes.
    void (*project)(const float* volume, const Planes& planes, const Bundle& rays, float* sums);
    // The transpose on one plane: add what the rays' data leave there.
    void (*back_project)(const float* data, const Planes& planes, const Bundle& rays, long plane, float* volume);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Crossings crossings;)

}  // namespace plugstream::joseph
