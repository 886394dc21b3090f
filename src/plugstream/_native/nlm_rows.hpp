// The inner loops of non-local means, one row of an image at a time; nlm_rows.cpp is compiled for each instruction set.
#pragma once

#include "level.hpp"

namespace plugstream::nlm {

// A piece is the affinities of one row of pixels to those `dy` rows below, at the distances first .. first + count - 1
// across: `count` rows of `pitch` numbers. Whole vectors are read and written: up to 15 values beyond `width` are.
struct Rows {
    // out[j][x] = pyramid[j] exp(-rate ||P(x) - Q(x + j)||^2) for x < width. P(x) are the `around`^2 values whose first
    // is here[x], in rows `guide_pitch` apart, and Q(x) those whose first is there[x]. `sums` has room for count rows.
    void (*affinities)(const float* here, const float* there, long guide_pitch, int around, float rate, int count,
                       const float* pyramid, long width, float* sums, long pitch, float* out);
    // For each of `images` vectors v, to above[x] add the sum over j of piece[j][x] v_below[x + first + j], and to
    // below[x] that of piece[j][x - first - j] v_above[x - first - j]: the piece and its transpose.
    void (*multiply)(const float* piece, long pitch, int first, int count, long width, int images,
                     const float* const* v_above, const float* const* v_below, float* const* above,
                     float* const* below);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows rows;)

}  // namespace plugstream::nlm
