// What the Python sides of the kernels share. They check shapes, release the interpreter's lock and copy nothing.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <initializer_list>
#include <string>

#include "level.hpp"

namespace plugstream {

template <class T, int axes>
using Array = nanobind::ndarray<T, nanobind::ndim<axes>, nanobind::c_contig, nanobind::device::cpu>;

inline void expect(bool holds, const char* message) {
    if (!holds) throw nanobind::value_error(message);
}

template <class A>
void expect(const A& array, std::initializer_list<size_t> shape, const char* message) {
    size_t axis = 0;
    for (size_t length : shape) expect(array.shape(axis++) == length, message);
}

// The instruction set of this name, or the best that there is for an empty one.
Level find_level(const std::string& name);

namespace bm3d {
void bind(nanobind::module_& m);
}
namespace bm4d {
void bind(nanobind::module_& m);
}
namespace gather {
void bind(nanobind::module_& m);
}
namespace joseph {
void bind(nanobind::module_& m);
}
namespace nlm {
void bind(nanobind::module_& m);
}
namespace nufft {
void bind(nanobind::module_& m);
}
namespace reader {
void bind(nanobind::module_& m);  // nothing, where the machine cannot do it
}
namespace ridge {
void bind(nanobind::module_& m);
}
namespace tnrd {
void bind(nanobind::module_& m);
}
namespace unet {
void bind(nanobind::module_& m);
}

}  // namespace plugstream
