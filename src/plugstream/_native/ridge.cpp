// An iteration goes down an image row by row: the responses of a row at two columns of every strip are formed, bent by
// the profiles and spread to the rows around it, so that no more than those are ever stored; a row whose gradient is
// complete takes its step at once, into the memory of the image before. An image is cut into bands of rows, one for each
// thread; the rows of responses at a seam are formed twice. Each row of the gradient is summed in the same order whatever
// the bands, so that they leave no trace.
#include "ridge.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "ridge_rows.hpp"
#include "team.hpp"

namespace plugstream::ridge {
namespace {

constexpr long least_rows = 24;  // in a band; below this the seams cost more than a second thread saves
constexpr long line = 16;        // floats of a cache line: what arrays begin at

const Rows& rows_of(Level level) { return PLUGSTREAM_AT_LEVEL(level, rows); }

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(4);
    return one;
}

// Which of `count` pixels stands at place i of a line that continues as its mirror image.
long mirror(long i, long count) { return i < 0 ? -1 - i : i >= count ? 2 * count - 1 - i : i; }

// How a row is laid out in strips: the place of each pixel, and which values beside the strips are whose.
struct Layout {
    Layout(long width, int half, int lanes) : places(width) {
        const long columns = ((width + lanes - 1) / lanes + 1) / 2 * 2;
        const long vectors = columns + 2 * half, lines = (vectors * lanes + line - 1) / line;
        // An odd number of cache lines, so that the rows around one do not share cache sets.
        strips = {width, columns, vectors, (lines | 1) * line, half};
        for (long x = 0; x < width; ++x) places[x] = (half + x % columns) * lanes + x / columns;
        for (long v = 0; v < strips.vectors; ++v)
            for (long lane = 0; lane * columns < width; ++lane) {
                const long x = lane * columns + v - half;
                const bool own = v >= half && v < half + columns && x < width;
                if (own || x < -half || x >= width + half) continue;
                const long beside = v * lanes + lane, inside = places[mirror(x, width)];
                if (!runs.empty() && runs.back().beside + runs.back().length == beside &&
                    runs.back().inside + runs.back().length == inside)
                    ++runs.back().length;
                else
                    runs.push_back({beside, inside, 1});
            }
    }

    void continue_row(float* row) const {
        for (const Run& run : runs) std::copy_n(row + run.inside, run.length, row + run.beside);
    }

    Strips strips;
    std::vector<long> places;
    std::vector<Run> runs;
};

// The filters in the order in which the rows read them.
class Packed {
  public:
    Packed(const Filters& filters, const Rows& rows) : filters_(filters) {
        const int half = filters.half, pairs = filters.pairs;
        blocks_ = (pairs + rows.most_filters - 1) / rows.most_filters;
        block_ = ((pairs + blocks_ - 1) / blocks_ + 1) / 2 * 2;  // there are loops for even numbers
        for (int odd = 0; odd < 2; ++odd)
            for (int k = 0; k < blocks_; ++k)
                for (int across = 0; across < 2; ++across)  // parts that change downwards have no middle row
                    for (int a = odd != across ? 1 : 0; a <= half; ++a)
                        for (int b = across; b <= half; ++b)
                            for (int i = k * block_; i < (k + 1) * block_; ++i)
                                forward_.push_back(i < pairs ? tap(2 * odd + across, i, a, b) : 0.0f);
        for (int down = 0; down < 2; ++down)
            for (int a = down; a <= half; ++a)
                for (int across = 0; across < 2; ++across)
                    for (int i = 0; i < pairs; ++i)
                        for (int b = across; b <= half; ++b)
                            backward_.push_back(tap(2 * (down != across) + across, i, a, b));
    }

    Prior prior(const float* slopes, const float* reaches) const {
        return {filters_.half, filters_.pairs,   filters_.ratios,   block_, blocks_,
                forward_.data(), backward_.data(), slopes, reaches};
    }

  private:
    float tap(int part, int i, int a, int b) const {
        const long side = filters_.half + 1;
        return filters_.taps[((static_cast<long>(part) * filters_.pairs + i) * side + a) * side + b];
    }

    const Filters filters_;
    int block_ = 0, blocks_ = 0;
    std::vector<float> forward_, backward_;
};

// What a call knows of all its images, and the sizes of its arrays, in floats.
struct Problem {
    Problem(const Batch& batch, const Filters& filters, Level level)
        : batch(batch),
          rows(rows_of(level)),
          layout(batch.width, filters.half, rows.lanes),
          packed(filters, rows),
          half(filters.half),
          profiles(2L * filters.pairs * filters.ratios),
          plane(batch.height * batch.width),
          narrow(layout.strips.columns * rows.lanes),
          ring(2 * half + 1),
          scratch(rows.scratch(packed.prior(nullptr, nullptr), layout.strips)),
          own((scratch + ring * layout.strips.pitch + line - 1) / line * line + line),
          image(batch.height * (2 * layout.strips.pitch + 2 * narrow)) {}

