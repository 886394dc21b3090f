// An image is cut into tiles of reference blocks, whatever the number of threads. A tile is matched and filtered with
// spectra and sums of its own, so that memory does not grow with the image but for the two sums of each pixel; then
// the sums of all tiles over a pixel are added in the tiles' order.
#include "bm3d.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <memory>
#include <thread>
#include <vector>

#include "bm3d_kernels.hpp"
#include "bm3d_tiles.hpp"
#include "memory.hpp"
#include "team.hpp"

namespace plugstream::bm3d {
namespace {

struct Kernels {
    const MatchKernel& match;
    const FilterKernels& filter;
};

Kernels kernels_of(Level level) {
    return {PLUGSTREAM_AT_LEVEL(level, match_kernel), PLUGSTREAM_AT_LEVEL(level, filter_kernels)};
}

// Groups of the tile, as positions among those of the tile, in work.found.
void match_tile(const float* image, long width, const Tiling& tiling, long tile, int radius, int group,
                const float* offsets, const MatchKernel& kernel, Workspace& work) {
    const Range &rows = tiling.rows(tile), &columns = tiling.columns(tile);
    const int row_count = rows.end - rows.first, column_count = columns.end - columns.first;
    const int* down = tiling.down.references.data() + rows.first;
    const int* across = tiling.across.references.data() + columns.first;
    const long pitch = (across[column_count - 1] - across[0] + block + widest + 15) / 16 * 16;
    const long left = across[0] - radius, inside = std::max(0L, left), end = std::min(width, left + pitch);
    float* guide = work.guide.as<float>();
    for (long r = 0; r < rows.to - rows.from + block - 1; ++r) {
        float* row = guide + r * pitch;
        const float* pixels = image + (rows.from + r) * width;
        std::fill(row, row + (inside - left), 0.0f);
        std::copy(pixels + inside, pixels + end, row + (inside - left));
        std::fill(row + (end - left), row + pitch, 0.0f);
    }
    int *row_at = work.rows.as<int>(), *top = row_at + row_count, *bottom = top + row_count;
    int *column_at = bottom + row_count, *first = column_at + column_count, *last = first + column_count;
    for (int r = 0; r < row_count; ++r) {
        row_at[r] = static_cast<int>(down[r] - rows.from);
        top[r] = std::max(0, radius - down[r]);
        bottom[r] = static_cast<int>(std::min(2L * radius, tiling.down.positions - 1 - down[r] + radius));
    }
    for (int c = 0; c < column_count; ++c) {
        column_at[c] = across[c] - across[0];
        first[c] = std::max(0, radius - across[c]);
        last[c] = static_cast<int>(std::min(2L * radius, tiling.across.positions - 1 - across[c] + radius));
    }
    int32_t* found = work.found.as<int32_t>();
    kernel.match({guide, pitch, radius, group, offsets, row_at, top, bottom, column_at, first, last, row_count, column_count,
                  work.keys.as<int32_t>(), work.sums.as<float>(), work.candidates.as<int32_t>(), found});
    // From a candidate's number to its distance in positions. Numbers beyond the window stand for the reference; they
    // come up only where pixels are not finite.
    const long over = columns.to - columns.from;
    const int span = 2 * radius + 1;
    int32_t* distance = work.tables.as<int32_t>();
    for (int n = 0; n < 1 << index_bits; ++n)
        distance[n] = n < span * span ? static_cast<int32_t>((n / span - radius) * over + n % span - radius) : 0;
    for (int r = 0; r < row_count; ++r)
        for (int c = 0; c < column_count; ++c, found += group) {
            const int32_t itself = static_cast<int32_t>((down[r] - rows.from) * over + across[c] - columns.from);
            for (int k = 0; k < group; ++k) found[k] = itself + distance[found[k]];
        }
}

Pool<Workspace>& workspaces() {
    static Pool<Workspace>& one = *new Pool<Workspace>(std::max(2u, std::thread::hardware_concurrency()));
    return one;
}

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(4);
    return one;
}

// The work of one call in phases: all tiles of all images, then all rows of all images, for each stage. The pieces of
// a phase are claimed one by one; a phase begins when the one before is finished.
class Job {
  public:
    Job(const Batch& batch, const Settings& settings, int stages, int threads, Level level)
        : batch_(batch),
          settings_(settings),
          stages_(stages),
          kernels_(kernels_of(level)),
          tiling_(batch.height, batch.width, settings),
          strips_((batch.height + strip - 1) / strip) {
        for (long first = 0; first < batch.count; first += settings.channels) {
            bool noisy = false;
            for (long n = first; n < first + settings.channels; ++n)
                if (batch.sigma[n] != 0)
                    noisy = true;
                else
                    std::copy_n(image(n), plane(), batch.out + n * plane());
            if (noisy) todo_.push_back(first);
        }
        const long pieces = static_cast<long>(todo_.size()) * std::max(tiling_.count(), 1L);
        size_ = static_cast<int>(std::clamp(pieces, 1L, static_cast<long>(std::max(threads, 1))));
    }

