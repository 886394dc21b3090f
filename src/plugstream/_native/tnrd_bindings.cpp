// The Python side of TNRD: checks shapes, releases the interpreter's lock, copies nothing.
#include "tnrd_bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <initializer_list>

#include "tnrd.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::tnrd {
namespace {

template <class T, int axes>
using Array = nb::ndarray<T, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;

tv::Level (*find_level)(const std::string&) = nullptr;

template <class A>
void expect(const A& array, std::initializer_list<size_t> shape, const char* message) {
    size_t axis = 0;
    for (size_t length : shape)
        if (array.shape(axis++) != length) throw nb::value_error(message);
}

void denoise_batch(Array<const float, 3> images, Array<const float, 1> gain, Array<float, 3> out,
                   Array<const float, 5> forward, Array<const float, 4> backward, Array<const float, 1> reaction,
                   Array<const float, 4> table, int threads, const std::string& level) {
    const size_t count = images.shape(0), height = images.shape(1), width = images.shape(2);
    const size_t stages = reaction.shape(0);
    if (height < taps || width < taps) throw nb::value_error("images must have at least 7 x 7 pixels");
    expect(out, {count, height, width}, "out must be shaped like images");
    expect(gain, {count}, "gain must have one value for each image");
    if (stages < 1) throw nb::value_error("a model must have at least one stage");
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

void bind(nb::module_& m, tv::Level (*find)(const std::string& name)) {
    find_level = find;
    // noconvert: an array that does not fit is an error here, never a silent copy that the caller would not see filled.
    m.def("tnrd", &denoise_batch, "images"_a.noconvert(), "gain"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "forward"_a.noconvert(), "backward"_a.noconvert(), "reaction"_a.noconvert(), "table"_a.noconvert(),
          "threads"_a, "level"_a = "", "Denoise every image of the batch into out.");
}

}  // namespace plugstream::tnrd
