// How an image is cut into tiles, and what a thread needs for one.
#pragma once

#include <vector>

#include "bm3d.hpp"
#include "bm3d_kernels.hpp"
#include "memory.hpp"

namespace plugstream::bm3d {

// Reference blocks first .. end - 1 along one axis, and the block positions from .. to - 1 that their windows reach.
struct Range {
    int first, end;
    long from, to;
};

// One axis of the image, or volume: where reference blocks of this side begin, and how they are cut. Nothing here depends
// on the number of threads, so that the result does not.
struct Axis {
    long positions;
    std::vector<int> references;
    std::vector<Range> ranges;
    long most_positions = 0;
    int most_references = 0;

    Axis(long size, int step, int radius, int at_most, int side = block);
};

struct Tiling {
    Axis down, across;
    std::vector<long> offsets;  // of each tile's sums among those of all tiles of an image
    long sums;                  // numbers in the sums of all tiles of an image

    Tiling(long height, long width, const Settings& settings);

    long count() const { return static_cast<long>(down.ranges.size() * across.ranges.size()); }
    const Range& rows(long tile) const { return down.ranges[tile / across.ranges.size()]; }
    const Range& columns(long tile) const { return across.ranges[tile % across.ranges.size()]; }
};

// What one thread needs. `total` and `weights` are zero whenever no tile is being worked on.
struct Workspace {
    Buffer guide, noisy_spectra, guide_spectra, total, weights, ring, keys, sums, candidates, found, tables, rows, row;

    void reserve(const Tiling& tiling, const Settings& settings, int stages, long width);
    void reserve_matching(const Tiling& tiling, const Settings& settings);
};

}  // namespace plugstream::bm3d
