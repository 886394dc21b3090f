// One image is cut into bands of rows, one for each thread. Within a band an iteration is a single pass in place: the
// row of x below is formed from the old s just before the row of s that it needs is overwritten, so that x is never
// stored as an image. Only the first row of x of each band, its seam, is needed by two threads; whoever finishes the
// last band of an iteration forms the seams of the next.
#include "tv.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "team.hpp"
#include "tv_rows.hpp"

namespace plugstream::tv {
namespace {

constexpr long least_band = 4096;  // pixels; below this, waiting costs more than a second thread saves

template <class T>
const Rows<T>& rows_of(Level level) {
    if constexpr (sizeof(T) == sizeof(float))
        return PLUGSTREAM_AT_LEVEL(level, rows32);
    else
        return PLUGSTREAM_AT_LEVEL(level, rows64);
}

// One image of the batch, with what its rows need.
template <class T>
class Image {
  public:
    Image(const Batch<T>& batch, const Rows<T>& rows, const T* zeros, long index)
        : batch_(batch), rows_(rows), zeros_(zeros), index_(index), width_(batch.width), plane_(batch.height * width_) {}

    // Row i of x at the dual `q` (p or s); `out` has width + 1 values.
    void primal(const T* q, long i, T* out) const {
        const T* down = dual_row(q, i);
        rows_.primal(batch_.z + index_ * plane_ + i * width_, i > 0 ? down - width_ : zeros_, down, down + plane_,
                     batch_.strength[index_], batch_.low, batch_.high, width_, out);
    }

    // One iteration on rows first .. end - 1. `top` is row `first` of x, `bottom` is row `end`, null below the image.
    void iterate(long step, long first, long end, const T* top, const T* bottom, T* scratch) const {
        const T momentum = batch_.momentum[step];
        const T* x = top;
        for (long i = first; i < end; ++i) {
            const T* below = x;
            if (i + 1 < end) {
                T* out = scratch + ((i - first) % 2) * (width_ + 1);
                primal(batch_.s, i + 1, out);
                below = out;
            } else if (bottom != nullptr) {
                below = bottom;
            }
            T *p = dual_row(batch_.p, i), *s = dual_row(batch_.s, i);
            rows_.dual(x, below, batch_.rate[index_], momentum, batch_.isotropic, width_, p, p + plane_, s, s + plane_);
            x = below;
        }
    }

    // Rows first .. end - 1 of x at p, and each row's share of the gap.
    void measure(long first, long end, T* scratch, double* shares) const {
        T *x = scratch, *below = scratch + width_ + 1;
        primal(batch_.p, first, x);
        for (long i = first; i < end; ++i) {
            const bool last = i + 1 == batch_.height;
            if (!last) primal(batch_.p, i + 1, below);
            std::copy_n(x, width_, batch_.x + index_ * plane_ + i * width_);
            const T* p = dual_row(batch_.p, i);
            shares[i] = rows_.gap(x, last ? x : below, p, p + plane_, batch_.isotropic, width_);
            std::swap(x, below);
        }
    }

    // Added in the order of the rows, so that the bands leave no trace.
    void finish(const double* shares) const {
        double sum = 0;
        for (long i = 0; i < batch_.height; ++i) sum += shares[i];
        batch_.gap[index_] = static_cast<double>(batch_.strength[index_]) * sum;
    }

  private:
    template <class U>
    U* dual_row(U* q, long i) const { return q + index_ * 2 * plane_ + i * width_; }

    const Batch<T>& batch_;
    const Rows<T>& rows_;
    const T* const zeros_;
    const long index_, width_, plane_;
};

// The work of one call, claimed piece by piece. Images that every thread can have one of are done whole; those left
// over, fewer than the threads, are shared in bands. These go through stages: `count` iterations and one measurement
// for each image, numbered through.
template <class T>
class Job {
  public:
    Job(const Batch<T>& batch, const Rows<T>& rows, std::vector<long> todo, int size, long bands)
        : batch_(batch),
          rows_(rows),
          todo_(std::move(todo)),
          size_(size),
          parts_(bands),
          whole_(bands == 1 ? images() : images() - images() % size),
          stages_((images() - whole_) * (batch.count + 1)),
          zeros_(batch.width),
          scratch_(size * own_size()),
          seams_(parts_ * (batch.width + 1)),
          shares_((size + 1) * batch.height),
          claimed_(parts_) {
        if (whole_ < images()) form_seams(0);
    }

    static constexpr long cut(long pixels, long height, long threads) {
        return std::clamp(pixels / least_band, 1L, std::min(threads, height));
    }

