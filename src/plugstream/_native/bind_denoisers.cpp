// The Python side of the denoisers.
#include "bindings.hpp"

#include <algorithm>
#include <chrono>

#include "bm3d.hpp"
#include "bm4d.hpp"
#include "nlm.hpp"
#include "ridge.hpp"
#include "tnrd.hpp"
#include "tv.hpp"
#include "unet.hpp"

namespace plugstream {
namespace {

bool is_group(int size) { return size >= 1 && size <= 32 && (size & (size - 1)) == 0; }

}  // namespace

namespace tv {
namespace {

template <class T>
bool solve_batch(Array<const T, 5> z, Array<const T, 1> strength, Array<const T, 1> rate, Array<const T, 1> momentum,
                 std::optional<Array<const T, 3>> low_map, std::optional<Array<const T, 3>> high_map,
                 std::optional<Array<const T, 6>> warm, Array<T, 5> x, Array<T, 6> p, Array<double, 1> gap, double low,
                 double high, double tol, long check, bool isotropic, int threads, const std::string& level) {
    const size_t images = z.shape(0), components = z.shape(1), axes = p.shape(2);
    const size_t depth = z.shape(2), height = z.shape(3), width = z.shape(4);
    expect(axes == 3 || (axes == 2 && depth == 1), "p must have 3 axes, or 2 and a depth of 1");
    const auto wanted = {images, components, axes, depth, height, width};
    expect(p, wanted, "p must have the shape (images, components, axes, depth, height, width)");
    if (warm) expect(*warm, wanted, "warm must have the shape of p");
    expect(x, {images, components, depth, height, width}, "x must have the shape of z");
    expect(low_map.has_value() == high_map.has_value(), "low_map and high_map come together");
    for (const auto* map : {&low_map, &high_map})
        if (*map) expect(**map, {depth, height, width}, "a map of bounds must have the shape of an image");
    expect(strength, {images}, "strength must have one value for each image");
    expect(rate, {images}, "rate must have one value for each image");
    expect(gap, {images}, "gap must have one value for each image");
    expect(check > 0, "check must be at least 1");
    const Batch<T> batch{
        {number(images), number(components), number(axes), number(depth), number(height), number(width)},
        z.data(), strength.data(), rate.data(), low, high, low_map ? low_map->data() : nullptr,
        high_map ? high_map->data() : nullptr, warm ? warm->data() : nullptr, momentum.data(),
        number(momentum.shape(0)), check, tol, isotropic, x.data(), p.data(), gap.data()};
    const Chosen chosen(level);
    return solve(batch, threads, chosen.level);
}

template <class T>
void bind(nb::module_& m) {
    m.def("tv_solve", &solve_batch<T>, "z"_a.noconvert(), "strength"_a.noconvert(), "rate"_a.noconvert(),
          "momentum"_a.noconvert(), "low_map"_a.noconvert().none(), "high_map"_a.noconvert().none(),
          "warm"_a.noconvert().none(), "x"_a.noconvert(), "p"_a.noconvert(), "gap"_a.noconvert(), nb::kw_only(), "low"_a,
          "high"_a, "tol"_a, "check"_a, "isotropic"_a, "threads"_a, "level"_a = "",
          "Denoise every image into x, with its dual in p and its gap, by at most len(momentum) iterations from warm; "
          "whether all are within tol.");
}

}  // namespace
}  // namespace tv

namespace bm3d {
namespace {

void denoise_batch(Array<const float, 3> images, Array<const float, 1> sigma, Array<float, 3> out,
                   Array<const float, 3> analysis, Array<const float, 3> synthesis,
                   Array<const float, 4> correlations, Array<const float, 1> kaiser, int step, int radius, int group1,
                   int group2, double threshold, double wiener, int stages, int threads, int channels,
                   std::optional<Array<const float, 5>> shared, std::optional<Array<const float, 2>> offsets,
                   const std::string& level) {
    const size_t count = images.shape(0), height = images.shape(1), width = images.shape(2);
    expect(height >= 8 && width >= 8, "images must have at least 8 x 8 pixels");
    expect(height < (1u << 24) && width < (1u << 24), "images must have fewer than 2^24 pixels along each axis");
    expect(out, {count, height, width}, "out must be shaped like images");
    expect(sigma, {count}, "sigma must have one value for each image");
    for (const auto* matrices : {&analysis, &synthesis})
        expect(*matrices, {2, 8, 8}, "analysis and synthesis must have the shape (2, 8, 8)");
    expect(correlations, {2, 8, 8, 64}, "correlations must have the shape (2, 8, 8, 64)");
    expect(kaiser, {8}, "kaiser must have 8 values");
    expect(step >= 1 && step <= 8, "step must be 1 to 8");
    expect(radius >= 1 && radius <= 22, "radius must be 1 to 22");
    expect(is_group(group1) && is_group(group2), "groups must have 1, 2, 4, 8, 16 or 32 blocks");
    expect(stages >= 1 && stages <= 3, "stages must be 1 or 2, or 3 for the second alone");
    expect(channels >= 1 && count % static_cast<size_t>(channels) == 0, "channels must divide the number of images");
    const size_t window = static_cast<size_t>(2 * radius + 1) * static_cast<size_t>(2 * radius + 1);
    expect(shared.has_value() == offsets.has_value(), "shared and offsets are given together");
    const size_t tables = shared ? shared->shape(1) : 0, reach = shared ? shared->shape(2) - 1 : 0;
    if (shared) {
        expect(tables == 1 || tables == static_cast<size_t>(channels), "shared must have a table, or one for each channel");
        expect(reach >= 1 && reach < (1u << 16), "shared must have a reach of at least 1");
        expect(*shared, {2, tables, reach + 1, 2 * reach + 1, 64}, "shared must be (2, tables, reach + 1, 2 reach + 1, 64)");
        expect(*offsets, {2, window}, "offsets must have two rows of (2 radius + 1)^2 numbers");
    }
    Settings settings{step, radius, {group1, group2}, threshold, wiener, {analysis.data(), analysis.data() + 64},
                      {synthesis.data(), synthesis.data() + 64},
                      {correlations.data(), correlations.data() + 8 * 8 * 64}, kaiser.data()};
    settings.channels = channels;
    if (shared) {
        settings.reach = static_cast<int>(reach);
        settings.tables = static_cast<int>(tables);
        for (int stage : {0, 1}) {
            settings.shared[stage] = shared->data() + stage * static_cast<long>(shared->size() / 2);
            settings.offsets[stage] = offsets->data() + stage * static_cast<long>(window);
        }
    }
    const Batch batch{static_cast<long>(count), static_cast<long>(height), static_cast<long>(width),
                      images.data(),            sigma.data(),              out.data()};
    const Chosen chosen(level);
    denoise(batch, settings, stages, threads, chosen.level);
}

void match_blocks(Array<const float, 2> guide, Array<int64_t, 2> found, int step, int radius, int wanted,
                  const std::string& level) {
    const long height = static_cast<long>(guide.shape(0)), width = static_cast<long>(guide.shape(1));
    expect(height >= 8 && width >= 8, "the guide must have at least 8 x 8 pixels");
    expect(step >= 1 && step <= 8, "step must be 1 to 8");
    expect(radius >= 1 && radius <= 22, "radius must be 1 to 22");
    expect(is_group(wanted), "groups must have 1, 2, 4, 8, 16 or 32 blocks");
    expect(static_cast<long>(found.shape(0)) == references(height, width, step) &&
               static_cast<int>(found.shape(1)) == group_size(height, width, radius, wanted),
           "found must have the shape (references, group size)");
    Settings settings{};
    settings.step = step;
    settings.radius = radius;
    settings.group[0] = settings.group[1] = wanted;
    const Chosen chosen(level);
    match(guide.data(), height, width, settings, wanted, chosen.level, found.data());
}

void bind(nb::module_& m) {
    m.def("bm3d", &denoise_batch, "images"_a.noconvert(), "sigma"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "analysis"_a.noconvert(), "synthesis"_a.noconvert(), "correlations"_a.noconvert(), "kaiser"_a.noconvert(),
          "step"_a, "radius"_a, "group1"_a, "group2"_a, "threshold"_a, "wiener"_a, "stages"_a, "threads"_a, "channels"_a = 1,
          "shared"_a.noconvert() = nb::none(), "offsets"_a.noconvert() = nb::none(), "level"_a = "",
          "Denoise every image of the batch into out.");
    m.def("bm3d_match", &match_blocks, "guide"_a.noconvert(), "found"_a.noconvert(), nb::kw_only(), "step"_a,
          "radius"_a, "wanted"_a, "level"_a = "", "The positions of the blocks most like each reference block.");
}

}  // namespace
}  // namespace bm3d

namespace bm4d {
namespace {

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
    const Settings settings{{step1, step2}, radius, {group1, group2}, {alike1, alike2}, threshold, wiener,
                            {analysis.data(), analysis.data() + 16}, {synthesis.data(), synthesis.data() + 16},
                            {correlations.data(), correlations.data() + 64 * 64}, kaiser.data(), order.data()};
    Ticker ticker(progress, s.count);
    {
        const Chosen chosen(level);
        for (size_t n = 0; n < s.count; ++n)
            if (!denoise(volume_of(s, volumes, sigma, n, out.data()), settings, stages, threads, chosen.level,
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
    const Chosen chosen(level);
    match(volume, settings, 0, chosen.level, found.data());
}

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

}  // namespace
}  // namespace bm4d

namespace nlm {
namespace {

template <class A, class B>
void expect_alike(const A& array, const B& other, const char* message) {
    for (size_t axis = 0; axis < array.ndim(); ++axis) expect(array.shape(axis) == other.shape(axis), message);
}

Shape checked(size_t height, size_t width, int search, int patch) {
    expect(search >= 1 && patch >= 0, "search must be at least 1 and patch at least 0");
    expect(height > static_cast<size_t>(patch) && width > static_cast<size_t>(patch),
           "images must have more pixels a side than the radius of a patch");
    return {static_cast<long>(height), static_cast<long>(width), search, patch};
}

void expect_balance(int balance) {
    expect(balance >= 1, "there must be at least one step of balancing");
}

template <class A, class B, class C>
Matrix matrix_of(const Shape& shape, const A& affinity, const B& scale, const C& rest) {
    expect(affinity, {static_cast<size_t>(size(shape))}, "affinity must have nlm_size numbers");
    expect(scale, {static_cast<size_t>(shape.height), static_cast<size_t>(shape.width)},
           "scale must have the shape of the images");
    expect_alike(scale, rest, "rest must be shaped like scale");
    return {const_cast<float*>(affinity.data()), const_cast<float*>(scale.data()), const_cast<float*>(rest.data())};
}

void denoise(Array<const float, 3> images, Array<const float, 1> rate, Array<float, 3> out, int search, int patch,
             int balance, int threads, const std::string& level) {
    const Shape shape = checked(images.shape(1), images.shape(2), search, patch);
    expect_alike(images, out, "out must be shaped like images");
    expect(rate, {images.shape(0)}, "rate must have one value for each image");
    expect_balance(balance);
    const long plane = shape.height * shape.width, count = static_cast<long>(images.shape(0));
    const Chosen chosen(level);
    for (long n = 0; n < count; ++n) {
        const float* image = images.data() + n * plane;
        if (rate.data()[n] > 0)
            form(shape, image, rate.data()[n], balance, {}, image, out.data() + n * plane, threads, chosen.level);
        else
            std::copy_n(image, plane, out.data() + n * plane);
    }
}

void form_matrix(Array<const float, 2> guide, float rate, Array<float, 1> affinity, Array<float, 2> scale,
                 Array<float, 2> rest, int search, int patch, int balance, int threads, const std::string& level) {
    const Shape shape = checked(guide.shape(0), guide.shape(1), search, patch);
    const Matrix matrix = matrix_of(shape, affinity, scale, rest);
    expect_balance(balance);
    const Chosen chosen(level);
    form(shape, guide.data(), rate, balance, matrix, nullptr, nullptr, threads, chosen.level);
}

void apply_matrix(Array<const float, 1> affinity, Array<const float, 2> scale, Array<const float, 2> rest,
                  Array<const float, 3> images, Array<float, 3> out, int search, int threads,
                  const std::string& level) {
    const Shape shape = checked(images.shape(1), images.shape(2), search, 0);
    const Matrix matrix = matrix_of(shape, affinity, scale, rest);
    expect_alike(images, out, "out must be shaped like images");
    const long plane = shape.height * shape.width, count = static_cast<long>(images.shape(0));
    const Chosen chosen(level);
    for (long n = 0; n < count; ++n)
        apply(shape, matrix, images.data() + n * plane, out.data() + n * plane, threads, chosen.level);
}

long matrix_size(size_t height, size_t width, int search) { return size(checked(height, width, search, 0)); }

void bind(nb::module_& m) {
    m.def("nlm", &denoise, "images"_a.noconvert(), "rate"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "search"_a,
          "patch"_a, "balance"_a, "threads"_a, "level"_a = "",
          "Denoise every image into out with itself as the guide; where its rate is 0, copy it.");
    m.def("nlm_size", &matrix_size, "height"_a, "width"_a, "search"_a, "How many numbers the affinities take.");
    m.def("nlm_form", &form_matrix, "guide"_a.noconvert(), "rate"_a, "affinity"_a.noconvert(), "scale"_a.noconvert(),
          "rest"_a.noconvert(), nb::kw_only(), "search"_a, "patch"_a, "balance"_a, "threads"_a, "level"_a = "",
          "Form the matrix of a guide.");
    m.def("nlm_apply", &apply_matrix, "affinity"_a.noconvert(), "scale"_a.noconvert(), "rest"_a.noconvert(),
          "images"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "search"_a, "threads"_a, "level"_a = "",
          "Apply a matrix that was formed to every image.");
}

}  // namespace
}  // namespace nlm

namespace ridge {
namespace {

void solve_batch(Array<const float, 3> images, std::optional<Array<const float, 3>> start, Array<const bool, 1> active,
                 Array<float, 3> out, Array<bool, 1> rests, Array<const float, 4> taps, Array<const float, 4> slopes,
                 Array<const float, 4> reaches, Array<const float, 2> rates, double tol, long patience, long most,
                 int threads, const std::string& level) {
    const size_t count = images.shape(0), height = images.shape(1), width = images.shape(2);
    const size_t pairs = taps.shape(1), side = taps.shape(2), ratios = slopes.shape(3);
    expect(side >= 2 && pairs >= 1 && ratios >= 1, "there must be filters of at least 3 x 3 taps, and profiles");
    expect(taps, {4, pairs, side, side}, "taps must have the shape (4, pairs, side, side)");
    expect(slopes, {count, 2, pairs, ratios}, "slopes must have the shape (images, 2, pairs, ratios)");
    expect(reaches, {count, 2, pairs, ratios}, "reaches must have the shape of slopes");
    expect(rates, {count, 4}, "rates must have the shape (images, 4)");
    expect(height + 1 >= side && width + 1 >= side, "images must have as many pixels as filters reach");
    expect(out, {count, height, width}, "out must be shaped like images");
    if (start) expect(*start, {count, height, width}, "start must be shaped like images");
    expect(active, {count}, "active must have one value for each image");
    expect(rests, {count}, "rests must have one value for each image");
    expect(tol >= 0 && most >= 1, "tol must be >= 0, and there must be iterations");
    const Filters filters{static_cast<int>(side) - 1, static_cast<int>(pairs), static_cast<int>(ratios), taps.data()};
    const Batch batch{static_cast<long>(count), static_cast<long>(height), static_cast<long>(width),
                      images.data(),            start ? start->data() : nullptr, active.data(),
                      slopes.data(),            reaches.data(),            rates.data(),
                      tol,                      patience,                  most,
                      out.data(),               rests.data()};
    const Chosen chosen(level);
    solve(batch, filters, threads, chosen.level);
}

void bind(nb::module_& m) {
    m.def("ridge", &solve_batch, "images"_a.noconvert(), "start"_a.noconvert().none(), "active"_a.noconvert(),
          "out"_a.noconvert(), "rests"_a.noconvert(), nb::kw_only(), "taps"_a.noconvert(), "slopes"_a.noconvert(),
          "reaches"_a.noconvert(), "rates"_a.noconvert(), "tol"_a, "patience"_a, "most"_a, "threads"_a,
          "level"_a = "", "The prox of the ridge prior at every active image into out; rests says which came near.");
}

}  // namespace
}  // namespace ridge

namespace tnrd {
namespace {

void denoise_batch(Array<const float, 3> images, Array<const float, 1> gain, Array<float, 3> out,
                   Array<const float, 5> forward, Array<const float, 4> backward, Array<const float, 1> reaction,
                   Array<const float, 4> table, int threads, const std::string& level) {
    const size_t count = images.shape(0), height = images.shape(1), width = images.shape(2);
    const size_t stages = reaction.shape(0);
    expect(height >= taps && width >= taps, "images must have at least 7 x 7 pixels");
    expect(out, {count, height, width}, "out must be shaped like images");
    expect(gain, {count}, "gain must have one value for each image");
    expect(stages >= 1, "a model must have at least one stage");
    expect(forward, {stages, filters / together, taps, taps, together}, "forward must have the shape (T, 4, 7, 7, 12)");
    expect(backward, {stages, filters, taps, column}, "backward must have the shape (T, 48, 7, 8)");
    expect(table, {stages, filters, degree + 1, cells}, "table must have the shape (T, 48, 6, 76)");
    const Batch batch{static_cast<long>(count), static_cast<long>(height), static_cast<long>(width),
                      images.data(),            gain.data(),               out.data()};
    const Model model{static_cast<int>(stages), forward.data(), backward.data(), reaction.data(), table.data()};
    const Chosen chosen(level);
    denoise(batch, model, threads, chosen.level);
}

void bind(nb::module_& m) {
    m.def("tnrd", &denoise_batch, "images"_a.noconvert(), "gain"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "forward"_a.noconvert(), "backward"_a.noconvert(), "reaction"_a.noconvert(), "table"_a.noconvert(),
          "threads"_a, "level"_a = "", "Denoise every image of the batch into out.");
}

}  // namespace
}  // namespace tnrd

namespace unet {
namespace {

// Columns of the table of layers; those after `outputs` are places of a first number, in memory or weights, or -1.
enum { kind, then, height, width, inputs, outputs, in, weights, values, first, second, out, columns };

void apply_layers(Array<float, 1> memory, Array<const float, 1> all_weights, Array<const long, 2> table, int threads,
                  const std::string& level) {
    expect(table.shape(1) == columns, "a layer is a row of 12 numbers");
    const long count = static_cast<long>(table.shape(0)), size = static_cast<long>(memory.shape(0));
    std::vector<Layer> layers;
    for (long n = 0; n < count; ++n) {
        const long* row = table.data() + n * columns;
        expect(row[kind] >= 0 && row[kind] <= 2 && row[then] >= 0 && row[then] <= 3, "no such kind of layer");
        const Kind this_kind = static_cast<Kind>(row[kind]);
        const bool same = this_kind == Kind::same;
        expect(row[height] > 0 && row[width] > 0 && row[inputs] > 0 && row[outputs] > 0, "an image is empty");
        expect(row[inputs] % few == 0 && row[outputs] % panel == 0, "channels must be multiples of 16 and 32");
        expect(same || (row[height] % 2 == 0 && row[width] % 2 == 0), "only even sides can be halved");
        const long large = row[height] * row[width], small = same ? large : large / 4;
        auto place = [&](int column, long numbers, bool optional = false) -> float* {
            if (optional && row[column] < 0) return nullptr;
            expect(row[column] >= 0 && row[column] <= size - numbers, "an image is not in the memory");
            return memory.data() + row[column];
        };
        const long taken = (same ? 36 : 4) * row[inputs] * row[outputs];
        expect(row[weights] >= 0 && row[weights] <= static_cast<long>(all_weights.shape(0)) - taken,
               "filters are not in the weights");
        const long read = (this_kind == Kind::grow ? small : large) * row[inputs];
        const long written = (this_kind == Kind::shrink ? small : large) * row[outputs];
        layers.push_back({this_kind, static_cast<Then>(row[then]), row[height], row[width], row[inputs], row[outputs],
                          place(in, read), all_weights.data() + row[weights],
                          place(values, written, static_cast<Then>(row[then]) != Then::slope),
                          place(first, written, true), place(second, written, true), place(out, written)});
    }
    const Chosen chosen(level);
    apply(layers.data(), count, threads, chosen.level);
}

void bind(nb::module_& m) {
    m.def("unet", &apply_layers, "memory"_a.noconvert(), "weights"_a.noconvert(), "table"_a.noconvert(), nb::kw_only(),
          "threads"_a, "level"_a = "", "Apply the layers of the table, one after the other, to images in memory.");
}

}  // namespace
}  // namespace unet

void bind_denoisers(nb::module_& m) {
    tv::bind<float>(m);
    tv::bind<double>(m);
    bm3d::bind(m);
    bm4d::bind(m);
    nlm::bind(m);
    ridge::bind(m);
    tnrd::bind(m);
    unet::bind(m);
}

}  // namespace plugstream
