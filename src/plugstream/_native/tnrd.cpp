// A stage goes down an image row by row: the 48 responses of a row are formed, driven through the influence functions
// and spread to the seven rows of the image around it, so that no more than one row of responses is ever stored. An
// image is cut into bands of rows, one for each thread; the six rows of responses at a seam are formed twice. Each row
// of forces is summed in the same order whatever the bands, so that they leave no trace.
#include "tnrd.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "team.hpp"
#include "tnrd_rows.hpp"

namespace plugstream::tnrd {
namespace {

constexpr long margin = taps - 1;  // pixels by which the image is continued on each side
constexpr long least_rows = 24;    // in a band; below this the seams cost more than a second thread saves

const Rows& rows_of(Level level) { return PLUGSTREAM_AT_LEVEL(level, rows); }

Pool<Buffer>& buffers() {
    static Pool<Buffer>& one = *new Pool<Buffer>(4);
    return one;
}

// The work of one call. Images are taken in waves of as many as there are threads; those of the last wave, if fewer,
// are shared in bands. A wave goes through phases, continuing its images and then the stages; the pieces of a phase
// are claimed one by one, and a phase begins when the one before is finished.
class Job {
  public:
    Job(const Batch& batch, const Model& model, int threads, Level level)
        : batch_(batch), model_(model), rows_(rows_of(level)), pitch_(pitch(batch.width)) {
        for (long n = 0; n < batch.count; ++n)
            if (batch.gain[n] != 0)
                todo_.push_back(n);
            else
                std::copy_n(batch.images + n * plane(), plane(), batch.out + n * plane());
        const long images = static_cast<long>(todo_.size()), most = std::max(threads, 1);
        const long cut = std::clamp(batch.height / least_rows, 1L, most);
        size_ = static_cast<int>(std::clamp(images * cut, 1L, most));
        at_once_ = std::clamp(images, 1L, static_cast<long>(size_));
        phases_ = (images + at_once_ - 1) / at_once_ * (model.stages + 1);
        next_ = std::vector<std::atomic<long>>(phases_);
        done_ = std::vector<std::atomic<long>>(phases_);
    }

    int size() const { return size_; }

    // All memory is taken here, where running out of it can still be reported.
    void prepare() {
        memory_ = buffers().take();
        memory_->reserve((at_once_ * 2 * padded() + size_ * own()) * static_cast<long>(sizeof(float)));
    }

    // When all work is done. A helper that comes late still has the job, but nothing left to do.
    void release() {
        if (memory_->size() <= most_kept) buffers().put(std::move(memory_));
    }

    void work(int member) {
        const long images = static_cast<long>(todo_.size()), each = model_.stages + 1;
        for (long phase = 0; phase < phases_; ++phase) {
            const long first = phase / each * at_once_, here = std::min(at_once_, images - first);
            const long bands = std::clamp(size_ / here, 1L, std::max(1L, batch_.height / least_rows));
            const long pieces = here * bands;
            for (long k; (k = next_[phase].fetch_add(1, std::memory_order_relaxed)) < pieces;) {
                // A thread's own band first would be warmer, but a claim in order never waits for a thread that sleeps.
                const long slot = k / bands, band = k % bands;
                const long top = batch_.height * band / bands, end = batch_.height * (band + 1) / bands;
                if (phase % each == 0)
                    continue_image(todo_[first + slot], slot, top, end);
                else
                    diffuse(phase % each - 1, todo_[first + slot], slot, top, end, member);
                done_[phase].fetch_add(1, std::memory_order_release);
            }
            wait_until([&] { return done_[phase].load(std::memory_order_acquire) == pieces; });
        }
    }

