// The Python side of BM4D.
#include <chrono>
#include <optional>

#include "bindings.hpp"
#include "bm4d.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::bm4d {
namespace {

bool is_group(int size) { return size >= 1 && size <= 32 && (size & (size - 1)) == 0; }

struct Shape {
    size_t count, channels, depth, height, width;
};

Shape shape_of(const Array<const float, 5>& volumes, const Array<const float, 4>& sigma) {
    const Shape s{volumes.shape(0), volumes.shape(1), volumes.shape(2), volumes.shape(3), volumes.shape(4)};
    expect(s.channels >= 1 && s.depth >= 4 && s.height >= 4 && s.width >= 4, "volumes must have at least 4 x 4 x 4 voxels");
    const bool one = sigma.shape(1) == 1 && sigma.shape(2) == 1 && sigma.shape(3) == 1;
    if (one)
        expect(sigma, {s.count, 1, 1, 1}, "sigma must have one value for each volume");
    else
        expect(sigma, {s.count, s.depth, s.height, s.width}, "sigma must have one value for each voxel");
    return s;
}

Volume volume_of(const Shape& s, const Array<const float, 5>& volumes, const Array<const float, 4>& sigma, size_t n,
                 float* out) {
    const size_t each = s.channels * s.depth * s.height * s.width, levels = sigma.size() / s.count;
    return {static_cast<long>(s.channels), static_cast<long>(s.depth), static_cast<long>(s.height),
            static_cast<long>(s.width),    volumes.data() + n * each,  sigma.data() + n * levels,
            levels > 1,                    out + n * each};
}

void check_search(int step1, int step2, int radius, int group1, int group2, const Array<const int32_t, 1>& order) {
    expect(step1 >= 1 && step1 <= 4 && step2 >= 1 && step2 <= 4, "steps must be 1 to 4");
    expect(radius >= 1 && radius <= 6, "radius must be 1 to 6");
    expect(is_group(group1) && is_group(group2), "groups must have 1, 2, 4, 8, 16 or 32 cubes");
    const size_t span = 2 * static_cast<size_t>(radius) + 1;
    expect(order, {span * span * span}, "order must have one value for each candidate of the window");
    for (size_t k = 0; k < order.size(); ++k)
        expect(order.data()[k] >= 0 && static_cast<size_t>(order.data()[k]) < order.size(), "order must be a permutation");
}

// Ten times a second: Python's signal handlers, so that Ctrl-C need not wait for a volume, and `call` with the part of
// all volumes that is done. An exception of either stops the work.
class Ticker {
  public:
    Ticker(const nb::object& call, size_t volumes) : call_(call), volumes_(static_cast<double>(volumes)) {}

    bool tick(double done) {
        const auto now = std::chrono::steady_clock::now();
        if (now - last_ < std::chrono::milliseconds(100)) return true;
        last_ = now;
        const nb::gil_scoped_acquire locked;
        try {
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            if (!call_.is_none()) call_(done / volumes_);
        } catch (nb::python_error& error) {
            error_.emplace(std::move(error));
        }
        return !error_;
    }

    void rethrow() {
        if (error_) throw std::move(*error_);
    }

  private:
    const nb::object& call_;
    const double volumes_;
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
    std::optional<nb::python_error> error_;
};

void denoise_batch(Array<const float, 5> volumes, Array<const float, 4> sigma, Array<float, 5> out,
                   Array<const float, 3> analysis, Array<const float, 3> synthesis,
                   Array<const float, 5> correlations, Array<const float, 1> kaiser, Array<const int32_t, 1> order,
                   int step1, int step2, int radius, int group1, int group2, double alike1, double alike2,
                   double threshold, double wiener, int stages, int threads, const std::string& level, const nb::object& progress) {
    const Shape s = shape_of(volumes, sigma);
    expect(out, {s.count, s.channels, s.depth, s.height, s.width}, "out must be shaped like volumes");
    for (const auto* matrices : {&analysis, &synthesis})
        expect(*matrices, {2, 4, 4}, "analysis and synthesis must have the shape (2, 4, 4)");
    expect(correlations, {2, 4, 4, 4, 64}, "correlations must have the shape (2, 4, 4, 4, 64)");
    expect(kaiser, {4}, "kaiser must have 4 values");
    check_search(step1, step2, radius, group1, group2, order);
    expect(stages == 1 || stages == 2, "stages must be 1 or 2");
    const Settings settings{{step1, step2},
                            radius,
                            {group1, group2},
                            {alike1, alike2},
                            threshold,
                            wiener,
                            {analysis.data(), analysis.data() + 16},
                            {synthesis.data(), synthesis.data() + 16},
                            {correlations.data(), correlations.data() + 64 * 64},
                            kaiser.data(),
                            order.data()};
    const Level chosen = find_level(level);
    Ticker ticker(progress, s.count);
    {
        const nb::gil_scoped_release unlocked;
        for (size_t n = 0; n < s.count; ++n)
            if (!denoise(volume_of(s, volumes, sigma, n, out.data()), settings, stages, threads, chosen,
                         [&](double part) { return ticker.tick(static_cast<double>(n) + part); }))
                break;
    }
    ticker.rethrow();
}

void match_cubes(Array<const float, 5> guide, Array<const float, 4> sigma, Array<int64_t, 2> found,
                 Array<const int32_t, 1> order, int step, int radius, int group, double alike, const std::string& level) {
    const Shape s = shape_of(guide, sigma);
    expect(s.count == 1, "the guide must be one volume");
    check_search(step, step, radius, group, group, order);
    Settings settings{};
    settings.step[0] = step;
    settings.radius = radius;
    settings.group[0] = settings.group[1] = group;
    settings.alike[0] = alike;
    settings.order = order.data();
    const Volume volume = volume_of(s, guide, sigma, 0, nullptr);
    expect(static_cast<long>(found.shape(0)) == references(volume, step) &&
               static_cast<int>(found.shape(1)) == group_size(volume, radius, group),
           "found must have the shape (references, group size)");
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    match(volume, settings, 0, chosen, found.data());
}

}  // namespace

void bind(nb::module_& m) {
    m.def("bm4d", &denoise_batch, "volumes"_a.noconvert(), "sigma"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "analysis"_a.noconvert(), "synthesis"_a.noconvert(), "correlations"_a.noconvert(), "kaiser"_a.noconvert(),
          "order"_a.noconvert(), "step1"_a, "step2"_a, "radius"_a, "group1"_a, "group2"_a, "alike1"_a, "alike2"_a,
          "threshold"_a, "wiener"_a, "stages"_a, "threads"_a, "level"_a = "", "progress"_a = nb::none(),
          "Denoise every volume of the batch into out; progress(part) is called now and then.");
    m.def("bm4d_match", &match_cubes, "guide"_a.noconvert(), "sigma"_a.noconvert(), "found"_a.noconvert(), nb::kw_only(),
          "order"_a.noconvert(), "step"_a, "radius"_a, "group"_a, "alike"_a, "level"_a = "",
          "The positions of the cubes most like each reference cube.");
}

}  // namespace plugstream::bm4d