    const Batch batch;
    const Rows& rows;
    const Layout layout;
    const Packed packed;
    const long half, profiles, plane, narrow, ring, scratch, own, image;
};

// What a thread has for itself: scratch for a row, the rows of the gradient that are not yet complete, and which rows
// stand around one.
struct Own {
    float* memory;
    std::vector<const float*> rows;
    std::vector<float*> gradient;
};

// One image on its way to the minimum.
class Descent {
  public:
    // memory: `image` floats of the problem.
    Descent(const Problem& problem, float* memory)
        : problem_(problem),
          memory_(memory),
          x_(memory),
          next_(x_ + problem.batch.height * problem.layout.strips.pitch),
          z_(next_ + problem.batch.height * problem.layout.strips.pitch),
          kept_(z_ + problem.batch.height * problem.narrow),
          squares_(problem.batch.height) {}

    void begin(long index) {
        const Batch& batch = problem_.batch;
        const Layout& layout = problem_.layout;
        const float *image = batch.images + index * problem_.plane, *start = batch.start;
        index_ = index;
        count_ = 0;
        // From its first pixel on, so that large values with little contrast lose no digit.
        double total = 0, energy = 0;
        const double first = image[0];
        for (long k = 0; k < problem_.plane; ++k) total += image[k] - first;
        mean_ = static_cast<float>(first + total / static_cast<double>(problem_.plane));
        for (long k = 0; k < problem_.plane; ++k) {
            const double value = image[k] - mean_;
            energy += value * value;
        }
        goal_ = batch.tol * std::sqrt(energy);
        // From anywhere else a constant image, its own prox, would not be reached to a relative error.
        if (start == nullptr || goal_ == 0) start = batch.images;
        std::fill_n(memory_, problem_.image, 0.0f);  // also what is nobody's pixel
        for (long y = 0; y < batch.height; ++y) {
            float *x = x_ + y * layout.strips.pitch, *z = z_ + y * problem_.narrow;
            const long at = index * problem_.plane + y * batch.width;
            for (long j = 0; j < batch.width; ++j) {
                x[layout.places[j]] = start[at + j] - mean_;
                z[layout.places[j] - problem_.half * problem_.rows.lanes] = batch.images[at + j] - mean_;
            }
            layout.continue_row(x);
            std::copy_n(x, layout.strips.pitch, next_ + y * layout.strips.pitch);
        }
    }

    // One iteration on the rows top .. end - 1. own: memory of this thread.
    void iterate(long top, long end, Own& own) {
        const Batch& batch = problem_.batch;
        const long half = problem_.half, pitch = problem_.layout.strips.pitch, height = batch.height;
        float* const ring = own.memory + problem_.scratch;
        const Prior prior = problem_.packed.prior(batch.slopes + index_ * problem_.profiles,
                                                  batch.reaches + index_ * problem_.profiles);
        const bool heavy = count_ < batch.patience;
        const float* rates = batch.rates + 4 * index_ + (heavy ? 0 : 2);
        auto gradient = [&](long y) { return ring + y % problem_.ring * pitch; };
        long complete = top;
        const long last = std::min(height, end + half) - 1;
        for (long y = std::max(0L, top - half); y <= last; ++y) {
            for (long a = -half; a <= half; ++a) {
                const long row = mirror(y + a, height);
                own.rows[half + a] = x_ + row * pitch;
                own.gradient[half + a] = row >= top && row < end ? gradient(row) : nullptr;
            }
            problem_.rows.spread(prior, problem_.layout.strips, own.rows.data() + half, own.gradient.data() + half,
                                 own.memory);
            for (; complete < end && (complete + half <= y || y == height - 1); ++complete) {
                const Step step{x_ + complete * pitch,
                                z_ + complete * problem_.narrow,
                                gradient(complete),
                                next_ + complete * pitch,
                                kept_ + complete * problem_.narrow,
                                rates[0],
                                rates[1],
                                heavy,
                                count_ == batch.patience};
                squares_[complete] = problem_.rows.step(step, problem_.layout.strips, problem_.layout.runs.data(),
                                                        static_cast<long>(problem_.layout.runs.size()));
            }
        }
    }

    // After an iteration on all rows: whether it was the last, and the result if so.
    bool judge() {
        const Batch& batch = problem_.batch;
        double sum = 0;
        for (double square : squares_) sum += square;  // in the order of the rows, so that the bands leave no trace
        // Not greater, so that a NaN, which no iteration would fix, rests too.
        const bool rests = batch.tol > 0 && !(std::sqrt(sum) > goal_);
        if (!rests) {
            std::swap(x_, next_);
            if (++count_ < batch.most) return false;
        }
        batch.rests[index_] = rests;
        for (long y = 0; y < batch.height; ++y) {
            const float* x = x_ + y * problem_.layout.strips.pitch;
            float* out = batch.out + index_ * problem_.plane + y * batch.width;
            for (long j = 0; j < batch.width; ++j) out[j] = x[problem_.layout.places[j]] + mean_;
        }
        return true;
    }

