// What two rays that advance along the same axis share of the voxels; joseph_pairs.cpp is compiled for each instruction
// set.
#pragma once

#include "joseph_crossings.hpp"

namespace plugstream::joseph {

struct Pairs {
    // Of the first `count` rays of a block, each with the ray of its own number in another: the sums over all voxels of
    // the products of their weights, for steps of 1.
    void (*share)(const Bundle& one, const Bundle& other, const Planes& planes, int count, float* sums);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Pairs pairs;)

}  // namespace plugstream::joseph
