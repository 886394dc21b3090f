// The native NLM on random shapes, numbers of threads and instruction sets, to be built with sanitizers: `make asan`.
// It checks that nothing is read or written out of bounds, that threads leave no trace in the result, and that a matrix
// that was formed does what forming and applying at once does.
#include <algorithm>

#include "fuzz.hpp"
#include "nlm.hpp"

using namespace plugstream::nlm;

namespace {

bool try_one(fuzz::Random& random) {
    const int patch = random.between(0, 3), search = random.between(1, 24), balance = random.between(1, 3);
    const int threads = random.between(2, 5);
    const Shape shape{patch + random.between(1, 50), patch + random.between(1, 70), search, patch};
    const plugstream::Level level = random.one_of(fuzz::levels());
    const float rate = random() % 4 == 0 ? 1e37f : 1.0f;
    const std::vector<float> image = random.numbers(shape.height * shape.width, random() % 6 == 0 ? 1e30f : 1.0f);
    std::vector<float> out(image), again(image), third(image), scale(image), rest(image);
    if (random() % 2 == 0) forget();  // so that the memory is also as small as it can be
    form(shape, image.data(), rate, balance, {}, image.data(), out.data(), threads, level);
    form(shape, image.data(), rate, balance, {}, image.data(), again.data(), 1, level);
    std::vector<float> affinity(size(shape), std::nanf(""));
    const Matrix matrix{affinity.data(), scale.data(), rest.data()};
    form(shape, image.data(), rate, balance, matrix, nullptr, nullptr, threads, level);
    apply(shape, matrix, image.data(), third.data(), threads, level);
    float most = 0;
    for (float value : image) most = std::max(most, std::abs(value));
    return fuzz::same(out, again) && fuzz::same(out, third, 1e-5f * most);
}

}  // namespace

int main(int argc, char** argv) {
    const int status = fuzz::run(argc, argv, "NLM", try_one);
    forget();
    return status;
}
