#include "bm4d_tiles.hpp"

#include <algorithm>
#include <cmath>

namespace plugstream::bm4d {
namespace {

constexpr int side_of_tile = 32;  // voxels from the first reference to that of the next tile, about

// Of a row of the guide.
long pitch_of(const Box& box, const Settings& settings) { return box.columns + block + 2 * settings.radius + widest; }

}  // namespace

Tiling::Tiling(const Volume& v, int step, int radius)
    : axes{{v.depth, step, radius, side_of_tile / step, block},
           {v.height, step, radius, side_of_tile / step, block},
           {v.width, step, radius, side_of_tile / step, block}} {}

void Workspace::reserve_matching(const Tiling& tiling, const Volume& v, const Settings& settings) {
    constexpr long number = sizeof(float);
    const Box box = tiling.largest();
    const long references = tiling.most_references(), columns = tiling.axes[2].most_references;
    const int group = std::max(settings.group[0], settings.group[1]), span = 2 * settings.radius + 1;
    guide.reserve(v.channels * (box.planes + block - 1) * (box.rows + block - 1) * pitch_of(box, settings) * number);
    lines.reserve(block * (box.columns + block) * widest * number);
    sums.reserve(block * long{tiling.axes[1].most_references} * columns * widest * number);
    valid.reserve(columns * widest * number);
    bounds.reserve(references * number);
    floors.reserve(references * number);
    levels.reserve(references * number);
    places.reserve(3L * 3 * std::max({tiling.axes[0].most_references, tiling.axes[1].most_references,
                                      tiling.axes[2].most_references}) * number);
    ranks.reserve(long{span} * span * widest * number);
    distances.reserve(long{span} * span * span * number);
    found.reserve(references * group * number);
}

void Workspace::reserve(const Tiling& tiling, const Volume& v, const Settings& settings, int stages) {
    constexpr long number = sizeof(float);
    const Box box = tiling.largest();
    const long positions = box.planes * box.rows * box.columns;
    reserve_matching(tiling, v, settings);
    noisy.reserve(positions * coefficients * number);
    if (stages == 2) guides.reserve(positions * coefficients * number);
    total.reserve(positions * coefficients * number);
    weights.reserve(positions * number);
    ring.reserve((coefficients * box.rows * box.columns + 16 * box.columns + box.columns + 32) * number);
}

Noise::Noise(const Volume& v) : rows_(v.height - block + 1), columns_(v.width - block + 1) {
    const long count = v.map ? v.depth * v.height * v.width : 1;
    for (long k = 0; k < count; ++k) largest_ = std::max(largest_, v.sigma[k]);
    if (largest_ == 0) {
        levels_ = {0};
        return;
    }
    unit_ = std::ldexp(1.0f, std::ilogb(largest_));
    levels_.resize(count);
    for (long k = 0; k < count; ++k) levels_[k] = (v.sigma[k] / unit_) * (v.sigma[k] / unit_);
    if (!v.map) return;
    // As a tree along rows, then down, then over the planes, as in the reference.
    const long shape[] = {v.depth, v.height, v.width}, strides[] = {v.height * v.width, v.width, 1};
    for (int axis = 2; axis >= 0; --axis)
        for (long apart : {1, 2})
            for (long k = 0; k < count; ++k)
                if (k / strides[axis] % shape[axis] + apart < shape[axis])
                    levels_[k] += levels_[k + apart * strides[axis]];
    plane_ = v.height * v.width;
    pitch_ = v.width;
    for (float& level : levels_) level /= coefficients;
}

float Noise::mean(const long* positions, int group) const {
    if (!varies()) return std::max(levels_[0], least_level);
    float sums[32];
    for (int k = 0; k < group; ++k) {
        const long z = positions[k] / (rows_ * columns_), rest = positions[k] % (rows_ * columns_);
        sums[k] = at(z, rest / columns_, rest % columns_);
    }
    for (int count = group; count > 1; count /= 2)
        for (int k = 0; k < count / 2; ++k) sums[k] = sums[2 * k] + sums[2 * k + 1];
    return std::max(sums[0] / static_cast<float>(group), least_level);
}

void match_tile(const float* guide, const Volume& v, const Settings& settings, int stage, const Tiling& tiling,
                long tile, int group, const Noise& noise, const MatchKernel& kernel, Workspace& work) {
    const int radius = settings.radius, span = 2 * radius + 1;
    const Range* ranges[] = {&tiling.range(tile, 0), &tiling.range(tile, 1), &tiling.range(tile, 2)};
    const Box box = tiling.box(tile);
    const int* references[3];
    Along along[3];
    int* places = work.places.as<int>();
    for (int axis = 0; axis < 3; ++axis) {
        const Range& range = *ranges[axis];
        const int count = range.end - range.first;
        int *at = places, *first = at + count, *last = first + count;
        places += 3 * count;
        references[axis] = tiling.axes[axis].references.data() + range.first;
        // Rows of the guide begin `radius` before the first reference, planes and columns of lines where the tile does.
        const long origin = axis == 2 ? references[axis][0] : range.from;
        for (int k = 0; k < count; ++k) {
            at[k] = static_cast<int>(references[axis][k] - origin);
            first[k] = std::max(0, radius - references[axis][k]);
            last[k] = static_cast<int>(std::min(2L * radius, tiling.axes[axis].positions - 1 - references[axis][k] + radius));
        }
        along[axis] = {at, first, last, count};
    }
    const long planes = box.planes + block - 1, rows = box.rows + block - 1, pitch = pitch_of(box, settings);
    const long left = references[2][0] - radius, inside = std::max(0L, left), end = std::min(v.width, left + pitch);
    float* row = work.guide.as<float>();
    for (long c = 0; c < v.channels; ++c)
        for (long z = 0; z < planes; ++z)
            for (long y = 0; y < rows; ++y, row += pitch) {
                const float* voxels = guide + ((c * v.depth + ranges[0]->from + z) * v.height + ranges[1]->from + y) * v.width;
                std::fill(row, row + (inside - left), 0.0f);
                std::copy(voxels + inside, voxels + end, row + (inside - left));
                std::fill(row + (end - left), row + pitch, 0.0f);
            }
    int32_t *ranks = work.ranks.as<int32_t>(), *distances = work.distances.as<int32_t>();
    std::fill(ranks, ranks + span * span * widest, 0);
    for (int rank = 0; rank < span * span * span; ++rank) {
        const int number = settings.order[rank], z = number / (span * span), y = number / span % span, x = number % span;
        ranks[(z * span + y) * widest + x] = rank;
        distances[rank] = static_cast<int32_t>(((z - radius) * box.rows + y - radius) * box.columns + x - radius);
    }
    float* floors = work.floors.as<float>();
    const double unit = static_cast<double>(noise.unit());
    const float factor = static_cast<float>(settings.alike[stage] * coefficients * static_cast<double>(v.channels) * (unit * unit));
    for (int z = 0; z < along[0].count; ++z)
        for (int y = 0; y < along[1].count; ++y)
            for (int x = 0; x < along[2].count; ++x)
                *floors++ = factor * noise.at(references[0][z], references[1][y], references[2][x]);
    int32_t* found = work.found.as<int32_t>();
    kernel.match({work.guide.as<float>(), planes * rows * pitch, rows * pitch, pitch, static_cast<int>(v.channels), radius,
                  group, along[0], along[1], along[2], ranks, work.floors.as<float>(), work.lines.as<float>(),
                  work.sums.as<float>(), work.valid.as<int32_t>(), work.bounds.as<int32_t>(), found});
    float* levels = work.levels.as<float>();
    for (int z = 0; z < along[0].count; ++z)
        for (int y = 0; y < along[1].count; ++y)
            for (int x = 0; x < along[2].count; ++x, found += group) {
                const int32_t itself = static_cast<int32_t>(
                    ((references[0][z] - ranges[0]->from) * box.rows + references[1][y] - ranges[1]->from) * box.columns +
                    references[2][x] - ranges[2]->from);
                long positions[32];
                for (int k = 0; k < group; ++k) {
                    // Ranks beyond the window would come up only where voxels are not finite.
                    const int rank = found[k] & ((1 << index_bits) - 1);
                    found[k] = itself + (rank < span * span * span ? distances[rank] : 0);
                    if (noise.varies()) positions[k] = tiling.position(tile, found[k]);
                }
                *levels++ = noise.mean(positions, group);
            }
}

}  // namespace plugstream::bm4d
