// How the calls of Joseph's method are shared out among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "team.hpp"

namespace plugstream::joseph {

Pool<Buffer>& buffers();

// The work of one call: phases, whose parts are claimed one by one; a phase begins when the one before is finished.
class Job {
  public:
    virtual ~Job() = default;

    void start(int threads) {
        size_ = static_cast<int>(std::clamp(static_cast<long>(threads), 1L, 256L));
        next_ = std::vector<std::atomic<long>>(phases());
        done_ = std::vector<std::atomic<long>>(phases());
        prepare(size_);
    }

    int size() const { return size_; }

    void work(int member) {
        for (long phase = 0; phase < phases(); ++phase) {
            const long count = parts(phase);
            for (long part; (part = next_[phase].fetch_add(1, std::memory_order_relaxed)) < count;) {
                try {
                    if (!failed_) act(phase, part, member);
                } catch (const std::bad_alloc&) {
                    failed_ = true;
                }
                done_[phase].fetch_add(1, std::memory_order_release);
            }
            wait_until([&] { return done_[phase].load(std::memory_order_acquire) == count; });
        }
    }

    // When all work is done. A helper that comes late still has the job, but nothing left to do.
    void release() {
        for (std::unique_ptr<Buffer>& one : memory_)
            if (one->size() <= most_kept) buffers().put(std::move(one));
        finish_call();
        if (failed_) throw std::bad_alloc();
    }

  protected:
    virtual long phases() const = 0;
    virtual long parts(long phase) const = 0;
    virtual void act(long phase, long part, int member) = 0;
    // Takes memory, before there are other threads.
    virtual void prepare(int size) = 0;
    // Gives back what else the next call may want.
    virtual void finish_call() {}

    float* memory(long count) {
        memory_.push_back(buffers().take());
        memory_.back()->reserve(count * static_cast<long>(sizeof(float)));
        return memory_.back()->as<float>();
    }

  private:
    int size_ = 1;
    std::atomic<bool> failed_ = false;
    std::vector<std::atomic<long>> next_, done_;
    std::vector<std::unique_ptr<Buffer>> memory_;
};

inline void run(const std::shared_ptr<Job>& job, int threads) {
    job->start(threads);
    run_team(job->size(), job);
    job->release();
}

}  // namespace plugstream::joseph
