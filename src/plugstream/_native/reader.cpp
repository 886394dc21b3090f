#include "reader.hpp"

#if defined(__linux__) && defined(__x86_64__)

#include <fcntl.h>
#include <immintrin.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace plugstream::reader {
namespace {

constexpr size_t sum_bytes = 4;
constexpr int64_t aligned = 4096;       // what direct reading asks of places and sizes: the largest block disks commonly have
constexpr size_t most_together = 1 << 20;  // stays in the cache of a core until it is copied

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

    __attribute__((target("sse4.2"))) uint32_t operator()(const uint8_t* from, uint8_t* to) const {
        uint64_t a = 0xFFFFFFFF, b = 0, c = 0;
        for (size_t n = 0; n < third_; n += 8) {
            const uint64_t first = word(from + n), second = word(from + third_ + n), last = word(from + 2 * third_ + n);
            a = _mm_crc32_u64(a, first);
            b = _mm_crc32_u64(b, second);
            c = _mm_crc32_u64(c, last);
            std::memcpy(to + n, &first, 8);
            std::memcpy(to + third_ + n, &second, 8);
            std::memcpy(to + 2 * third_ + n, &last, 8);
        }
        const uint32_t two = product(static_cast<uint32_t>(a), over_a_third_) ^ static_cast<uint32_t>(b);
        uint32_t sum = product(two, over_a_third_) ^ static_cast<uint32_t>(c);
        for (size_t n = 3 * third_; n < bytes_; ++n) sum = _mm_crc32_u8(sum, to[n] = from[n]);
        return ~sum;
    }

private:
    size_t bytes_, third_;
    uint32_t over_a_third_;
};

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

class File {
public:
    // Of a scan that may come from anybody: no link is followed, and a pipe is not waited for.
    File(const char* path, bool direct) : direct_(direct) {
        constexpr int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
        if (direct) handle_ = ::open(path, flags | O_DIRECT);
        if (handle_ < 0) {  // also for a file system that cannot do it
            direct_ = false;
            handle_ = ::open(path, flags);
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

    // Fills memory with whole blocks from `first` on; returns how many bytes of `wanted` there were, or an error below 0.
    int64_t read(uint8_t* memory, int64_t first, int64_t wanted) {
        int64_t done = 0;
        if (direct_) {
            const int64_t got = ::pread(handle_, memory, (wanted + aligned - 1) / aligned * aligned, first);
            if (got >= wanted) return wanted;
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

}  // namespace

bool available() { return __builtin_cpu_supports("sse4.2"); }

void read(const Chunk* chunks, size_t count, size_t before_chunk, size_t bytes, bool direct, int* fates) {
    const Copier copy(bytes);
    const size_t stride = before_chunk + bytes + sum_bytes, together = std::max<size_t>(1, most_together / stride);
    std::unique_ptr<File> file;
    for (size_t begin = 0, end; begin < count; begin = end) {
        const Chunk& run = chunks[begin];
        if (begin == 0 || std::strcmp(run.path, chunks[begin - 1].path) != 0)
            file = std::make_unique<File>(run.path, direct);
        for (end = begin + 1; end < count && end - begin < together && run.offset >= 0; ++end)
            if (std::strcmp(run.path, chunks[end].path) != 0 ||
                chunks[end].offset != run.offset + static_cast<int64_t>((end - begin) * stride))
                break;
        const int64_t offset = run.offset < 0 && !file->error ? file->size + run.offset : run.offset;
        const size_t whole = (end - begin) * stride;
        // A large chunk is looked for in a file that could hold it only: what it is said to have costs no memory.
        const bool beyond = whole > most_together && static_cast<int64_t>(whole) > file->size - offset;
        if (file->error || offset < 0 || beyond) {
            std::fill(fates + begin, fates + end, file->error ? file->error : cut_short);
            continue;
        }
        const int64_t before = offset % aligned, wanted = before + static_cast<int64_t>(whole);
        uint8_t* memory = scratch((wanted + aligned - 1) / aligned * aligned);
        const int64_t got = file->read(memory, offset - before, wanted);
        for (size_t n = begin; n < end; ++n) {
            const uint8_t* from = memory + before + (n - begin) * stride;
            uint32_t said;
            if (got < 0) {
                fates[n] = static_cast<int>(-got);
            } else if (from + stride > memory + got) {
                fates[n] = cut_short;
            } else {
                const uint8_t* chunk = from + before_chunk;
                std::memcpy(&said, chunk + bytes, sum_bytes);
                fates[n] = copy(chunk, chunks[n].target) == said ? good : wrong_sum;
                if (chunks[n].edge) {
                    std::memcpy(chunks[n].edge, from, before_chunk);
                    std::memcpy(chunks[n].edge + before_chunk, &said, sum_bytes);
                }
            }
        }
    }
}

}  // namespace plugstream::reader

#else  // Python reads

namespace plugstream::reader {
bool available() { return false; }
void read(const Chunk*, size_t, size_t, size_t, bool, int*) {}
}  // namespace plugstream::reader

#endif
