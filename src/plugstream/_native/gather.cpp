// A row of voxels belongs to one thread, which adds up its views in their order: threads leave no trace in the result.
#include "gather.hpp"

#include <memory>

#include "gather_rows.hpp"
#include "joseph_job.hpp"

namespace plugstream::gather {
namespace {

constexpr long band = 4;  // rows of voxels that are claimed together, and read neighbouring places

class Sum : public joseph::Job {
  public:
    Sum(const Data& data, const double* forms, bool parallel, const Volume& volume, Level level)
        : data_(data), forms_(forms), parallel_(parallel), volume_(volume), rows_(PLUGSTREAM_AT_LEVEL(level, rows)),
          bands_((volume.height + band - 1) / band) {}

  private:
    long phases() const override { return 1; }
    long parts(long) const override { return data_.images * volume_.depth * bands_; }
    void prepare(int) override {}

    void act(long, long part, int) override {
        const long image = part / (volume_.depth * bands_), z = part / bands_ % volume_.depth, top = part % bands_ * band;
        const long view_size = (data_.rows ? data_.rows + 3 : 1) * (data_.columns + 3);
        for (long view = 0; view < data_.views; ++view) {
            const float* values = data_.values + (image * data_.views + view) * view_size;
            for (long y = top; y < top + band && y < volume_.height; ++y) {
                float* out = volume_.values + ((image * volume_.depth + z) * volume_.height + y) * volume_.width;
                const Line line{form(view, 0, y, z), form(view, 1, y, z), form(view, 2, y, z), form(view, 3, y, z)};
                if (data_.rows)
                    rows_.cone(values, data_.rows, data_.columns, line, volume_.width, out);
                else
                    (parallel_ ? rows_.parallel : rows_.fan)(values, data_.columns, line, volume_.width, out);
            }
        }
    }

    // In double precision up to here: a row begins where it is, however large the detector.
    Form form(long view, long which, long y, long z) const {
        const double* f = forms_ + (view * 4 + which) * 4;
        return {static_cast<float>(f[0] + f[2] * static_cast<double>(y) + f[3] * static_cast<double>(z)),
                static_cast<float>(f[1])};
    }

    const Data data_;
    const double* forms_;
    const bool parallel_;
    const Volume volume_;
    const Rows& rows_;
    const long bands_;
};

}  // namespace

void add_views(const Data& data, const double* forms, bool parallel, const Volume& volume, int threads, Level level) {
    joseph::run(std::make_shared<Sum>(data, forms, parallel, volume, level), threads);
}

}  // namespace plugstream::gather
