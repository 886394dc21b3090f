// The native NLM on random shapes, numbers of threads and instruction sets, to be built with sanitizers: `make asan`.
// It checks that nothing is read or written out of bounds, that threads leave no trace in the result, and that a matrix
// that was formed does what forming and applying at once does.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "nlm.hpp"

using namespace plugstream;

namespace {

bool same(const std::vector<float>& a, const std::vector<float>& b, float apart) {
    for (size_t k = 0; k < a.size(); ++k)
        if (!(std::abs(a[k] - b[k]) <= apart) && !(std::isnan(a[k]) && std::isnan(b[k]))) return false;
    return true;
}

bool try_one(unsigned seed, const std::vector<tv::Level>& levels) {
    std::mt19937 random(seed);
    auto between = [&](int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); };
    const int patch = between(0, 3), search = between(1, 24), balance = between(1, 3), threads = between(2, 5);
    const long height = patch + between(1, 50), width = patch + between(1, 70);
    const nlm::Shape shape{height, width, search, patch};
    const tv::Level level = levels[random() % levels.size()];
    const float rate = between(0, 3) == 0 ? 1e37f : 1.0f;
    // Arrays exactly as large as promised, on the heap, so that one read too many is seen.
    std::vector<float> image(height * width), out(image), again(image), third(image), scale(image), rest(image);
    std::normal_distribution<float> normal(0.0f, between(0, 5) == 0 ? 1e30f : 1.0f);
    for (float& value : image) value = normal(random);
    if (random() % 2 == 0) nlm::forget();  // so that the memory is also as small as it can be
    nlm::form(shape, image.data(), rate, balance, {}, image.data(), out.data(), threads, level);
    nlm::form(shape, image.data(), rate, balance, {}, image.data(), again.data(), 1, level);
    if (!same(out, again, 0)) return false;
    std::vector<float> affinity(nlm::size(shape), std::nanf(""));
    const nlm::Matrix matrix{affinity.data(), scale.data(), rest.data()};
    nlm::form(shape, image.data(), rate, balance, matrix, nullptr, nullptr, threads, level);
    nlm::apply(shape, matrix, image.data(), third.data(), threads, level);
    float most = 0;
    for (float value : image) most = std::max(most, std::abs(value));
    return same(out, third, 1e-5f * most);
}

}  // namespace

int main(int argc, char** argv) {
    const unsigned count = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 300;
    std::vector<tv::Level> levels;
    for (tv::Level level : {tv::Level::avx512, tv::Level::avx2, tv::Level::baseline})
        if (tv::available(level)) levels.push_back(level);
    for (unsigned seed = 0; seed < count; ++seed)
        if (!try_one(seed, levels)) {
            std::printf("seed %u: another result with other threads, or by another way\n", seed);
            return 1;
        }
    nlm::forget();
    // Helpers that came late are gone by now, so that nothing of theirs counts as leaked.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::printf("%u random calls of NLM: nothing found\n", count);
}
