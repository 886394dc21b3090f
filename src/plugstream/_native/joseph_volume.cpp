// A column of the detector and the source (or the direction) span a vertical plane, so all its rays meet a plane of
// voxels at one place across and at evenly spaced heights. Columns of voxels are made contiguous, and then a pair of
// them serves a whole column of the detector. In the adjoint a plane of voxels belongs to one thread.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "joseph.hpp"
#include "joseph_columns.hpp"
#include "joseph_job.hpp"
#include "joseph_plan.hpp"

namespace plugstream::joseph {
namespace {

const Columns& columns_of(Level level) { return PLUGSTREAM_AT_LEVEL(level, columns); }

// Where rays of a detector column meet a plane.
struct Crossing {
    long near;  // the voxel before; there may be none
    float part, start, rise;
};

class VolumeJob : public Job {
  public:
    VolumeJob(const Beam& beam, long rows, const Box& box, Level level)
        : beam_(beam),
          rows_(rows),
          box_(box),
          grid_{{box.size[1], box.size[2]}, {box.spacing[1], box.spacing[2]}, {box.origin[1], box.origin[2]}},
          columns_(columns_of(level)),
          plans_(beam.views),
          climbs_(beam.views * beam.columns) {
        level_ = beam.parallel && rows == box.size[0];
        for (long view = 0; view < beam.views && level_; ++view) {
            const Heights high = heights(view);
            level_ = high.source == 0 && std::abs(high.step - 1) * static_cast<double>(rows) < 1e-6 &&
                     std::abs(high.middle - static_cast<double>(rows / 2)) < 1e-6;
        }
        margin_ = level_ ? 0 : margin;
    }

  protected:
    static constexpr long together = 8;        // views that pass the voxels together: what is in the cache serves them all
    static constexpr long planes = 4;          // of voxels that they pass before the next ones
    static constexpr long strip = 32;          // columns of the detector that are claimed together, where views are few
    static constexpr long band = 4;            // planes of the adjoint that are claimed together
    static constexpr long slices = 8;          // that are transposed together: they often share the sets of a cache
    static constexpr long at_once = 1L << 24;  // numbers of the adjoint's data that are prepared together

    // Columns of voxels one after the other, with a ring of empty ones around them.
    float* column(float* volume, long y, long x) const { return volume + ((y + 1) * (box_.size[2] + 2) + x + 1) * pitch_; }
    long columns() const { return (box_.size[1] + 2) * (box_.size[2] + 2); }
    float* column(float* volume, int axis, long plane, long place) const {
        return axis == 0 ? column(volume, plane, place) : column(volume, place, plane);
    }

    // Heights in voxels of a view: of the source (or the first pixel's step along z a metre of a parallel beam), of the
    // middle row of pixels, and from row to row.
    struct Heights {
        double source, middle, step;
    };
    Heights heights(long view) const {
        const double* vectors = beam_.vectors + 12 * view;
        const double high = vectors[11] / box_.spacing[0];
        const double centre = (vectors[5] - box_.origin[0]) / box_.spacing[0];
        const double off = static_cast<double>(rows_ / 2) - static_cast<double>(rows_ - 1) / 2;
        const double first = beam_.parallel ? vectors[2] / box_.spacing[0]
                                            : (vectors[2] - box_.origin[0]) / box_.spacing[0];
        return {first, centre + off * high, high};
    }

    // Start and rise of each column of a view's detector on plane 0 of its axis, and from plane to plane.
    struct Climb {
        double start, start_step, rise, rise_step;
    };

    void plan(long view) {
        plans_[view].build(beam_, grid_, view, false);
        const Heights high = heights(view);
        const double half = static_cast<double>(box_.size[0] / 2) + 0.5;
        for (long u = 0; u < beam_.columns; ++u) {
            const Line& line = plans_[view].line(u);
            Climb& climb = climbs_[view * beam_.columns + u];
            if (beam_.parallel) {
                const double slope = high.source / line.steep;
                climb = {high.middle - slope * line.along - half, slope, high.step, 0};
            } else {
                const double source = plans_[view].source(line.axis), share = 1 / (line.along - source);
                const double up = (high.middle - high.source) * share;
                climb = {high.source - up * source - half, up, -high.step * share * source, high.step * share};
            }
        }
    }

