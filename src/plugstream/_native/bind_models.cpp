// The module of the kernels, and the Python side of the models and of reading scans.
#include "bindings.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>

#include "gather.hpp"
#include "joseph.hpp"
#include "nufft.hpp"
#include "reader.hpp"

namespace plugstream {

namespace gather {
namespace {

void call_add_views(Array<const float, 4> data, Array<const double, 3> forms, Array<float, 4> volume, bool has_rows,
                    bool parallel, int threads, const std::string& level) {
    expect(forms, {data.shape(1), 4, 4}, "forms must have the shape (views, 4, 4), with the data's number of views");
    expect(volume.shape(0) == data.shape(0), "there must be as many volumes as images of data");
    expect(data.shape(3) >= 4, "data must have a column of zeros before its columns and two after them");
    expect(has_rows ? data.shape(2) >= 4 : data.shape(2) == 1, "data must have a row of zeros before its rows, two after");
    expect(data.shape(2) * data.shape(3) < (1u << 30), "a view must have fewer than 2^30 pixels");
    expect(volume.shape(3) < (1u << 24), "a row must have fewer than 2^24 voxels");
    const Data source{data.data(), number(data.shape(0)), number(data.shape(1)),
                      has_rows ? number(data.shape(2)) - 3 : 0, number(data.shape(3)) - 3};
    const Volume target{volume.data(), number(volume.shape(1)), number(volume.shape(2)), number(volume.shape(3))};
    const Chosen chosen(level);
    add_views(source, forms.data(), parallel, target, threads, chosen.level);
}

void bind(nb::module_& m) {
    m.def("gather_views", &call_add_views, "data"_a.noconvert(), "forms"_a.noconvert(), "volume"_a.noconvert(),
          nb::kw_only(), "has_rows"_a, "parallel"_a, "threads"_a, "level"_a = "",
          "Add to each voxel what the views show at its place; data is (images, views, rows, columns), with zeros around.");
}

}  // namespace
}  // namespace gather

namespace joseph {
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
    const Chosen chosen(level);
    project(call.beam, call.grid, call.layout, images.data(), data.data(), threads, chosen.level);
}

void call_back_project(Array<const float, 3> data, Array<const double, 3> vectors, Array<const double, 2> places,
                       Array<float, 3> images, bool parallel, double curvature, bool by_view, int threads,
                       const std::string& level) {
    expect(data.shape(by_view ? 1 : 0) == images.shape(0), "data must be of as many images");
    const Call call(vectors, places, data.shape(by_view ? 0 : 1), data.shape(2), images.shape(0), images.shape(1),
                    images.shape(2), parallel, curvature, by_view);
    const Chosen chosen(level);
    back_project(call.beam, call.grid, call.layout, data.data(), images.data(), threads, chosen.level);
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
    const Chosen chosen(level);
    (oblique ? project_oblique : project_volume)(call.beam, call.rows, call.box, volume.data(), data.data(), threads,
                                                 chosen.level);
}

void call_back_project_volume(Array<const float, 3> data, Array<const double, 3> vectors,
                              Array<const double, 2> places, Array<float, 3> volume, bool parallel, double curvature,
                              bool oblique, int threads, const std::string& level) {
    const VolumeCall call(vectors, places, {data.shape(0), data.shape(1), data.shape(2)},
                          {volume.shape(0), volume.shape(1), volume.shape(2)}, parallel, curvature);
    const Chosen chosen(level);
    (oblique ? back_project_oblique : back_project_volume)(call.beam, call.rows, call.box, data.data(), volume.data(),
                                                           threads, chosen.level);
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
    const Crossed lines{number(rows), number(columns), number(pitch), axis.data(),
                        start.data(), slope.data(),    step.data()};
    const long sizes[3] = {size(0), size(1), size(2)};
    const Chosen chosen(level);
    find_overlaps(lines, sizes, offsets.data(), number(bands.shape(0)), bands.data(), threads, chosen.level);
}

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

}  // namespace
}  // namespace joseph

namespace nufft {
namespace {

// The arrays of a call, after a look whether they go together.
struct Call {
    Grid grid;
    Points points;
    Taps taps;

