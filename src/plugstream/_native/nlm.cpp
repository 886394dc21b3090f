// An image is cut into bands of rows, the same whatever the number of threads. A product with A adds to rows below a
// band too, so each band has sums of its own, of its rows and of those that it reaches; a row's total is the sum of its
// own band's and of the band's before. Every pass over A is bound by reading it, so it is kept as one half, read once a
// pass, and the pass that finds the row sums for the last time applies it to the image as well.
#include "nlm.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "nlm_rows.hpp"
#include "team.hpp"

namespace plugstream::nlm {
namespace {

constexpr long least_rows = 16;  // in a band

const Rows& rows_of(Level level) { return PLUGSTREAM_AT_LEVEL(level, rows); }

long rounded(long length) { return (length + 15) / 16 * 16; }

// Where things lie. The rows of A are kept one after the other, each with room on both sides for what `multiply` reads
// beyond its ends: zeros or affinities, which are finite, times the zeros around the vectors.
struct Layout {
    long height, width, search, around, wide, pitch, guard, row, margin, vector, rows, bands;

    explicit Layout(const Shape& s)
        : height(s.height),
          width(s.width),
          search(s.search),
          around(2 * s.patch + 1),
          wide(rounded(s.width)),
          pitch(wide % 256 == 0 ? wide + 16 : wide),  // no multiple of a page, where rows would share cache sets
          guard(rounded(s.search + 16)),
          row(2 * guard + 2 * search * (search + 1) * pitch),
          margin(rounded(s.search + s.patch)),
          vector(margin + wide + rounded(s.search + 2 * s.patch + 16)),
          rows(std::max(least_rows, search)),
          bands((s.height + rows - 1) / rows) {}

    int first(long dy) const { return static_cast<int>(dy == 0 ? 1 : -search); }
    int count(long dy) const { return static_cast<int>(dy == 0 ? search : 2 * search + 1); }
    long piece(long dy) const { return guard + (dy == 0 ? 0 : search + (dy - 1) * (2 * search + 1)) * pitch; }
};

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(1);
    return one;
}

// The work of one call: phases, whose bands are claimed one by one; a phase begins when the one before is finished.
class Job {
  public:
    // balance < 0: the matrix is there, and is only applied.
    Job(const Shape& shape, const float* guide, float rate, int balance, const Matrix& matrix, const float* image,
        float* out, int threads, Level level)
        : at_(shape), rows_(rows_of(level)), matrix_(matrix), guide_(guide), image_(image), out_(out), rate_(rate),
          balance_(balance) {
        size_ = static_cast<int>(std::clamp(static_cast<long>(threads), 1L, at_.bands));
        phases_ = balance < 0 ? 3 : 2 * balance + 4;
        next_ = std::vector<std::atomic<long>>(phases_);
        done_ = std::vector<std::atomic<long>>(phases_);
    }

    int size() const { return size_; }

    // All memory is taken here, where running out of it can still be reported.
    void prepare() {
        const long plane = at_.height * at_.vector, sums = at_.bands * (at_.rows + at_.search) * at_.wide;
        const long guide = (at_.height + at_.around - 1) * at_.vector, scratch = (2 * at_.search + 1) * at_.vector;
        const long pixels = at_.height * at_.width;
        const long own = matrix_.affinity == nullptr ? at_.height * at_.row + 2 * pixels : 0;
        memory_ = buffers().take();
        memory_->reserve((own + 2 * plane + 2 * sums + guide + size_ * scratch) * static_cast<long>(sizeof(float)));
        float* free = memory_->as<float>();
        auto next = [&](long count) { return std::exchange(free, free + count); };
        if (matrix_.affinity == nullptr) {
            matrix_.affinity = next(at_.height * at_.row);
            matrix_.scale = next(pixels);
            matrix_.rest = next(pixels);
        }
        for (int n = 0; n < 2; ++n) {
            vectors_[n] = next(plane);
            sums_[n] = next(sums);
        }
        padded_ = next(guide);
        scratch_ = next(size_ * scratch);
        most_ = std::vector<float>(at_.bands);
        auto share = [&](long d) { return 1 - static_cast<double>(std::labs(d)) / static_cast<double>(at_.search + 1); };
        for (long dy = 0; dy <= at_.search; ++dy)
            for (long dx = -at_.search; dx <= at_.search; ++dx)
                pyramid_.push_back(static_cast<float>(share(dy) * share(dx)));
    }

