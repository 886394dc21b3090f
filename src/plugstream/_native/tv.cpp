// An image is cut into bands of planes, one for each thread; the planes of an image with two axes are its rows. Within a
// band an iteration is a single pass in place: a row of the next plane of x is formed from the old s just before the row
// of s that it needs is overwritten, so that x is never stored as an image. Only the first plane of x of each band, its
// seam, is needed by two threads. Where a seam is one row, whoever finishes the last band of an iteration forms the seams
// of the next; where it is a plane of a volume, all threads do, in a stage of its own.
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

// How an image is walked through: `outer` planes of `middle` rows.
struct Walk {
    explicit Walk(const Shape& shape)
        : components(shape.components),
          axes(shape.axes),
          outer(axes == 3 ? shape.depth : shape.height),
          middle(axes == 3 ? shape.height : 1),
          width(shape.width),
          plane(middle * width),
          pixels(outer * plane),
          record(components * (width + 1)),
          seam(middle * record) {}

    const long components, axes, outer, middle, width;
    const long plane, pixels;  // of one component
    const long record, seam;   // values of x in a row and in a plane, with all components
};

// What a thread has for itself, in an array that keeps threads off each other's cache lines.
template <class T>
struct Own {
    static long size(const Walk& walk) { return 2 * walk.seam + walk.record + 2 * walk.width + 16; }

    Own(T* memory, T** rows, const Walk& walk)
        : top(memory), plane(top + walk.seam), spare(plane + walk.seam), scratch(spare + walk.record), rows(rows) {}

    T *const top, *const plane, *const spare, *const scratch;
    T** const rows;  // `middle` of them
};

// One image of the batch, with what its rows need.
template <class T>
class Image {
  public:
    Image(const Batch<T>& batch, const Rows<T>& rows, const Walk& walk, const T* zeros, long index)
        : batch_(batch), rows_(rows), walk_(walk), zeros_(zeros), index_(index) {}

    // Row `row` of plane i of x at the dual `q` (p or s), all components; `out` is a record.
    void primal(const T* q, long i, long row, T* out) const {
        const long field = walk_.pixels, at = i * walk_.plane + row * walk_.width;
        for (long k = 0; k < walk_.components; ++k, out += walk_.width + 1) {
            const long component = index_ * walk_.components + k;
            const T *outer = q + component * walk_.axes * field + at, *across = outer + (walk_.axes - 1) * field;
            const T* middle = walk_.axes == 3 ? outer + field : nullptr;
            const T* middle_before = middle == nullptr ? nullptr : row > 0 ? middle - walk_.width : zeros_;
            const long pixel = component * walk_.pixels + at, bound = batch_.maps ? pixel : component;
            rows_.primal(batch_.z + pixel, i > 0 ? outer - walk_.plane : zeros_, outer, middle_before, middle, across,
                         batch_.strength[index_], batch_.low + bound, batch_.high + bound, batch_.maps, walk_.width,
                         out);
        }
    }

    void primal_plane(const T* q, long i, T* out) const {
        for (long row = 0; row < walk_.middle; ++row) primal(q, i, row, out + row * walk_.record);
    }

    // One iteration on planes first .. end - 1. `top` is plane `first` of x, `bottom` is plane `end`, null beyond the
    // image.
    void iterate(long step, long first, long end, const T* top, const T* bottom, const Own<T>& own) const {
        const Layout<T> layout = layout_with(own);
        T* spare = own.spare;
        for (long row = 0; row < walk_.middle; ++row) own.rows[row] = own.plane + row * walk_.record;
        for (long i = first; i < end; ++i) {
            auto here = [&](long row) -> const T* { return i == first ? top + row * walk_.record : own.rows[row]; };
            for (long row = 0; row < walk_.middle; ++row) {
                Near<T> near{here(row), here(std::min(row + 1, walk_.middle - 1)), here(row)};
                if (i + 1 < end) {
                    // Of the plane after the first there is nothing to overwrite yet.
                    if (i > first) std::swap(own.rows[row], spare);
                    primal(batch_.s, i + 1, row, own.rows[row]);
                    near.outer = own.rows[row];
                } else if (bottom != nullptr) {
                    near.outer = bottom + row * walk_.record;
                }
                const long at = dual_at(i, row);
                rows_.dual(layout, near, batch_.rate[index_], batch_.momentum[step], batch_.p + at, batch_.s + at);
            }
        }
    }

