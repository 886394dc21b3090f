// A volume is cut into tiles of reference cubes, whatever the number of threads. A tile is matched and filtered with
// spectra and sums of its own; then the sums of the tiles over a voxel are added in the tiles' order. Only so many layers
// of tiles are at work before their sums are added that memory stays at a few numbers for each voxel.
#include "bm4d.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "bm3d_tiles.hpp"
#include "bm4d_kernels.hpp"
#include "memory.hpp"
#include "team.hpp"

namespace plugstream::bm4d {
namespace {

using bm3d::Axis;
using bm3d::Range;

constexpr int side_of_tile = 32;           // voxels from the first reference to that of the next tile, about
constexpr long sums_at_once = 1L << 28;    // bytes of the tiles' sums, beyond which layers of tiles wait for others

struct Kernels {
    const MatchKernel& match;
    const FilterKernels& filter;
};

Kernels kernels_of(Level level) {
    return {PLUGSTREAM_AT_LEVEL(level, match_kernel), PLUGSTREAM_AT_LEVEL(level, filter_kernels)};
}

long voxels_of(const Box& box) { return (box.planes + block - 1) * (box.rows + block - 1) * (box.columns + block - 1); }

// How a stage cuts the volume.
struct Tiling {
    Axis axes[3];

    Tiling(const Volume& v, int step, int radius)
        : axes{{v.depth, step, radius, side_of_tile / step, block},
               {v.height, step, radius, side_of_tile / step, block},
               {v.width, step, radius, side_of_tile / step, block}} {}

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
};

// What one thread needs. `total` and `weights` are zero whenever no tile is being worked on.
struct Workspace {
    Buffer guide, lines, sums, valid, bounds, floors, places, ranks, distances, found, levels;
    Buffer noisy, guides, total, weights, ring;

