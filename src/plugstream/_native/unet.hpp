// The convolutions of a U-Net on one image, one after the other; denoisers/networks/fused.py says which.
#pragma once

#include "level.hpp"

namespace plugstream::unet {

// Channels that are computed together, and by which channels are divisible: those read, and those written.
constexpr int few = 16, panel = 32;

// same: 3 x 3, the border filled with zeros. shrink: 2 x 2 pixels to one. grow: its transpose.
enum class Kind { same, shrink, grow };
// What is done to a result h. slope: h times the slope of celu where celu was `values`.
enum class Then { nothing, relu, celu, slope };

constexpr float bend = 1.0f / 16;  // of celu

// out = then(W in) + first + second. Images are (height, width, channels) and do not overlap, but that `first` or
// `second` may be `out`; null where there is none. height and width are those of the larger image.
//
// weights, contiguous. same, (outputs / 32, 36, inputs, 32): G w G^T of each 3 x 3 filter, for tiles of 4 x 4 pixels.
// shrink, (outputs / 32, 4 inputs, 32): for the pixels (0, 0), (0, 1), (1, 0), (1, 1) and their channels.
// grow, (2, 2 outputs / 32, inputs, 32): for the upper and lower row, two pixels with their channels.
struct Layer {
    Kind kind;
    Then then;
    long height, width, inputs, outputs;
    const float *in, *weights, *values, *first, *second;
    float* out;
};

// Applies all layers. The number of threads does not change a bit of the result.
void apply(const Layer* layers, long count, int threads, Level level);

}  // namespace plugstream::unet
