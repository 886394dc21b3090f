// The native ridge prior on random shapes, filters, numbers of threads and instruction sets, to be built with sanitizers:
// `make asan`. It checks that nothing is read or written out of bounds, and that threads leave no trace in the result.
#include <algorithm>
#include <limits>
#include <memory>

#include "fuzz.hpp"
#include "ridge.hpp"

using namespace plugstream::ridge;

namespace {

bool try_one(fuzz::Random& random) {
    const int half = random.one_of({1, 2, 3, 4, 4, 5, 7, 9}), pairs = random.between(1, 30), ratios = random.between(1, 5);
    const long count = random.between(1, 4), height = random.between(half, 70), width = random.between(half, 80);
    const int threads = random.between(1, 5);
    const plugstream::Level level = random.one_of(fuzz::levels());
    std::vector<float> images = random.numbers(count * height * width, 1.0f), out(images), again(images);
    const std::vector<float> start = random.numbers(count * height * width, 1.0f);
    if (random() % 6 == 0)
        for (int k = 0; k < 5; ++k)
            images[random() % images.size()] = random.one_of({std::numeric_limits<float>::quiet_NaN(), 1e30f,
                                                              -std::numeric_limits<float>::infinity()});
    const auto taps = random.numbers(4L * pairs * (half + 1) * (half + 1), 0.1f);
    std::vector<float> slopes = random.numbers(count * 2 * pairs * ratios, 0.1f), reaches(slopes), rates(4 * count, 0.1f);
    for (float& reach : reaches) reach = std::abs(reach);
    // A vector<bool> has no array of them.
    const auto active = std::make_unique<bool[]>(count), rests = std::make_unique<bool[]>(count);
    for (long n = 0; n < count; ++n) active[n] = random() % 5 > 0;
    const Filters filters{half, pairs, ratios, taps.data()};
    Batch batch{count,         height,        width,           images.data(), random() % 2 == 0 ? start.data() : nullptr,
                active.get(),  slopes.data(), reaches.data(),  rates.data(),  random.one_of({0.0, 0.1, 0.5}),
                random.between(0, 4), random.between(1, 5), out.data(), rests.get()};
    if (random() % 2 == 0) forget();  // so that the memory is also as small as it can be
    solve(batch, filters, threads, level);
    batch.out = again.data();
    const std::vector<bool> near(rests.get(), rests.get() + count);
    solve(batch, filters, 1, level);
    return fuzz::same(out, again) && std::equal(near.begin(), near.end(), rests.get());
}

}  // namespace

int main(int argc, char** argv) {
    const int status = fuzz::run(argc, argv, "the ridge prior", try_one);
    forget();
    return status;
}
