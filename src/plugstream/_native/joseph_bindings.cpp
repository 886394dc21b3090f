// The Python side of Joseph's method.
#include "bindings.hpp"
#include "joseph.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::joseph {
namespace {

// Rays, pixels and arrays of a 2D scan, after a look whether they go together.
struct Call {
    Beam beam;
    Grid grid;
    Layout layout;

    Call(const Array<const double, 3>& vectors, const Array<const double, 2>& places, size_t views, size_t columns,
         size_t images, size_t height, size_t width, bool parallel, double curvature, bool by_view) {
        expect(vectors, {views, 4, 3}, "vectors must have the shape (views, 4, 3), with the data's number of views");
        expect(places, {2, 2}, "places must be the spacing and the origin, each along y and x");
        auto number = [](size_t length) { return static_cast<long>(length); };
        beam = {vectors.data(), number(views), number(columns), parallel, curvature};
        grid = {{number(height), number(width)}, {places(0, 0), places(0, 1)}, {places(1, 0), places(1, 1)}};
        const long one = number(columns);
        layout = by_view ? Layout{number(images), one, number(images) * one}
                         : Layout{number(images), number(views) * one, one};
    }
};

void call_project(Array<const float, 3> images, Array<const double, 3> vectors, Array<const double, 2> places,
                  Array<float, 3> data, bool parallel, double curvature, bool by_view, int threads,
                  const std::string& level) {
    expect(data.shape(by_view ? 1 : 0) == images.shape(0), "data must be of as many images");
    const Call call(vectors, places, data.shape(by_view ? 0 : 1), data.shape(2), images.shape(0), images.shape(1),
                    images.shape(2), parallel, curvature, by_view);
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    project(call.beam, call.grid, call.layout, images.data(), data.data(), threads, chosen);
}

void call_back_project(Array<const float, 3> data, Array<const double, 3> vectors, Array<const double, 2> places,
                       Array<float, 3> images, bool parallel, double curvature, bool by_view, int threads,
                       const std::string& level) {
    expect(data.shape(by_view ? 1 : 0) == images.shape(0), "data must be of as many images");
    const Call call(vectors, places, data.shape(by_view ? 0 : 1), data.shape(2), images.shape(0), images.shape(1),
                    images.shape(2), parallel, curvature, by_view);
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    back_project(call.beam, call.grid, call.layout, data.data(), images.data(), threads, chosen);
}

// Of a 3D scan.
struct VolumeCall {
    Beam beam;
    Box box;
    long rows;

