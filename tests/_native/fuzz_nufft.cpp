// The native non-uniform FFT on random grids, points, numbers of threads and instruction sets, to be built with
// sanitizers: `make asan`. It checks that nothing is read or written out of bounds, that points which touch cells that
// are not there are found, that writing is the transpose of reading, and that threads leave no trace in the result.
#include <algorithm>
#include <cmath>

#include "fuzz.hpp"
#include "nufft.hpp"

using namespace plugstream::nufft;

namespace {

bool try_one(fuzz::Random& random) {
    const int width = random.between(1, widest), degree = random.between(0, 20);
    const long images = random.between(1, 3), count = random.between(0, 300);
    Grid grid{images, {}};
    Points points{count, nullptr, nullptr, nullptr, {}};
    for (int axis = 0; axis < 3; ++axis) {
        points.width[axis] = random() % 3 ? width : 1;
        grid.size[axis] = points.width[axis] + random.between(0, 12);
    }
    std::vector<int> first(3 * count);
    std::vector<float> offset(3 * count);
    std::vector<unsigned char> flipped(count);
    for (long n = 0; n < 3 * count; ++n) {
        first[n] = random.between(0, static_cast<int>(grid.size[n % 3] - points.width[n % 3]));
        offset[n] = static_cast<float>(random.between(0, 999)) / 1000;
    }
    for (unsigned char& one : flipped) one = random() % 2;
    points.first = first.data();
    points.offset = offset.data();
    if (random() % 2) points.flipped = flipped.data();
    const auto polynomials = random.numbers((degree + 1) * width, 0.2f);
    const Taps taps{polynomials.data(), degree, width};
    if (points.width[2] < std::max(points.width[0], points.width[1])) return fault(grid, points, taps) != nullptr;
    if (fault(grid, points, taps) != nullptr) return false;
    if (count > 0) {  // one cell too far, along any axis and either way
        const long n = random() % (3 * count);
        const int was = first[n];
        first[n] = random() % 2 ? -1 : static_cast<int>(grid.size[n % 3] - points.width[n % 3] + 1);
        if (fault(grid, points, taps) == nullptr) return false;
        first[n] = was;
    }
    const long cells = grid.size[0] * grid.size[1] * grid.size[2];
    const auto image = random.numbers(2 * images * cells, 1.0f), data = random.numbers(2 * images * count, 1.0f);
    std::vector<float> seen(2 * images * count), again(seen), back(2 * images * cells), once_more(back);
    const plugstream::Level level = random.one_of(fuzz::levels());
    const int threads = random.between(1, 5);
    read(grid, points, taps, image.data(), seen.data(), threads, level);
    read(grid, points, taps, image.data(), again.data(), 1, level);
    write(grid, points, taps, data.data(), back.data(), threads, level);
    write(grid, points, taps, data.data(), once_more.data(), 1, level);
    double left = 0, right = 0, size = 0;
    for (size_t n = 0; n < seen.size(); ++n) left += double(seen[n]) * data[n], size += std::abs(double(seen[n]) * data[n]);
    for (size_t n = 0; n < back.size(); ++n) right += double(back[n]) * image[n], size += std::abs(double(back[n]) * image[n]);
    return fuzz::same(seen, again) && fuzz::same(back, once_more) && std::abs(left - right) <= 1e-4 * size + 1e-30;
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, "the non-uniform FFT", try_one); }
