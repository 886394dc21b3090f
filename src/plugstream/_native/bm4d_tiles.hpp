// How a volume is cut into tiles, the noise of its cubes, what a thread needs for a tile, and the groups of one.
#pragma once

#include <vector>

#include "bm3d_tiles.hpp"
#include "bm4d.hpp"
#include "bm4d_kernels.hpp"
#include "memory.hpp"

namespace plugstream::bm4d {

using bm3d::Axis;
using bm3d::Range;

// How a stage cuts the volume.
struct Tiling {
    Axis axes[3];

    Tiling(const Volume& v, int step, int radius);

    long in_layer() const { return static_cast<long>(axes[1].ranges.size() * axes[2].ranges.size()); }
    long layers() const { return static_cast<long>(axes[0].ranges.size()); }
    long count() const { return layers() * in_layer(); }
    const Range& range(long tile, int axis) const {
        const long columns = static_cast<long>(axes[2].ranges.size());
        const long at[] = {tile / in_layer(), tile % in_layer() / columns, tile % columns};
        return axes[axis].ranges[at[axis]];
    }
    Box box(long tile) const {
        const Range &z = range(tile, 0), &y = range(tile, 1), &x = range(tile, 2);
        return {z.to - z.from, y.to - y.from, x.to - x.from};
    }
    Box largest() const { return {axes[0].most_positions, axes[1].most_positions, axes[2].most_positions}; }
    long most_references() const {
        return long{axes[0].most_references} * axes[1].most_references * axes[2].most_references;
    }
    // Among those of the volume, of a position among those of a tile.
    long position(long tile, long local) const {
        const Range &z = range(tile, 0), &y = range(tile, 1), &x = range(tile, 2);
        const long columns = x.to - x.from, rows = y.to - y.from, line = local / columns;
        return ((z.from + line / rows) * axes[1].positions + y.from + line % rows) * axes[2].positions + x.from +
               local % columns;
    }
};

// What one thread needs. `total` and `weights` are zero whenever no tile is being worked on.
struct Workspace {
    Buffer guide, lines, sums, valid, bounds, floors, places, ranks, distances, found, levels;
    Buffer noisy, guides, total, weights, ring;

    void reserve(const Tiling& tiling, const Volume& v, const Settings& settings, int stages);
    void reserve_matching(const Tiling& tiling, const Volume& v, const Settings& settings);
};

// sigma^2 over every cube, as a mean, in units of `unit`^2: one number, or one for each position. `unit` is the power of
// two at or below the largest sigma.
class Noise {
  public:
    explicit Noise(const Volume& v);

    float largest() const { return largest_; }
    float unit() const { return unit_; }
    bool varies() const { return levels_.size() > 1; }
    float at(long z, long y, long x) const {
        return !varies() ? levels_[0] : levels_[z * plane_ + y * pitch_ + x];
    }
    // The mean over a group, as a tree, and no less than `least_level`; positions are read only where noise varies.
    float mean(const long* positions, int group) const;

  private:
    float largest_ = 0, unit_ = 1;
    long rows_, columns_, plane_ = 0, pitch_ = 0;
    std::vector<float> levels_;
};

// Groups of the tile, as positions among those of the tile, in work.found, and their noise in work.levels.
void match_tile(const float* guide, const Volume& v, const Settings& settings, int stage, const Tiling& tiling,
                long tile, int group, const Noise& noise, const MatchKernel& kernel, Workspace& work);

}  // namespace plugstream::bm4d