  private:
    const Problem& problem_;
    float* const memory_;
    float *x_, *next_, *z_, *kept_;
    std::vector<double> squares_;
    long index_ = 0, count_ = 0;
    float mean_ = 0;
    double goal_ = 0;
};

// The work of one call, claimed piece by piece. Images that every thread can have one of are done whole; those left over,
// fewer than the threads, are shared in bands, one image after the other. These go through stages, one for an iteration:
// whoever finishes the last band of a stage judges it.
class Job {
  public:
    Job(const Batch& batch, const Filters& filters, std::vector<long> todo, int threads, Level level)
        : problem_(batch, filters, level), todo_(std::move(todo)) {
        const long most = std::max(threads, 1), images = static_cast<long>(todo_.size());
        parts_ = std::clamp(batch.height / least_rows, 1L, most);
        size_ = static_cast<int>(std::min(most, images * parts_));
        whole_ = parts_ == 1 ? images : images - images % size_;
        // All memory is taken here, where running out of it can still be reported.
        const long slots = std::min(whole_, static_cast<long>(size_)) + (whole_ < images ? 1 : 0);
        memory_ = buffers().take();
        memory_->reserve((size_ * problem_.own + slots * room()) * static_cast<long>(sizeof(float)));
        std::fill_n(memory_->as<float>(), size_ * problem_.own, 0.0f);
        for (int member = 0; member < size_; ++member)
            own_.push_back({memory_->as<float>() + member * problem_.own,
                            std::vector<const float*>(static_cast<size_t>(problem_.ring)),
                            std::vector<float*>(static_cast<size_t>(problem_.ring))});
        for (long slot = 0; slot < slots; ++slot)
            descents_.emplace_back(problem_, memory_->as<float>() + size_ * problem_.own + slot * room());
        claimed_ = std::vector<std::atomic<long>>(static_cast<size_t>(parts_));
        if (whole_ < images)
            descents_.back().begin(todo_[static_cast<size_t>(shared_ = whole_)]);
        else
            stage_.store(over, std::memory_order_relaxed);
    }

    int size() const { return size_; }

    // When all work is done. A helper that comes late still has the job, but nothing left to do.
    void release() {
        if (memory_->size() <= most_kept) buffers().put(std::move(memory_));
    }

    void work(int member) {
        Own& own = own_[static_cast<size_t>(member)];
        for (long k; (k = next_.fetch_add(1, std::memory_order_relaxed)) < whole_;) {
            Descent& descent = descents_[static_cast<size_t>(member)];
            descent.begin(todo_[static_cast<size_t>(k)]);
            do descent.iterate(0, problem_.batch.height, own);
            while (!descent.judge());
            finished_whole_.fetch_add(1, std::memory_order_release);
        }
        for (long stage; (stage = stage_.load(std::memory_order_acquire)) != over;) {
            // Its own band first, which its cache still holds; then those of threads that have not come.
            for (long k = 0; k < parts_; ++k) {
                const long part = (member + k) % parts_;
                long expected = stage;
                if (claimed_[static_cast<size_t>(part)].compare_exchange_strong(expected, stage + 1,
                                                                                std::memory_order_acq_rel))
                    do_part(stage, part, own);
            }
            wait_until([&] { return stage_.load(std::memory_order_acquire) != stage; });
        }
        if (member == 0)
            wait_until([&] { return finished_whole_.load(std::memory_order_acquire) == whole_; });
    }

  private:
    static constexpr long over = -1;

    long room() const { return (problem_.image + line - 1) / line * line; }

    void do_part(long stage, long part, Own& own) {
        const long height = problem_.batch.height;
        Descent& descent = descents_.back();
        descent.iterate(height * part / parts_, height * (part + 1) / parts_, own);
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 < (stage + 1) * parts_) return;
        long following = stage + 1;
        if (descent.judge()) {
            if (++shared_ < static_cast<long>(todo_.size()))
                descent.begin(todo_[static_cast<size_t>(shared_)]);
            else
                following = over;
        }
        stage_.store(following, std::memory_order_release);
    }

    const Problem problem_;
    const std::vector<long> todo_;
    int size_ = 1;
    long parts_ = 1, whole_ = 0, shared_ = 0;
    std::unique_ptr<Buffer> memory_;
    std::vector<Own> own_;
    std::vector<Descent> descents_;
    std::vector<std::atomic<long>> claimed_;  // of each band: the stages that someone has taken on
    std::atomic<long> next_{0}, finished_whole_{0}, finished_{0}, stage_{0};
};

}  // namespace

void forget() { buffers().clear(); }

void solve(const Batch& batch, const Filters& filters, int threads, Level level) {
    const long plane = batch.height * batch.width;
    std::vector<long> todo;
    for (long n = 0; n < batch.count; ++n)
        if (batch.active[n]) {
            todo.push_back(n);
        } else {
            std::copy_n(batch.images + n * plane, plane, batch.out + n * plane);
            batch.rests[n] = true;
        }
    if (todo.empty() || plane == 0) return;
    const auto job = std::make_shared<Job>(batch, filters, std::move(todo), threads, level);
    run_team(job->size(), job);
    job->release();
}

}  // namespace plugstream::ridge
