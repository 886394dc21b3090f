// The Python side of the U-Net.
#include <vector>

#include "bindings.hpp"
#include "unet.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::unet {
namespace {

// Columns of the table of layers; those after `outputs` are places of a first number, in memory or weights, or -1.
enum { kind, then, height, width, inputs, outputs, in, weights, values, first, second, out, columns };

void apply_layers(Array<float, 1> memory, Array<const float, 1> all_weights, Array<const long, 2> table, int threads,
                  const std::string& level) {
    expect(table.shape(1) == columns, "a layer is a row of 12 numbers");
    const long count = static_cast<long>(table.shape(0)), size = static_cast<long>(memory.shape(0));
    std::vector<Layer> layers;
    for (long n = 0; n < count; ++n) {
        const long* row = table.data() + n * columns;
        expect(row[kind] >= 0 && row[kind] <= 2 && row[then] >= 0 && row[then] <= 3, "no such kind of layer");
        const Kind this_kind = static_cast<Kind>(row[kind]);
        const bool same = this_kind == Kind::same;
        expect(row[height] > 0 && row[width] > 0 && row[inputs] > 0 && row[outputs] > 0, "an image is empty");
        expect(row[inputs] % few == 0 && row[outputs] % panel == 0, "channels must be multiples of 16 and 32");
        expect(same || (row[height] % 2 == 0 && row[width] % 2 == 0), "only even sides can be halved");
        const long large = row[height] * row[width], small = same ? large : large / 4;
        auto place = [&](int column, long numbers, bool optional = false) -> float* {
            if (optional && row[column] < 0) return nullptr;
            expect(row[column] >= 0 && row[column] <= size - numbers, "an image is not in the memory");
            return memory.data() + row[column];
        };
        const long taken = (same ? 36 : 4) * row[inputs] * row[outputs];
        expect(row[weights] >= 0 && row[weights] <= static_cast<long>(all_weights.shape(0)) - taken,
               "filters are not in the weights");
        const long read = (this_kind == Kind::grow ? small : large) * row[inputs];
        const long written = (this_kind == Kind::shrink ? small : large) * row[outputs];
        layers.push_back({this_kind, static_cast<Then>(row[then]), row[height], row[width], row[inputs], row[outputs],
                          place(in, read), all_weights.data() + row[weights],
                          place(values, written, static_cast<Then>(row[then]) != Then::slope),
                          place(first, written, true), place(second, written, true), place(out, written)});
    }
    const Level chosen = find_level(level);
    const nb::gil_scoped_release unlocked;
    apply(layers.data(), count, threads, chosen);
}

}  // namespace

void bind(nb::module_& m) {
    // noconvert: an array that does not fit is an error here, never a silent copy that the caller would not see filled.
    m.def("unet", &apply_layers, "memory"_a.noconvert(), "weights"_a.noconvert(), "table"_a.noconvert(), nb::kw_only(),
          "threads"_a, "level"_a = "", "Apply the layers of the table, one after the other, to images in memory.");
}

}  // namespace plugstream::unet