    // False where the rays miss the voxels of the plane.
    bool cross(long view, const Group& group, long ray, long plane, Crossing& out) const {
        const long size = grid_.size[1 - group.axis], middle = size / 2;
        const float at = group.fan.place[ray] * group.fan.scale[plane] + (group.fan.shift[plane] + 0.5f);
        const double exact = static_cast<double>(at) + static_cast<double>(middle + 1);
        if (!(exact > 0 && exact < static_cast<double>(size + 1))) return false;
        const long above = static_cast<long>(exact);
        out.near = above - 1;
        out.part = static_cast<float>(exact - static_cast<double>(above));
        if (level_) return true;
        const Climb& climb = climbs_[view * beam_.columns + group.first + ray];
        const double row = static_cast<double>(plane);
        out.start = static_cast<float>(climb.start + climb.start_step * row);
        out.rise = static_cast<float>(climb.rise + climb.rise_step * row);
        return true;
    }

    // Metres from plane to plane of the rays to `count` pixels of a column, from `row` on.
    void find_steps(const Line& line, const Heights& heights, long row, long count, float* out) const {
        const double inverse = 1 / std::abs(line.steep);
        if (beam_.parallel) {
            const double up = heights.source * box_.spacing[0];
            std::fill_n(out, count, static_cast<float>(std::sqrt(line.square + up * up) * inverse));
            return;
        }
        const double first = (heights.middle - heights.source) * box_.spacing[0], high = heights.step * box_.spacing[0];
        for (long k = 0; k < count; ++k) {
            const double up = first + static_cast<double>(row + k - rows_ / 2) * high;
            out[k] = static_cast<float>(std::sqrt(line.square + up * up) * inverse);
        }
    }

    const Beam beam_;
    const long rows_;
    const Box box_;
    const Grid grid_;
    const Columns& columns_;
    std::vector<Plan> plans_;
    std::vector<Climb> climbs_;
    bool level_;  // whether every row of the detector sees the slice of its number alone
    long pitch_ = 0, margin_;
};

// Phases: a copy of the volume by columns, and plans of all views; the views' rays, some views at a time.
class VolumeForward : public VolumeJob {
  public:
    VolumeForward(const Beam& beam, long rows, const Box& box, const float* volume, float* data, Level level)
        : VolumeJob(beam, rows, box, level), volume_(volume), data_(data), wide_(rounded(rows)) {
        pitch_ = rounded(box.size[0]) + 2 * margin_;
    }

  private:
    long phases() const override { return 2; }
    long parts(long phase) const override {
        return phase == 0 ? box_.size[1] + 2 + beam_.views : turns_ * strips_;
    }

    void prepare(int size) override {
        some_ = std::clamp(beam_.views / (2L * size), 1L, together);
        turns_ = (beam_.views + some_ - 1) / some_;
        each_ = turns_ < 2L * size ? std::min(strip, beam_.columns) : beam_.columns;
        strips_ = (beam_.columns + each_ - 1) / each_;
        copy_ = memory(columns() * pitch_);
        sums_ = memory(size * some_ * each_ * wide_);
    }

    void act(long phase, long part, int member) override {
        if (phase == 1)
            project(part / strips_ * some_, part % strips_ * each_, sums_ + member * some_ * each_ * wide_);
        else if (part < box_.size[1] + 2)
            copy(part - 1);
        else
            plan(part - box_.size[1] - 2);
    }

