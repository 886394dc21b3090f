// Points are sorted by the first cells that they touch, so that neighbours are worked on one after the other. Reading, a
// point is one thread's. Writing, a slab of planes is, and it takes all points that leave something there; slabs are the
// same however many threads there are, and so is every sum.
#include "nufft.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "nufft_rows.hpp"
#include "team.hpp"

namespace plugstream::nufft {
namespace {

constexpr long together = 1024;  // points that are claimed at once
constexpr long rows_a_bin = 8;   // of the second axis

const Rows& rows_of(Level level, int width) { return PLUGSTREAM_AT_LEVEL(level, rows)[width]; }

// The points in the order of the cells they touch, and where those of each first plane begin.
struct Order {
    std::vector<int> points;
    std::vector<long> planes;

    Order(const Grid& grid, const Points& all) : points(all.count), planes(grid.size[0] + 1) {
        const long across = (grid.size[1] + rows_a_bin - 1) / rows_a_bin;
        std::vector<long> starts(grid.size[0] * across + 1);
        auto bin = [&](long point) { return all.first[3 * point] * across + all.first[3 * point + 1] / rows_a_bin; };
        for (long point = 0; point < all.count; ++point) ++starts[bin(point) + 1];
        for (size_t n = 1; n < starts.size(); ++n) starts[n] += starts[n - 1];
        for (long plane = 0; plane <= grid.size[0]; ++plane) planes[plane] = starts[plane * across];
        for (long point = 0; point < all.count; ++point) points[starts[bin(point)]++] = static_cast<int>(point);
    }
};

// One call: parts that are claimed one by one.
class Job {
  public:
    Job(const Grid& grid, const Points& points, const Taps& taps, Level level)
        : grid_(grid), points_(points), order_(grid, points), rows_(rows_of(level, points.width[2])),
          work_{grid_, points_, coefficients_, taps.degree} {
        for (int power = 0; power <= taps.degree; ++power)
            for (int k = 0; k < taps.width; ++k) coefficients_[power][k] = taps.coefficients[power * taps.width + k];
    }
    Job(const Job&) = delete;
    virtual ~Job() = default;

    void work(int) {
        const long count = parts();
        for (long part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < count;) {
            act(part);
            done_.fetch_add(1, std::memory_order_release);
        }
        wait_until([&] { return done_.load(std::memory_order_acquire) == count; });
    }

  protected:
    virtual long parts() const = 0;
    virtual void act(long part) const = 0;

    const Grid grid_;
    const Points points_;
    const Order order_;
    const Rows& rows_;
    float coefficients_[most_degree + 1][padded] = {};
    const Work work_;

  private:
    std::atomic<long> next_ = 0, done_ = 0;
};

class Reading : public Job {
  public:
    Reading(const Grid& grid, const Points& points, const Taps& taps, Level level, const float* cells, float* values)
        : Job(grid, points, taps, level), cells_(cells), values_(values) {}

  private:
    long blocks() const { return (points_.count + together - 1) / together; }
    long parts() const override { return blocks(); }
    void act(long part) const override {
        const long begin = part * together;
        rows_.read(work_, cells_, order_.points.data() + begin, std::min(together, points_.count - begin), values_);
    }

    const float* cells_;
    float* values_;
};

class Writing : public Job {
  public:
    Writing(const Grid& grid, const Points& points, const Taps& taps, Level level, const float* values, float* cells)
        : Job(grid, points, taps, level), slab_(points.width[0] == 1 ? 1 : 2 * points.width[0]), values_(values),
          cells_(cells) {}

  private:
    // Wide enough that few points are in two slabs, and of a size that does not depend on the number of threads.
    long slabs() const { return (grid_.size[0] + slab_ - 1) / slab_; }
    long parts() const override { return slabs(); }
    void act(long part) const override {
        const long low = part * slab_, high = std::min(low + slab_, grid_.size[0]);
        const long begin = order_.planes[std::max(0L, low - points_.width[0] + 1)], end = order_.planes[high];
        rows_.write(work_, cells_, order_.points.data() + begin, end - begin, values_, low, high);
    }

    const long slab_;
    const float* values_;
    float* cells_;
};

void run(const std::shared_ptr<Job>& job, int threads) { run_team(std::clamp(threads, 1, 256), job); }

}  // namespace

const char* fault(const Grid& grid, const Points& points, const Taps& taps) {
    if (taps.width < 1 || taps.width > widest) return "a kernel has a width of 1 to 17";
    if (taps.degree < 0 || taps.degree > most_degree) return "polynomials have a degree of 0 to 31";
    if (points.count >= 1L << 31) return "there are at most 2^31 points in a call";
    for (int axis = 0; axis < 3; ++axis)
        if (points.width[axis] != 1 && points.width[axis] != taps.width)
            return "the width along an axis is 1, or that of the kernel";
    if (points.width[2] != std::max(points.width[0], std::max(points.width[1], points.width[2])))
        return "the last axis must have the width of the kernel if any has";
    for (long point = 0; point < points.count; ++point)
        for (int axis = 0; axis < 3; ++axis) {
            const long first = points.first[3 * point + axis];
            if (first < 0 || first + points.width[axis] > grid.size[axis]) return "a point touches a cell that is not there";
        }
    return nullptr;
}

void read(const Grid& grid, const Points& points, const Taps& taps, const float* cells, float* values, int threads,
          Level level) {
    run(std::make_shared<Reading>(grid, points, taps, level, cells, values), threads);
}

void write(const Grid& grid, const Points& points, const Taps& taps, const float* values, float* cells, int threads,
           Level level) {
    run(std::make_shared<Writing>(grid, points, taps, level, values, cells), threads);
}

}  // namespace plugstream::nufft
