// The filters of BM3D, compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it; contraction to fused
// multiply-adds is on here. No function of the standard library is called, as in bm3d_match.cpp.
#include "bm3d_kernels.hpp"
#include "bm3d_transform.hpp"
#include "group_filters.hpp"

namespace plugstream::bm3d::PLUGSTREAM_LEVEL {

extern const FilterKernels filter_kernels = {forward, inverse, threshold<false>, wiener<false>};

}  // namespace plugstream::bm3d::PLUGSTREAM_LEVEL
