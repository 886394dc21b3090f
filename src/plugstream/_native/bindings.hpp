// What the Python sides of the kernels share. They check shapes, release the interpreter's lock and copy nothing: every
// array is noconvert, so that one that does not fit is an error, never a silent copy that the caller would not see filled.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "level.hpp"

namespace plugstream {

namespace nb = nanobind;
using namespace nb::literals;

template <class T, int axes>
using Array = nb::ndarray<T, nb::ndim<axes>, nb::c_contig, nb::device::cpu>;

inline void expect(bool holds, const char* message) {
    if (!holds) throw nb::value_error(message);
}

template <class A>
void expect(const A& array, std::initializer_list<size_t> shape, const char* message) {
    size_t axis = 0;
    for (size_t length : shape) expect(array.shape(axis++) == length, message);
}

inline long number(size_t length) { return static_cast<long>(length); }

// The instruction set of this name, or the best that there is for an empty one.
Level find_level(const std::string& name);

// It, for work during which others may have the interpreter.
struct Chosen {
    explicit Chosen(const std::string& name) : level(find_level(name)) {}

    const Level level;
    const nb::gil_scoped_release unlocked;
};

void bind_denoisers(nb::module_& m);

}  // namespace plugstream
