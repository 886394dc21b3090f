#include "reader.hpp"

#if defined(__linux__) && (defined(__x86_64__) || (defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__))

#include <fcntl.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define PLUGSTREAM_HAS_SUMS __attribute__((target("sse4.2")))
#else
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define PLUGSTREAM_HAS_SUMS __attribute__((target("+crc")))
#endif
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "reader_queue.hpp"

namespace plugstream::reader {
namespace {

constexpr size_t sum_bytes = 4;
constexpr int64_t aligned = 4096;       // what direct reading asks of places and sizes: the largest block disks commonly have
constexpr size_t most_together = 1 << 20;  // of chunks that lie one after another
constexpr int64_t most_at_once = 4 << 20;  // of all that is read before anything is copied, unless one chunk is larger

// Polynomials over {0, 1} modulo that of crc32c, the coefficient of x^0 in the highest bit.
constexpr uint32_t polynomial = 0x82F63B78, one = 1u << 31, x_to_the_8th = one >> 8;

uint32_t product(uint32_t a, uint32_t b) {
    uint32_t out = 0;
    for (; a; a <<= 1, b = (b >> 1) ^ (b & 1 ? polynomial : 0))
        if (a & one) out ^= b;
    return out;
}

uint32_t power(uint32_t base, size_t exponent) {
    uint32_t out = one;
    for (; exponent; exponent >>= 1, base = product(base, base))
        if (exponent & 1) out = product(out, base);
    return out;
}

PLUGSTREAM_HAS_SUMS inline uint32_t add_word(uint32_t sum, uint64_t word) {
#if defined(__x86_64__)
    return static_cast<uint32_t>(_mm_crc32_u64(sum, word));
#else
    return __crc32cd(sum, word);
#endif
}

PLUGSTREAM_HAS_SUMS inline uint32_t add_byte(uint32_t sum, uint8_t byte) {
#if defined(__x86_64__)
    return _mm_crc32_u8(sum, byte);
#else
    return __crc32cb(sum, byte);
#endif
}

uint64_t word(const uint8_t* at) {
    uint64_t out;
    std::memcpy(&out, at, sizeof out);
    return out;
}

// Copies a chunk and makes its checksum on the way. The instruction takes three cycles, and one can begin every cycle:
// so three thirds go side by side. A checksum is linear in what it begins with, and what follows multiplies it by x^8
// for each byte; so the thirds are put together afterwards.
class Copier {
public:
    explicit Copier(size_t bytes) : bytes_(bytes), third_(bytes / 24 * 8), over_a_third_(power(x_to_the_8th, third_)) {}

