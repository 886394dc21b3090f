// One image while its prox of total variation is solved, in tasks that bands of it may share.
//
// An image is cut into bands of planes, one for each thread; the planes of an image with two axes are its rows. Within a
// band an iteration is a single pass in place: a row of the next plane of x is formed from the old s just before the row
// of s that it needs is overwritten, so that x is never stored as an image. Only the first plane of x of each band, its
// seam, is needed by two threads. Where a seam is one row, whoever finishes the last band of an iteration forms the seams
// of the next; where it is a plane of a volume, all threads do, in a stage of its own.
#pragma once

#include <algorithm>

#include "tv.hpp"
#include "tv_rows.hpp"

namespace plugstream::tv {

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
          rows(outer * middle),
          record(components * (width + 1)),
          seam(middle * record) {}

    const long components, axes, outer, middle, width;
    const long plane, pixels, rows;  // of one component
    const long record, seam;         // values of x in a row and in a plane, with all components
};

// What a thread has for itself, in an array that keeps threads off each other's cache lines.
template <class T>
struct Own {
    static long size(const Walk& walk) { return walk.seam + walk.record + 2 * walk.width + 16; }

    Own(T* memory, T** rows, const Walk& walk)
        : plane(memory), spare(plane + walk.seam), scratch(spare + walk.record), rows(rows) {}

    T *const plane, *const spare, *const scratch;
    T** const rows;  // `middle` of them
};