    // When all work is done. A helper that comes late still has the job, but nothing left to do.
    void release() {
        if (memory_->size() <= most_kept) buffers().put(std::move(memory_));
    }

    void work(int member) {
        for (long phase = 0; phase < phases_; ++phase) {
            for (long band; (band = next_[phase].fetch_add(1, std::memory_order_relaxed)) < at_.bands;) {
                const long top = band * at_.rows, end = std::min(top + at_.rows, at_.height);
                if (phase == 0)
                    start(top, end);
                else if (phase == phases_ - 1)
                    finish(band, top, end);
                else if (phase % 2 == 1)
                    pass(phase, band, top, end, member);
                else
                    settle(phase, band, top, end);
                done_[phase].fetch_add(1, std::memory_order_release);
            }
            wait_until([&] { return done_[phase].load(std::memory_order_acquire) == at_.bands; });
        }
    }

  private:
    float* vector(int n, long y) const { return vectors_[n] + y * at_.vector + at_.margin; }
    float* sums(int n, long band) const { return sums_[n] + band * (at_.rows + at_.search) * at_.wide; }
    // In the last pass the image is taken along, unless there is none.
    int images(long phase) const { return balance_ >= 0 && image_ != nullptr && phase == phases_ - 3 ? 2 : 1; }

    static long reflected(long at, long size) { return at < 0 ? -1 - at : at >= size ? 2 * size - 1 - at : at; }

    void start(long top, long end) const {
        for (int n = 0; n < 2; ++n) std::fill_n(vector(n, top) - at_.margin, (end - top) * at_.vector, 0.0f);
        for (long y = top; y < end; ++y)
            for (long x = 0; x < at_.width; ++x)
                vector(0, y)[x] = balance_ < 0 ? matrix_.scale[y * at_.width + x] * image_[y * at_.width + x] : 1.0f;
        if (balance_ < 0) return;
        const long patch = at_.around / 2, from = top == 0 ? 0 : top + patch;
        const long to = end == at_.height ? end + 2 * patch : end + patch;
        for (long y = from; y < to; ++y) {  // row y of the padded guide is row y - patch of the guide
            const float* pixels = guide_ + reflected(y - patch, at_.height) * at_.width;
            float* row = padded_ + y * at_.vector;
            std::fill_n(row, at_.vector, 0.0f);
            for (long x = -patch; x < at_.width + patch; ++x) row[at_.margin + x] = pixels[reflected(x, at_.width)];
        }
    }

    void form_row(long y, int member) const {
        float* row = matrix_.affinity + y * at_.row;
        float* scratch = scratch_ + member * (2 * at_.search + 1) * at_.vector;
        const long patch = at_.around / 2;
        std::fill_n(row, at_.guard, 0.0f);
        std::fill_n(row + at_.row - at_.guard, at_.guard, 0.0f);
        for (long dy = 0; dy <= at_.search; ++dy) {
            float* piece = row + at_.piece(dy);
            const int first = at_.first(dy), count = at_.count(dy);
            if (y + dy >= at_.height) {
                std::fill_n(piece, count * at_.pitch, 0.0f);
                continue;
            }
            const float* pyramid = pyramid_.data() + dy * (2 * at_.search + 1) + at_.search + first;
            const float* here = padded_ + y * at_.vector + at_.margin - patch;
            rows_.affinities(here, here + dy * at_.vector + first, at_.vector, static_cast<int>(at_.around), rate_,
                             count, pyramid, at_.width, scratch, at_.pitch, piece);
            for (int j = 0; j < count; ++j)
                std::fill_n(piece + j * at_.pitch + at_.width, at_.pitch - at_.width, 0.0f);
        }
    }