    int size() const { return size_; }

    // All memory is taken here, where running out of it can still be reported.
    void prepare() {
        if (todo_.empty()) return;
        for (int member = 0; member < size_; ++member) {
            workspaces_.push_back(workspaces().take());
            workspaces_.back()->reserve(tiling_, settings_, stages_, batch_.width);
        }
        sums_ = buffers().take();
        sums_->reserve(static_cast<long>(todo_.size()) * settings_.channels * tiling_.sums * sizeof(float));
    }

    // When all work is done. A helper that comes late still has the job, but nothing left to do.
    void release() {
        for (auto& workspace : workspaces_) workspaces().put(std::move(workspace));
        if (sums_ && sums_->size() <= most_kept) buffers().put(std::move(sums_));
    }

    void work(int member) {
        const long sets = static_cast<long>(todo_.size());
        for (int phase = stages_ == 3 ? 2 : 0; phase < 2 * std::min(stages_, 2); ++phase) {
            const bool joining = phase % 2 != 0;
            const long each = joining ? strips_ * settings_.channels : tiling_.count(), pieces = sets * each;
            for (long k; (k = next_[phase].fetch_add(1, std::memory_order_relaxed)) < pieces;) {
                if (joining)
                    join(k / strips_, k % strips_, *workspaces_[member]);
                else
                    filter_tile(phase / 2, k / each, k % each, *workspaces_[member]);
                done_[phase].fetch_add(1, std::memory_order_release);
            }
            wait_until([&] { return done_[phase].load(std::memory_order_acquire) == pieces; });
        }
    }

  private:
    static constexpr long strip = 16;            // rows of pixels joined at a time
    static constexpr int columns_of_strip = 12;  // reference columns filtered at a time

    long plane() const { return batch_.height * batch_.width; }
    const float* image(long n) const { return batch_.images + n * plane(); }
    long image_of(long k) const { return todo_[k / settings_.channels] + k % settings_.channels; }
    float* sums(long k, long tile) const { return sums_->as<float>() + k * tiling_.sums + tiling_.offsets[tile]; }

    // All channels of a set, matched on the first.
    void filter_tile(int stage, long set, long tile, Workspace& work) const {
        const long first = todo_[set], width = batch_.width;
        const float* guide = stage == 0 ? image(first) : batch_.out + first * plane();
        const int group = group_size(batch_.height, width, settings_.radius, settings_.group[stage]);
        match_tile(guide, width, tiling_, tile, settings_.radius, group, settings_.offsets[stage], kernels_.match,
                   work);
        for (long k = set * settings_.channels; k < (set + 1) * settings_.channels; ++k)
            if (batch_.sigma[image_of(k)] != 0) filter_channel(stage, k, tile, group, work);
    }

    void filter_channel(int stage, long k, long tile, int group, Workspace& work) const {
        const long n = image_of(k), width = batch_.width;
        const float *noisy = image(n), *guide = batch_.out + n * plane();
        const Range &rows = tiling_.rows(tile), &columns = tiling_.columns(tile);
        const long down = rows.to - rows.from, across = columns.to - columns.from;
        const long from = rows.from * width + columns.from;
        const int row_count = rows.end - rows.first, column_count = columns.end - columns.first;
        const double sigma = static_cast<double>(batch_.sigma[n]);
        const FilterKernels& filter = kernels_.filter;
        float *spectra = work.noisy_spectra.as<float>(), *guides = work.guide_spectra.as<float>();
        float *total = work.total.as<float>(), *weights = work.weights.as<float>(), *ring = work.ring.as<float>();
        filter.forward(noisy + from, width, down, across, settings_.analysis[stage], ring, spectra);
        if (stage == 1) filter.forward(guide + from, width, down, across, settings_.analysis[stage], ring, guides);
        const float threshold = static_cast<float>(settings_.threshold * sigma);
        const float noise = static_cast<float>(settings_.wiener * (sigma * sigma));
        const int reach = settings_.reach;
        const long table = settings_.tables > 1 ? k % settings_.channels : 0;
        const float* shared = reach == 0 ? settings_.correlations[stage]
                                         : settings_.shared[stage] + table * (reach + 1) * (2 * reach + 1) * coefficients;
        // Down narrow strips, so that most blocks of a group are still in the L2 cache from the groups before.
        for (int c = 0; c < column_count; c += columns_of_strip)
            for (int r = 0; r < row_count; ++r) {
                const Groups groups = {work.found.as<int32_t>() + (long{r} * column_count + c) * group,
                                       std::min(columns_of_strip, column_count - c), group, across,
                                       shared, 0, nullptr, reach};
                if (stage == 0)
                    filter.threshold(spectra, groups, threshold, total, weights);
                else
                    filter.wiener(spectra, guides, groups, noise, total, weights);
            }
        float* top = sums(k, tile);
        filter.inverse(total, weights, down, across, settings_.synthesis[stage], settings_.kaiser, ring, top,
                       top + (down + block - 1) * (across + block - 1));
    }