    void reserve_matching(const Tiling& tiling, const Volume& v, const Settings& settings) {
        constexpr long number = sizeof(float);
        const Box box = tiling.largest();
        const long references = tiling.most_references(), columns = tiling.axes[2].most_references;
        const int group = std::max(settings.group[0], settings.group[1]), span = 2 * settings.radius + 1;
        guide.reserve(v.channels * (box.planes + block - 1) * (box.rows + block - 1) * pitch(box, settings) * number);
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

    void reserve(const Tiling& tiling, const Volume& v, const Settings& settings, int stages) {
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

    static long pitch(const Box& box, const Settings& settings) {
        return box.columns + block + 2 * settings.radius + widest;
    }
};

Pool<Workspace>& workspaces() {
    static Pool<Workspace>& one = *new Pool<Workspace>(std::max(2u, std::thread::hardware_concurrency()));
    return one;
}

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(8);
    return one;
}

// sigma^2 over every cube, as a mean, in units of `unit`^2: one number, or one for each position. `unit` is the power of
// two at or below the largest sigma.
class Noise {
  public:
    explicit Noise(const Volume& v) : rows_(v.height - block + 1), columns_(v.width - block + 1) {
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

    float largest() const { return largest_; }
    float unit() const { return unit_; }
    float at(long z, long y, long x) const {
        return levels_.size() == 1 ? levels_[0] : levels_[z * plane_ + y * pitch_ + x];
    }
    // The mean over a group, as a tree, and no less than `least_level`.
    float mean(const long* positions, int group) const {
        if (levels_.size() == 1) return std::max(levels_[0], least_level);
        float sums[32];
        for (int k = 0; k < group; ++k) {
            const long z = positions[k] / (rows_ * columns_), rest = positions[k] % (rows_ * columns_);
            sums[k] = at(z, rest / columns_, rest % columns_);
        }
        for (int count = group; count > 1; count /= 2)
            for (int k = 0; k < count / 2; ++k) sums[k] = sums[2 * k] + sums[2 * k + 1];
        return std::max(sums[0] / static_cast<float>(group), least_level);
    }

  private:
    float largest_ = 0, unit_ = 1;
    long rows_, columns_, plane_ = 0, pitch_ = 0;
    std::vector<float> levels_;
};

// Groups of the tile, as positions among those of the tile, in work.found, and their noise in work.levels.
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
    const long planes = box.planes + block - 1, rows = box.rows + block - 1, pitch = Workspace::pitch(box, settings);
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
    const long all_rows = tiling.axes[1].positions, all_columns = tiling.axes[2].positions;
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
                    const long p = found[k] / box.columns;
                    positions[k] = ((ranges[0]->from + p / box.rows) * all_rows + ranges[1]->from + p % box.rows) * all_columns +
                                   ranges[2]->from + found[k] % box.columns;
                }
                *levels++ = noise.mean(positions, group);
            }
}

// The work on one volume in phases: a few layers of tiles, then their sums, and so on; at last the quotient; all that for
// each stage. The pieces of a phase are claimed one by one; a phase begins when the one before is finished.
class Job {
  public:
    Job(const Volume& volume, const Settings& settings, int stages, int threads, Level level)
        : v_(volume), settings_(settings), stages_(stages), kernels_(kernels_of(level)), noise_(volume) {
        if (noise_.largest() == 0) return;
        long most_tiles = 1;
        for (int stage = 0; stage < stages; ++stage) {
            tilings_.emplace_back(volume, settings.step[stage], settings.radius);
            const Tiling& tiling = tilings_.back();
            const long of_layer = 2 * v_.channels * tiling.in_layer() * voxels_of(tiling.largest()) * long{sizeof(float)};
            const long at_once = std::clamp(sums_at_once / of_layer, 1L, tiling.layers());
            for (long layer = 0; layer < tiling.layers(); layer += at_once) {
                const long end = std::min(tiling.layers(), layer + at_once);
                phases_.push_back({Phase::filter, stage, layer * tiling.in_layer(), end * tiling.in_layer()});
                phases_.push_back({Phase::add, stage, tiling.axes[0].ranges[layer].from,
                                   tiling.axes[0].ranges[end - 1].to + block - 1});
                most_tiles = std::max(most_tiles, (end - layer) * tiling.in_layer());
                most_sums_ = std::max(most_sums_, (end - layer) * of_layer);
            }
            phases_.push_back({Phase::divide, stage, 0, v_.depth});
        }
        next_ = std::vector<std::atomic<long>>(phases_.size());
        done_ = std::vector<std::atomic<long>>(phases_.size());
        size_ = static_cast<int>(std::clamp(most_tiles, 1L, static_cast<long>(std::max(threads, 1))));
    }

    int size() const { return size_; }

    // All memory is taken here, where running out of it can still be reported.
    void prepare() {
        if (phases_.empty()) {
            std::copy_n(v_.volume, v_.channels * voxels(), v_.out);
            return;
        }
        for (int member = 0; member < size_; ++member) {
            workspaces_.push_back(workspaces().take());
            for (const Tiling& tiling : tilings_) workspaces_.back()->reserve(tiling, v_, settings_, stages_);
        }
        for (auto& buffer : {&sums_, &values_, &weights_}) *buffer = buffers().take();
        sums_->reserve(most_sums_);
        for (auto& buffer : {&values_, &weights_}) {
            (*buffer)->reserve(v_.channels * voxels() * long{sizeof(float)});
            std::fill_n((*buffer)->as<float>(), v_.channels * voxels(), 0.0f);
        }
    }

    // When all work is done. A helper that comes late still has the job, but nothing left to do.
    void release() {
        for (auto& workspace : workspaces_) workspaces().put(std::move(workspace));
        for (auto& buffer : {&sums_, &values_, &weights_})
            if (*buffer && (*buffer)->size() <= most_kept) buffers().put(std::move(*buffer));
    }