    void copy(long y) const {
        const long depth = box_.size[0], height = box_.size[1], width = box_.size[2];
        if (y < 0 || y >= height) {
            std::fill_n(column(copy_, y, -1), (width + 2) * pitch_, 0.0f);
            return;
        }
        for (long x = -1; x <= width; ++x) {
            float* all = column(copy_, y, x);
            if (x < 0 || x == width) {
                std::fill_n(all, pitch_, 0.0f);
            } else {
                std::fill_n(all, margin_, 0.0f);
                std::fill_n(all + margin_ + depth, pitch_ - margin_ - depth, 0.0f);
            }
        }
        for (long x0 = 0; x0 < width; x0 += 16)
            for (long z0 = 0; z0 < depth; z0 += slices)
                for (long x = x0; x < std::min(x0 + 16, width); ++x) {
                    float* out = column(copy_, y, x) + margin_;
                    for (long z = z0; z < std::min(z0 + slices, depth); ++z)
                        out[z] = volume_[(z * height + y) * width + x];
                }
    }

    // Some views' rays to the columns of the detector from `first` on.
    void project(long top, long first, float* sums) const {
        const long bottom = std::min(top + some_, beam_.views), end = std::min(first + each_, beam_.columns);
        std::fill_n(sums, some_ * each_ * wide_, 0.0f);
        for (int axis = 0; axis < 2; ++axis)
            for (long plane = 0; plane < grid_.size[axis]; plane += planes)
                for (long view = top; view < bottom; ++view)
                    for (const Group& group : plans_[view].groups())
                        if (group.axis == axis)
                            pass(view, group, plane, first, end, sums + (view - top) * each_ * wide_);
        for (long view = top; view < bottom; ++view) write(view, first, end, sums + (view - top) * each_ * wide_);
    }

    // A group's rays through a few planes.
    void pass(long view, const Group& group, long top, long first, long end, float* sums) const {
        const long bottom = std::min(top + planes, grid_.size[group.axis]);
        const long from = std::max(first, group.first), to = std::min(end, group.first + group.fan.count);
        for (long u = from; u < to; ++u)
            for (long plane = top; plane < bottom; ++plane) {
                Crossing at;
                if (!cross(view, group, u - group.first, plane, at)) continue;
                const float* near = column(copy_, group.axis, plane, at.near) + margin_;
                const float* far = column(copy_, group.axis, plane, at.near + 1) + margin_;
                float* to_sums = sums + (u - first) * wide_;
                if (level_)
                    columns_.project_level(near, far, at.part, rows_, to_sums);
                else
                    columns_.project(near, far, at.part, box_.size[0], at.start, at.rise, rows_, to_sums);
            }
    }

    // The sums times the rays' steps, from columns to rows.
    void write(long view, long first, long end, const float* sums) const {
        const Heights high = heights(view);
        float* out = data_ + view * rows_ * beam_.columns;
        float steps[block][block];
        for (long left = first; left < end; left += block)
            for (long top = 0; top < rows_; top += block) {
                const long count = std::min<long>(block, rows_ - top), right = std::min<long>(left + block, end);
                for (long u = left; u < right; ++u) find_steps(plans_[view].line(u), high, top, count, steps[u - left]);
                for (long k = 0; k < count; ++k)
                    for (long u = left; u < right; ++u)
                        out[(top + k) * beam_.columns + u] = sums[(u - first) * wide_ + top + k] * steps[u - left][k];
            }
    }

    const float* volume_;
    float *data_, *copy_ = nullptr, *sums_ = nullptr;
    const long wide_;
    long some_ = 1, turns_ = 1, each_ = 1, strips_ = 1;
};

// Phases: zeros, and plans of all views; for some views at a time their data by columns of the detector, the planes of
// voxels along y and those along x; the sums as a volume.
class VolumeAdjoint : public VolumeJob {
  public:
    VolumeAdjoint(const Beam& beam, long rows, const Box& box, const float* data, float* volume, Level level)
        : VolumeJob(beam, rows, box, level), data_(data), volume_(volume), wide_(rounded(rows) + 2 * margin_),
          some_(std::clamp(at_once / (beam.columns * wide_), 1L, beam.views)),
          turns_((beam.views + some_ - 1) / some_) {
        pitch_ = rounded(box.size[0]);
    }

