// The native TNRD on random shapes, numbers of threads and instruction sets, to be built with sanitizers: `make asan`.
// It checks that nothing is read or written out of bounds, and that threads leave no trace in the result.
#include <limits>

#include "fuzz.hpp"
#include "tnrd.hpp"

using namespace plugstream::tnrd;

namespace {

bool try_one(fuzz::Random& random) {
    const long count = random.between(1, 4), height = random.between(7, 60), width = random.between(7, 70);
    const int stages = random.between(1, 3), threads = random.between(1, 5);
    const plugstream::Level level = random.one_of(fuzz::levels());
    std::vector<float> images = random.numbers(count * height * width, 300.0f), gain(count), out(images), again(images);
    if (random() % 6 == 0)
        for (int k = 0; k < 5; ++k)
            images[random() % images.size()] = random.one_of({std::numeric_limits<float>::quiet_NaN(), 1e30f,
                                                              -std::numeric_limits<float>::infinity()});
    for (float& value : gain) value = random.one_of({0.0f, 1.0f, 0.1f, 1e20f});
    const auto forward = random.numbers(stages * filters * taps * taps, 0.1f);
    const auto backward = random.numbers(stages * filters * taps * column, 0.1f);
    const auto reaction = random.numbers(stages, 0.1f);
    const auto table = random.numbers(stages * filters * (degree + 1) * cells, 0.1f);
    const Model model{stages, forward.data(), backward.data(), reaction.data(), table.data()};
    if (random() % 2 == 0) forget();  // so that the memory is also as small as it can be
    Batch batch{count, height, width, images.data(), gain.data(), out.data()};
    denoise(batch, model, threads, level);
    batch.out = again.data();
    denoise(batch, model, 1, level);
    return fuzz::same(out, again);
}

}  // namespace

int main(int argc, char** argv) {
    const int status = fuzz::run(argc, argv, "TNRD", try_one);
    forget();
    return status;
}