    void work(int member) {
        for (size_t k = 0; k < phases_.size(); ++k) {
            const Phase& phase = phases_[k];
            const long pieces = phase.end - phase.first;
            for (long n; (n = next_[k].fetch_add(1, std::memory_order_relaxed)) < pieces;) {
                if (phase.kind == Phase::filter)
                    filter_tile(phase, phase.first + n, *workspaces_[member]);
                else if (phase.kind == Phase::add)
                    add_plane(phases_[k - 1], phase.first + n);
                else
                    divide_plane(phase.stage, n);
                done_[k].fetch_add(1, std::memory_order_release);
            }
            wait_until([&] { return done_[k].load(std::memory_order_acquire) == pieces; });
        }
    }

  private:
    struct Phase {
        enum Kind { filter, add, divide } kind;
        int stage;
        long first, end;  // tiles, or planes of voxels
    };

    long voxels() const { return v_.depth * v_.height * v_.width; }
    // The sums of a tile's values in a channel; those of the weights follow.
    float* sums(const Phase& phase, long tile, long channel) const {
        const long each = 2 * voxels_of(tilings_[phase.stage].largest());
        return sums_->as<float>() + ((tile - phase.first) * v_.channels + channel) * each;
    }

    void filter_tile(const Phase& phase, long tile, Workspace& work) const {
        const int stage = phase.stage;
        const Tiling& tiling = tilings_[stage];
        const float* guide = stage == 0 ? v_.volume : v_.out;
        const int group = group_size(v_, settings_.radius, settings_.group[stage]);
        match_tile(guide, v_, settings_, stage, tiling, tile, group, noise_, kernels_.match, work);
        const Box box = tiling.box(tile);
        long references = 1;
        for (int axis = 0; axis < 3; ++axis) references *= tiling.range(tile, axis).end - tiling.range(tile, axis).first;
        const long from = (tiling.range(tile, 0).from * v_.height + tiling.range(tile, 1).from) * v_.width + tiling.range(tile, 2).from;
        const FilterKernels& filter = kernels_.filter;
        const double unit = static_cast<double>(noise_.unit());
        const float threshold = static_cast<float>(settings_.threshold * unit);
        const float variance = static_cast<float>(settings_.wiener * (unit * unit));
        float *noisy = work.noisy.as<float>(), *guides = work.guides.as<float>(), *ring = work.ring.as<float>();
        float *total = work.total.as<float>(), *weights = work.weights.as<float>();
        const Groups groups = {work.found.as<int32_t>(), references, group, box.columns, settings_.correlations[stage],
                               box.rows * box.columns, work.levels.as<float>()};
        for (long channel = 0; channel < v_.channels; ++channel) {
            const long start = channel * voxels() + from, plane = v_.height * v_.width;
            filter.forward(v_.volume + start, plane, v_.width, box, settings_.analysis[stage], ring, noisy);
            if (stage == 0) {
                filter.threshold(noisy, groups, threshold, total, weights);
            } else {
                filter.forward(guide + start, plane, v_.width, box, settings_.analysis[stage], ring, guides);
                filter.wiener(noisy, guides, groups, variance, total, weights);
            }
            float* top = sums(phase, tile, channel);
            filter.inverse(total, weights, box, settings_.synthesis[stage], settings_.kaiser, ring, top,
                           top + voxels_of(box));
        }
    }

    // A plane of voxels: the sums of the tiles of a phase, in their order.
    void add_plane(const Phase& tiles, long z) const {
        const Tiling& tiling = tilings_[tiles.stage];
        for (long tile = tiles.first; tile < tiles.end; ++tile) {
            const Range &planes = tiling.range(tile, 0), &rows = tiling.range(tile, 1), &columns = tiling.range(tile, 2);
            const Box box = tiling.box(tile);
            if (z < planes.from || z >= planes.to + block - 1) continue;
            const long height = box.rows + block - 1, width = box.columns + block - 1;
            for (long channel = 0; channel < v_.channels; ++channel)
                for (int which = 0; which < 2; ++which) {
                    const float* from = sums(tiles, tile, channel) + which * voxels_of(box) + (z - planes.from) * height * width;
                    float* to = (which == 0 ? values_ : weights_)->as<float>() +
                                ((channel * v_.depth + z) * v_.height + rows.from) * v_.width + columns.from;
                    for (long y = 0; y < height; ++y, from += width, to += v_.width)
                        for (long x = 0; x < width; ++x) to[x] += from[x];
                }
        }
    }