    VolumeCall(const Array<const double, 3>& vectors, const Array<const double, 2>& places, const size_t (&detector)[3],
               const size_t (&size)[3], bool parallel, double curvature) {
        expect(vectors, {detector[0], 4, 3}, "vectors must have the shape (views, 4, 3), with the data's number of views");
        expect(places, {2, 3}, "places must be the spacing and the origin, each along z, y and x");
        auto number = [](size_t length) { return static_cast<long>(length); };
        beam = {vectors.data(), number(detector[0]), number(detector[2]), parallel, curvature};
        rows = number(detector[1]);
        for (int axis = 0; axis < 3; ++axis) {
            box.size[axis] = number(size[axis]);
            box.spacing[axis] = places(0, axis);
            box.origin[axis] = places(1, axis);
        }
    }
};

void call_project_volume(Array<const float, 3> volume, Array<const double, 3> vectors, Array<const double, 2> places,
                         Array<float, 3> data, bool parallel, double curvature, bool oblique, int threads,
                         const std::string& level) {
    const VolumeCall call(vectors, places, {data.shape(0), data.shape(1), data.shape(2)},
                          {volume.shape(0), volume.shape(1), volume.shape(2)}, parallel, curvature);
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    (oblique ? project_oblique : project_volume)(call.beam, call.rows, call.box, volume.data(), data.data(), threads, chosen);
}

void call_back_project_volume(Array<const float, 3> data, Array<const double, 3> vectors,
                              Array<const double, 2> places, Array<float, 3> volume, bool parallel, double curvature,
                              bool oblique, int threads, const std::string& level) {
    const VolumeCall call(vectors, places, {data.shape(0), data.shape(1), data.shape(2)},
                          {volume.shape(0), volume.shape(1), volume.shape(2)}, parallel, curvature);
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    (oblique ? back_project_oblique : back_project_volume)(call.beam, call.rows, call.box, data.data(), volume.data(), threads, chosen);
}

void call_overlaps(Array<const int, 2> axis, Array<const float, 2> start, Array<const float, 2> slope,
                   Array<const float, 1> step, Array<const long, 1> size, Array<const int, 2> offsets,
                   Array<float, 3> bands, int threads, const std::string& level) {
    const size_t rows = axis.shape(0), columns = axis.shape(1), pitch = rows * columns + 16;
    expect(start, {3, pitch}, "start must have the shape (3, rays + 16)");
    expect(slope, {3, pitch}, "slope must have the shape (3, rays + 16)");
    expect(step, {pitch}, "step must have the shape (rays + 16,)");
    expect(size, {3}, "size must be the voxels along z, y and x");
    expect(offsets, {bands.shape(0), 2}, "offsets must be rows and columns, for each band");
    expect(bands, {bands.shape(0), rows, columns}, "bands must have the shape (offsets, rows, columns)");
    for (size_t ray = 0; ray < rows * columns; ++ray)
        expect(axis.data()[ray] >= 0 && axis.data()[ray] < 3, "an axis must be 0, 1 or 2");
    auto number = [](size_t length) { return static_cast<long>(length); };
    const Crossed lines{number(rows), number(columns), number(pitch), axis.data(),
                        start.data(), slope.data(),    step.data()};
    const long sizes[3] = {size(0), size(1), size(2)};
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    find_overlaps(lines, sizes, offsets.data(), number(bands.shape(0)), bands.data(), threads, chosen);
}

}  // namespace

void bind(nb::module_& m) {
    m.def("joseph_project", &call_project, "images"_a.noconvert(), "vectors"_a.noconvert(), "places"_a.noconvert(),
          "data"_a.noconvert(), nb::kw_only(), "parallel"_a, "curvature"_a, "by_view"_a, "threads"_a, "level"_a = "",
          "Write the line integrals of images to data, (images, views, columns), or with by_view (views, images, "
          "columns).");
    m.def("joseph_back_project", &call_back_project, "data"_a.noconvert(), "vectors"_a.noconvert(),
          "places"_a.noconvert(), "images"_a.noconvert(), nb::kw_only(), "parallel"_a, "curvature"_a, "by_view"_a,
          "threads"_a, "level"_a = "", "The adjoint: write the sums over views to images.");
    m.def("joseph_project_volume", &call_project_volume, "volume"_a.noconvert(), "vectors"_a.noconvert(),
          "places"_a.noconvert(), "data"_a.noconvert(), nb::kw_only(), "parallel"_a, "curvature"_a, "oblique"_a,
          "threads"_a, "level"_a = "", "Write the line integrals of a volume to data, (views, rows, columns).");
    m.def("joseph_back_project_volume", &call_back_project_volume, "data"_a.noconvert(), "vectors"_a.noconvert(),
          "places"_a.noconvert(), "volume"_a.noconvert(), nb::kw_only(), "parallel"_a, "curvature"_a, "oblique"_a,
          "threads"_a, "level"_a = "", "The adjoint: write the sum over views to the volume.");
    m.def("joseph_overlaps", &call_overlaps, "axis"_a.noconvert(), "start"_a.noconvert(), "slope"_a.noconvert(),
          "step"_a.noconvert(), "size"_a.noconvert(), "offsets"_a.noconvert(), "bands"_a.noconvert(), nb::kw_only(),
          "threads"_a, "level"_a = "",
          "Write what each ray of a view shares with its neighbours at some offsets to bands, (offsets, rows, columns).");
    m.def("joseph_forget", &forget, "Give back the memory that is kept between calls.");
}

}  // namespace plugstream::joseph
