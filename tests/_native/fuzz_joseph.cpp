// The native projector on random beams, sizes, numbers of threads and instruction sets, to be built with sanitizers:
// `make asan`. It checks that nothing is read or written out of bounds, that threads leave no trace in the result, that
// the adjoint is the transpose, and that rays share no more with each other than with themselves.
#include <algorithm>
#include <limits>

#include "joseph.hpp"
#include "fuzz.hpp"

using namespace plugstream::joseph;

namespace {

// Whether threads left no trace, and <A x, y> = <x, A' y>.
bool agree(const std::vector<float>& image, const std::vector<float>& data, const std::vector<float>& out,
           const std::vector<float>& again, const std::vector<float>& back, const std::vector<float>& back_again) {
    double left = 0, right = 0, size = 0, other = 0;
    for (size_t k = 0; k < data.size(); ++k) {
        left += static_cast<double>(out[k]) * data[k];
        size += static_cast<double>(out[k]) * out[k];
        other += static_cast<double>(data[k]) * data[k];
    }
    for (size_t k = 0; k < image.size(); ++k) right += static_cast<double>(image[k]) * back[k];
    const bool matched = std::abs(left - right) <= 4e-6 * std::sqrt(size * other) + 1e-12;
    return matched && fuzz::same(out, again) && fuzz::same(back, back_again);
}

bool try_volume(fuzz::Random& random) {
    const bool parallel = random() % 2 == 0, level = parallel && random() % 2 == 0, oblique = random() % 3 == 0;
    const double pixel = random.one_of({0.05, 0.3, 0.62, 0.8, 1.0, 1.5, 2.2, 9.0});
    const Box box{{random.between(1, 40), random.between(1, 25), random.between(1, 25)}, {1.0, 1.0, 0.7}, {-9, -9, -9}};
    const long views = random.between(1, 20), columns = random.between(1, 40);
    const long rows = level ? box.size[0] : random.between(1, 70);
    const double far = 60, high = level ? 1.0 : pixel, middle = level ? -9 + 0.5 * (box.size[0] - 1) : 1.5;
    std::vector<double> vectors;
    for (long view = 0; view < views; ++view) {
        const double t = random() % 3 == 0 ? 0.785398163397448 * random.between(0, 7) : 0.001 * random.between(0, 6283);
        const double c = std::cos(t), s = std::sin(t), near = parallel ? -1 : -far, up = level ? 0 : 0.3;
        for (double number : {-near * s, near * c, up, -far * s, far * c, middle, pixel * c, pixel * s,
                              oblique ? 0.1 : 0.0, 0.0, oblique ? 0.1 : 0.0, high})
            vectors.push_back(number);
    }
    const Beam beam{vectors.data(), views, columns, parallel, std::numeric_limits<double>::infinity()};
    const plugstream::Level chosen = random.one_of(fuzz::levels());
    const long voxels = box.size[0] * box.size[1] * box.size[2], rays = views * rows * columns;
    const std::vector<float> volume = random.numbers(voxels, 1.0f), data = random.numbers(rays, 1.0f);
    std::vector<float> out(rays), again(rays), back(voxels), back_again(voxels);
    if (random() % 2 == 0) forget();
    const auto forward = oblique ? project_oblique : project_volume;
    const auto adjoint = oblique ? back_project_oblique : back_project_volume;
    forward(beam, rows, box, volume.data(), out.data(), 1, chosen);
    forward(beam, rows, box, volume.data(), again.data(), random.between(2, 5), chosen);
    adjoint(beam, rows, box, data.data(), back.data(), 1, chosen);
    adjoint(beam, rows, box, data.data(), back_again.data(), random.between(2, 5), chosen);
    return agree(volume, data, out, again, back, back_again);
}

// What rays share: threads leave no trace, and every number is what the Cauchy-Schwarz inequality allows.
bool try_overlaps(fuzz::Random& random) {
    const long rows = random.between(1, 9), columns = random.between(1, 150), rays = rows * columns, pitch = rays + 16;
    const long size[3] = {random.between(1, 20), random.between(1, 20), random.between(1, 20)};
    const bool mixed = random() % 2 == 0;
    const int axis = static_cast<int>(random.between(0, 2));
    std::vector<int> axes(rays);
    for (int& one : axes) one = mixed ? static_cast<int>(random.between(0, 2)) : axis;
    const float far = random.one_of({5.0f, 40.0f, 1e6f});
    const std::vector<float> start = random.numbers(3 * pitch, far), slope = random.numbers(3 * pitch, 1.0f);
    const std::vector<float> step(pitch, 1.0f);
    std::vector<int> offsets = {0, 0};
    for (long n = random.between(0, 8); n > 0; --n) {
        offsets.push_back(static_cast<int>(random.between(-rows, rows)));
        offsets.push_back(static_cast<int>(random.between(-columns, columns)));
    }
    const long count = static_cast<long>(offsets.size()) / 2;
    std::vector<float> bands(count * rays), again(count * rays);
    const Crossed lines{rows, columns, pitch, axes.data(), start.data(), slope.data(), step.data()};
    const plugstream::Level level = random.one_of(fuzz::levels());
    find_overlaps(lines, size, offsets.data(), count, bands.data(), 1, level);
    find_overlaps(lines, size, offsets.data(), count, again.data(), static_cast<int>(random.between(2, 5)), level);
    for (long n = 0; n < count; ++n)
        for (long ray = 0; ray < rays; ++ray) {
            const long row = ray / columns + offsets[2 * n], column = ray % columns + offsets[2 * n + 1];
            const bool there = row >= 0 && row < rows && column >= 0 && column < columns;
            const float most = there ? std::sqrt(bands[ray] * bands[row * columns + column]) : 0.0f;
            if (!(bands[n * rays + ray] >= 0 && bands[n * rays + ray] <= most * 1.001f + 1e-3f)) return false;
        }
    return fuzz::same(bands, again);
}

bool try_one(fuzz::Random& random) {
    if (random() % 4 == 0) return try_overlaps(random);
    if (random() % 2 == 0) return try_volume(random);
    const double infinite = std::numeric_limits<double>::infinity();
    const bool parallel = random() % 2 == 0;
    const double pixel = random.one_of({0.05, 0.3, 0.62, 0.8, 1.0, 1.5, 2.2, 9.0});
    const Grid grid{{random.between(1, 60), random.between(1, 60)}, {1.0, random.one_of({1.0, 0.7})}, {-20, -25}};
    const long views = random.between(1, 4), columns = random.between(1, 150), images = random.between(1, 2);
    const double far = random.one_of({70.0, 300.0}), curvature = !parallel && random() % 2 ? 2 * far : infinite;
    std::vector<double> vectors;
    for (long view = 0; view < views; ++view) {
        const double t = random() % 3 == 0 ? 0.785398163397448 * random.between(0, 7) : 0.001 * random.between(0, 6283);
        const double c = std::cos(t), s = std::sin(t), near = parallel ? -1 : -far;
        for (double number : {-near * s, near * c, 0.0, -far * s, far * c, 0.0, pixel * c, pixel * s, 0.0, 0.0, 0.0, 1.0})
            vectors.push_back(number);
    }
    const Beam beam{vectors.data(), views, columns, parallel, curvature};
    const Layout layout = random() % 2 ? Layout{images, views * columns, columns} : Layout{images, columns, images * columns};
    const plugstream::Level level = random.one_of(fuzz::levels());
    const long pixels = images * grid.size[0] * grid.size[1], rays = images * views * columns;
    const std::vector<float> image = random.numbers(pixels, 1.0f), data = random.numbers(rays, 1.0f);
    std::vector<float> out(rays), again(rays), back(pixels), back_again(pixels);
    if (random() % 2 == 0) forget();  // so that the memory is also as small as it can be
    project(beam, grid, layout, image.data(), out.data(), 1, level);
    project(beam, grid, layout, image.data(), again.data(), random.between(2, 5), level);
    back_project(beam, grid, layout, data.data(), back.data(), 1, level);
    back_project(beam, grid, layout, data.data(), back_again.data(), random.between(2, 5), level);
    return agree(image, data, out, again, back, back_again);
}

}  // namespace

int main(int argc, char** argv) {
    const int status = fuzz::run(argc, argv, "Joseph", try_one);
    forget();
    return status;
}