  private:
    long phases() const override { return 2 + 3 * turns_; }
    long views(long turn) const { return std::min(some_, beam_.views - turn * some_); }
    long bands(int axis) const { return (grid_.size[axis] + band - 1) / band; }
    long parts(long phase) const override {
        if (phase == 0) return box_.size[1] + 2 + beam_.views;
        if (phase == phases() - 1) return box_.size[1];
        const long turn = (phase - 1) / 3, kind = (phase - 1) % 3;
        return kind == 0 ? views(turn) * ((rows_ + block - 1) / block) : bands(static_cast<int>(kind) - 1);
    }

    void prepare(int) override {
        sums_ = memory(columns() * pitch_);
        weighed_ = memory(some_ * beam_.columns * wide_);
    }

    void act(long phase, long part, int) override {
        const long turn = (phase - 1) / 3, kind = (phase - 1) % 3;
        if (phase == phases() - 1)
            finish(part);
        else if (phase > 0 && kind == 0)
            weigh(turn, part % views(turn), part / views(turn) * block);
        else if (phase > 0)
            add(turn, static_cast<int>(kind) - 1, part * band);
        else if (part < box_.size[1] + 2)
            std::fill_n(column(sums_, part - 1, -1), (box_.size[2] + 2) * pitch_, 0.0f);
        else
            plan(part - box_.size[1] - 2);
    }

    // A block of rows of a view's data.
    void weigh(long turn, long number, long first) const {
        const long view = turn * some_ + number, end = std::min(first + block, rows_);
        const Heights high = heights(view);
        for (long u = 0; u < beam_.columns; ++u) {
            float* out = weighed_ + (number * beam_.columns + u) * wide_ + margin_;
            if (first == 0) std::fill_n(out - margin_, margin_, 0.0f);
            if (end == rows_) std::fill_n(out + rows_, wide_ - margin_ - rows_, 0.0f);
            float steps[block];
            find_steps(plans_[view].line(u), high, first, end - first, steps);
            for (long row = first; row < end; ++row)
                out[row] = data_[(view * rows_ + row) * beam_.columns + u] * steps[row - first];
        }
    }

    void add(long turn, int axis, long top) const {
        const long end = std::min(top + band, grid_.size[axis]);
        for (long number = 0; number < views(turn); ++number) {
            for (const Group& group : plans_[turn * some_ + number].groups()) {
                if (group.axis != axis) continue;
                for (long plane = top; plane < end; ++plane)
                    for (long ray = 0; ray < group.fan.count; ++ray) {
                        Crossing at;
                        if (!cross(turn * some_ + number, group, ray, plane, at)) continue;
                        const float* data = weighed_ + (number * beam_.columns + group.first + ray) * wide_ + margin_;
                        float* near = column(sums_, axis, plane, at.near);
                        float* far = column(sums_, axis, plane, at.near + 1);
                        if (level_)
                            columns_.back_project_level(data, at.part, rows_, near, far);
                        else
                            columns_.back_project(data, rows_, at.start, at.rise, at.part, box_.size[0], near, far);
                    }
            }
        }
    }

    void finish(long y) const {
        const long depth = box_.size[0], height = box_.size[1], width = box_.size[2];
        for (long x0 = 0; x0 < width; x0 += 16)
            for (long z0 = 0; z0 < depth; z0 += slices)
                for (long z = z0; z < std::min(z0 + slices, depth); ++z)
                    for (long x = x0; x < std::min(x0 + 16, width); ++x)
                        volume_[(z * height + y) * width + x] = column(sums_, y, x)[z];
    }

    const float* data_;
    float *volume_, *sums_ = nullptr, *weighed_ = nullptr;
    const long wide_, some_, turns_;
};

}  // namespace

void project_volume(const Beam& beam, long rows, const Box& box, const float* volume, float* data, int threads,
                    Level level) {
    run(std::make_shared<VolumeForward>(beam, rows, box, volume, data, level), threads);
}

void back_project_volume(const Beam& beam, long rows, const Box& box, const float* data, float* volume, int threads,
                         Level level) {
    run(std::make_shared<VolumeAdjoint>(beam, rows, box, data, volume, level), threads);
}

}  // namespace plugstream::joseph
