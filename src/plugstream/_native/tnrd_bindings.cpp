// The Python side of TNRD.
#include "bindings.hpp"
#include "tnrd.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::tnrd {
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
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    denoise(batch, model, threads, chosen);
}

}  // namespace

void bind(nb::module_& m) {
    // noconvert: an array that does not fit is an error here, never a silent copy that the caller would not see filled.
    m.def("tnrd", &denoise_batch, "images"_a.noconvert(), "gain"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "forward"_a.noconvert(), "backward"_a.noconvert(), "reaction"_a.noconvert(), "table"_a.noconvert(),
          "threads"_a, "level"_a = "", "Denoise every image of the batch into out.");
}

}  // namespace plugstream::tnrd