  private:
    // Room for whole vectors and the taps beyond them, and no multiple of a page, where rows would share cache sets.
    static long pitch(long width) {
        const long least = (width + margin + 15) / 16 * 16 + 16;
        return least % 256 == 0 ? least + 16 : least;
    }
    long plane() const { return batch_.height * batch_.width; }
    long padded() const { return (batch_.height + 2 * margin) * pitch_; }
    long own() const { return (filters + taps) * pitch_ + 16; }
    float* image(long slot, long stage) const {
        return memory_->as<float>() + (2 * slot + stage % 2) * padded();
    }

    // Writes row y of a continued image: `row` has room on both sides for the pixels beyond the border.
    void put_row(float* image, long y) const {
        const long width = batch_.width, height = batch_.height;
        float* row = image + (margin + y) * pitch_ + margin;
        for (long k = 0; k < margin; ++k) {
            row[-1 - k] = row[k];
            row[width + k] = row[width - 1 - k];
        }
        float* start = row - margin;
        if (y < margin) std::copy_n(start, pitch_, image + (margin - 1 - y) * pitch_);
        if (y >= height - margin) std::copy_n(start, pitch_, image + (margin + 2 * height - 1 - y) * pitch_);
    }

    void continue_image(long n, long slot, long top, long end) const {
        const float gain = batch_.gain[n];
        for (long y = top; y < end; ++y) {
            const float* pixels = batch_.images + n * plane() + y * batch_.width;
            float* row = image(slot, 0) + (margin + y) * pitch_ + margin;
            for (long x = 0; x < batch_.width; ++x) row[x] = gain * pixels[x];
            put_row(image(slot, 0), y);
        }
    }

    void diffuse(long stage, long n, long slot, long top, long end, int member) const {
        const long width = batch_.width;
        float* responses = memory_->as<float>() + at_once_ * 2 * padded() + member * own();
        float *ring = responses + filters * pitch_, *force[taps];
        const float *u = image(slot, stage), gain = batch_.gain[n], reaction = model_.reaction[stage];
        const float* forward = model_.forward + stage * (filters * taps * taps);
        const float* backward = model_.backward + stage * (filters * taps * column);
        const float* table = model_.table + stage * (filters * (degree + 1) * cells);
        const bool last = stage + 1 == model_.stages;
        for (long q = top; q < end + margin; ++q) {  // a row of responses, 3 above row q of the image
            rows_.respond(u + q * pitch_, pitch_, width + margin, forward, responses);
            rows_.influence(responses, pitch_, width + margin, table);
            for (int a = 0; a < taps; ++a) force[a] = ring + (q - a + taps) % taps * pitch_;
            rows_.spread(responses, pitch_, width, backward, force);
            const long y = q - margin;  // the row that is now complete
            if (y < top) continue;
            const float *pixels = batch_.images + n * plane() + y * width, *total = force[margin];
            const float* before = u + (margin + y) * pitch_ + margin;
            if (last) {
                float* out = batch_.out + n * plane() + y * width;
                for (long x = 0; x < width; ++x)
                    out[x] = (before[x] - (reaction * (before[x] - gain * pixels[x]) + total[x])) / gain;
            } else {
                float* after = image(slot, stage + 1) + (margin + y) * pitch_ + margin;
                for (long x = 0; x < width; ++x)
                    after[x] = before[x] - (reaction * (before[x] - gain * pixels[x]) + total[x]);
                put_row(image(slot, stage + 1), y);
            }
        }
    }

    const Batch batch_;
    const Model model_;
    const Rows& rows_;
    const long pitch_;
    int size_ = 1;
    long at_once_ = 1, phases_ = 0;
    std::vector<long> todo_;
    std::unique_ptr<Buffer> memory_;
    std::vector<std::atomic<long>> next_, done_;
};

}  // namespace

void forget() { buffers().clear(); }

void denoise(const Batch& batch, const Model& model, int threads, Level level) {
    const auto job = std::make_shared<Job>(batch, model, threads, level);
    job->prepare();
    run_team(job->size(), job);
    job->release();
}

}  // namespace plugstream::tnrd
