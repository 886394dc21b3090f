// Volumes and rays in any direction, for detectors that do not stand upright. Rays are sorted by the axis that they
// advance along; forward, blocks of them are shared out, and in the adjoint planes of voxels, axis after axis.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "joseph.hpp"
#include "joseph_crossings.hpp"
#include "joseph_job.hpp"

namespace plugstream::joseph {
namespace {

constexpr long share = 16;        // blocks that are claimed together
constexpr float nowhere = -1e6f;  // a place that no voxel is near

const Crossings& crossings_of(Level level) { return PLUGSTREAM_AT_LEVEL(level, crossings); }

// The rays of a view along one axis, padded to whole blocks.
struct Sorted {
    std::vector<float> start[2], slope[2], step, data;
    std::vector<long> pixel;

    void clear() {
        for (std::vector<float>* part : {&start[0], &start[1], &slope[0], &slope[1], &step, &data}) part->clear();
        pixel.clear();
    }
    long blocks() const { return static_cast<long>(step.size()) / block; }
    Bundle bundle(long number) const {
        const long at = number * block;
        return {{start[0].data() + at, start[1].data() + at}, {slope[0].data() + at, slope[1].data() + at}};
    }
};

class ObliqueJob : public Job {
  public:
    ObliqueJob(const Beam& beam, long rows, const Box& box, Level level)
        : beam_(beam), rows_(rows), box_(box), crossings_(crossings_of(level)),
          some_(std::clamp(at_once / (rows * beam.columns), 1L, beam.views)),
          turns_((beam.views + some_ - 1) / some_), sorted_(3 * some_) {
        const long strides[3] = {box.size[1] * box.size[2], box.size[2], 1};
        for (int axis = 0; axis < 3; ++axis) {
            const int one = axis == 0 ? 1 : 0, two = axis == 2 ? 1 : 2;
            planes_[axis] = {box.size[axis], strides[axis], {box.size[one], box.size[two]}, {strides[one], strides[two]}};
        }
    }

  protected:
    static constexpr long at_once = 1L << 20;  // rays that are prepared together

    long views(long turn) const { return std::min(some_, beam_.views - turn * some_); }

    // What models/ct_lines.py does, for one view; with its data, if there is any.
    void sort(long turn, long number, const float* data) {
        const long view = turn * some_ + number;
        const double *first = beam_.vectors + 12 * view, *centre = first + 3, *u = first + 6, *v = first + 9;
        for (int axis = 0; axis < 3; ++axis) sorted_[3 * number + axis].clear();
        for (long row = 0; row < rows_; ++row)
            for (long column = 0; column < beam_.columns; ++column) {
                const double across = static_cast<double>(column) - static_cast<double>(beam_.columns - 1) / 2;
                const double along = static_cast<double>(row) - static_cast<double>(rows_ - 1) / 2;
                double place[3], slope[3], square = 0;
                for (int axis = 0; axis < 3; ++axis) {
                    const int k = 2 - axis;  // vectors have x first
                    const double point = centre[k] + across * u[k] + along * v[k];
                    const double way = beam_.parallel ? first[k] : point - first[k];
                    place[axis] = (point - box_.origin[axis]) / box_.spacing[axis];
                    slope[axis] = way / box_.spacing[axis];
                    square += way * way;
                }
                int axis = 0;
                for (int other = 1; other < 3; ++other)
                    if (std::abs(slope[other]) > std::abs(slope[axis])) axis = other;
                const int within[2] = {axis == 0 ? 1 : 0, axis == 2 ? 1 : 2};
                Sorted& rays = sorted_[3 * number + axis];
                for (int k = 0; k < 2; ++k) {
                    const double steep = slope[within[k]] / slope[axis];
                    rays.slope[k].push_back(static_cast<float>(steep));
                    rays.start[k].push_back(static_cast<float>(place[within[k]] - place[axis] * steep));
                }
                const double step = std::sqrt(square) / std::abs(slope[axis]);
                const long pixel = row * beam_.columns + column;
                rays.step.push_back(static_cast<float>(step));
                rays.pixel.push_back(pixel);
                if (data != nullptr)
                    rays.data.push_back(data[view * rows_ * beam_.columns + pixel] * rays.step.back());
            }
        for (int axis = 0; axis < 3; ++axis) {
            Sorted& rays = sorted_[3 * number + axis];
            const size_t whole = (rays.step.size() + block - 1) / block * block;
            for (int k = 0; k < 2; ++k) {
                rays.start[k].resize(whole, nowhere);
                rays.slope[k].resize(whole, 0.0f);
            }
            rays.step.resize(whole, 0.0f);
            rays.data.resize(data != nullptr ? whole : 0, 0.0f);
        }
    }

