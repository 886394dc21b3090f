// A volume is cut into tiles of reference cubes, whatever the number of threads. A tile is matched and filtered with
// spectra and sums of its own; then the sums of the tiles over a voxel are added in the tiles' order. Only so many layers
// of tiles are at work before their sums are added that memory stays at a few numbers for each voxel.
#include "bm4d.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <thread>
#include <vector>

#include "bm4d_kernels.hpp"
#include "bm4d_tiles.hpp"
#include "memory.hpp"
#include "team.hpp"

namespace plugstream::bm4d {
namespace {

constexpr long sums_at_once = 1L << 28;  // bytes of the tiles' sums, beyond which layers of tiles wait for others

struct Kernels {
    const MatchKernel& match;
    const FilterKernels& filter;
};

Kernels kernels_of(Level level) {
    return {PLUGSTREAM_AT_LEVEL(level, match_kernel), PLUGSTREAM_AT_LEVEL(level, filter_kernels)};
}

long voxels_of(const Box& box) { return (box.planes + block - 1) * (box.rows + block - 1) * (box.columns + block - 1); }

Pool<Workspace>& workspaces() {
    static Pool<Workspace>& one = *new Pool<Workspace>(std::max(2u, std::thread::hardware_concurrency()));
    return one;
}

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(8);
    return one;
}

// The work on one volume in phases: a few layers of tiles, then their sums, and so on; at last the quotient; all that for
// each stage. The pieces of a phase are claimed one by one; a phase begins when the one before is finished.
class Job {
  public:
    Job(const Volume& volume, const Settings& settings, int stages, int threads, Level level, const Progress& progress)
        : v_(volume), settings_(settings), stages_(stages), kernels_(kernels_of(level)), noise_(volume), progress_(progress) {
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
                tiles_ += (end - layer) * tiling.in_layer();
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
    bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

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

    // Pieces that are claimed after a stop are counted, not done, so that nobody waits for them.
    void work(int member) {
        for (size_t k = 0; k < phases_.size(); ++k) {
            const Phase& phase = phases_[k];
            const long pieces = phase.end - phase.first;
            for (long n; (n = next_[k].fetch_add(1, std::memory_order_relaxed)) < pieces;) {
                if (!stopped()) work_on(k, n, member);
                done_[k].fetch_add(1, std::memory_order_release);
                if (member == 0 && !stopped() && !progress_(part_done())) stopped_ = true;
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

    void work_on(size_t k, long n, int member) {
        const Phase& phase = phases_[k];
        if (phase.kind == Phase::filter)
            filter_tile(phase, phase.first + n, *workspaces_[member]);
        else if (phase.kind == Phase::add)
            add_plane(phases_[k - 1], phase.first + n);
        else
            divide_plane(phase.stage, n);
    }

    double part_done() const {
        long done = 0;
        for (size_t k = 0; k < phases_.size(); ++k)
            if (phases_[k].kind == Phase::filter) done += done_[k].load(std::memory_order_relaxed);
        return static_cast<double>(done) / static_cast<double>(tiles_);
    }

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
    const Progress progress_;
    std::atomic<bool> stopped_ = false;
    long tiles_ = 0;
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
    const long rows = static_cast<long>(tiling.axes[1].references.size());
    const long columns = static_cast<long>(tiling.axes[2].references.size());
    for (long tile = 0; tile < tiling.count(); ++tile) {
        match_tile(v.volume, v, settings, stage, tiling, tile, group, noise, kernels_of(level).match, work);
        const Range &z = tiling.range(tile, 0), &y = tiling.range(tile, 1), &x = tiling.range(tile, 2);
        const int32_t* local = work.found.as<int32_t>();
        for (long a = z.first; a < z.end; ++a)
            for (long b = y.first; b < y.end; ++b)
                for (long c = x.first; c < x.end; ++c)
                    for (int k = 0; k < group; ++k) {
                        const long reference = (a * rows + b) * columns + c;
                        found[reference * group + k] = tiling.position(tile, *local++);
                    }
    }
}

bool denoise(const Volume& volume, const Settings& settings, int stages, int threads, Level level, const Progress& progress) {
    const auto job = std::make_shared<Job>(volume, settings, stages, threads, level, progress);
    job->prepare();
    run_team(job->size(), job);
    job->release();
    return !job->stopped();
}

}  // namespace plugstream::bm4d