    Call(const size_t (&shape)[5], const Array<const int, 2>& first, const Array<const float, 2>& offset,
         const Array<const unsigned char, 1>& flipped, const Array<const float, 2>& polynomials, size_t images,
         size_t count, size_t parts, const std::array<int, 3>& widths) {
        expect(shape[4] == 2 && parts == 2, "complex numbers must be pairs");
        expect(shape[0] == images, "values must be of as many images as the grid");
        expect(first, {count, 3}, "first must have the shape (points, 3), with as many points as values");
        expect(offset, {count, 3}, "offset must have the shape (points, 3), with as many points as values");
        expect(flipped.shape(0) == 0 || flipped.shape(0) == count, "flipped must be one for each point, or empty");
        expect(polynomials.shape(0) >= 1, "there must be polynomials");
        grid = {number(shape[0]), {number(shape[1]), number(shape[2]), number(shape[3])}};
        points = {number(count), first.data(), offset.data(), flipped.shape(0) ? flipped.data() : nullptr,
                  {widths[0], widths[1], widths[2]}};
        taps = {polynomials.data(), static_cast<int>(polynomials.shape(0)) - 1, static_cast<int>(polynomials.shape(1))};
        const char* wrong = fault(grid, points, taps);
        expect(wrong == nullptr, wrong);
    }
};

void call_read(Array<const float, 5> grid, Array<const int, 2> first, Array<const float, 2> offset,
               Array<const unsigned char, 1> flipped, Array<const float, 2> polynomials, Array<float, 3> values,
               const std::array<int, 3>& widths, int threads, const std::string& level) {
    const Call call({grid.shape(0), grid.shape(1), grid.shape(2), grid.shape(3), grid.shape(4)}, first, offset, flipped,
                    polynomials, values.shape(0), values.shape(1), values.shape(2), widths);
    const Chosen chosen(level);
    read(call.grid, call.points, call.taps, grid.data(), values.data(), threads, chosen.level);
}

void call_write(Array<float, 5> grid, Array<const int, 2> first, Array<const float, 2> offset,
                Array<const unsigned char, 1> flipped, Array<const float, 2> polynomials, Array<const float, 3> values,
                const std::array<int, 3>& widths, int threads, const std::string& level) {
    const Call call({grid.shape(0), grid.shape(1), grid.shape(2), grid.shape(3), grid.shape(4)}, first, offset, flipped,
                    polynomials, values.shape(0), values.shape(1), values.shape(2), widths);
    const Chosen chosen(level);
    write(call.grid, call.points, call.taps, values.data(), grid.data(), threads, chosen.level);
}

template <class T>
void call_multiply(Array<const int, 1> starts, Array<const int, 1> index, Array<const T, 1> values,
                   std::optional<Array<const T, 1>> row_sign, std::optional<Array<const T, 1>> column_sign,
                   Array<const T, 3> vectors, Array<T, 3> out, int threads) {
    const size_t images = vectors.shape(0), columns = vectors.shape(1), rows = out.shape(1);
    expect(vectors.shape(2) == 2 && out.shape(2) == 2, "complex numbers must be pairs");
    expect(out.shape(0) == images, "out must have as many vectors");
    expect(starts.shape(0) == rows + 1, "there must be a start for each row, and an end");
    expect(index.shape(0) == values.shape(0), "there must be an index for each value");
    if (row_sign) expect(*row_sign, {rows}, "row_sign must be one for each row");
    if (column_sign) expect(*column_sign, {columns}, "column_sign must be one for each column");
    const Table<T> table{static_cast<long>(images), static_cast<long>(rows), static_cast<long>(columns), starts.data(),
                         index.data(), values.data(), row_sign ? row_sign->data() : nullptr,
                         column_sign ? column_sign->data() : nullptr};
    const char* wrong = fault(table, static_cast<long>(values.shape(0)));
    expect(wrong == nullptr, wrong);
    const nb::gil_scoped_release unlocked;
    multiply(table, vectors.data(), out.data(), threads);
}

template <class T>
void bind_multiply(nb::module_& m) {
    m.def("nufft_multiply", &call_multiply<T>, "starts"_a.noconvert(), "index"_a.noconvert(), "values"_a.noconvert(),
          "row_sign"_a.noconvert().none(), "column_sign"_a.noconvert().none(), "vectors"_a.noconvert(),
          "out"_a.noconvert(), nb::kw_only(), "threads"_a,
          "A real sparse matrix, whose indices are not checked, times complex vectors.");
}

void bind(nb::module_& m) {
    bind_multiply<float>(m);
    bind_multiply<double>(m);
    m.def("nufft_read", &call_read, "grid"_a.noconvert(), "first"_a.noconvert(), "offset"_a.noconvert(),
          "flipped"_a.noconvert(), "polynomials"_a.noconvert(), "values"_a.noconvert(), nb::kw_only(), "widths"_a,
          "threads"_a, "level"_a = "", "Write the weighted sums of the cells around each point to values.");
    m.def("nufft_write", &call_write, "grid"_a.noconvert(), "first"_a.noconvert(), "offset"_a.noconvert(),
          "flipped"_a.noconvert(), "polynomials"_a.noconvert(), "values"_a.noconvert(), nb::kw_only(), "widths"_a,
          "threads"_a, "level"_a = "", "The transpose: add the values of points to the cells around them.");
}

}  // namespace
}  // namespace nufft

