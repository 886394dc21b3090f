// The Python side of reading chunks.
#include <string>
#include <vector>

#include "bindings.hpp"
#include "reader.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::reader {
namespace {

void read_chunks(nb::list paths, Array<const int64_t, 1> offsets, Array<const int64_t, 1> rows, Array<uint8_t, 2> out,
                 Array<int32_t, 1> fates, bool direct) {
    const size_t count = paths.size(), bytes = out.shape(1);
    expect(offsets.shape(0) == count && rows.shape(0) == count && fates.shape(0) == count,
           "there must be an offset, a row and a fate for each path");
    std::vector<std::string> names;
    std::vector<Chunk> chunks;
    names.reserve(count);
    for (size_t n = 0; n < count; ++n) {
        const int64_t offset = offsets.data()[n], row = rows.data()[n];
        expect(row >= 0 && static_cast<size_t>(row) < out.shape(0), "rows must be those of out");
        const nb::bytes path = nb::cast<nb::bytes>(paths[n]);
        names.emplace_back(path.c_str(), path.size());
        chunks.push_back({names.back().c_str(), offset, out.data() + row * bytes});
    }
    const nb::gil_scoped_release unlocked;
    read(chunks.data(), count, bytes, direct, fates.data());
}

}  // namespace

void bind(nb::module_& m) {
    if (!available()) return;
    m.def("read_chunks", &read_chunks, "paths"_a, "offsets"_a.noconvert(), "rows"_a.noconvert(), "out"_a.noconvert(),
          "fates"_a.noconvert(), nb::kw_only(), "direct"_a,
          "Read a chunk from each path and offset, from the end if below zero, into its row of out, and check it "
          "against the crc32c behind it: its fate is 0, -1 if it is cut short, -2 if its checksum is wrong, -3 if it is in no plain file, or the system's error number.");
}

}  // namespace plugstream::reader
