// The native BM3D on random shapes, profiles, numbers of threads and instruction sets, to be built with sanitizers:
// `make asan`. It checks that nothing is read or written out of bounds, and that threads leave no trace in the result.
#include <limits>

#include "bm3d.hpp"
#include "fuzz.hpp"

using namespace plugstream;

namespace {

constexpr int block = 8;

// Both stages with the DCT, and any numbers for what blocks share.
struct Matrices {
    std::vector<float> analysis, synthesis, correlations, kaiser;

    Matrices() : analysis(block * block), synthesis(block * block), kaiser(block, 0.7f) {
        for (int u = 0; u < block; ++u)
            for (int j = 0; j < block; ++j) {
                const double length = u > 0 ? 0.5 : std::sqrt(0.125);
                const double value = std::cos(3.14159265358979 * (2 * j + 1) * u / 16) * length;
                analysis[u * block + j] = synthesis[j * block + u] = static_cast<float>(value);
            }
        correlations = fuzz::Random(0).numbers(block * block * block * block, 0.1f);
    }
};

bool try_one(fuzz::Random& random) {
    static const Matrices matrices;
    const long count = random.between(1, 3), height = random.between(8, 70);
    const long width = random() % 16 == 0 ? random.between(300, 420) : random.between(8, 70);  // at times several tiles
    bm3d::Settings settings{random.one_of({3, 3, 3, random.between(1, 8)}),
                                  random.one_of({19, 12, random.between(1, 22)}),
                                  {1 << random.between(0, 5), 1 << random.between(0, 5)},
                                  random.between(0, 40) / 10.0,
                                  random.between(0, 20) / 10.0,
                                  {matrices.analysis.data(), matrices.analysis.data()},
                                  {matrices.synthesis.data(), matrices.synthesis.data()},
                                  {matrices.correlations.data(), matrices.correlations.data()},
                                  matrices.kaiser.data()};
    settings.channels = random() % 2 == 0 ? 1 : static_cast<int>(count);
    std::vector<float> shared[2], offsets;
    if (random() % 3 == 0) {
        settings.reach = random.between(1, 12);
        settings.tables = random() % 2 == 0 ? 1 : settings.channels;
        const long span = 2 * settings.reach + 1, window = (2 * settings.radius + 1) * (2 * settings.radius + 1);
        offsets = random.numbers(window, 1.0f);
        for (float& value : offsets) value = std::abs(value);
        for (int stage : {0, 1}) {
            shared[stage] = random.numbers(settings.tables * (settings.reach + 1) * span * block * block, 0.1f);
            settings.shared[stage] = shared[stage].data();
            settings.offsets[stage] = offsets.data();
        }
    }
    const int stages = random.between(1, 3), threads = random.between(1, 5);
    const Level level = random.one_of(fuzz::levels());
    std::vector<float> images = random.numbers(count * height * width, 1.0f), sigma(count), out(images), again(images);
    if (random() % 3 == 0)
        for (float& value : images) value = std::round(value);  // so that many distances are equal
    if (random() % 10 == 0)
        for (int k = 0; k < 5; ++k)
            images[random() % images.size()] = random.one_of({std::numeric_limits<float>::quiet_NaN(), 1e30f,
                                                              std::numeric_limits<float>::infinity()});
    for (float& value : sigma) value = random.one_of({0.0f, 0.1f, 1.0f, 1e-20f});
    if (random() % 4 == 0) bm3d::forget();  // so that buffers are also as small as they can be
    bm3d::Batch batch{count, height, width, images.data(), sigma.data(), out.data()};
    bm3d::denoise(batch, settings, stages, threads, level);
    std::vector<int64_t> found(bm3d::references(height, width, settings.step) *
                               bm3d::group_size(height, width, settings.radius, settings.group[0]));
    bm3d::match(images.data(), height, width, settings, settings.group[0], level, found.data());
    for (int64_t position : found)
        if (position < 0 || position >= (height - 7) * (width - 7)) return false;
    if (random() % 4 != 0) return true;
    batch.out = again.data();
    bm3d::denoise(batch, settings, stages, 1, level);
    return fuzz::same(out, again);
}

}  // namespace

int main(int argc, char** argv) {
    const int status = fuzz::run(argc, argv, "BM3D", try_one);
    bm3d::forget();
    return status;
}
