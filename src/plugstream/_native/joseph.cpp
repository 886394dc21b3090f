// A view's rays belong to one thread, and in the adjoint a row of the image does, so that nobody adds to what another
// one does. Rays that run from column to column work on the transposed image.
#include "joseph.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "joseph_job.hpp"
#include "joseph_plan.hpp"
#include "joseph_rows.hpp"

namespace plugstream::joseph {
namespace {

constexpr long strip = 128;  // rays that go through the image together: a tile of rows then stays in the first cache
constexpr long band = 16;    // rows of the adjoint that are claimed together

const Rows& rows_of(Level level) { return PLUGSTREAM_AT_LEVEL(level, rows); }

// out[x][y] = in[y][x], in pieces that stay in the cache.
void transpose(const float* in, long in_pitch, long top, long end, long width, float* out, long out_pitch) {
    for (long y0 = top; y0 < end; y0 += 16)
        for (long x0 = 0; x0 < width; x0 += 16)
            for (long x = x0; x < std::min(x0 + 16, width); ++x)
                for (long y = y0; y < std::min(y0 + 16, end); ++y) out[x * out_pitch + y] = in[y * in_pitch + x];
}

// What both directions know of a call.
class FlatJob : public Job {
  public:
    FlatJob(const Beam& beam, const Grid& grid, const Layout& layout, Level level)
        : beam_(beam), grid_(grid), layout_(layout), rows_(rows_of(level)), kept_(plans().take()), plans_(*kept_) {
        plans_.resize(beam.views);
        for (int axis = 0; axis < 2; ++axis) {
            const long wide = (grid.size[1 - axis] + block - 1) / block * block + 2 * margin;
            pitch_[axis] = wide % 256 == 0 ? wide + block : wide;  // no multiple of a page, whose rows share cache sets
        }
    }

  protected:
    // Whether any view has rays along an axis; known when the plans are.
    bool uses(int axis) const {
        return std::any_of(plans_.begin(), plans_.end(), [=](const Plan& plan) { return plan.uses(axis); });
    }
    // Threads that come late look at no plan, so that the next call may have them.
    void finish_call() override {
        long bytes = 0;
        for (const Plan& plan : plans_) bytes += plan.bytes();
        if (bytes <= most_kept) plans().put(std::move(kept_));
    }
    long bands(int axis) const { return (grid_.size[axis] + band - 1) / band; }

    const Beam beam_;
    const Grid grid_;
    const Layout layout_;
    const Rows& rows_;
    std::unique_ptr<std::vector<Plan>> kept_;
    std::vector<Plan>& plans_;
    long pitch_[2];
};

// Phases: plans of all views; then for each image a padded copy of it and of its transpose, and the views' rays.
class Forward : public FlatJob {
  public:
    Forward(const Beam& beam, const Grid& grid, const Layout& layout, const float* images, float* data, Level level)
        : FlatJob(beam, grid, layout, level), images_(images), data_(data), strips_((beam.columns + strip - 1) / strip) {}

  private:
    long phases() const override { return 1 + 2 * layout_.images; }
    long parts(long phase) const override {
        return phase == 0 ? beam_.views : phase % 2 == 1 ? bands(0) : beam_.views * strips_;
    }

    void prepare(int) override {
        for (int axis = 0; axis < 2; ++axis) copy_[axis] = memory((grid_.size[axis] + 1) * pitch_[axis]);
    }

    void act(long phase, long part, int) override {
        const long image = (phase - 1) / 2;
        if (phase == 0)
            plans_[part].build(beam_, grid_, part, false);
        else if (phase % 2 == 1)
            copy(images_ + image * grid_.size[0] * grid_.size[1], part);
        else
            project(part / strips_, part % strips_, data_ + image * layout_.image);
    }

    void copy(const float* image, long part) const {
        const long height = grid_.size[0], width = grid_.size[1], top = part * band, end = std::min(top + band, height);
        for (long y = top; y < end; ++y) {
            float* row = copy_[0] + y * pitch_[0];
            std::fill_n(row, margin, 0.0f);
            std::copy_n(image + y * width, width, row + margin);
            std::fill_n(row + margin + width, pitch_[0] - margin - width, 0.0f);
        }
        if (!uses(1)) return;
        transpose(image + top * width, width, 0, end - top, width, copy_[1] + margin + top, pitch_[1]);
        for (long x = 0; x < width; ++x) {
            float* row = copy_[1] + x * pitch_[1];
            if (part == 0) std::fill_n(row, margin, 0.0f);
            if (end == height) std::fill_n(row + margin + height, pitch_[1] - margin - height, 0.0f);
        }
    }

