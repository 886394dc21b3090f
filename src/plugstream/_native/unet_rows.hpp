// The inner loops of the U-Net; unet_rows.cpp is compiled for each instruction set.
#pragma once

#include "unet.hpp"

namespace plugstream::unet {

constexpr int side = 4, block = 8;                    // of a tile, in pixels; tiles that are computed together
constexpr int places = (side + 2) * (side + 2);       // of a transformed tile
static constexpr long apart(long channels) { return block * channels + 16; }  // of places, which then share no cache set

struct Rows {
    // Blocks of tiles, row by row through the image, and panels of the results of a layer of 3 x 3. `scratch` has room
    // for places (apart(inputs) + apart(panel)) numbers for each block.
    void (*tiles)(const Layer& layer, long first_block, long last_block, long first_panel, long last_panel,
                  float* scratch);
    // Rows of the smaller image of a layer that shrinks or grows.
    void (*rows)(const Layer& layer, long first, long last);
};

PLUGSTREAM_IN_EVERY_LEVEL(extern const Rows rows;)

}  // namespace plugstream::unet
