// The Python side of reading chunks.
#include <cstring>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "reader.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace plugstream::reader {
namespace {

void read_pieces(nb::list paths, Array<const int64_t, 1> offsets, Array<const int64_t, 1> rows, Array<uint8_t, 2> out,
                 Array<uint8_t, 2> edges, Array<int32_t, 1> fates, bool direct) {
    constexpr size_t sum_bytes = 4;
    const size_t count = paths.size(), bytes = out.shape(1), beside = edges.shape(1);
    expect(offsets.shape(0) == count && rows.shape(0) == count && fates.shape(0) == count && edges.shape(0) == count,
           "there must be an offset, a row, an edge and a fate for each path");
    expect(beside >= sum_bytes, "an edge needs room for a checksum");
    std::vector<std::string> names;
    std::vector<Chunk> chunks;
    names.reserve(count);
    for (size_t n = 0; n < count; ++n) {
        const int64_t offset = offsets.data()[n], row = rows.data()[n];
        expect(row >= 0 && static_cast<size_t>(row) < out.shape(0), "rows must be those of out");
        const nb::bytes path = nb::cast<nb::bytes>(paths[n]);
        names.emplace_back(path.c_str(), path.size());
        chunks.push_back({names.back().c_str(), offset, out.data() + row * bytes, edges.data() + n * beside});
    }
    const nb::gil_scoped_release unlocked;
    read(chunks.data(), count, beside - sum_bytes, bytes, direct, fates.data());
}

bool read_some(nb::bytes root, const std::string& array, const std::string& after, int64_t views_per_shard, nb::bytes scan,
               Array<const int64_t, 1> views, Array<uint8_t, 2> out, bool direct) {
    expect(out.shape(0) == views.shape(0), "there must be a row for each view");
    expect(views_per_shard > 0, "a shard has at least one view");
    Shards shards{root.c_str(), array, after, views_per_shard, 0, out.shape(1)};
    expect(scan.size() == sizeof shards.scan, "a mark has eight bytes of the scan's id");
    std::memcpy(&shards.scan, scan.c_str(), sizeof shards.scan);
    const nb::gil_scoped_release unlocked;
    return read_views(shards, views.data(), views.shape(0), direct, out.data());
}

}  // namespace

void bind(nb::module_& m) {
    if (!available()) return;
    m.def("read_pieces", &read_pieces, "paths"_a, "offsets"_a.noconvert(), "rows"_a.noconvert(), "out"_a.noconvert(),
          "edges"_a.noconvert(), "fates"_a.noconvert(), nb::kw_only(), "direct"_a,
          "Read a piece from each path and offset, from the end if below zero: its chunk into its row of out, checked "
          "against the crc32c behind it. What stands before it goes to its row of edges, with that crc32c after it. Its "
          "fate is 0, -1 if it is cut short, -2 if its checksum is wrong, -3 if it is in no plain file, or the system's "
          "error number.");
    m.def("read_views", &read_some, "root"_a, "array"_a, "after"_a, "views_per_shard"_a, "scan"_a, "views"_a.noconvert(),
          "out"_a.noconvert(), nb::kw_only(), "direct"_a,
          "Read views of an array of the scan in the folder root, each into its row of out, from where a shard of marked "
          "chunks has it. Whether every one was there, with the right checksum and the right mark; otherwise rows may hold "
          "anything.");
}

}  // namespace plugstream::reader