    // A plane of the stage's result, written to `out`, which is the guide of the next stage; the sums become zero.
    void divide_plane(int stage, long z) const {
        const long plane = v_.height * v_.width;
        for (long channel = 0; channel < v_.channels; ++channel) {
            const long at = (channel * v_.depth + z) * plane;
            float *value = values_->as<float>() + at, *weight = weights_->as<float>() + at, *out = v_.out + at;
            for (long k = 0; k < plane; ++k) out[k] = value[k] / weight[k];
            std::fill_n(value, plane, 0.0f);
            std::fill_n(weight, plane, 0.0f);
            if (v_.map && stage == stages_ - 1)
                for (long k = 0; k < plane; ++k)
                    if (v_.sigma[z * plane + k] == 0) out[k] = v_.volume[at + k];
        }
    }

    const Volume v_;
    const Settings settings_;
    const int stages_;
    const Kernels kernels_;
    const Noise noise_;
    int size_ = 1;
    long most_sums_ = 0;
    std::vector<Tiling> tilings_;
    std::vector<Phase> phases_;
    std::vector<std::unique_ptr<Workspace>> workspaces_;
    std::unique_ptr<Buffer> sums_, values_, weights_;
    std::vector<std::atomic<long>> next_, done_;
};

}  // namespace

void forget() {
    workspaces().clear();
    buffers().clear();
}

long references(const Volume& v, int step) {
    auto along = [step](long size) { return (size - block) / step + 1 + ((size - block) % step != 0); };
    return along(v.depth) * along(v.height) * along(v.width);
}

int group_size(const Volume& v, int radius, int wanted) {
    long least = 1;
    for (long size : {v.depth, v.height, v.width}) least *= std::min(radius + 1L, size - block + 1);
    return static_cast<int>(std::min<unsigned long>(wanted, std::bit_floor(static_cast<unsigned long>(least))));
}

void match(const Volume& v, const Settings& settings, int stage, Level level, int64_t* found) {
    const Tiling tiling(v, settings.step[stage], settings.radius);
    const int group = group_size(v, settings.radius, settings.group[stage]);
    const Noise noise(v);
    Workspace work;
    work.reserve_matching(tiling, v, settings);
    const Axis *rows = &tiling.axes[1], *columns = &tiling.axes[2];
    for (long tile = 0; tile < tiling.count(); ++tile) {
        match_tile(v.volume, v, settings, stage, tiling, tile, group, noise, kernels_of(level).match, work);
        const Box box = tiling.box(tile);
        const Range &z = tiling.range(tile, 0), &y = tiling.range(tile, 1), &x = tiling.range(tile, 2);
        const int32_t* local = work.found.as<int32_t>();
        for (long a = z.first; a < z.end; ++a)
            for (long b = y.first; b < y.end; ++b)
                for (long c = x.first; c < x.end; ++c)
                    for (int k = 0; k < group; ++k, ++local) {
                        const long p = *local / box.columns;
                        const long reference = (a * static_cast<long>(rows->references.size()) + b) *
                                                   static_cast<long>(columns->references.size()) + c;
                        found[reference * group + k] =
                            ((z.from + p / box.rows) * rows->positions + y.from + p % box.rows) * columns->positions +
                            x.from + *local % box.columns;
                    }
    }
}

void denoise(const Volume& volume, const Settings& settings, int stages, int threads, Level level) {
    const auto job = std::make_shared<Job>(volume, settings, stages, threads, level);
    job->prepare();
    run_team(job->size(), job);
    job->release();
}

}  // namespace plugstream::bm4d
