// The native reader on random files, sizes, cuts and orders, to be built with sanitizers: `make asan`.
// It checks that nothing is read or written out of bounds, and that it tells good chunks from bad ones.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "fuzz.hpp"
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

// Views in shards as scans/chunks.py writes them: all are had, or it is said that one is not as it should be.
bool try_views(fuzz::Random& random, const std::string& folder) {
    const size_t bytes = random() % 3 ? random.between(0, 200) : random.between(0, 20000);
    Shards shards{folder.c_str(), "data", random() % 2 ? "" : "/0", random.between(1, 5), random(), bytes};
    const int count = random.between(1, 12);
    std::vector<std::vector<uint8_t>> contents;
    const int broken = random() % 2 ? -1 : random.between(0, count - 1);
    std::vector<std::string> made;
    auto append = [](std::vector<uint8_t>& whole, const void* from, size_t size) {
        whole.insert(whole.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + size);
    };
    mkdir((folder + "/data").c_str(), 0700);
    mkdir((folder + "/data/c").c_str(), 0700);
    for (int64_t first = 0; first < count; first += shards.views) {
        std::vector<uint8_t> whole;
        for (int64_t view = first; view < std::min<int64_t>(count, first + shards.views); ++view) {
            std::vector<uint8_t> content(bytes), said;
            for (uint8_t& byte : content) byte = static_cast<uint8_t>(random());
            const uint32_t sum = crc32c(content);
            append(said, &sum, 4);
            append(said, &view, 8);
            append(said, &shards.scan, 8);
            append(said, shards.name.data(), shards.name.size());
            const uint32_t mark = crc32c(said);
            const size_t start = whole.size();
            append(whole, said.data() + 4, 16);
            append(whole, &mark, 4);
            append(whole, content.data(), bytes);
            append(whole, &sum, 4);
            if (view == broken) whole[start + random() % (whole.size() - start)] ^= 1u << (random() % 8);
            contents.push_back(content);
        }
        const std::string shard = folder + "/data/c/" + std::to_string(first / shards.views);
        if (!shards.after.empty()) mkdir(shard.c_str(), 0700), made.push_back(shard);
        made.push_back(shard + shards.after);
        std::FILE* file = std::fopen(made.back().c_str(), "wb");
        std::fwrite(whole.data(), 1, whole.size(), file);
        std::fclose(file);
    }
    std::vector<int64_t> views(random.between(0, 9));
    bool expected = true;
    for (int64_t& view : views) {
        view = random.between(0, count - 1);
        if (random() % 40 == 0) view = random() % 2 ? -1 - random.between(0, 9) : count + random.between(0, 9);
        expected = expected && view != broken && view >= 0 && view < count;
    }
    std::vector<uint8_t> out(views.size() * bytes);
    bool right = read_views(shards, views.data(), views.size(), random() % 2, out.data()) == expected;
    for (size_t n = 0; right && expected && n < views.size(); ++n)
        right = std::equal(contents[views[n]].begin(), contents[views[n]].end(), out.begin() + n * bytes);
    for (auto path = made.rbegin(); path != made.rend(); ++path)
        if (unlink(path->c_str()) != 0) rmdir(path->c_str());
    rmdir((folder + "/data/c").c_str());
    rmdir((folder + "/data").c_str());
    if (!right) std::printf("views were %sread as they should be\n", expected ? "not " : "");
    return right;
}

}  // namespace

int main(int argc, char** argv) {
    if (!available()) return 0;
    char folder[] = "/tmp/plugstream-reader-XXXXXX";
    if (!mkdtemp(folder)) return 1;
    auto try_here = [&](fuzz::Random& random) { return try_one(random, folder) && try_views(random, folder); };
    const int status = fuzz::run(argc, argv, "the reader", try_here);
    for (int f = 0; f < 3; ++f) unlink((std::string(folder) + "/" + std::to_string(f)).c_str());
    rmdir(folder);
    return status;
}
