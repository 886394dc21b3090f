// The module of the kernels, and the Python side of total variation.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "tv.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using plugstream::Array;
using plugstream::expect;
using plugstream::find_level;
using plugstream::Level;

struct Named {
    const char* name;
    Level level;
};
constexpr Named levels_best_first[] = {
    {"avx512", Level::avx512}, {"avx2", Level::avx2}, {"baseline", Level::baseline}};

std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (const Named& named : levels_best_first)
        if (plugstream::available(named.level)) names.emplace_back(named.name);
    return names;
}

template <class T>
bool tv_solve(Array<const T, 5> z, Array<const T, 1> strength, Array<const T, 1> rate, Array<const T, 1> momentum,
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
    auto number = [](size_t length) { return static_cast<long>(length); };
    const plugstream::tv::Batch<T> batch{
        {number(images), number(components), number(axes), number(depth), number(height), number(width)},
        z.data(),
        strength.data(),
        rate.data(),
        low,
        high,
        low_map ? low_map->data() : nullptr,
        high_map ? high_map->data() : nullptr,
        warm ? warm->data() : nullptr,
        momentum.data(),
        number(momentum.shape(0)),
        check,
        tol,
        isotropic,
        x.data(),
        p.data(),
        gap.data()};
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    return plugstream::tv::solve(batch, threads, chosen);
}

template <class T>
void bind_tv(nb::module_& m) {
    // noconvert: an array that does not fit is an error here, never a silent copy that the caller would not see filled.
    m.def("tv_solve", &tv_solve<T>, "z"_a.noconvert(), "strength"_a.noconvert(), "rate"_a.noconvert(),
          "momentum"_a.noconvert(), "low_map"_a.noconvert().none(), "high_map"_a.noconvert().none(),
          "warm"_a.noconvert().none(), "x"_a.noconvert(), "p"_a.noconvert(), "gap"_a.noconvert(), nb::kw_only(), "low"_a,
          "high"_a, "tol"_a, "check"_a, "isotropic"_a, "threads"_a, "level"_a = "",
          "Denoise every image into x, with its dual in p and its gap, by at most len(momentum) iterations from warm; "
          "whether all are within tol.");
}

}  // namespace

Level plugstream::find_level(const std::string& name) {
    for (const Named& named : levels_best_first)
        if ((name.empty() || name == named.name) && available(named.level)) return named.level;
    throw nb::value_error("this machine or build has no such instruction set; see levels()");
}

NB_MODULE(_kernels, m) {
    m.doc() = "The native CPU kernels of plugstream; use them through the modules that own the mathematics.";
    m.def("levels", &levels, "The instruction sets that this build and this machine have, best first.");
    bind_tv<float>(m);
    bind_tv<double>(m);
    plugstream::bm3d::bind(m);
    plugstream::bm4d::bind(m);
    plugstream::tnrd::bind(m);
    plugstream::ridge::bind(m);
    plugstream::unet::bind(m);
    plugstream::nlm::bind(m);
    plugstream::joseph::bind(m);
    plugstream::nufft::bind(m);
    plugstream::gather::bind(m);
#ifdef PLUGSTREAM_HAS_READER
    plugstream::reader::bind(m);
#endif
}
