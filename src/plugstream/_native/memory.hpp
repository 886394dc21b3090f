// Memory that outlives a call, so that the next one need not ask the system for it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace plugstream {

// Memory that is kept and only ever grows; zero when new.
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data_); }

    void reserve(long bytes);
    template <class T>
    T* as() { return static_cast<T*>(data_); }
    long size() const { return size_; }

  private:
    void* data_ = nullptr;
    long size_ = 0;
};

constexpr long most_kept = 1L << 28;  // bytes of a buffer; what larger images need is given back

// What calls that are over have left for those to come: at most so many, more only while calls overlap. The kernels
// never destroy theirs, since a thread may still be at work when the process ends.
template <class T>
class Pool {
  public:
    explicit Pool(size_t most) : most_(most) {}

    std::unique_ptr<T> take() {
        const std::lock_guard<std::mutex> guard(mutex_);
        if (kept_.empty()) return std::make_unique<T>();
        std::unique_ptr<T> last = std::move(kept_.back());
        kept_.pop_back();
        return last;
    }
    void put(std::unique_ptr<T> one) {
        const std::lock_guard<std::mutex> guard(mutex_);
        if (kept_.size() < most_) kept_.push_back(std::move(one));
    }
    void clear() {
        const std::lock_guard<std::mutex> guard(mutex_);
        kept_.clear();
    }

  private:
    const size_t most_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<T>> kept_;
};

}  // namespace plugstream
