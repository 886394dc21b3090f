#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "tv.hpp"

namespace plugstream::nlm {

// `find` turns the name of an instruction set, or an empty one for the best, into the set.
void bind(nanobind::module_& m, tv::Level (*find)(const std::string& name));

}  // namespace plugstream::nlm