    PLUGSTREAM_HAS_SUMS uint32_t operator()(const uint8_t* from, uint8_t* to) const {
        uint32_t a = 0xFFFFFFFF, b = 0, c = 0;
        for (size_t n = 0; n < third_; n += 8) {
            const uint64_t first = word(from + n), second = word(from + third_ + n), last = word(from + 2 * third_ + n);
            a = add_word(a, first);
            b = add_word(b, second);
            c = add_word(c, last);
            std::memcpy(to + n, &first, 8);
            std::memcpy(to + third_ + n, &second, 8);
            std::memcpy(to + 2 * third_ + n, &last, 8);
        }
        const uint32_t two = product(a, over_a_third_) ^ b;
        uint32_t sum = product(two, over_a_third_) ^ c;
        for (size_t n = 3 * third_; n < bytes_; ++n) sum = add_byte(sum, to[n] = from[n]);
        return ~sum;
    }

private:
    size_t bytes_, third_;
    uint32_t over_a_third_;
};

int64_t in_blocks(int64_t bytes) { return (bytes + aligned - 1) / aligned * aligned; }

// Memory of the thread on a page boundary, as large as was needed so far.
uint8_t* scratch(size_t count) {
    struct Free {
        void operator()(uint8_t* memory) const { std::free(memory); }
    };
    thread_local std::unique_ptr<uint8_t, Free> memory;
    thread_local size_t size = 0;
    if (size < count) {
        memory.reset();
        size = 0;
        memory.reset(static_cast<uint8_t*>(std::aligned_alloc(aligned, count)));
        if (!memory) throw std::bad_alloc();
        size = count;
    }
    return memory.get();
}

// Of a scan that may come from anybody: no link is followed, and a pipe is not waited for.
int open_file(int folder, const char* path, uint64_t more) {
    constexpr int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    if (folder < 0) return ::open(path, flags | static_cast<int>(more));
    // openat2 of Linux 5.6: older headers do not have it, and older systems answer with an error.
    constexpr long number = 437;
    constexpr uint64_t no_links = 0x04, beneath = 0x08;
    const struct {
        uint64_t flags, mode, resolve;
    } how = {flags | more, 0, no_links | beneath};
    return static_cast<int>(::syscall(number, folder, path, &how, sizeof how));
}

class File {
public:
    File(int folder, const char* path, bool direct) : direct_(direct) {
        if (direct) handle_ = open_file(folder, path, O_DIRECT);
        if (handle_ < 0) {  // also for a file system that cannot do it
            direct_ = false;
            handle_ = open_file(folder, path, 0);
        }
        error = handle_ < 0 ? errno : 0;
        struct stat found;
        if (error == 0 && ::fstat(handle_, &found) != 0) error = errno;
        if (error == 0 && !S_ISREG(found.st_mode)) error = not_plain;
        size = error == 0 ? found.st_size : 0;
    }
    ~File() {
        if (handle_ >= 0) ::close(handle_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    bool direct() const { return direct_; }
    int handle() const { return handle_; }

    // Fills memory with whole blocks from `first` on; returns how many bytes of `wanted` there were, or an error below 0.
    int64_t read(uint8_t* memory, int64_t first, int64_t wanted) {
        int64_t done = 0;
        if (direct_) {
            if (::pread(handle_, memory, in_blocks(wanted), first) >= wanted) return wanted;
            // The end of a file that was cut short, blocks of another size than ours, a broken disk: the cache will say.
            ::fcntl(handle_, F_SETFL, ::fcntl(handle_, F_GETFL) & ~O_DIRECT);
            direct_ = false;
        }
        while (done < wanted) {
            const int64_t got = ::pread(handle_, memory + done, wanted - done, first + done);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return -errno;
            if (got == 0) break;
            done += got;
        }
        return done;
    }

    int error;  // the system's number, or a fate below zero
    int64_t size;

private:
    int handle_ = -1;
    bool direct_;
};

// Chunks of one file, one after another.
struct Run {
    size_t begin, end;
    std::shared_ptr<File> file;
    int64_t first, wanted, before;  // blocks from here on, so many bytes of them, and those before the first chunk
    uint8_t* memory = nullptr;
    int64_t got = -1;  // bytes of those wanted, or an error below zero
};

void fetch(std::vector<Run>& runs) {
    std::vector<Request> requests;
    std::vector<Run*> of;
    for (Run& run : runs)
        if (run.file->direct() && runs.size() > 1) {
            requests.push_back({run.file->handle(), run.memory, run.first, in_blocks(run.wanted)});
            of.push_back(&run);
        }
    if (!requests.empty()) Queue::of_thread().run(requests.data(), requests.size());
    for (size_t n = 0; n < requests.size(); ++n)
        if (requests[n].got >= of[n]->wanted) of[n]->got = of[n]->wanted;
    for (Run& run : runs)
        if (run.got < 0) run.got = run.file->read(run.memory, run.first, run.wanted);
}

// Put a chunk where it is wanted, `place` bytes after the first one of its run; its fate.
int take(const Chunk& chunk, const Run& run, size_t place, size_t before_chunk, size_t bytes, const Copier& copy) {
    if (run.got < 0) return static_cast<int>(-run.got);
    const uint8_t* from = run.memory + run.before + place;
    if (from + before_chunk + bytes + sum_bytes > run.memory + run.got) return cut_short;
    const uint8_t* content = from + before_chunk;
    uint32_t said;
    std::memcpy(&said, content + bytes, sum_bytes);
    if (chunk.edge) {
        std::memcpy(chunk.edge, from, before_chunk);
        std::memcpy(chunk.edge + before_chunk, &said, sum_bytes);
    }
    return copy(content, chunk.target) == said ? good : wrong_sum;
}

// The checksum of a few bytes, continued; it begins with all bits set, and ends with them turned round.
PLUGSTREAM_HAS_SUMS uint32_t add_to_sum(uint32_t sum, const void* content, size_t count) {
    const auto* bytes = static_cast<const uint8_t*>(content);
    for (size_t n = 0; n < count; ++n) sum = add_byte(sum, bytes[n]);
    return sum;
}

// A mark, as scans/chunks.py describes it, and the checksum of the chunk after it.
struct Edge {
    uint64_t view, scan;
    uint32_t own, chunk;
};
constexpr size_t mark_bytes = 20, edge_bytes = mark_bytes + sum_bytes;
static_assert(sizeof(Edge) == edge_bytes);

bool is_of(const Edge& edge, int64_t view, uint64_t scan, const std::string& array) {
    uint32_t sum = add_to_sum(~0u, &edge.chunk, sum_bytes);
    sum = add_to_sum(sum, &edge, sizeof edge.view + sizeof edge.scan);
    sum = add_to_sum(sum, array.data(), array.size());
    return edge.own == ~sum && edge.view == static_cast<uint64_t>(view) && edge.scan == scan;
}

}  // namespace

bool available() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2");
#else
    return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

void read(const Chunk* chunks, size_t count, size_t before_chunk, size_t bytes, bool direct, int* fates, int folder) {
    const Copier copy(bytes);
    const size_t stride = before_chunk + bytes + sum_bytes, together = std::max<size_t>(1, most_together / stride);
    std::shared_ptr<File> file;
    std::vector<Run> runs;  // that were found, and are not read yet
    int64_t waiting = 0;    // their bytes in whole blocks
    const auto finish = [&] {
        uint8_t* memory = scratch(waiting);
        for (Run& run : runs) run.memory = std::exchange(memory, memory + in_blocks(run.wanted));
        fetch(runs);
        for (const Run& run : runs)
            for (size_t n = run.begin; n < run.end; ++n)
                fates[n] = take(chunks[n], run, (n - run.begin) * stride, before_chunk, bytes, copy);
        runs.clear();
        waiting = 0;
    };
    for (size_t begin = 0, end; begin < count; begin = end) {
        const Chunk& first = chunks[begin];
        if (begin == 0 || std::strcmp(first.path, chunks[begin - 1].path) != 0)
            file = std::make_shared<File>(folder, first.path, direct);
        for (end = begin + 1; end < count && end - begin < together && first.offset >= 0; ++end)
            if (std::strcmp(first.path, chunks[end].path) != 0 ||
                chunks[end].offset != first.offset + static_cast<int64_t>((end - begin) * stride))
                break;
        const int64_t offset = first.offset < 0 && !file->error ? file->size + first.offset : first.offset;
        const auto whole = static_cast<int64_t>((end - begin) * stride);
        // A large chunk is looked for in a file that could hold it only: what it is said to have costs no memory.
        const bool beyond = whole > static_cast<int64_t>(most_together) && whole > file->size - offset;
        if (file->error || offset < 0 || beyond) {
            std::fill(fates + begin, fates + end, file->error ? file->error : cut_short);
            continue;
        }
        const int64_t wanted = offset % aligned + whole;
        if (runs.size() == Queue::most || (waiting && waiting + in_blocks(wanted) > most_at_once)) finish();
        runs.push_back({begin, end, file, offset - offset % aligned, wanted, offset % aligned});
        waiting += in_blocks(wanted);
    }
    finish();
}

bool read_views(const Shards& shards, const int64_t* views, size_t count, bool direct, uint8_t* out) {
    std::vector<size_t> order(count);  // rows of the result, by view
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return views[a] < views[b]; });
    if (count && views[order[0]] < 0) return false;
    std::vector<Chunk> chunks;
    std::vector<std::string> paths;
    std::vector<Edge> edges(count);
    paths.reserve(count);
    const auto stride = static_cast<int64_t>(mark_bytes + shards.bytes + sum_bytes);
    for (size_t n = 0; n < count; ++n) {
        const int64_t view = views[order[n]], shard = view / shards.views;
        if (n && view == views[order[n - 1]]) continue;
        if (chunks.empty() || shard != views[order[n - 1]] / shards.views)
            paths.push_back(shards.name + "/c/" + std::to_string(shard) + shards.after);
        chunks.push_back({paths.back().c_str(), view % shards.views * stride, out + order[n] * shards.bytes,
                          reinterpret_cast<uint8_t*>(&edges[chunks.size()])});
    }
    const int folder = ::open(shards.root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return false;
    std::vector<int> fates(chunks.size());
    read(chunks.data(), chunks.size(), mark_bytes, shards.bytes, direct, fates.data(), folder);
    ::close(folder);
    size_t chunk = 0;
    for (size_t n = 0; n < count; ++n) {
        uint8_t* row = out + order[n] * shards.bytes;
        if (n && views[order[n]] == views[order[n - 1]]) {
            std::copy_n(chunks[chunk - 1].target, shards.bytes, row);
        } else {
            if (fates[chunk] != good || !is_of(edges[chunk], views[order[n]], shards.scan, shards.name)) return false;
            ++chunk;
        }
    }
    return true;
}

}  // namespace plugstream::reader

#else  // Python reads

namespace plugstream::reader {
bool available() { return false; }
void read(const Chunk*, size_t, size_t, size_t, bool, int*, int) {}
bool read_views(const Shards&, const int64_t*, size_t, bool, uint8_t*) { return false; }
}  // namespace plugstream::reader

#endif
