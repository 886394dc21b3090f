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
void tv_advance(Array<const T, 3> z, Array<const T, 1> strength, Array<const T, 1> rate, Array<const T, 1> momentum,
                Array<const bool, 1> active, Array<T, 4> p, Array<T, 4> s, Array<T, 3> x, Array<double, 1> gap,
                double low, double high, bool isotropic, int threads, const std::string& level) {
    const size_t images = z.shape(0), height = z.shape(1), width = z.shape(2);
    expect(x, {images, height, width}, "x must have the shape of z");
    expect(p, {images, 2, height, width}, "p must have the shape (images, 2, height, width)");
    expect(s, {images, 2, height, width}, "s must have the shape (images, 2, height, width)");
    expect(strength, {images}, "strength must have one value for each image");
    expect(rate, {images}, "rate must have one value for each image");
    expect(active, {images}, "active must have one value for each image");
    expect(gap, {images}, "gap must have one value for each image");
    const Level chosen = find_level(level);
    const plugstream::tv::Batch<T> batch{static_cast<long>(images),
                                         static_cast<long>(height),
                                         static_cast<long>(width),
                                         static_cast<long>(momentum.shape(0)),
                                         z.data(),
                                         strength.data(),
                                         rate.data(),
                                         momentum.data(),
                                         active.data(),
                                         p.data(),
                                         s.data(),
                                         x.data(),
                                         gap.data(),
                                         static_cast<T>(low),
                                         static_cast<T>(high),
                                         isotropic};
    const nb::gil_scoped_release unlocked;
    plugstream::tv::advance(batch, threads, chosen);
}

template <class T>
void tv_start(Array<const T, 3> z, std::optional<Array<const T, 4>> warm, Array<T, 4> p, Array<T, 4> s,
              Array<double, 1> energy, bool isotropic) {
    const size_t images = z.shape(0), height = z.shape(1), width = z.shape(2);
    expect(p, {images, 2, height, width}, "p must have the shape (images, 2, height, width)");
    expect(s, {images, 2, height, width}, "s must have the shape (images, 2, height, width)");
    expect(energy, {images}, "energy must have one value for each image");
    if (warm) expect(*warm, {images, 2, height, width}, "warm must have the shape (images, 2, height, width)");
    const plugstream::tv::Start<T> batch{static_cast<long>(images), static_cast<long>(height),
                                         static_cast<long>(width),  z.data(),
                                         warm ? warm->data() : nullptr, p.data(),
                                         s.data(),                  energy.data(),
                                         isotropic};
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
          "momentum"_a.noconvert(), "active"_a.noconvert(), "p"_a.noconvert(), "s"_a.noconvert(), "x"_a.noconvert(),
          "gap"_a.noconvert(), nb::kw_only(), "low"_a, "high"_a, "isotropic"_a, "threads"_a, "level"_a = "",
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
    plugstream::tnrd::bind(m);
    plugstream::nlm::bind(m);
    plugstream::reader::bind(m);
}
