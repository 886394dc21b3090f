// The native reader on random files, sizes, cuts and orders, to be built with sanitizers: `make asan`.
// It checks that nothing is read or written out of bounds, and that it tells good chunks from bad ones.
#include <unistd.h>

#include <cerrno>
#include <string>

#include "native_fuzz.hpp"
#include "reader.hpp"

using namespace plugstream::reader;

namespace {

// The checksum bit by bit, as it is defined.
uint32_t crc32c(const std::vector<uint8_t>& content) {
    uint32_t sum = ~0u;
    for (uint8_t byte : content) {
        sum ^= byte;
        for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ (sum & 1 ? 0x82F63B78u : 0);
    }
    return ~sum;
}

bool try_one(fuzz::Random& random, const std::string& folder) {
    const int files = random.between(1, 3), chunks = random.between(1, 6);
    const size_t bytes = random() % 3 ? random.between(0, 200) : random.between(0, 20000);
    const size_t before = random() % 2 ? 0 : random.between(1, 40), stride = before + bytes + 4;
    std::vector<size_t> sizes;
    std::vector<std::string> names;
    std::vector<std::vector<uint8_t>> contents, beside;
    std::vector<int> broken;
    for (int f = 0; f < files; ++f) {
        names.push_back(folder + "/" + std::to_string(f));
        std::vector<uint8_t> whole;
        for (int n = 0; n < chunks; ++n) {
            std::vector<uint8_t> content(bytes);
            for (uint8_t& byte : content) byte = static_cast<uint8_t>(random());
            uint32_t sum = crc32c(content);
            broken.push_back(random() % 4 == 0);
            if (broken.back()) sum ^= 1u << (random() % 32);
            contents.push_back(content);
            std::vector<uint8_t> edge(before);
            for (uint8_t& byte : edge) byte = static_cast<uint8_t>(random());
            whole.insert(whole.end(), edge.begin(), edge.end());
            whole.insert(whole.end(), content.begin(), content.end());
            const auto* end = reinterpret_cast<const uint8_t*>(&sum);
            whole.insert(whole.end(), end, end + 4);
            edge.insert(edge.end(), end, end + 4);
            beside.push_back(edge);
        }
        sizes.push_back(random() % 3 ? whole.size() : random() % (whole.size() + 1));
        const size_t kept = sizes.back();
        for (int n = 0; n < chunks; ++n)
            if ((n + 1) * stride > kept) broken[f * chunks + n] = 2;
        std::FILE* file = std::fopen(names.back().c_str(), "wb");
        std::fwrite(whole.data(), 1, kept, file);
        std::fclose(file);
    }
    const int count = random.between(0, 12);
    std::vector<int> which, fates(count, 99);
    std::vector<bool> before_it(count);  // asked for a place that lies before the file's beginning
    std::vector<std::vector<uint8_t>> targets(count, std::vector<uint8_t>(bytes));
    std::vector<std::vector<uint8_t>> edges(count, std::vector<uint8_t>(before + 4));
    std::vector<Chunk> wanted;
    for (int n = 0; n < count; ++n) {
        // Often the next one, so that some are read together.
        const int last = which.empty() ? -1 : which.back();
        which.push_back(random() % 2 && last + 1 < files * chunks ? last + 1 : random.between(0, files * chunks - 1));
        int64_t offset = which[n] % chunks * stride;
        const int64_t size = sizes[which[n] / chunks];
        if (random() % 4 == 0 && offset < size) offset -= size;  // from the end
        before_it[n] = random() % 20 == 0;
        if (before_it[n]) offset = -size - 1 - random.between(0, 9);
        wanted.push_back({names[which[n] / chunks].c_str(), offset, targets[n].data(), edges[n].data()});
    }
    const std::string missing = folder + "/none";
    if (count && random() % 5 == 0) wanted[0].path = missing.c_str();
    read(wanted.data(), count, before, bytes, random() % 2, fates.data());
    for (int n = 0; n < count; ++n) {
        const int expected = wanted[n].path == missing.c_str()       ? ENOENT
                             : before_it[n] || broken[which[n]] == 2 ? cut_short
                             : broken[which[n]] == 1                 ? wrong_sum
                                                                     : good;
        if (fates[n] != expected || (expected == good && (targets[n] != contents[which[n]] || edges[n] != beside[which[n]]))) {
            std::printf("chunk %d has fate %d instead of %d\n", n, fates[n], expected);
            return false;
        }
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    if (!available()) return 0;
    char folder[] = "/tmp/plugstream-reader-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    auto try_here = [&](fuzz::Random& random) { return try_one(random, folder); };
    const int status = fuzz::run(argc, argv, "the reader", try_here);
    for (int f = 0; f < 3; ++f) unlink((std::string(folder) + "/" + std::to_string(f)).c_str());
    rmdir(folder);
    return status;
}
