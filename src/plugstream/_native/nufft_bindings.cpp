// The Python side of the non-uniform FFT.
#include "bindings.hpp"
#include "nufft.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <optional>

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::nufft {
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
        auto number = [](size_t length) { return static_cast<long>(length); };
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
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    read(call.grid, call.points, call.taps, grid.data(), values.data(), threads, chosen);
}

void call_write(Array<float, 5> grid, Array<const int, 2> first, Array<const float, 2> offset,
                Array<const unsigned char, 1> flipped, Array<const float, 2> polynomials, Array<const float, 3> values,
                const std::array<int, 3>& widths, int threads, const std::string& level) {
    const Call call({grid.shape(0), grid.shape(1), grid.shape(2), grid.shape(3), grid.shape(4)}, first, offset, flipped,
                    polynomials, values.shape(0), values.shape(1), values.shape(2), widths);
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    write(call.grid, call.points, call.taps, values.data(), grid.data(), threads, chosen);
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

}  // namespace

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

}  // namespace plugstream::nufft
