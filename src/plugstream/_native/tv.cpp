// One call does everything, so that its threads are started once: the mean, which is left out while iterating, the dual
// to start from, iterations with a look at the gap now and then, and the image (tv_image.hpp).
#include "tv.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <vector>

#include "memory.hpp"
#include "team.hpp"
#include "tv_image.hpp"

namespace plugstream::tv {
namespace {

constexpr long least_band = 4096;  // pixels; below this, waiting costs more than a second thread saves

template <class T>
const Rows<T>& rows_of(Level level) {
    if constexpr (sizeof(T) == sizeof(float))
        return PLUGSTREAM_AT_LEVEL(level, rows32);
    else
        return PLUGSTREAM_AT_LEVEL(level, rows64);
}

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(4);
    return one;
}

// The work of one call, claimed piece by piece. Images that every thread can have one of are done whole; those left
// over, fewer than the threads, are shared in bands, one image after the other: each task is a stage, and whoever finishes
// the last band of it says what the next one is.
template <class T>
class Job {
  public:
    Job(const Batch<T>& batch, const Rows<T>& rows, int size, long bands)
        : batch_(batch),
          rows_(rows),
          walk_(batch.shape),
          parts_(bands),
          whole_(bands == 1 ? batch.shape.images : batch.shape.images - batch.shape.images % size),
          zeros_(walk_.width),
          memory_(size * Own<T>::size(walk_)),
          tables_(size * walk_.middle),
          each_(Image<T>::size(batch, walk_, 1)),
          room_(reserve(whole_ > 0 ? size * each_ : 0)),
          seamed_(reserve(whole_ < batch.shape.images ? Image<T>::size(batch, walk_, parts_) : 0)),
          shared_(batch_, rows_, walk_, zeros_.data(), parts_, seamed_->as<char>()),
          last_(whole_),
          stage_(whole_ < batch.shape.images ? 0 : over),
          claimed_(parts_) {
        if (whole_ < batch.shape.images) task_ = shared_.choose(last_);
    }

    static long cut(const Walk& walk, long threads) {
        return std::clamp(walk.components * walk.pixels / least_band, 1L, std::min(threads, walk.outer));
    }

    void work(int member) {
        const Own<T> own(memory_.data() + member * Own<T>::size(walk_), tables_.data() + member * walk_.middle, walk_);
        for (long k; (k = next_.fetch_add(1, std::memory_order_relaxed)) < whole_;) {
            Image<T> image(batch_, rows_, walk_, zeros_.data(), 1, room_->as<char>() + member * each_);
            for (Task task = image.choose(k); task.kind != Task::none; task = image.next(task)) image.act(task, 0, own);
            if (!image.within()) within_ = false;
            finished_whole_.fetch_add(1, std::memory_order_release);
        }
        for (long stage; (stage = stage_.load(std::memory_order_acquire)) != over;) {
            // Its own band first, which its cache still holds; then those of threads that have not come.
            for (long k = 0; k < parts_; ++k) {
                const long part = (member + k) % parts_;
                long expected = stage;
                if (claimed_[part].compare_exchange_strong(expected, stage + 1, std::memory_order_acq_rel))
                    do_part(stage, part, own);
            }
            wait_until([&] { return stage_.load(std::memory_order_acquire) != stage; });
        }
        if (member == 0)
            wait_until([&] { return finished_whole_.load(std::memory_order_acquire) == whole_; });
    }

    // When all work is done. A helper that comes late still has the job, but nothing left to do.
    bool release() {
        for (auto* buffer : {&room_, &seamed_})
            if ((*buffer)->size() > 0 && (*buffer)->size() <= most_kept) buffers().put(std::move(*buffer));
        return within_;
    }

  private:
    static constexpr long over = std::numeric_limits<long>::max();

    static std::unique_ptr<Buffer> reserve(long bytes) {
        std::unique_ptr<Buffer> buffer = bytes > 0 ? buffers().take() : std::make_unique<Buffer>();
        buffer->reserve(bytes);
        return buffer;
    }

    void do_part(long stage, long part, const Own<T>& own) {
        shared_.act(task_, part, own);
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 < (stage + 1) * parts_) return;
        task_ = shared_.next(task_);
        if (task_.kind == Task::none) {
            if (!shared_.within()) within_ = false;
            if (++last_ < batch_.shape.images) task_ = shared_.choose(last_);
        }
        stage_.store(task_.kind == Task::none ? over : stage + 1, std::memory_order_release);
    }

    const Batch<T> batch_;
    const Rows<T>& rows_;
    const Walk walk_;
    const long parts_, whole_;
    const std::vector<T> zeros_;
    std::vector<T> memory_;
    std::vector<T*> tables_;
    const long each_;  // bytes of an image that is done whole
    std::unique_ptr<Buffer> room_, seamed_;
    Image<T> shared_;  // the one that is shared in bands, and its task
    Task task_{Task::none, 0};
    long last_;  // its number
    std::atomic<bool> within_{true};
    std::atomic<long> next_{0}, finished_whole_{0}, finished_{0}, stage_;
    std::vector<std::atomic<long>> claimed_;  // of each band: the stages that someone has taken on
};

}  // namespace

void forget() { buffers().clear(); }

template <class T>
bool solve(const Batch<T>& batch, int threads, Level level) {
    const Walk walk(batch.shape);
    if (walk.components * walk.pixels * batch.shape.images == 0) return true;
    const long most = std::max(threads, 1);
    const long bands = Job<T>::cut(walk, most);
    const int size = static_cast<int>(std::min(most, batch.shape.images * bands));
    // All memory is taken here, where running out of it can still be reported.
    const auto job = std::make_shared<Job<T>>(batch, rows_of<T>(level), size, bands);
    run_team(size, job);
    return job->release();
}

template bool solve<float>(const Batch<float>&, int, Level);
template bool solve<double>(const Batch<double>&, int, Level);

}  // namespace plugstream::tv
