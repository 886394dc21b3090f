// The native BM4D on random shapes, profiles, numbers of threads and instruction sets, to be built with sanitizers:
// `make asan`. It checks that nothing is read or written out of bounds, and that threads leave no trace in the result.
#include <algorithm>
#include <limits>
#include <numeric>

#include "bm4d.hpp"
#include "fuzz.hpp"

using namespace plugstream;

namespace {

constexpr int cube = 4;

bool try_one(fuzz::Random& random) {
    const int radius = random.one_of({5, 3, random.between(1, 6)}), span = 2 * radius + 1;
    std::vector<int32_t> order(span * span * span);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const auto matrix = random.numbers(cube * cube, 0.5f), kaiser = std::vector<float>(cube, 0.7f);
    const auto shared = random.numbers(cube * cube * cube * cube * cube * cube, 0.1f);
    const bm4d::Settings settings{{random.between(1, 4), random.between(1, 4)},
                                  radius,
                                  {1 << random.between(0, 5), 1 << random.between(0, 5)},
                                  {random.between(0, 40) / 10.0, random.between(0, 40) / 10.0},
                                  random.between(0, 40) / 10.0,
                                  random.between(0, 20) / 10.0,
                                  {matrix.data(), matrix.data()},
                                  {matrix.data(), matrix.data()},
                                  {shared.data(), shared.data()},
                                  kaiser.data(),
                                  order.data()};
    const long channels = random.between(1, 2), depth = random.between(4, 14), height = random.between(4, 18);
    const long width = random() % 16 == 0 ? random.between(60, 90) : random.between(4, 26);  // at times several tiles
    const bool map = random() % 2 == 0;
    const int stages = random.between(1, 2), threads = random.between(1, 5);
    const Level level = random.one_of(fuzz::levels());
    auto volume = random.numbers(channels * depth * height * width, 1.0f);
    std::vector<float> sigma(map ? depth * height * width : 1), out(volume.size()), again(volume.size());
    for (float& value : sigma) value = map ? std::abs(random.numbers(1, 0.5f)[0]) : random.one_of({0.1f, 1.0f, 1e-20f});
    if (random() % 8 == 0)
        for (int k = 0; k < 5; ++k)
            volume[random() % volume.size()] = random.one_of({std::numeric_limits<float>::quiet_NaN(), 1e30f,
                                                              std::numeric_limits<float>::infinity()});
    if (random() % 4 == 0) bm4d::forget();  // so that buffers are also as small as they can be
    bm4d::Volume given{channels, depth, height, width, volume.data(), sigma.data(), map, out.data()};
    bm4d::denoise(given, settings, stages, threads, level, [](double) { return true; });
    std::vector<int64_t> found(bm4d::references(given, settings.step[0]) *
                               bm4d::group_size(given, radius, settings.group[0]));
    bm4d::match(given, settings, 0, level, found.data());
    for (int64_t position : found)
        if (position < 0 || position >= (depth - 3) * (height - 3) * (width - 3)) return false;
    if (random() % 4 != 0) return true;
    given.out = again.data();
    bm4d::denoise(given, settings, stages, 1, level, [](double) { return true; });
    return fuzz::same(out, again);
}

}  // namespace

int main(int argc, char** argv) {
    const int status = fuzz::run(argc, argv, "BM4D", try_one);
    bm4d::forget();
    return status;
}
