// A A' of one view by its diagonals. Strips of rays are shared out among threads; nobody adds to what another one does.
#include <algorithm>
#include <cmath>
#include <memory>

#include "joseph.hpp"
#include "joseph_job.hpp"
#include "joseph_pairs.hpp"

namespace plugstream::joseph {
namespace {

constexpr long rays_at_once = 64;  // rays of a row that are claimed together

const Pairs& pairs_of(Level level) { return PLUGSTREAM_AT_LEVEL(level, pairs); }

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

// sum_n tri(p - n) tri(q - n) over voxels 0 to `size` - 1.
double share_axis(double p, double q, long size) {
    const double below = std::floor(p);
    double sum = 0;
    for (double n : {below, below + 1})
        if (n >= 0 && n < static_cast<double>(size)) sum += triangle(p - n) * triangle(q - n);
    return sum;
}

class OverlapJob : public Job {
  public:
    OverlapJob(const Crossed& lines, const long (&size)[3], const int* offsets, long count, float* bands, Level level)
        : lines_(lines), size_{size[0], size[1], size[2]}, offsets_(offsets), count_(count), bands_(bands),
          pairs_(pairs_of(level)), strips_((lines.columns + rays_at_once - 1) / rays_at_once) {}

  private:
    long phases() const override { return 1; }
    long parts(long) const override { return lines_.rows * strips_; }
    void prepare(int) override {}

    void act(long, long part, int) override {
        const long row = part / strips_, first = part % strips_ * rays_at_once, end = std::min(first + rays_at_once, lines_.columns);
        for (long n = 0; n < count_; ++n) {
            const long down = offsets_[2 * n], across = offsets_[2 * n + 1], apart = down * lines_.columns + across;
            float* out = bands_ + n * lines_.rows * lines_.columns + row * lines_.columns;
            std::fill(out + first, out + end, 0.0f);
            if (row + down < 0 || row + down >= lines_.rows) continue;
            const long low = std::max(first, -across), high = std::min(end, lines_.columns - across);
            for (long column = low; column < high;) {
                const long ray = row * lines_.columns + column, other = ray + apart;
                const int axis = lines_.axis[ray];
                if (lines_.axis[other] != axis) {
                    out[column++] = cross(ray, other);
                    continue;
                }
                int some = 1;
                while (some < block && column + some < high && lines_.axis[ray + some] == axis &&
                       lines_.axis[other + some] == axis)
                    ++some;
                share(axis, ray, other, some, out + column);
                column += some;
            }
        }
    }

    // Rays that advance along the same axis, some at a time.
    void share(int axis, long ray, long other, int some, float* out) const {
        const int one = axis == 0 ? 1 : 0, two = axis == 2 ? 1 : 2;
        const Planes planes{size_[axis], 0, {size_[one], size_[two]}, {0, 0}};
        alignas(64) float sums[block];
        pairs_.share(bundle(one, two, ray), bundle(one, two, other), planes, some, sums);
        for (int k = 0; k < some; ++k) out[k] = sums[k] * lines_.step[ray + k] * lines_.step[other + k];
    }

    Bundle bundle(int one, int two, long ray) const {
        return {{start(one) + ray, start(two) + ray}, {slope(one) + ray, slope(two) + ray}};
    }
    const float* start(int axis) const { return lines_.start + axis * lines_.pitch; }
    const float* slope(int axis) const { return lines_.slope + axis * lines_.pitch; }
    double place(int axis, long ray, long plane) const {
        return static_cast<double>(start(axis)[ray]) + static_cast<double>(plane) * slope(axis)[ray];
    }

    // Two rays that advance along different axes: the first is next to two planes of the second on each of its own.
    float cross(long ray, long other) const {
        const int axis = lines_.axis[ray], turned = lines_.axis[other], rest = 3 - axis - turned;
        double sum = 0;
        for (long plane = 0; plane < size_[axis]; ++plane) {
            const double at = place(turned, ray, plane), below = std::floor(at);
            if (!(below >= -1 && below < static_cast<double>(size_[turned]))) continue;
            for (long n = static_cast<long>(below); n <= static_cast<long>(below) + 1; ++n) {
                if (n < 0 || n >= size_[turned]) continue;
                const double weight = triangle(at - static_cast<double>(n)) *
                                      triangle(place(axis, other, n) - static_cast<double>(plane));
                if (weight > 0) sum += weight * share_axis(place(rest, ray, plane), place(rest, other, n), size_[rest]);
            }
        }
        return static_cast<float>(sum) * lines_.step[ray] * lines_.step[other];
    }

    const Crossed lines_;
    const long size_[3];
    const int* offsets_;
    const long count_;
    float* bands_;
    const Pairs& pairs_;
    const long strips_;
};

}  // namespace

void find_overlaps(const Crossed& lines, const long (&size)[3], const int* offsets, long count, float* bands,
                   int threads, Level level) {
    run(std::make_shared<OverlapJob>(lines, size, offsets, count, bands, level), threads);
}

}  // namespace plugstream::joseph