    // The sums of a band for v -> A v - v; in the first pass the rows of A are formed on the way.
    void pass(long phase, long band, long top, long end, int member) const {
        const int count = images(phase);
        for (int n = 0; n < count; ++n) std::fill_n(sums(n, band), (at_.rows + at_.search) * at_.wide, 0.0f);
        for (long y = top; y < end; ++y) {
            if (phase == 1 && balance_ >= 0) form_row(y, member);
            for (long dy = 0; dy <= at_.search && y + dy < at_.height; ++dy) {
                const float *v_above[2], *v_below[2];
                float *above[2], *below[2];
                for (int n = 0; n < count; ++n) {
                    v_above[n] = vector(n, y);
                    v_below[n] = vector(n, y + dy);
                    above[n] = sums(n, band) + (y - top) * at_.wide;
                    below[n] = above[n] + dy * at_.wide;
                }
                rows_.multiply(matrix_.affinity + y * at_.row + at_.piece(dy), at_.pitch, at_.first(dy), at_.count(dy),
                               at_.width, count, v_above, v_below, above, below);
            }
        }
    }

    // (A v)[y][x]; a band has at least as many rows as it reaches, so only the one before adds to it.
    float total(int n, long band, long top, long y, long x) const {
        float sum = vector(n, y)[x] + sums(n, band)[(y - top) * at_.wide + x];
        if (band > 0 && y - top < at_.search) sum += sums(n, band - 1)[(at_.rows + y - top) * at_.wide + x];
        return sum;
    }

    void settle(long phase, long band, long top, long end) {
        const bool last = phase == 2L * balance_ + 2, next_is_last = phase == 2L * balance_;
        float most = 0;
        for (long y = top; y < end; ++y) {
            float* d = vector(0, y);
            for (long x = 0; x < at_.width; ++x) {
                const float sum = total(0, band, top, y, x);
                if (last) {
                    const float rho = d[x] * sum;
                    matrix_.rest[y * at_.width + x] = rho;
                    most = std::max(most, rho);
                } else {
                    d[x] = std::sqrt(d[x] / sum);
                    if (next_is_last && image_ != nullptr) vector(1, y)[x] = d[x] * image_[y * at_.width + x];
                }
            }
        }
        most_[band] = most;
    }

    void finish(long band, long top, long end) const {
        const bool made = balance_ >= 0;
        const float most = made ? *std::max_element(most_.begin(), most_.end()) : 1.0f, root = std::sqrt(1 / most);
        for (long y = top; y < end; ++y)
            for (long x = 0; x < at_.width; ++x) {
                const long at = y * at_.width + x;
                if (made) {
                    matrix_.scale[at] = vector(0, y)[x] * root;
                    matrix_.rest[at] = std::max(0.0f, 1 - matrix_.rest[at] / most);
                }
                if (image_ == nullptr) continue;
                const float sum = made ? total(1, band, top, y, x) * root : total(0, band, top, y, x);
                out_[at] = matrix_.scale[at] * sum + matrix_.rest[at] * image_[at];
            }
    }

    const Layout at_;
    const Rows& rows_;
    Matrix matrix_;
    const float *guide_, *image_;
    float* out_;
    const float rate_;
    const int balance_;
    int size_ = 1;
    long phases_ = 0;
    float *vectors_[2] = {}, *sums_[2] = {}, *padded_ = nullptr, *scratch_ = nullptr;
    std::vector<float> most_, pyramid_;
    std::unique_ptr<Buffer> memory_;
    std::vector<std::atomic<long>> next_, done_;
};

void run(const std::shared_ptr<Job>& job) {
    job->prepare();
    run_team(job->size(), job);
    job->release();
}

}  // namespace

long size(const Shape& shape) {
    const Layout at(shape);
    return at.height * at.row;
}

void form(const Shape& shape, const float* guide, float rate, int balance, const Matrix& matrix, const float* image,
          float* out, int threads, Level level) {
    run(std::make_shared<Job>(shape, guide, rate, balance, matrix, image, out, threads, level));
}

void apply(const Shape& shape, const Matrix& matrix, const float* image, float* out, int threads, Level level) {
    run(std::make_shared<Job>(shape, nullptr, 0.0f, -1, matrix, image, out, threads, level));
}

void forget() { buffers().clear(); }

}  // namespace plugstream::nlm