    // The rays of a view from a multiple of `strip` on, group by group.
    void project(long view, long part, float* data) const {
        for (const Group& group : plans_[view].groups()) {
            // Strips begin at whole blocks of the group.
            const long first = std::max(0L, (part * strip - group.first + block - 1) / block * block);
            const long limit = (part + 1) * strip - group.first;
            const long end = std::min(group.fan.count, (limit + block - 1) / block * block);
            if (limit <= 0 || first >= end) continue;
            alignas(64) float sums[strip + block] = {};
            const int blocks = static_cast<int>((end - first + block - 1) / block);
            const long height = grid_.size[group.axis], width = grid_.size[1 - group.axis], pitch = pitch_[group.axis];
            for (long top = 0; top < height; top += tile)
                rows_.project(copy_[group.axis] + top * pitch + margin, pitch, width, group.fan.scale + top,
                              group.fan.shift + top, static_cast<int>(std::min<long>(tile, height - top)),
                              group.fan.place + first, blocks, sums);
            float* out = data + view * layout_.view + group.first + first;
            for (long k = 0; k < end - first; ++k) out[k] = sums[k] * group.step[first + k];
        }
    }

    const float* images_;
    float* data_;
    const long strips_;
    float* copy_[2] = {};
};

// Phases: plans of all views; then for each image the data times the rays' steps, the rows along both axes, and their
// sum.
class Adjoint : public FlatJob {
  public:
    Adjoint(const Beam& beam, const Grid& grid, const Layout& layout, const float* data, float* images, Level level)
        : FlatJob(beam, grid, layout, level), data_(data), images_(images) {}

  private:
    long phases() const override { return 1 + 3 * layout_.images; }
    long parts(long phase) const override {
        return phase % 3 == 1 || phase == 0 ? beam_.views : phase % 3 == 2 ? bands(0) + bands(1) : bands(0);
    }

    void prepare(int size) override {
        for (int axis = 0; axis < 2; ++axis) sums_[axis] = memory((grid_.size[axis] + 1) * pitch_[axis]);
        room_ = std::max(grid_.size[0], grid_.size[1]) + 8 * block;
        starts_ = memory(size * room_);
    }

    void act(long phase, long part, int member) override {
        const long image = (phase - 1) / 3;
        if (phase == 0)
            plans_[part].build(beam_, grid_, part, true);
        else if (phase % 3 == 1)
            weigh(plans_[part], data_ + image * layout_.image + part * layout_.view);
        else if (phase % 3 == 2)
            add(part < bands(0) ? 0 : 1, part < bands(0) ? part : part - bands(0), starts_ + member * room_);
        else
            finish(images_ + image * grid_.size[0] * grid_.size[1], part);
    }

    static void weigh(const Plan& plan, const float* data) {
        for (const Group& group : plan.groups()) {
            std::fill_n(group.data - margin, margin, 0.0f);
            for (long k = 0; k < group.fan.count; ++k) group.data[k] = data[group.first + k] * group.step[k];
            std::fill_n(group.data + group.fan.count, margin, 0.0f);
        }
    }

    void add(int axis, long part, float* starts) const {
        const long width = grid_.size[1 - axis], top = part * band, end = std::min(top + band, grid_.size[axis]);
        std::fill_n(sums_[axis] + top * pitch_[axis], (end - top) * pitch_[axis], 0.0f);
        for (const Plan& plan : plans_)
            for (const Group& group : plan.groups())
                if (group.axis == axis)
                    for (long row = top; row < end; ++row)
                        rows_.back_project(group.fan, row, group.data, width, starts, sums_[axis] + row * pitch_[axis]);
    }

    void finish(float* image, long part) const {
        const long height = grid_.size[0], width = grid_.size[1], top = part * band, end = std::min(top + band, height);
        const bool turned = uses(1);
        for (long x0 = 0; x0 < width; x0 += 16)
            for (long y = top; y < end; ++y)
                for (long x = x0; x < std::min(x0 + 16, width); ++x) {
                    const float other = turned ? sums_[1][x * pitch_[1] + y] : 0.0f;
                    image[y * width + x] = sums_[0][y * pitch_[0] + x] + other;
                }
    }

    const float* data_;
    float* images_;
    float *sums_[2] = {}, *starts_ = nullptr;
    long room_ = 0;
};

}  // namespace

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(3);
    return one;
}

void project(const Beam& beam, const Grid& grid, const Layout& layout, const float* images, float* data, int threads,
             Level level) {
    run(std::make_shared<Forward>(beam, grid, layout, images, data, level), threads);
}

void back_project(const Beam& beam, const Grid& grid, const Layout& layout, const float* data, float* images,
                  int threads, Level level) {
    run(std::make_shared<Adjoint>(beam, grid, layout, data, images, level), threads);
}

Pool<std::vector<Plan>>& plans() {
    static Pool<std::vector<Plan>>& one = *new Pool<std::vector<Plan>>(1);
    return one;
}

void forget() {
    buffers().clear();
    plans().clear();
}

}  // namespace plugstream::joseph
