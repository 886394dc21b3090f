// The native TNRD on random shapes, numbers of threads and instruction sets, to be built with sanitizers: `make asan`.
// It checks that nothing is read or written out of bounds, and that threads leave no trace in the result.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "tnrd.hpp"

using namespace plugstream;

namespace {

template <class T>
T one_of(std::mt19937& random, std::initializer_list<T> choices) {
    return choices.begin()[random() % choices.size()];
}

// Arrays exactly as large as promised, on the heap, so that one read too many is seen.
std::vector<float> numbers(std::mt19937& random, long count, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> out(count);
    for (float& value : out) value = normal(random);
    return out;
}

bool try_one(unsigned seed, const std::vector<tv::Level>& levels) {
    std::mt19937 random(seed);
    auto between = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
    const long count = between(1, 4), height = between(7, 60), width = between(7, 70);
    const int stages = between(1, 3), threads = between(1, 5), broken = between(0, 5);
    const tv::Level level = levels[random() % levels.size()];
    std::vector<float> images = numbers(random, count * height * width, 300), gain(count), out(images.size()), again(out);
    if (broken == 0)
        for (int k = 0; k < 5; ++k)
            images[random() % images.size()] = one_of(random, {std::numeric_limits<float>::quiet_NaN(), 1e30f,
                                                               -std::numeric_limits<float>::infinity()});
    for (float& value : gain) value = one_of(random, {0.0f, 1.0f, 0.1f, 1e20f});
    using namespace tnrd;
    const auto forward = numbers(random, stages * filters * taps * taps, 0.1f);
    const auto backward = numbers(random, stages * filters * taps * column, 0.1f);
    const auto reaction = numbers(random, stages, 0.1f);
    const auto table = numbers(random, stages * filters * (degree + 1) * cells, 0.1f);
    const Model model{stages, forward.data(), backward.data(), reaction.data(), table.data()};
    if (random() % 2 == 0) forget();  // so that the memory is also as small as it can be
    Batch batch{count, height, width, images.data(), gain.data(), out.data()};
    denoise(batch, model, threads, level);
    batch.out = again.data();
    denoise(batch, model, 1, level);
    for (size_t k = 0; k < out.size(); ++k)
        if (out[k] != again[k] && !(std::isnan(out[k]) && std::isnan(again[k]))) return false;
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const unsigned count = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1000;
    std::vector<tv::Level> levels;
    for (tv::Level level : {tv::Level::avx512, tv::Level::avx2, tv::Level::baseline})
        if (tv::available(level)) levels.push_back(level);
    for (unsigned seed = 0; seed < count; ++seed)
        if (!try_one(seed, levels)) {
            std::printf("seed %u: another result with other threads\n", seed);
            return 1;
        }
    tnrd::forget();
    // Helpers that came late are gone by now, so that nothing of theirs counts as leaked.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::printf("%u random calls of TNRD: nothing found\n", count);
}