// The sum of term(0 .. count - 1) in NumPy's order, which rounds little and is the same everywhere.
template <class Term>
double sum_pairwise(long count, const Term& term, long from = 0) {
    constexpr long lanes = 8, block = 128;
    if (count > block) {
        const long half = count / 2 - count / 2 % lanes;
        return sum_pairwise(half, term, from) + sum_pairwise(count - half, term, from + half);
    }
    double total = 0;
    long k = 0;
    if (count >= lanes) {
        double sums[lanes];
        for (long i = 0; i < lanes; ++i) sums[i] = term(from + i);
        for (k = lanes; k + lanes <= count; k += lanes)
            for (long i = 0; i < lanes; ++i) sums[i] += term(from + k + i);
        total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
    for (; k < count; ++k) total += term(from + k);
    return total;
}

// What is done to an image next, band by band; `step` counts iterations.
struct Task {
    enum Kind { sum, start, look, copy, seams, iterate, finish, none } kind;
    long step;
};

// The images, box and places of z that a primal is formed from.
template <class T>
struct Source {
    const T *z, *low, *high;
    long component, pixel;  // from the bounds of one component, and of one pixel, to those of the next

    long bound(long k, long at) const { return k * component + at * pixel; }
};

// One image of the batch while it is solved.
template <class T>
class Image {
  public:
    // What it needs beside the batch's arrays, in bytes: a share of each row, s, z without its mean, the box without the
    // mean, the mean itself, and seams.
    static long size(const Batch<T>& batch, const Walk& walk, long parts) {
        const long pixels = walk.components * walk.pixels, boxes = batch.low_map == nullptr ? 0 : 2 * pixels;
        const long numbers = (1 + walk.axes) * pixels + boxes + 3 * walk.components + parts * walk.seam;
        const long bytes = numbers * static_cast<long>(sizeof(T)) + walk.components * walk.rows * static_cast<long>(sizeof(double));
        return (bytes + 63) / 64 * 64;
    }

    // `memory` has that size.
    Image(const Batch<T>& batch, const Rows<T>& rows, const Walk& walk, const T* zeros, long parts, char* memory)
        : batch_(batch),
          rows_(rows),
          walk_(walk),
          zeros_(zeros),
          parts_(parts),
          shares_(reinterpret_cast<double*>(memory)),
          s_(reinterpret_cast<T*>(shares_ + walk.components * walk.rows)),
          flat_(s_ + walk.components * walk.axes * walk.pixels),
          mean_(flat_ + walk.components * walk.pixels),
          bounds_(mean_ + walk.components),
          seams_(bounds_ + 2 * walk.components),
          boxes_(seams_ + parts * walk.seam),
          ends_{static_cast<T>(batch.low), static_cast<T>(batch.high)} {}

    // Turns to an image of the batch; its first task.
    Task choose(long index) {
        index_ = index;
        z_ = batch_.z + index * walk_.components * walk_.pixels;
        x_ = batch_.x + index * walk_.components * walk_.pixels;
        p_ = batch_.p + index * walk_.components * walk_.axes * walk_.pixels;
        return {Task::sum, 0};
    }

    bool within() const { return within_; }

    // The task on the planes of one part.
    void act(Task task, long part, const Own<T>& own) {
        const long first = edge(part), end = edge(part + 1);
        switch (task.kind) {
            case Task::sum: return each_row(first, end, [&](long k, long at, long row) { add_up(k, at, row); });
            case Task::start: return begin(first, end, own);
            case Task::look: return look(first, end, own);
            case Task::copy: return copy(first, end);
            case Task::seams: return form_seam(part);
            case Task::iterate: return iterate(task.step, first, end, seam(part), seam(part + 1), own);
            case Task::finish: return finish(first, end, own);
            case Task::none: return;
        }
    }

    // What comes after a task that all parts have done; called by one thread.
    Task next(Task task) {
        switch (task.kind) {
            case Task::sum:
                centre();
                return {Task::start, 0};
            case Task::start:
                weigh();
                return {batch_.tol > 0 ? Task::look : Task::copy, 0};
            case Task::look: return judge(task.step);
            case Task::copy: return before(task.step);
            case Task::seams: return {Task::iterate, task.step};
            case Task::iterate: {
                const long step = task.step + 1;
                const bool due = step == batch_.most || (batch_.tol > 0 && step % batch_.check == 0);
                return due ? Task{Task::look, step} : before(step);
            }
            default: return {Task::none, 0};
        }
    }

  private:
    long edge(long part) const { return walk_.outer * part / parts_; }
    T* seam(long part) const { return part < parts_ ? seams_ + part * walk_.seam : nullptr; }
    long share(long k, long at) const { return k * walk_.rows + at / walk_.width; }

    // f(component, its first pixel within that, and within the image) for all rows of some planes.
    template <class Function>
    void each_row(long first, long end, const Function& f) const {
        for (long k = 0; k < walk_.components; ++k)
            for (long at = first * walk_.plane; at < end * walk_.plane; at += walk_.width) f(k, at, k * walk_.pixels + at);
    }

    // From the first pixel, so that a constant image becomes exactly zero.
    void add_up(long k, long at, long row) {
        const T* z = z_ + row;
        const double origin = static_cast<double>(z_[k * walk_.pixels]);
        shares_[share(k, at)] =
            sum_pairwise(walk_.width, [=](long j) { return static_cast<double>(z[j]) - origin; });
    }

    void centre() {
        for (long k = 0; k < walk_.components; ++k) {
            const double* rows = shares_ + k * walk_.rows;
            const double total = sum_pairwise(walk_.axes == 3 ? walk_.outer : 1, [&](long i) {
                const long count = walk_.axes == 3 ? walk_.middle : walk_.outer;
                return sum_pairwise(count, [=](long row) { return rows[i * count + row]; });
            });
            const double mean = static_cast<double>(z_[k * walk_.pixels]) + total / static_cast<double>(walk_.pixels);
            mean_[k] = static_cast<T>(mean);
            for (int end = 0; end < 2; ++end)
                bounds_[end * walk_.components + k] = moved(end == 0 ? batch_.low : batch_.high, k);
        }
    }

    T moved(double bound, long k) const { return static_cast<T>(bound - static_cast<double>(mean_[k])); }

    void begin(long first, long end, const Own<T>& own) {
        each_row(first, end, [&](long k, long at, long row) {
            for (long j = 0; j < walk_.width; ++j) flat_[row + j] = z_[row + j] - mean_[k];
            shares_[share(k, at)] = rows_.energy(flat_ + row, walk_.width);
            if (batch_.low_map == nullptr) return;
            T *low = boxes_ + row, *high = low + walk_.components * walk_.pixels;
            for (long j = 0; j < walk_.width; ++j) {
                low[j] = moved(static_cast<double>(batch_.low_map[at + j]), k);
                high[j] = moved(static_cast<double>(batch_.high_map[at + j]), k);
            }
        });
        if (batch_.warm == nullptr) {
            each_field(first, end, [&](long from, long count) { std::fill_n(p_ + from, count, T(0)); });
            return;
        }
        const Layout<T> layout = layout_with(own);
        const T* warm = batch_.warm + (p_ - batch_.p);
        for (long i = first; i < end; ++i)
            for (long row = 0; row < walk_.middle; ++row) {
                const long at = i * walk_.plane + row * walk_.width;
                rows_.feasible(layout, warm + at, i + 1 == walk_.outer, row + 1 == walk_.middle, p_ + at);
            }
    }

    // An image of zeros has a dual of zeros, since no iteration reaches a relative error of zero.
    void weigh() {
        double energy = 0;
        for (long row = 0; row < walk_.components * walk_.rows; ++row) energy += shares_[row];
        if (energy == 0) std::fill_n(p_, walk_.components * walk_.axes * walk_.pixels, T(0));
        goal_ = batch_.tol * batch_.tol * energy;
    }

    // f(first number, how many) for those planes of every field of a dual.
    template <class Function>
    void each_field(long first, long end, const Function& f) const {
        for (long field = 0; field < walk_.components * walk_.axes; ++field)
            f(field * walk_.pixels + first * walk_.plane, (end - first) * walk_.plane);
    }

    void copy(long first, long end) {
        each_field(first, end, [&](long from, long count) { std::copy_n(p_ + from, count, s_ + from); });
    }

    // The task before iteration `step`: seams of a volume are many rows, for all threads.
    Task before(long step) {
        if (walk_.axes == 3) return {Task::seams, step};
        for (long part = 0; part < parts_; ++part) form_seam(part);
        return {Task::iterate, step};
    }

    void form_seam(long part) { primal_plane(centred(), s_, edge(part), seam(part)); }

    Task judge(long step) {
        double sum = 0;  // in the order of the rows, so that the bands leave no trace
        for (long row = 0; row < walk_.rows; ++row) sum += shares_[row];
        const double gap = static_cast<double>(batch_.strength[index_]) * sum;
        batch_.gap[index_] = gap;
        const bool far = batch_.tol > 0 && gap > goal_;  // not for a NaN
        if (far && step < batch_.most) return step == 0 ? Task{Task::copy, 0} : before(step);
        within_ = !far;
        return {Task::finish, step};
    }

    Source<T> centred() const {
        if (batch_.low_map == nullptr) return {flat_, bounds_, bounds_ + walk_.components, 1, 0};
        return {flat_, boxes_, boxes_ + walk_.components * walk_.pixels, walk_.pixels, 1};
    }
    // x of the image with its mean is exactly in the box, and z if the strength is 0.
    Source<T> uncentred() const {
        if (batch_.low_map == nullptr) return {z_, ends_, ends_ + 1, 0, 0};
        return {z_, batch_.low_map, batch_.high_map, 0, 1};
    }

    // Row `row` of plane i of x at the dual `q` (p or s), all components; `out` is a record.
    void primal(const Source<T>& source, const T* q, long i, long row, T* out) const {
        const long field = walk_.pixels, at = i * walk_.plane + row * walk_.width;
        for (long k = 0; k < walk_.components; ++k, out += walk_.width + 1) {
            const T *outer = q + k * walk_.axes * field + at, *across = outer + (walk_.axes - 1) * field;
            const T* middle = walk_.axes == 3 ? outer + field : nullptr;
            const T* middle_before = middle == nullptr ? nullptr : row > 0 ? middle - walk_.width : zeros_;
            const long bound = source.bound(k, at);
            rows_.primal(source.z + k * walk_.pixels + at, i > 0 ? outer - walk_.plane : zeros_, outer, middle_before,
                         middle, across, batch_.strength[index_], source.low + bound, source.high + bound,
                         source.pixel != 0, walk_.width, out);
        }
    }

    void primal_plane(const Source<T>& source, const T* q, long i, T* out) const {
        for (long row = 0; row < walk_.middle; ++row) primal(source, q, i, row, out + row * walk_.record);
    }

    // One iteration on planes first .. end - 1. `top` is plane `first` of x, `bottom` is plane `end`, null beyond the
    // image.
    void iterate(long step, long first, long end, const T* top, const T* bottom, const Own<T>& own) const {
        const Layout<T> layout = layout_with(own);
        const Source<T> source = centred();
        T* spare = own.spare;
        for (long row = 0; row < walk_.middle; ++row) own.rows[row] = own.plane + row * walk_.record;
        for (long i = first; i < end; ++i) {
            auto here = [&](long row) -> const T* { return i == first ? top + row * walk_.record : own.rows[row]; };
            for (long row = 0; row < walk_.middle; ++row) {
                Near<T> near{here(row), here(std::min(row + 1, walk_.middle - 1)), here(row)};
                if (i + 1 < end) {
                    // Of the plane after the first there is nothing to overwrite yet.
                    if (i > first) std::swap(own.rows[row], spare);
                    primal(source, s_, i + 1, row, own.rows[row]);
                    near.outer = own.rows[row];
                } else if (bottom != nullptr) {
                    near.outer = bottom + row * walk_.record;
                }
                const long at = i * walk_.plane + row * walk_.width;
                rows_.dual(layout, near, batch_.rate[index_], batch_.momentum[step], p_ + at, s_ + at);
            }
        }
    }

    // Each row's share of the gap.
    void look(long first, long end, const Own<T>& own) {
        const Layout<T> layout = layout_with(own);
        const Source<T> source = centred();
        T* spare = own.spare;
        primal_plane(source, p_, first, own.plane);
        for (long row = 0; row < walk_.middle; ++row) own.rows[row] = own.plane + row * walk_.record;
        for (long i = first; i < end; ++i) {
            for (long row = 0; row < walk_.middle; ++row) {
                const T* x = own.rows[row];
                Near<T> near{x, own.rows[std::min(row + 1, walk_.middle - 1)], x};
                if (i + 1 < walk_.outer) {
                    std::swap(own.rows[row], spare);
                    primal(source, p_, i + 1, row, own.rows[row]);
                    near.outer = own.rows[row];
                }
                const long at = i * walk_.plane + row * walk_.width;
                shares_[i * walk_.middle + row] = rows_.gap(layout, near, p_ + at);
            }
        }
    }

    void finish(long first, long end, const Own<T>& own) const {
        const Source<T> source = uncentred();
        for (long i = first; i < end; ++i)
            for (long row = 0; row < walk_.middle; ++row) {
                primal(source, p_, i, row, own.spare);
                for (long k = 0; k < walk_.components; ++k)
                    std::copy_n(own.spare + k * (walk_.width + 1), walk_.width,
                                x_ + k * walk_.pixels + i * walk_.plane + row * walk_.width);
            }
    }

    Layout<T> layout_with(const Own<T>& own) const {
        return {walk_.components, walk_.axes, walk_.width, walk_.pixels, batch_.isotropic, own.scratch};
    }

    const Batch<T>& batch_;
    const Rows<T>& rows_;
    const Walk& walk_;
    const T* const zeros_;
    const long parts_;
    double* const shares_;  // of each row: in its sum, in the energy, in the gap
    T *const s_, *const flat_, *const mean_, *const bounds_, *const seams_, *const boxes_;
    const T ends_[2];
    long index_ = 0;
    const T* z_ = nullptr;
    T *x_ = nullptr, *p_ = nullptr;
    double goal_ = 0;
    bool within_ = true;
};

}  // namespace plugstream::tv