    // Planes first .. end - 1 of x at p, and each row's share of the gap.
    void measure(long first, long end, const Own<T>& own, double* shares) const {
        const Layout<T> layout = layout_with(own);
        T* spare = own.spare;
        primal_plane(batch_.p, first, own.plane);
        for (long row = 0; row < walk_.middle; ++row) own.rows[row] = own.plane + row * walk_.record;
        for (long i = first; i < end; ++i) {
            for (long row = 0; row < walk_.middle; ++row) {
                const T* x = own.rows[row];
                Near<T> near{x, own.rows[std::min(row + 1, walk_.middle - 1)], x};
                if (i + 1 < walk_.outer) {
                    std::swap(own.rows[row], spare);
                    primal(batch_.p, i + 1, row, own.rows[row]);
                    near.outer = own.rows[row];
                }
                for (long k = 0; k < walk_.components; ++k)
                    std::copy_n(x + k * (walk_.width + 1), walk_.width,
                                batch_.x + (index_ * walk_.components + k) * walk_.pixels + i * walk_.plane +
                                    row * walk_.width);
                shares[i * walk_.middle + row] = rows_.gap(layout, near, batch_.p + dual_at(i, row));
            }
        }
    }

    // Added in the order of the rows, so that the bands leave no trace.
    void finish(const double* shares) const {
        double sum = 0;
        for (long row = 0; row < walk_.outer * walk_.middle; ++row) sum += shares[row];
        batch_.gap[index_] = static_cast<double>(batch_.strength[index_]) * sum;
    }

  private:
    Layout<T> layout_with(const Own<T>& own) const {
        return {walk_.components, walk_.axes, walk_.width, walk_.pixels, batch_.isotropic, own.scratch};
    }
    long dual_at(long i, long row) const {
        return index_ * walk_.components * walk_.axes * walk_.pixels + i * walk_.plane + row * walk_.width;
    }

    const Batch<T>& batch_;
    const Rows<T>& rows_;
    const Walk& walk_;
    const T* const zeros_;
    const long index_;
};

// The work of one call, claimed piece by piece. Images that every thread can have one of are done whole; those left
// over, fewer than the threads, are shared in bands. These go through stages: for each image `count` iterations, each of
// one or two, and one measurement, numbered through.
template <class T>
class Job {
  public:
    Job(const Batch<T>& batch, const Rows<T>& rows, std::vector<long> todo, int size, long bands)
        : batch_(batch),
          rows_(rows),
          walk_(batch.shape),
          todo_(std::move(todo)),
          parts_(bands),
          whole_(bands == 1 ? images() : images() - images() % size),
          phases_(walk_.axes == 3 ? 2 : 1),
          each_(batch.count * phases_ + 1),
          stages_((images() - whole_) * each_),
          zeros_(walk_.width),
          memory_(size * Own<T>::size(walk_)),
          tables_(size * walk_.middle),
          seams_(whole_ < images() ? parts_ * walk_.seam : 0),
          shares_((size + 1) * walk_.outer * walk_.middle),
          claimed_(parts_) {
        if (whole_ < images() && phases_ == 1) form_seams(0);
    }

    static long cut(const Walk& walk, long threads) {
        return std::clamp(walk.components * walk.pixels / least_band, 1L, std::min(threads, walk.outer));
    }

