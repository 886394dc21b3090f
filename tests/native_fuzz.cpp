// The native BM3D on random shapes, profiles, numbers of threads and instruction sets, to be built with sanitizers:
// `make asan`. It checks that nothing is read or written out of bounds, and that threads leave no trace in the result.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "bm3d.hpp"

using namespace plugstream;

namespace {

constexpr int block = 8;

struct Matrices {
    std::vector<float> analysis, synthesis, kaiser;

    Matrices() : analysis(block * block), synthesis(block * block), kaiser(block, 0.7f) {
        for (int u = 0; u < block; ++u)
            for (int j = 0; j < block; ++j) {
                const double length = u > 0 ? 0.5 : std::sqrt(0.125);
                const double value = std::cos(3.14159265358979 * (2 * j + 1) * u / 16) * length;
                analysis[u * block + j] = synthesis[j * block + u] = static_cast<float>(value);
            }
    }
};

template <class T>
T one_of(std::mt19937& random, std::initializer_list<T> choices) {
    return choices.begin()[random() % choices.size()];
}

bool try_one(unsigned seed, const Matrices& matrices, const std::vector<tv::Level>& levels) {
    std::mt19937 random(seed);
    auto between = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
    const long count = between(1, 3), height = between(8, 70);
    const long width = seed % 16 == 0 ? between(300, 420) : between(8, 70);  // now and then more than one tile
    const bm3d::Settings settings{one_of(random, {3, 3, 3, between(1, 8)}),
                                  one_of(random, {19, 12, between(1, 22)}),
                                  {1 << between(0, 5), 1 << between(0, 5)},
                                  between(0, 40) / 10.0,
                                  between(0, 20) / 10.0,
                                  {matrices.analysis.data(), matrices.analysis.data()},
                                  {matrices.synthesis.data(), matrices.synthesis.data()},
                                  matrices.kaiser.data()};
    const int stages = between(1, 2), threads = between(1, 5), quantised = between(0, 2), broken = between(0, 9);
    const tv::Level level = levels[random() % levels.size()];
    // Exactly as large as promised, on the heap, so that one read too many is seen.
    std::vector<float> images(count * height * width), sigma(count), out(images.size()), again(images.size());
    std::normal_distribution<float> normal;
    for (float& value : images) {
        value = normal(random);
        if (quantised == 1) value = std::round(value);
    }
    if (broken == 0)
        for (int k = 0; k < 5; ++k)
            images[random() % images.size()] = one_of(random, {std::numeric_limits<float>::quiet_NaN(), 1e30f,
                                                               std::numeric_limits<float>::infinity()});
    for (float& value : sigma) value = one_of(random, {0.0f, 0.1f, 1.0f, 1e-20f});
    if (random() % 4 == 0) bm3d::forget();  // so that buffers are also as small as they can be
    const bm3d::Batch batch{count, height, width, images.data(), sigma.data(), out.data()};
    bm3d::denoise(batch, settings, stages, threads, level);
    std::vector<int64_t> found(bm3d::references(height, width, settings.step) *
                               bm3d::group_size(height, width, settings.radius, settings.group[0]));
    bm3d::match(images.data(), height, width, settings, settings.group[0], level, found.data());
    for (int64_t position : found)
        if (position < 0 || position >= (height - 7) * (width - 7)) return false;
    if (seed % 4 == 0) {
        bm3d::Batch other = batch;
        other.out = again.data();
        bm3d::denoise(other, settings, stages, 1, level);
        for (size_t k = 0; k < out.size(); ++k)
            if (out[k] != again[k] && !(std::isnan(out[k]) && std::isnan(again[k]))) return false;
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const unsigned count = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1000;
    const Matrices matrices;
    std::vector<tv::Level> levels;
    for (tv::Level level : {tv::Level::avx512, tv::Level::avx2, tv::Level::baseline})
        if (tv::available(level)) levels.push_back(level);
    for (unsigned seed = 0; seed < count; ++seed)
        if (!try_one(seed, matrices, levels)) {
            std::printf("seed %u: a position outside the image, or another result with other threads\n", seed);
            return 1;
        }
    bm3d::forget();
    // Helpers that came late are gone by now, so that nothing of theirs counts as leaked.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::printf("%u random calls of BM3D: nothing found\n", count);
}
