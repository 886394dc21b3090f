#include "memory.hpp"

#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace plugstream {

constexpr long huge_page = 1L << 21;

void Buffer::reserve(long bytes) {
    if (bytes <= size_) return;
    const long unit = bytes >= huge_page ? huge_page : 64;
    const long rounded = (bytes + unit - 1) / unit * unit;
    void* fresh = std::aligned_alloc(unit, rounded);
    if (fresh == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    // Blocks of a group of BM3D lie far apart: with small pages, finding them would take longer than reading them.
    if (unit == huge_page) madvise(fresh, rounded, MADV_HUGEPAGE);
#endif
    std::memset(fresh, 0, rounded);
    std::free(data_);
    data_ = fresh;
    size_ = rounded;
}

}  // namespace plugstream
