// The Python side of non-local means.
#include <algorithm>

#include "bindings.hpp"
#include "nlm.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::nlm {
namespace {

template <class A, class B>
void expect_alike(const A& array, const B& other, const char* message) {
    for (size_t axis = 0; axis < array.ndim(); ++axis)
        expect(array.shape(axis) == other.shape(axis), message);
}

Shape checked(size_t height, size_t width, int search, int patch) {
    expect(search >= 1 && patch >= 0, "search must be at least 1 and patch at least 0");
    expect(height > static_cast<size_t>(patch) && width > static_cast<size_t>(patch),
           "images must have more pixels a side than the radius of a patch");
    return {static_cast<long>(height), static_cast<long>(width), search, patch};
}

void expect_balance(int balance) {
    expect(balance >= 1, "there must be at least one step of balancing");
}

template <class A, class B, class C>
Matrix matrix_of(const Shape& shape, const A& affinity, const B& scale, const C& rest) {
    expect(affinity, {static_cast<size_t>(size(shape))}, "affinity must have nlm_size numbers");
    expect(scale, {static_cast<size_t>(shape.height), static_cast<size_t>(shape.width)},
           "scale must have the shape of the images");
    expect_alike(scale, rest, "rest must be shaped like scale");
    return {const_cast<float*>(affinity.data()), const_cast<float*>(scale.data()), const_cast<float*>(rest.data())};
}

void denoise(Array<const float, 3> images, Array<const float, 1> rate, Array<float, 3> out, int search, int patch,
             int balance, int threads, const std::string& level) {
    const Shape shape = checked(images.shape(1), images.shape(2), search, patch);
    expect_alike(images, out, "out must be shaped like images");
    expect(rate, {images.shape(0)}, "rate must have one value for each image");
    expect_balance(balance);
    const Level chosen = find_level(level);
    const long plane = shape.height * shape.width, count = static_cast<long>(images.shape(0));
    const nb::gil_scoped_release unlocked;
    for (long n = 0; n < count; ++n) {
        const float* image = images.data() + n * plane;
        if (rate.data()[n] > 0)
            form(shape, image, rate.data()[n], balance, {}, image, out.data() + n * plane, threads, chosen);
        else
            std::copy_n(image, plane, out.data() + n * plane);
    }
}

void form_matrix(Array<const float, 2> guide, float rate, Array<float, 1> affinity, Array<float, 2> scale,
                 Array<float, 2> rest, int search, int patch, int balance, int threads, const std::string& level) {
    const Shape shape = checked(guide.shape(0), guide.shape(1), search, patch);
    const Matrix matrix = matrix_of(shape, affinity, scale, rest);
    expect_balance(balance);
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    form(shape, guide.data(), rate, balance, matrix, nullptr, nullptr, threads, chosen);
}

void apply_matrix(Array<const float, 1> affinity, Array<const float, 2> scale, Array<const float, 2> rest,
                  Array<const float, 3> images, Array<float, 3> out, int search, int threads,
                  const std::string& level) {
    const Shape shape = checked(images.shape(1), images.shape(2), search, 0);
    const Matrix matrix = matrix_of(shape, affinity, scale, rest);
    expect_alike(images, out, "out must be shaped like images");
    const Level chosen = find_level(level);
    const long plane = shape.height * shape.width, count = static_cast<long>(images.shape(0));
    const nb::gil_scoped_release unlocked;
    for (long n = 0; n < count; ++n)
        apply(shape, matrix, images.data() + n * plane, out.data() + n * plane, threads, chosen);
}

long matrix_size(size_t height, size_t width, int search) { return size(checked(height, width, search, 0)); }

}  // namespace

void bind(nb::module_& m) {
    // noconvert: an array that does not fit is an error here, never a silent copy that the caller would not see filled.
    m.def("nlm", &denoise, "images"_a.noconvert(), "rate"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "search"_a,
          "patch"_a, "balance"_a, "threads"_a, "level"_a = "",
          "Denoise every image into out with itself as the guide; where its rate is 0, copy it.");
    m.def("nlm_size", &matrix_size, "height"_a, "width"_a, "search"_a, "How many numbers the affinities take.");
    m.def("nlm_form", &form_matrix, "guide"_a.noconvert(), "rate"_a, "affinity"_a.noconvert(), "scale"_a.noconvert(),
          "rest"_a.noconvert(), nb::kw_only(), "search"_a, "patch"_a, "balance"_a, "threads"_a, "level"_a = "",
          "Form the matrix of a guide.");
    m.def("nlm_apply", &apply_matrix, "affinity"_a.noconvert(), "scale"_a.noconvert(), "rest"_a.noconvert(),
          "images"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "search"_a, "threads"_a, "level"_a = "",
          "Apply a matrix that was formed to every image.");
}

}  // namespace plugstream::nlm
