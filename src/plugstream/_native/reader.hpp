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

// Read `count` chunks of `bytes` bytes each, with `before` more in front of each, where its offset is. Those of one path that lie one after another, and are given so, are read
// together. `direct` passes the system's page cache where the file system can do that. A target is written even if its
// checksum is wrong.
void read(const Chunk* chunks, size_t count, size_t before, size_t bytes, bool direct, int* fates);

}  // namespace plugstream::reader
