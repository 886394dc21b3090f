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

// The shape that z has, and p and s must have: (images, components, depth, height, width) and, after the components, axes.
template <class T>
plugstream::tv::Shape tv_shape(const Array<const T, 5>& z, const Array<T, 6>& p, const Array<T, 6>& s) {
    const size_t images = z.shape(0), components = z.shape(1), axes = p.shape(2);
    const size_t depth = z.shape(2), height = z.shape(3), width = z.shape(4);
    expect(axes == 3 || (axes == 2 && depth == 1), "p must have 3 axes, or 2 and a depth of 1");
    const auto wanted = {images, components, axes, depth, height, width};
    expect(p, wanted, "p must have the shape (images, components, axes, depth, height, width)");
    expect(s, wanted, "s must have the shape (images, components, axes, depth, height, width)");
    auto number = [](size_t length) { return static_cast<long>(length); };
    return {number(images), number(components), number(axes), number(depth), number(height), number(width)};
}

template <class T>
void tv_advance(Array<const T, 5> z, Array<const T, 1> strength, Array<const T, 1> rate, Array<const T, 1> momentum,
                Array<const bool, 1> active, Array<const T, 3> low, Array<const T, 3> high, Array<T, 6> p,
                Array<T, 6> s, Array<T, 5> x, Array<double, 1> gap, bool isotropic, int threads,
                const std::string& level) {
    const plugstream::tv::Shape shape = tv_shape<T>(z, p, s);
    const size_t images = z.shape(0), components = z.shape(1);
    expect(x, {images, components, z.shape(2), z.shape(3), z.shape(4)}, "x must have the shape of z");
    const bool maps = low.shape(2) != 1;
    const size_t each = maps ? z.shape(2) * z.shape(3) * z.shape(4) : 1;
    expect(low, {images, components, each}, "low must have one value for each image and component, or for each pixel");
    expect(high, {images, components, each}, "high must have as many values as low");
    expect(strength, {images}, "strength must have one value for each image");
    expect(rate, {images}, "rate must have one value for each image");
    expect(active, {images}, "active must have one value for each image");
    expect(gap, {images}, "gap must have one value for each image");
    const Level chosen = find_level(level);
    const plugstream::tv::Batch<T> batch{shape,       static_cast<long>(momentum.shape(0)),
                                         z.data(),    strength.data(),
                                         rate.data(), momentum.data(),
                                         active.data(), low.data(),
                                         high.data(), maps,
                                         p.data(),    s.data(),
                                         x.data(),    gap.data(),
                                         isotropic};
    const nb::gil_scoped_release unlocked;
    plugstream::tv::advance(batch, threads, chosen);
}

template <class T>
void tv_start(Array<const T, 5> z, std::optional<Array<const T, 6>> warm, Array<T, 6> p, Array<T, 6> s,
              Array<double, 1> energy, bool isotropic) {
    const plugstream::tv::Shape shape = tv_shape<T>(z, p, s);
    expect(energy, {z.shape(0)}, "energy must have one value for each image");
    if (warm)
        for (size_t axis = 0; axis < 6; ++axis)
            expect(warm->shape(axis) == p.shape(axis), "warm must have the shape of p");
    const plugstream::tv::Start<T> batch{shape,    z.data(),      warm ? warm->data() : nullptr, p.data(),
                                         s.data(), energy.data(), isotropic};
    const Level level = find_level("");
    const nb::gil_scoped_release unlocked;
    plugstream::tv::start(batch, level);
}

template <class T>
void bind_tv(nb::module_& m) {
    // noconvert: an array that does not fit is an error here, never a silent copy that the caller would not see filled.
    m.def("tv_start", &tv_start<T>, "z"_a.noconvert(), "warm"_a.noconvert().none(), "p"_a.noconvert(),
          "s"_a.noconvert(), "energy"_a.noconvert(), nb::kw_only(), "isotropic"_a,
          "Set p and s to the feasible dual nearest to warm, or to zero, and energy to ||z||^2 of each image.");
    m.def("tv_advance", &tv_advance<T>, "z"_a.noconvert(), "strength"_a.noconvert(), "rate"_a.noconvert(),
          "momentum"_a.noconvert(), "active"_a.noconvert(), "low"_a.noconvert(), "high"_a.noconvert(),
          "p"_a.noconvert(), "s"_a.noconvert(), "x"_a.noconvert(), "gap"_a.noconvert(), nb::kw_only(), "isotropic"_a,
          "threads"_a, "level"_a = "",
          "Take len(momentum) dual iterations on every active image, in place in p and s; write x and gap.");
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
    plugstream::nlm::bind(m);
    plugstream::joseph::bind(m);
    plugstream::nufft::bind(m);
    plugstream::gather::bind(m);
    plugstream::reader::bind(m);
}
