// Back-projection by voxels on random shapes, places, numbers of threads and instruction sets, to be built with
// sanitizers: `make asan`. It checks that nothing is read or written out of bounds, wherever a voxel is seen, and that
// threads leave no trace in the result.
#include <cmath>

#include "gather.hpp"
#include "fuzz.hpp"

using namespace plugstream::gather;

namespace {

bool try_one(fuzz::Random& random) {
    const long images = random.between(1, 3), views = random.between(1, 5), columns = random.between(1, 40);
    const long rows = random() % 2 == 0 ? 0 : random.between(1, 20);
    const bool parallel = random() % 2 == 0;
    const plugstream::Level level = random.one_of(fuzz::levels());
    const long size = (rows ? rows + 3 : 1) * (columns + 3);
    const std::vector<float> values = random.numbers(images * views * size, 1.0f);
    std::vector<double> forms = random.numbers<double>(views * 16, random() % 4 == 0 ? 1e30 : 3.0);
    if (random() % 4 == 0) forms[random() % forms.size()] = random() % 2 == 0 ? std::nan("") : INFINITY;
    const Data data{values.data(), images, views, rows, columns};
    const long depth = random.between(1, 4), height = random.between(1, 9), width = random.between(1, 40);
    std::vector<float> out(images * depth * height * width), again(out);
    add_views(data, forms.data(), parallel, {out.data(), depth, height, width}, random.between(2, 5), level);
    add_views(data, forms.data(), parallel, {again.data(), depth, height, width}, 1, level);
    return fuzz::same(out, again);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, "back-projection by voxels", try_one); }
