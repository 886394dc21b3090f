// Layers are cut into pieces, which threads claim one by one; a layer begins when the one before is finished.
#include "unet.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "team.hpp"
#include "unet_rows.hpp"

namespace plugstream::unet {
namespace {

constexpr long few_blocks = 4, more_blocks = 8;  // of a piece: what is transformed should stay in a core's cache
constexpr long many = 128;  // channels, from which on filters are so large that each should be read by one thread

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(4);
    return one;
}

long cover(long size, long part) { return (size + part - 1) / part; }

// How a layer is cut: so many blocks of tiles, or rows, and panels of channels a piece.
struct Cut {
    long all, each, panels, panels_each;
    long down() const { return cover(all, each); }
    long pieces() const { return down() * cover(panels, panels_each); }
};

Cut cut(const Layer& layer, long threads) {
    if (layer.kind != Kind::same) return {layer.height / 2, cover(layer.height / 2, 4 * threads), 1, 1};
    const long blocks = cover(cover(layer.height, side) * cover(layer.width, side), block);
    const long panels = layer.outputs / panel, most = layer.inputs >= many ? more_blocks : few_blocks;
    const long down = cover(blocks, most), each = cover(blocks, down);
    return {blocks, each, panels, cover(panels, std::clamp(cover(threads, down), 1L, panels))};
}

class Job {
  public:
    Job(const Layer* layers, long count, int threads, Level level)
        : layers_(layers, layers + count), rows_(PLUGSTREAM_AT_LEVEL(level, rows)), size_(std::max(threads, 1)),
          next_(count), done_(count) {
        for (const Layer& layer : layers_) {
            cuts_.push_back(cut(layer, size_));
            if (layer.kind == Kind::same)
                own_ = std::max(own_, cuts_.back().each * places * (apart(layer.inputs) + apart(panel)));
        }
    }

    int size() const { return size_; }

    // All memory is taken here, where running out of it can still be reported.
    void prepare() {
        memory_ = buffers().take();
        memory_->reserve(size_ * own_ * static_cast<long>(sizeof(float)));
    }

    // When all work is done. A helper that comes late still has the job, but nothing left to do.
    void release() {
        if (memory_->size() <= most_kept) buffers().put(std::move(memory_));
    }

    void work(int member) {
        for (size_t n = 0; n < layers_.size(); ++n) {
            const long pieces = cuts_[n].pieces();
            for (long k; (k = next_[n].fetch_add(1, std::memory_order_relaxed)) < pieces;) {
                apply_piece(layers_[n], cuts_[n], k, member);
                done_[n].fetch_add(1, std::memory_order_release);
            }
            wait_until([&] { return done_[n].load(std::memory_order_acquire) == pieces; });
        }
    }

  private:
    void apply_piece(const Layer& layer, const Cut& cut, long k, int member) const {
        const long first = k % cut.down() * cut.each, last = std::min(first + cut.each, cut.all);
        const long from = k / cut.down() * cut.panels_each, to = std::min(from + cut.panels_each, cut.panels);
        if (layer.kind == Kind::same)
            rows_.tiles(layer, first, last, from, to, memory_->as<float>() + member * own_);
        else
            rows_.rows(layer, first, last);
    }

    const std::vector<Layer> layers_;
    const Rows& rows_;
    const int size_;
    long own_ = 0;
    std::vector<Cut> cuts_;
    std::unique_ptr<Buffer> memory_;
    std::vector<std::atomic<long>> next_, done_;
};

}  // namespace

void apply(const Layer* layers, long count, int threads, Level level) {
    const auto job = std::make_shared<Job>(layers, count, threads, level);
    job->prepare();
    run_team(job->size(), job);
    job->release();
}

}  // namespace plugstream::unet