#ifdef PLUGSTREAM_HAS_READER
namespace reader {
namespace {

void read_pieces(nb::list paths, Array<const int64_t, 1> offsets, Array<const int64_t, 1> rows, Array<uint8_t, 2> out,
                 Array<uint8_t, 2> edges, Array<int32_t, 1> fates, bool direct) {
    constexpr size_t sum_bytes = 4;
    const size_t count = paths.size(), bytes = out.shape(1), beside = edges.shape(1);
    expect(offsets.shape(0) == count && rows.shape(0) == count && fates.shape(0) == count && edges.shape(0) == count,
           "there must be an offset, a row, an edge and a fate for each path");
    expect(beside >= sum_bytes, "an edge needs room for a checksum");
    std::vector<std::string> names;
    std::vector<Chunk> chunks;
    names.reserve(count);
    for (size_t n = 0; n < count; ++n) {
        const int64_t offset = offsets.data()[n], row = rows.data()[n];
        expect(row >= 0 && static_cast<size_t>(row) < out.shape(0), "rows must be those of out");
        const nb::bytes path = nb::cast<nb::bytes>(paths[n]);
        names.emplace_back(path.c_str(), path.size());
        chunks.push_back({names.back().c_str(), offset, out.data() + row * bytes, edges.data() + n * beside});
    }
    const nb::gil_scoped_release unlocked;
    read(chunks.data(), count, beside - sum_bytes, bytes, direct, fates.data());
}

bool read_some(nb::bytes root, const std::string& array, const std::string& after, int64_t views_per_shard, nb::bytes scan,
               Array<const int64_t, 1> views, Array<uint8_t, 2> out, bool direct) {
    expect(out.shape(0) == views.shape(0), "there must be a row for each view");
    expect(views_per_shard > 0, "a shard has at least one view");
    Shards shards{root.c_str(), array, after, views_per_shard, 0, out.shape(1)};
    expect(scan.size() == sizeof shards.scan, "a mark has eight bytes of the scan's id");
    std::memcpy(&shards.scan, scan.c_str(), sizeof shards.scan);
    const nb::gil_scoped_release unlocked;
    return read_views(shards, views.data(), views.shape(0), direct, out.data());
}

void bind(nb::module_& m) {
    if (!available()) return;
    m.def("read_pieces", &read_pieces, "paths"_a, "offsets"_a.noconvert(), "rows"_a.noconvert(), "out"_a.noconvert(),
          "edges"_a.noconvert(), "fates"_a.noconvert(), nb::kw_only(), "direct"_a,
          "Read a piece from each path and offset, from the end if below zero: its chunk into its row of out, checked "
          "against the crc32c behind it. What stands before it goes to its row of edges, with that crc32c after it. Its "
          "fate is 0, -1 if it is cut short, -2 if its checksum is wrong, -3 if it is in no plain file, or the system's "
          "error number.");
    m.def("read_views", &read_some, "root"_a, "array"_a, "after"_a, "views_per_shard"_a, "scan"_a, "views"_a.noconvert(),
          "out"_a.noconvert(), nb::kw_only(), "direct"_a,
          "Read views of an array of the scan in the folder root, each into its row of out, from where a shard of marked "
          "chunks has it. Whether every one was there, with the right checksum and the right mark; otherwise rows may hold "
          "anything.");
}

}  // namespace
}  // namespace reader
#endif

namespace {

struct Named {
    const char* name;
    Level level;
};
constexpr Named levels_best_first[] = {
    {"avx512", Level::avx512}, {"avx2", Level::avx2}, {"baseline", Level::baseline}};

std::vector<std::string> levels() {
    std::vector<std::string> names;
    for (const Named& named : levels_best_first)
        if (available(named.level)) names.emplace_back(named.name);
    return names;
}

}  // namespace

Level find_level(const std::string& name) {
    for (const Named& named : levels_best_first)
        if ((name.empty() || name == named.name) && available(named.level)) return named.level;
    throw nb::value_error("this machine or build has no such instruction set; see levels()");
}

}  // namespace plugstream

NB_MODULE(_kernels, m) {
    using namespace plugstream;
    m.doc() = "The native CPU kernels of plugstream; use them through the modules that own the mathematics.";
    m.attr("built") = PLUGSTREAM_BUILT;  // "all" instruction sets, or one of them
    m.def("levels", &levels, "The instruction sets that this build and this machine have, best first.");
    bind_denoisers(m);
    gather::bind(m);
    joseph::bind(m);
    nufft::bind(m);
#ifdef PLUGSTREAM_HAS_READER
    reader::bind(m);
#endif
}