    void work(int member) {
        const Own<T> own(memory_.data() + member * Own<T>::size(walk_), tables_.data() + member * walk_.middle, walk_);
        for (long k; (k = next_.fetch_add(1, std::memory_order_relaxed)) < whole_;) {
            whole_image(image(k), own, shares_.data() + (member + 1) * walk_.outer * walk_.middle);
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
    Image<T> image(long k) const { return Image<T>(batch_, rows_, walk_, zeros_.data(), todo_[k]); }
    long image_of(long stage) const { return whole_ + stage / each_; }
    long edge(long part) const { return walk_.outer * part / parts_; }
    T* seam(long part) { return seams_.data() + part * walk_.seam; }

    void form_seam(const Image<T>& image, long part) { image.primal_plane(batch_.s, edge(part), seam(part)); }

    void form_seams(long stage) {
        for (long part = 0; part < parts_; ++part) form_seam(image(image_of(stage)), part);
    }

    void whole_image(const Image<T>& image, const Own<T>& own, double* shares) const {
        for (long step = 0; step < batch_.count; ++step) {
            image.primal_plane(batch_.s, 0, own.top);
            image.iterate(step, 0, walk_.outer, own.top, nullptr, own);
        }
        image.measure(0, walk_.outer, own, shares);
        image.finish(shares);
    }

    void do_part(long stage, long part, const Own<T>& own) {
        const Image<T> current = image(image_of(stage));
        const long turn = stage % each_, first = edge(part), end = edge(part + 1);
        const bool measuring = turn + 1 == each_;
        if (measuring)
            current.measure(first, end, own, shares_.data());
        else if (phases_ == 2 && turn % 2 == 0)
            form_seam(current, part);
        else
            current.iterate(turn / phases_, first, end, seam(part), part + 1 < parts_ ? seam(part + 1) : nullptr, own);
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 < (stage + 1) * parts_) return;
        if (measuring) current.finish(shares_.data());
        if (phases_ == 1 && stage + 1 < stages_) form_seams(stage + 1);
        stage_.store(stage + 1, std::memory_order_release);
    }

    const Batch<T> batch_;
    const Rows<T>& rows_;
    const Walk walk_;
    const std::vector<long> todo_;
    const long parts_, whole_, phases_, each_, stages_;
    const std::vector<T> zeros_;
    std::vector<T> memory_;
    std::vector<T*> tables_;
    std::vector<T> seams_;
    std::vector<double> shares_;
    std::vector<std::atomic<long>> claimed_;  // of each band: the stages that someone has taken on
    std::atomic<long> next_{0}, finished_whole_{0}, finished_{0}, stage_{0};
};

}  // namespace

template <class T>
void start(const Start<T>& batch, Level level) {
    const Rows<T>& rows = rows_of<T>(level);
    const Walk walk(batch.shape);
    const long size = walk.components * walk.pixels, dual = walk.axes * size;
    std::vector<T> scratch(2 * walk.width);
    const Layout<T> layout{walk.components, walk.axes, walk.width, walk.pixels, batch.isotropic, scratch.data()};
    for (long n = 0; n < batch.shape.images; ++n) {
        double sum = 0;
        for (long row = 0; row < walk.components * walk.outer * walk.middle; ++row)
            sum += rows.energy(batch.z + n * size + row * walk.width, walk.width);
        batch.energy[n] = sum;
        T *p = batch.p + n * dual, *s = batch.s + n * dual;
        if (batch.warm == nullptr || sum == 0) {
            std::fill_n(p, dual, T(0));
        } else {
            for (long i = 0; i < walk.outer; ++i)
                for (long row = 0; row < walk.middle; ++row) {
                    const long at = i * walk.plane + row * walk.width;
                    rows.feasible(layout, batch.warm + n * dual + at, i + 1 == walk.outer, row + 1 == walk.middle,
                                  p + at);
                }
        }
        std::copy_n(p, dual, s);
    }
}

template <class T>
void advance(const Batch<T>& batch, int threads, Level level) {
    const Walk walk(batch.shape);
    if (walk.components * walk.pixels == 0) return;
    std::vector<long> todo;
    for (long n = 0; n < batch.shape.images; ++n)
        if (batch.active[n]) todo.push_back(n);
    if (todo.empty()) return;
    const long most = std::max(threads, 1);
    const long bands = Job<T>::cut(walk, most);
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
