// The native TV on random shapes, numbers of threads and instruction sets, to be built with sanitizers: `make asan`. It
// checks that nothing is read or written out of bounds, and that neither threads nor instruction sets leave a trace.
#include <algorithm>
#include <limits>

#include "fuzz.hpp"
#include "tv.hpp"

using namespace plugstream;

namespace {

template <class T>
bool try_precision(fuzz::Random& random) {
    const bool long_rows = random() % 8 == 0, isotropic = random() % 2 == 0, cold = random() % 3 == 0;
    const bool volume = random() % 2 == 0, coupled = random() % 2 == 0;
    const long images = random.between(1, 4), components = coupled ? random.between(2, 5) : 1, axes = volume ? 3 : 2;
    const long depth = volume ? random.between(1, 12) : 1, height = random.between(1, volume ? 30 : 90);
    const long width = long_rows ? random.between(500, 1500) : random.between(1, volume ? 60 : 130);
    const long pixels = components * depth * height * width, count = random.between(1, 6);
    const int threads = random.between(2, 6);
    const tv::Shape shape{images, components, axes, depth, height, width};
    std::vector<T> z = random.numbers<T>(images * pixels, 1), strength(images), rate(images), momentum(count);
    const bool maps = random() % 2 == 0;  // bounds of each pixel, at some of which the two are equal
    std::vector<T> low(depth * height * width, T(-0.5)), high(low.size(), T(1.5));
    for (size_t n = 0; n < low.size(); ++n)
        if (random() % 3 == 0) low[n] = high[n] = 0;
    const std::vector<T> warm = random.numbers<T>(axes * images * pixels, 1);
    if (random() % 6 == 0) z[random() % z.size()] = std::numeric_limits<T>::quiet_NaN();
    if (random() % 6 == 0) std::fill_n(z.begin(), pixels, T(0.1));
    for (long n = 0; n < images; ++n) {
        strength[n] = random.one_of({T(0.01), T(0.3), T(5)});
        rate[n] = 1 / (4 * T(axes) * strength[n]);
    }
    for (T& value : momentum) value = T(random.between(0, 9)) / 10;
    const double tol = random.one_of({0.0, 1e-3, 1e-1});
    const long check = random.between(1, 4);
    auto solve = [&](int threads, Level level, std::vector<T>& out) {
        std::vector<T> p(axes * images * pixels), x(z.size());
        std::vector<double> gap(images);
        const bool within = tv::solve(
            tv::Batch<T>{shape, z.data(), strength.data(), rate.data(), -0.5, 1.5, maps ? low.data() : nullptr,
                         maps ? high.data() : nullptr, cold ? nullptr : warm.data(), momentum.data(), count, check, tol,
                         isotropic, x.data(), p.data(), gap.data()},
            threads, level);
        for (const auto& part : {p, x}) out.insert(out.end(), part.begin(), part.end());
        out.insert(out.end(), gap.begin(), gap.end());
        out.push_back(within);
    };
    if (random() % 2 == 0) tv::forget();  // so that the memory is also as small as it can be
    std::vector<T> one, other;
    solve(1, Level::baseline, one);
    solve(threads, random.one_of(fuzz::levels()), other);
    return fuzz::same(one, other);
}

}  // namespace

int main(int argc, char** argv) {
    const int status = fuzz::run(argc, argv, "TV", [](fuzz::Random& random) {
        return random() % 2 == 0 ? try_precision<float>(random) : try_precision<double>(random);
    });
    tv::forget();
    return status;
}
