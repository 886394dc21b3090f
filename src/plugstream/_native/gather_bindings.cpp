// The Python side of back-projection by voxels.
#include "bindings.hpp"
#include "gather.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::gather {
namespace {

void call_add_views(Array<const float, 4> data, Array<const double, 3> forms, Array<float, 4> volume, bool has_rows,
                    bool parallel, int threads, const std::string& level) {
    expect(forms, {data.shape(1), 4, 4}, "forms must have the shape (views, 4, 4), with the data's number of views");
    expect(volume.shape(0) == data.shape(0), "there must be as many volumes as images of data");
    expect(data.shape(3) >= 4, "data must have a column of zeros before its columns and two after them");
    expect(has_rows ? data.shape(2) >= 4 : data.shape(2) == 1, "data must have a row of zeros before its rows, two after");
    expect(data.shape(2) * data.shape(3) < (1u << 30), "a view must have fewer than 2^30 pixels");
    expect(volume.shape(3) < (1u << 24), "a row must have fewer than 2^24 voxels");
    auto number = [](size_t length) { return static_cast<long>(length); };
    const Data source{data.data(), number(data.shape(0)), number(data.shape(1)),
                      has_rows ? number(data.shape(2)) - 3 : 0, number(data.shape(3)) - 3};
    const Volume target{volume.data(), number(volume.shape(1)), number(volume.shape(2)), number(volume.shape(3))};
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    add_views(source, forms.data(), parallel, target, threads, chosen);
}

}  // namespace

void bind(nb::module_& m) {
    m.def("gather_views", &call_add_views, "data"_a.noconvert(), "forms"_a.noconvert(), "volume"_a.noconvert(),
          nb::kw_only(), "has_rows"_a, "parallel"_a, "threads"_a, "level"_a = "",
          "Add to each voxel what the views show at its place; data is (images, views, rows, columns), with zeros around.");
}

}  // namespace plugstream::gather
