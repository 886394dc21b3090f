#include "bm3d_tiles.hpp"

#include <algorithm>

namespace plugstream::bm3d {
namespace {

// Windows reach beyond a tile, and what they reach is transformed again for each tile. Tiles of this many reference
// blocks keep that small, need at most some 25 MB a thread, and still give every thread something to do.
constexpr int rows_of_tile = 21, columns_of_tile = 96;

}  // namespace

Axis::Axis(long size, int step, int radius, int at_most, int side) : positions(size - side + 1) {
    for (long at = 0; at < positions; at += step) references.push_back(static_cast<int>(at));
    if (references.back() != positions - 1) references.push_back(static_cast<int>(positions - 1));
    const int count = static_cast<int>(references.size()), parts = (count + at_most - 1) / at_most;
    for (int k = 0; k < parts; ++k) {
        const int first = static_cast<int>(long{count} * k / parts);
        const int end = static_cast<int>(long{count} * (k + 1) / parts);
        const long from = std::max(0L, long{references[first]} - radius);
        const long to = std::min(positions, long{references[end - 1]} + radius + 1);
        ranges.push_back({first, end, from, to});
        most_positions = std::max(most_positions, to - from);
        most_references = std::max(most_references, end - first);
    }
}

Tiling::Tiling(long height, long width, const Settings& settings)
    : down(height, settings.step, settings.radius, rows_of_tile),
      across(width, settings.step, settings.radius, columns_of_tile),
      sums(0) {
    for (long tile = 0; tile < count(); ++tile) {
        offsets.push_back(sums);
        // Two sums, of values and of weights, for each pixel of its blocks.
        sums += 2 * (rows(tile).to - rows(tile).from + block - 1) * (columns(tile).to - columns(tile).from + block - 1);
    }
}

void Workspace::reserve_matching(const Tiling& tiling, const Settings& settings) {
    constexpr long number = sizeof(float);
    const long rows_of_pixels = tiling.down.most_positions + block - 1;
    const long columns_of_pixels = tiling.across.most_positions + block + widest + 32;
    const long references = long{tiling.down.most_references} * tiling.across.most_references;
    guide.reserve(rows_of_pixels * columns_of_pixels * number);
    keys.reserve(keys_size * number);
    sums.reserve(sums_size * number);
    candidates.reserve(candidates_size * number);
    found.reserve(references * std::max(settings.group[0], settings.group[1]) * number);
    tables.reserve((1L << index_bits) * number);
    rows.reserve(3L * (tiling.down.most_references + tiling.across.most_references) * number);
}

void Workspace::reserve(const Tiling& tiling, const Settings& settings, int stages, long width) {
    constexpr long number = sizeof(float);
    const long positions = tiling.down.most_positions * tiling.across.most_positions;
    reserve_matching(tiling, settings);
    noisy_spectra.reserve(positions * coefficients * number);
    if (stages >= 2) guide_spectra.reserve(positions * coefficients * number);
    total.reserve(positions * coefficients * number);
    weights.reserve(positions * number);
    row.reserve(width * number);
    ring.reserve((coefficients * tiling.across.most_positions + 2 * (tiling.across.most_positions + 32)) * number);
}

}  // namespace plugstream::bm3d
