// Reading chunks of files, each followed by its crc32c, into place; scans/places.py has the same in Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace plugstream::reader {

struct Chunk {
    const char* path;
    int64_t offset;  // within the file, or below zero from its end
    uint8_t* target;
    uint8_t* edge = nullptr;  // for what stands before the chunk, and then its checksum
};

// What became of a chunk; anything above zero is the system's error number.
enum Fate : int { good = 0, cut_short = -1, wrong_sum = -2, not_plain = -3 };

// Whether the machine has the instruction that the checksums are made with.
bool available();

// Read `count` chunks of `bytes` bytes each, with `before` more in front of each, where its offset is. Those of one path
// that lie one after another, and are given so, are read together. `direct` passes the system's page cache where the file
// system can do that. A target is written even if its checksum is wrong. With `folder`, a handle of one, paths are within
// it, and no link is followed on the way.
void read(const Chunk* chunks, size_t count, size_t before, size_t bytes, bool direct, int* fates, int folder = -1);

// An array of a scan whose shards are as `encode_shard` of scans/chunks.py writes them: a mark, a view and its crc32c, one
// after another.
struct Shards {
    const char* root;   // the folder of the scan
    std::string name;   // of the array
    std::string after;  // what a file's name has after the number of its shard
    int64_t views;      // of a shard
    uint64_t scan;      // the first bytes of the scan's id
    size_t bytes;       // of a view
};

// Put each view where it is wanted; false unless every one was found in its place, whole and with its own mark.
bool read_views(const Shards& shards, const int64_t* views, size_t count, bool direct, uint8_t* out);

}  // namespace plugstream::reader