    const Beam beam_;
    const long rows_;
    const Box box_;
    const Crossings& crossings_;
    const long some_, turns_;
    std::vector<Sorted> sorted_;
    Planes planes_[3];
};

// Phases, for some views at a time: their rays, and what they see.
class ObliqueForward : public ObliqueJob {
  public:
    ObliqueForward(const Beam& beam, long rows, const Box& box, const float* volume, float* data, Level level)
        : ObliqueJob(beam, rows, box, level), volume_(volume), data_(data),
          shares_((rows * beam.columns / block + share) / share) {}

  private:
    long phases() const override { return 2 * turns_; }
    long parts(long phase) const override { return phase % 2 == 0 ? views(phase / 2) : views(phase / 2) * 3 * shares_; }
    void prepare(int) override {}

    void act(long phase, long part, int) override {
        const long turn = phase / 2;
        if (phase % 2 == 0) return sort(turn, part, nullptr);
        const long number = part / (3 * shares_), axis = part / shares_ % 3, first = part % shares_ * share;
        const Sorted& rays = sorted_[3 * number + axis];
        float* out = data_ + (turn * some_ + number) * rows_ * beam_.columns;
        for (long b = first; b < std::min(first + share, rays.blocks()); ++b) {
            alignas(64) float sums[block] = {};
            crossings_.project(volume_, planes_[axis], rays.bundle(b), sums);
            const long count = std::min<long>(block, static_cast<long>(rays.pixel.size()) - b * block);
            for (long k = 0; k < count; ++k) out[rays.pixel[b * block + k]] = sums[k] * rays.step[b * block + k];
        }
    }

    const float* volume_;
    float* data_;
    const long shares_;
};

// Phases: zeros; for some views at a time their rays and data, and what these leave on the planes along z, y and x.
class ObliqueAdjoint : public ObliqueJob {
  public:
    ObliqueAdjoint(const Beam& beam, long rows, const Box& box, const float* data, float* volume, Level level)
        : ObliqueJob(beam, rows, box, level), data_(data), volume_(volume) {}

  private:
    long phases() const override { return 1 + 4 * turns_; }
    long parts(long phase) const override {
        if (phase == 0) return box_.size[0];
        const long kind = (phase - 1) % 4;
        return kind == 0 ? views((phase - 1) / 4) : box_.size[kind - 1];
    }
    void prepare(int) override {}

    void act(long phase, long part, int) override {
        const long turn = (phase - 1) / 4, axis = (phase - 1) % 4 - 1, plane = box_.size[1] * box_.size[2];
        if (phase == 0) {
            std::fill_n(volume_ + part * plane, plane, 0.0f);
        } else if (axis < 0) {
            sort(turn, part, data_);
        } else {
            for (long number = 0; number < views(turn); ++number) {
                const Sorted& rays = sorted_[3 * number + axis];
                for (long b = 0; b < rays.blocks(); ++b)
                    crossings_.back_project(rays.data.data() + b * block, planes_[axis], rays.bundle(b), part, volume_);
            }
        }
    }

    const float* data_;
    float* volume_;
};

}  // namespace

void project_oblique(const Beam& beam, long rows, const Box& box, const float* volume, float* data, int threads,
                     Level level) {
    run(std::make_shared<ObliqueForward>(beam, rows, box, volume, data, level), threads);
}

void back_project_oblique(const Beam& beam, long rows, const Box& box, const float* data, float* volume, int threads,
                          Level level) {
    run(std::make_shared<ObliqueAdjoint>(beam, rows, box, data, volume, level), threads);
}

}  // namespace plugstream::joseph
