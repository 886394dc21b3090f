// The Python side of the ridge prior.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>

#include <optional>

#include "ridge.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::ridge {
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
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    solve(batch, filters, threads, chosen);
}

}  // namespace

void bind(nb::module_& m) {
    // noconvert: an array that does not fit is an error here, never a silent copy that the caller would not see filled.
    m.def("ridge", &solve_batch, "images"_a.noconvert(), "start"_a.noconvert().none(), "active"_a.noconvert(),
          "out"_a.noconvert(), "rests"_a.noconvert(), nb::kw_only(), "taps"_a.noconvert(), "slopes"_a.noconvert(),
          "reaches"_a.noconvert(), "rates"_a.noconvert(), "tol"_a, "patience"_a, "most"_a, "threads"_a,
          "level"_a = "", "The prox of the ridge prior at every active image into out; rests says which came near.");
}

}  // namespace plugstream::ridge