    void work(int member) {
        T* own = scratch_.data() + member * own_size();
        for (long k; (k = next_.fetch_add(1, std::memory_order_relaxed)) < whole_;) {
            whole_image(image(k), own, shares_.data() + (member + 1) * batch_.height);
            finished_whole_.fetch_add(1, std::memory_order_release);
        }
        for (long stage; (stage = stage_.load(std::memory_order_acquire)) < stages_;) {
            // Its own band first, which its cache still holds; then those of threads that have not come.
            for (long k = 0; k < parts_; ++k) {
                const long part = (member + k) % parts_;
                long expected = stage;
                if (claimed_[part].compare_exchange_strong(expected, stage + 1, std::memory_order_acq_rel))
                    do_part(stage, part, own);
            }
            wait_until([&] { return stage_.load(std::memory_order_acquire) != stage; });
        }
        if (member == 0)
            wait_until([&] { return finished_whole_.load(std::memory_order_acquire) == whole_; });
    }

  private:
    long images() const { return static_cast<long>(todo_.size()); }
    // Three rows of x, and space so that two threads share no cache line.
    long own_size() const { return 3 * (batch_.width + 1) + 16; }
    Image<T> image(long k) const { return Image<T>(batch_, rows_, zeros_.data(), todo_[k]); }
    long image_of(long stage) const { return whole_ + stage / (batch_.count + 1); }
    long edge(long part) const { return batch_.height * part / parts_; }
    T* seam(long part) { return seams_.data() + part * (batch_.width + 1); }

    void form_seams(long stage) {
        for (long part = 0; part < parts_; ++part) image(image_of(stage)).primal(batch_.s, edge(part), seam(part));
    }

    void whole_image(const Image<T>& image, T* own, double* shares) const {
        T* top = own + 2 * (batch_.width + 1);
        for (long step = 0; step < batch_.count; ++step) {
            image.primal(batch_.s, 0, top);
            image.iterate(step, 0, batch_.height, top, nullptr, own);
        }
        image.measure(0, batch_.height, own, shares);
        image.finish(shares);
    }

    void do_part(long stage, long part, T* own) {
        const Image<T> current = image(image_of(stage));
        const long step = stage % (batch_.count + 1), first = edge(part), end = edge(part + 1);
        const bool measuring = step == batch_.count;
        if (measuring)
            current.measure(first, end, own, shares_.data());
        else
            current.iterate(step, first, end, seam(part), part + 1 < parts_ ? seam(part + 1) : nullptr, own);
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 < (stage + 1) * parts_) return;
        if (measuring) current.finish(shares_.data());
        if (stage + 1 < stages_) form_seams(stage + 1);
        stage_.store(stage + 1, std::memory_order_release);
    }

    const Batch<T> batch_;
    const Rows<T>& rows_;
    const std::vector<long> todo_;
    const long size_, parts_, whole_, stages_;
    const std::vector<T> zeros_;
    std::vector<T> scratch_, seams_;
    std::vector<double> shares_;
    std::vector<std::atomic<long>> claimed_;  // of each band: the stages that someone has taken on
    std::atomic<long> next_{0}, finished_whole_{0}, finished_{0}, stage_{0};
};

}  // namespace

template <class T>
void start(const Start<T>& batch, Level level) {
    const Rows<T>& rows = rows_of<T>(level);
    const long width = batch.width, plane = batch.height * width;
    for (long n = 0; n < batch.images; ++n) {
        double sum = 0;
        for (long i = 0; i < batch.height; ++i) sum += rows.energy(batch.z + n * plane + i * width, width);
        batch.energy[n] = sum;
        const bool cold = batch.warm == nullptr || sum == 0;
        T *p = batch.p + n * 2 * plane, *s = batch.s + n * 2 * plane;
        if (cold) {
            std::fill_n(p, 2 * plane, T(0));
        } else {
            const T* warm = batch.warm + n * 2 * plane;
            for (long i = 0; i < batch.height; ++i) {
                const long down = i * width, across = plane + down;
                rows.feasible(warm + down, warm + across, i + 1 == batch.height, batch.isotropic, width, p + down,
                              p + across);
            }
        }
        std::copy_n(p, 2 * plane, s);
    }
}

template <class T>
void advance(const Batch<T>& batch, int threads, Level level) {
    if (batch.height == 0 || batch.width == 0) return;
    std::vector<long> todo;
    for (long n = 0; n < batch.images; ++n)
        if (batch.active[n]) todo.push_back(n);
    if (todo.empty()) return;
    const long most = std::max(threads, 1);
    const long bands = Job<T>::cut(batch.height * batch.width, batch.height, most);
    const int size = static_cast<int>(std::min(most, static_cast<long>(todo.size()) * bands));
    // All memory is taken here, where running out of it can still be reported.
    const auto job = std::make_shared<Job<T>>(batch, rows_of<T>(level), std::move(todo), size, bands);
    run_team(size, job);
}

template void start<float>(const Start<float>&, Level);
template void start<double>(const Start<double>&, Level);
template void advance<float>(const Batch<float>&, int, Level);
template void advance<double>(const Batch<double>&, int, Level);

}  // namespace plugstream::tv
