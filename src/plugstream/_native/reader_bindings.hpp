#pragma once

#include <nanobind/nanobind.h>

namespace plugstream::reader {

void bind(nanobind::module_& m);  // nothing, where the machine cannot do it

}  // namespace plugstream::reader
