// The Python side of BM3D.
#include <nanobind/stl/optional.h>

#include "bindings.hpp"
#include "bm3d.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::bm3d {
namespace {

bool is_group(int size) { return size >= 1 && size <= 32 && (size & (size - 1)) == 0; }

void denoise_batch(Array<const float, 3> images, Array<const float, 1> sigma, Array<float, 3> out,
                   Array<const float, 3> analysis, Array<const float, 3> synthesis,
                   Array<const float, 4> correlations, Array<const float, 1> kaiser, int step, int radius, int group1,
                   int group2, double threshold, double wiener, int stages, int threads, int channels,
                   std::optional<Array<const float, 5>> shared, std::optional<Array<const float, 2>> offsets,
                   const std::string& level) {
    const size_t count = images.shape(0), height = images.shape(1), width = images.shape(2);
    expect(height >= 8 && width >= 8, "images must have at least 8 x 8 pixels");
    expect(height < (1u << 24) && width < (1u << 24), "images must have fewer than 2^24 pixels along each axis");
    expect(out, {count, height, width}, "out must be shaped like images");
    expect(sigma, {count}, "sigma must have one value for each image");
    for (const auto* matrices : {&analysis, &synthesis})
        expect(*matrices, {2, 8, 8}, "analysis and synthesis must have the shape (2, 8, 8)");
    expect(correlations, {2, 8, 8, 64}, "correlations must have the shape (2, 8, 8, 64)");
    expect(kaiser, {8}, "kaiser must have 8 values");
    expect(step >= 1 && step <= 8, "step must be 1 to 8");
    expect(radius >= 1 && radius <= 22, "radius must be 1 to 22");
    expect(is_group(group1) && is_group(group2), "groups must have 1, 2, 4, 8, 16 or 32 blocks");
    expect(stages >= 1 && stages <= 3, "stages must be 1 or 2, or 3 for the second alone");
    expect(channels >= 1 && count % static_cast<size_t>(channels) == 0, "channels must divide the number of images");
    const size_t window = static_cast<size_t>(2 * radius + 1) * static_cast<size_t>(2 * radius + 1);
    expect(shared.has_value() == offsets.has_value(), "shared and offsets are given together");
    const size_t tables = shared ? shared->shape(1) : 0, reach = shared ? shared->shape(2) - 1 : 0;
    if (shared) {
        expect(tables == 1 || tables == static_cast<size_t>(channels), "shared must have a table, or one for each channel");
        expect(reach >= 1 && reach < (1u << 16), "shared must have a reach of at least 1");
        expect(*shared, {2, tables, reach + 1, 2 * reach + 1, 64}, "shared must be (2, tables, reach + 1, 2 reach + 1, 64)");
        expect(*offsets, {2, window}, "offsets must have two rows of (2 radius + 1)^2 numbers");
    }
    Settings settings{step,
                            radius,
                            {group1, group2},
                            threshold,
                            wiener,
                            {analysis.data(), analysis.data() + 64},
                            {synthesis.data(), synthesis.data() + 64},
                            {correlations.data(), correlations.data() + 8 * 8 * 64},
                            kaiser.data()};
    settings.channels = channels;
    if (shared) {
        settings.reach = static_cast<int>(reach);
        settings.tables = static_cast<int>(tables);
        for (int stage : {0, 1}) {
            settings.shared[stage] = shared->data() + stage * static_cast<long>(shared->size() / 2);
            settings.offsets[stage] = offsets->data() + stage * static_cast<long>(window);
        }
    }
    const Batch batch{static_cast<long>(count), static_cast<long>(height), static_cast<long>(width),
                      images.data(),            sigma.data(),              out.data()};
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    denoise(batch, settings, stages, threads, chosen);
}

void match_blocks(Array<const float, 2> guide, Array<int64_t, 2> found, int step, int radius, int wanted,
                  const std::string& level) {
    const long height = static_cast<long>(guide.shape(0)), width = static_cast<long>(guide.shape(1));
    expect(height >= 8 && width >= 8, "the guide must have at least 8 x 8 pixels");
    expect(step >= 1 && step <= 8, "step must be 1 to 8");
    expect(radius >= 1 && radius <= 22, "radius must be 1 to 22");
    expect(is_group(wanted), "groups must have 1, 2, 4, 8, 16 or 32 blocks");
    expect(static_cast<long>(found.shape(0)) == references(height, width, step) &&
               static_cast<int>(found.shape(1)) == group_size(height, width, radius, wanted),
           "found must have the shape (references, group size)");
    Settings settings{};
    settings.step = step;
    settings.radius = radius;
    settings.group[0] = settings.group[1] = wanted;
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    match(guide.data(), height, width, settings, wanted, chosen, found.data());
}

}  // namespace

void bind(nb::module_& m) {
    // noconvert: an array that does not fit is an error here, never a silent copy that the caller would not see filled.
    m.def("bm3d", &denoise_batch, "images"_a.noconvert(), "sigma"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "analysis"_a.noconvert(), "synthesis"_a.noconvert(), "correlations"_a.noconvert(), "kaiser"_a.noconvert(),
          "step"_a, "radius"_a, "group1"_a, "group2"_a, "threshold"_a, "wiener"_a, "stages"_a, "threads"_a, "channels"_a = 1,
          "shared"_a.noconvert() = nb::none(), "offsets"_a.noconvert() = nb::none(), "level"_a = "",
          "Denoise every image of the batch into out.");
    m.def("bm3d_match", &match_blocks, "guide"_a.noconvert(), "found"_a.noconvert(), nb::kw_only(), "step"_a,
          "radius"_a, "wanted"_a, "level"_a = "", "The positions of the blocks most like each reference block.");
}

}  // namespace plugstream::bm3d
