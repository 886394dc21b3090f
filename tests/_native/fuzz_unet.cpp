// The native U-Net's layers on random sides, channels, numbers of threads and instruction sets, to be built with
// sanitizers: `make asan`. It checks that nothing is read or written out of bounds, and that threads leave no trace in
// the result.
#include "fuzz.hpp"
#include "unet.hpp"

using namespace plugstream;

namespace {

bool try_one(fuzz::Random& random) {
    const auto kind = random.one_of({unet::Kind::same, unet::Kind::same, unet::Kind::shrink, unet::Kind::grow});
    const auto then = random.one_of({unet::Then::nothing, unet::Then::relu, unet::Then::celu, unet::Then::slope});
    const bool same = kind == unet::Kind::same;
    const long height = random.between(1, 24) * (same ? 1 : 2), width = random.between(1, 24) * (same ? 1 : 2);
    const long inputs = unet::few * random.between(1, random() % 8 == 0 ? 10 : 4), outputs = unet::panel * random.between(1, 3);
    const long read = height * width / (kind == unet::Kind::grow ? 4 : 1) * inputs;
    const long written = height * width / (kind == unet::Kind::shrink ? 4 : 1) * outputs;
    const int threads = random.between(1, 5);
    const Level level = random.one_of(fuzz::levels());
    const auto in = random.numbers(read, 1.0f), values = random.numbers(written, 1.0f), added = random.numbers(written, 1.0f);
    const auto weights = random.numbers((same ? 36 : 4) * inputs * outputs, 0.1f);
    const auto begin = random.numbers(written, 1.0f);
    const bool onto_itself = random() % 2 == 0, more = random() % 2 == 0;
    auto apply = [&](int members) {
        std::vector<float> out(begin);
        const unet::Layer layer{kind, then, height, width, inputs, outputs, in.data(), weights.data(),
                                then == unet::Then::slope ? values.data() : nullptr,
                                onto_itself ? out.data() : nullptr, more ? added.data() : nullptr, out.data()};
        unet::apply(&layer, 1, members, level);
        return out;
    };
    return fuzz::same(apply(threads), apply(1));
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, "the U-Net's layers", try_one); }
