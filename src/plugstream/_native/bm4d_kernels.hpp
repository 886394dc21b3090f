// The inner loops of BM4D on one tile of a volume; bm4d_match.cpp and bm4d_filter.cpp are compiled for each instruction
// set. A tile is a box of reference cubes with all the cubes that their windows reach.
#pragma once

#include <cstdint>

#include "bm3d_kernels.hpp"
#include "level.hpp"

namespace plugstream::bm4d {

constexpr int block = 4;
constexpr int coefficients = block * block * block;
constexpr int index_bits = 12;           // of a key; the rest are the distance's
constexpr int widest = 16;               // numbers in a row of the widest window, padded to whole vectors
constexpr float least_level = 0x1p-12f;  // as in the reference
using bm3d::Groups;
using bm3d::never;

// The references of a tile along one axis: where each begins in `guide`, and which of its window are inside.
struct Along {
    const int *at, *first, *last;
    int count;
};

struct Matching {
    const float* guide;  // (channels, planes, rows, pitch) of the tile; a row begins `radius` before the first reference
    long channel, plane, pitch;
    int channels, radius, group;
    Along planes, rows, columns;
    const int32_t* ranks;  // (2 radius + 1)^2 rows of `widest`: the rank of each candidate
    const float* floors;   // of each reference: the distance below which candidates go by rank
    // What the loops need for themselves: 4 x 16 numbers for each reference of a line, and of a plane;
    // 16 for each column of references; one for each reference.
    float *lines, *sums;
    int32_t *valid, *bounds;
    // Out: the keys of the group of each reference, the smallest first, (planes, rows, columns, group).
    int32_t* found;
};

struct MatchKernel {
    void (*match)(const Matching& tile);
};

// A box of positions in a volume, and the voxels of their cubes.
struct Box {
    long planes, rows, columns;
};

struct FilterKernels {
    // The transform along the three axes of the cube at each position of a box; spectra are 64 numbers each. `ring` has
    // 64 rows columns + 16 columns numbers.
    void (*forward)(const float* volume, long plane, long pitch, const Box& box, const float* analysis, float* ring,
                    float* spectra);
    // Each cube, its transform undone, times the window, added up: `top` has the box's voxels, `bottom` the same for the
    // weights. Sets spectra and weights to zero. `ring` as before, and rows of 32 more numbers than columns.
    void (*inverse)(float* spectra, float* weights, const Box& box, const float* synthesis, const float* kaiser,
                    float* ring, float* top, float* bottom);
    void (*threshold)(const float* noisy, const Groups& groups, float threshold, float* total, float* weights);
    void (*wiener)(const float* noisy, const float* guide, const Groups& groups, float noise, float* total,
                   float* weights);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const MatchKernel match_kernel; extern const FilterKernels filter_kernels;)

}  // namespace plugstream::bm4d