    // A strip of the stage's result: the values' sums over the weights' sums. Written straight to `out`, which is the
    // guide of the next stage.
    void join(long k, long part, Workspace& work) const {
        if (batch_.sigma[image_of(k)] == 0) return;
        const long width = batch_.width, first = part * strip, end = std::min(batch_.height, first + strip);
        float* out = batch_.out + image_of(k) * plane();
        float* weights = work.row.as<float>();
        for (long y = first; y < end; ++y) {
            float* row = out + y * width;
            std::fill_n(row, width, 0.0f);
            std::fill_n(weights, width, 0.0f);
            for (long tile = 0; tile < tiling_.count(); ++tile) {
                const Range &rows = tiling_.rows(tile), &columns = tiling_.columns(tile);
                const long height = rows.to - rows.from + block - 1, across = columns.to - columns.from + block - 1;
                if (y < rows.from || y >= rows.from + height) continue;
                const float *top = sums(k, tile) + (y - rows.from) * across, *bottom = top + height * across;
                float *value = row + columns.from, *weight = weights + columns.from;
                for (long x = 0; x < across; ++x) value[x] += top[x];
                for (long x = 0; x < across; ++x) weight[x] += bottom[x];
            }
            for (long x = 0; x < width; ++x) row[x] /= weights[x];
        }
    }

    const Batch batch_;
    const Settings settings_;
    const int stages_;
    const Kernels kernels_;
    const Tiling tiling_;
    const long strips_;
    int size_ = 1;
    std::vector<long> todo_;  // the first image of each set
    std::vector<std::unique_ptr<Workspace>> workspaces_;
    std::unique_ptr<Buffer> sums_;
    std::array<std::atomic<long>, 4> next_{}, done_{};
};

}  // namespace

void forget() {
    workspaces().clear();
    buffers().clear();
}

long references(long height, long width, int step) {
    auto along = [step](long size) { return (size - block) / step + 1 + ((size - block) % step != 0); };
    return along(height) * along(width);
}

int group_size(long height, long width, int radius, int wanted) {
    const long least = std::min(radius + 1L, height - block + 1) * std::min(radius + 1L, width - block + 1);
    return static_cast<int>(std::min<unsigned long>(wanted, std::bit_floor(static_cast<unsigned long>(least))));
}

void match(const float* guide, long height, long width, const Settings& settings, int wanted, Level level,
           int64_t* found) {
    const Tiling tiling(height, width, settings);
    const int group = group_size(height, width, settings.radius, wanted);
    const long all_across = static_cast<long>(tiling.across.references.size());
    Workspace work;
    work.reserve_matching(tiling, settings);
    for (long tile = 0; tile < tiling.count(); ++tile) {
        match_tile(guide, width, tiling, tile, settings.radius, group, settings.offsets[0], kernels_of(level).match, work);
        const Range &rows = tiling.rows(tile), &columns = tiling.columns(tile);
        const long across = columns.to - columns.from;
        const int32_t* local = work.found.as<int32_t>();
        for (int r = rows.first; r < rows.end; ++r)
            for (int c = columns.first; c < columns.end; ++c)
                for (int k = 0; k < group; ++k, ++local)
                    found[(r * all_across + c) * group + k] =
                        (rows.from + *local / across) * tiling.across.positions + columns.from + *local % across;
    }
}

void denoise(const Batch& batch, const Settings& settings, int stages, int threads, Level level) {
    const auto job = std::make_shared<Job>(batch, settings, stages, threads, level);
    job->prepare();
    run_team(job->size(), job);
    job->release();
}

}  // namespace plugstream::bm3d
