// Compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it. It includes no standard header with inline
// functions on purpose: one compiled here for AVX-512 could be the copy that the linker keeps for everyone.
//
// 3 x 3 filters by Winograd's algorithm for 4 x 4 pixels at once, a quarter of the products: the 6 x 6 pixels around a
// tile are transformed, multiplied by transformed filters, place by place, as matrices of tiles by channels, and
// transformed back. Reference: Lavin and Gray, CVPR 2016.
#include "unet_rows.hpp"

#include "lanes.hpp"

namespace plugstream::unet {
namespace {

// Rows and vectors of a product that stay in registers, of which there are 16 or 32.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int tall = block, wide = 2;
#else
constexpr int tall = block / 2, wide = 2;
#endif

// out (tall, wide vectors) = in (tall, count) weights (count, panel), added to what is there if `more`.
template <int high>
PLUGSTREAM_INLINE void multiply(const float* in, long pitch, const float* weights, long count, float* out,
                                long out_pitch, bool more) {
    Floats sums[high][wide];
    repeat<high>([&](auto i) {
        repeat<wide>([&](auto j) {
            sums[i.value][j.value] = more ? load(out + i.value * out_pitch + j.value * lanes) : Floats{};
        });
    });
    for (long k = 0; k < count; ++k) {
        Floats row[wide];
        repeat<wide>([&](auto j) { row[j.value] = load(weights + k * panel + j.value * lanes); });
        repeat<high>([&](auto i) {
            const float value = in[i.value * pitch + k];
            repeat<wide>([&](auto j) { sums[i.value][j.value] += value * row[j.value]; });
        });
    }
    repeat<high>([&](auto i) {
        repeat<wide>([&](auto j) { store(out + i.value * out_pitch + j.value * lanes, sums[i.value][j.value]); });
    });
}

// The same for a whole panel and up to a block of rows.
PLUGSTREAM_APART void multiply_panel(const float* in, long pitch, const float* weights, long count, float* out,
                                      long out_pitch, long high, bool more) {
    for (int j = 0; j < panel; j += wide * lanes) {
        long i = 0;
        for (; i + tall <= high; i += tall)
            multiply<tall>(in + i * pitch, pitch, weights + j, count, out + i * out_pitch + j, out_pitch, more);
        for (; i < high; ++i)
            multiply<1>(in + i * pitch, pitch, weights + j, count, out + i * out_pitch + j, out_pitch, more);
    }
}

PLUGSTREAM_INLINE void transform(const Floats* d, Floats* r) {
    const Floats a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1], c = d[4] - d[2], e = 2.0f * (d[3] - d[1]);
    r[0] = 4.0f * (d[0] - d[2]) + c;
    r[1] = a + b;
    r[2] = a - b;
    r[3] = c + e;
    r[4] = c - e;
    r[5] = 4.0f * (d[1] - d[3]) + (d[5] - d[3]);
}

PLUGSTREAM_INLINE void transform_back(const Floats* m, Floats* r) {
    const Floats s = m[1] + m[2], d = m[1] - m[2], t = m[3] + m[4], e = m[3] - m[4];
    r[0] = m[0] + s + t;
    r[1] = d + 2.0f * e;
    r[2] = s + 4.0f * t;
    r[3] = d + 8.0f * e + m[5];
}

// The tile whose 6 x 6 pixels begin at (top, left), to places `apart` numbers from each other.
template <bool inside>
PLUGSTREAM_INLINE void enter(const Layer& layer, long top, long left, float* out) {
    const long channels = layer.inputs, pitch = layer.width * channels, from = apart(channels);
    const float* in = layer.in + top * pitch + left * channels;
    for (long c = 0; c < channels; c += lanes) {
        Floats half[6][6];
        repeat<6>([&](auto j) {
            Floats column[6], transformed[6];
            const bool within = inside || (left + j.value >= 0 && left + j.value < layer.width);
            repeat<6>([&](auto i) {
                const bool there = inside || (within && top + i.value >= 0 && top + i.value < layer.height);
                column[i.value] = there ? load(in + i.value * pitch + j.value * channels + c) : Floats{};
            });
            transform(column, transformed);
            repeat<6>([&](auto i) { half[i.value][j.value] = transformed[i.value]; });
        });
        repeat<6>([&](auto i) {
            Floats transformed[6];
            transform(half[i.value], transformed);
            repeat<6>([&](auto j) { store(out + (6 * i.value + j.value) * from + c, transformed[j.value]); });
        });
    }
}

template <Then then>
PLUGSTREAM_INLINE Floats follow(Floats h, const float* values) {
    if constexpr (then == Then::relu) return h > 0.0f ? h : Floats{};
    if constexpr (then == Then::celu) {
        const Floats low = h > 0.0f ? Floats{} : h;
        return h > 0.0f ? h : bend * (exponential(low * (1 / bend)) - 1.0f);
    }
    if constexpr (then == Then::slope) {
        const Floats value = load(values);
        return value > 0.0f ? h : h * (value * (1 / bend) + 1.0f);
    }
    return h;
}

// A panel of the tile at (top, left) of the result, of which `high` rows and `wide` columns are in the image.
template <Then then>
PLUGSTREAM_INLINE void leave(const Layer& layer, const float* in, long top, long left, long channel) {
    const long pitch = layer.width * layer.outputs, high = layer.height - top, across = layer.width - left;
    const float *first = layer.first, *second = layer.second, *values = layer.values;
    for (long c = 0; c < panel; c += lanes) {
        const long corner = top * pitch + left * layer.outputs + channel + c;
        Floats half[side][6];
        repeat<6>([&](auto j) {
            Floats column[6], transformed[side];
            repeat<6>([&](auto i) { column[i.value] = load(in + (6 * i.value + j.value) * apart(panel) + c); });
            transform_back(column, transformed);
            repeat<side>([&](auto i) { half[i.value][j.value] = transformed[i.value]; });
        });
        repeat<side>([&](auto i) {
            Floats row[side];
            transform_back(half[i.value], row);
            repeat<side>([&](auto j) {
                if (i.value >= high || j.value >= across) return;
                const long where = corner + i.value * pitch + j.value * layer.outputs;
                Floats h = follow<then>(row[j.value], values + where);
                if (first != nullptr) h += load(first + where);
                if (second != nullptr) h += load(second + where);
                store(layer.out + where, h);
            });
        });
    }
}

template <Then then>
void leave_all(const Layer layer, const float* results, long begin, long end, long channel) {
    const long across = (layer.width + side - 1) / side, to = apart(panel);
    for (long t = begin; t < end; ++t)
        leave<then>(layer, results + (t - begin) / block * places * to + (t - begin) % block * panel, t / across * side,
                    t % across * side, channel);
}

void tiles(const Layer& given, long first_block, long last_block, long first_panel, long last_panel, float* scratch) {
    const Layer layer = given;  // a copy, which what is stored cannot change
    const long across = (layer.width + side - 1) / side, all = (layer.height + side - 1) / side * across;
    const long begin = first_block * block, end = last_block * block < all ? last_block * block : all;
    const long from = apart(layer.inputs), to = apart(panel), blocks = last_block - first_block;
    float* results = scratch + blocks * places * from;
    for (long t = begin; t < end; ++t) {
        const long top = t / across * side - 1, left = t % across * side - 1;
        float* out = scratch + (t - begin) / block * places * from + (t - begin) % block * layer.inputs;
        if (top >= 0 && left >= 0 && top + 6 <= layer.height && left + 6 <= layer.width)
            enter<true>(layer, top, left, out);
        else
            enter<false>(layer, top, left, out);
    }
    const auto leave = layer.then == Then::relu    ? leave_all<Then::relu>
                       : layer.then == Then::celu  ? leave_all<Then::celu>
                       : layer.then == Then::slope ? leave_all<Then::slope>
                                                   : leave_all<Then::nothing>;
    for (long p = first_panel; p < last_panel; ++p) {
        for (long place = 0; place < places; ++place)
            for (long b = 0; b < blocks; ++b)
                multiply_panel(scratch + (b * places + place) * from, layer.inputs,
                               layer.weights + (p * places + place) * layer.inputs * panel, layer.inputs,
                               results + (b * places + place) * to, panel, block, false);
        leave(layer, results, begin, end, p * panel);
    }
}

void small_rows(const Layer& layer, long first, long last) {
    const long width = layer.width / 2, inputs = layer.inputs, outputs = layer.outputs;
    for (long y = first; y < last; ++y)
        for (int half = 0; half < 2; ++half)  // the upper and lower row of the larger image
            if (layer.kind == Kind::shrink) {
                const float* in = layer.in + (2 * y + half) * layer.width * inputs;
                for (long c = 0; c < outputs; c += panel)
                    for (long x = 0; x < width; x += block)
                        multiply_panel(in + x * 2 * inputs, 2 * inputs,
                                       layer.weights + 4 * inputs * c + half * 2 * inputs * panel, 2 * inputs,
                                       layer.out + (y * width + x) * outputs + c, outputs,
                                       width - x < block ? width - x : block, half == 1);
            } else {
                const float* in = layer.in + y * width * inputs;
                float* out = layer.out + (2 * y + half) * layer.width * outputs;
                for (long c = 0; c < 2 * outputs; c += panel)
                    for (long x = 0; x < width; x += block)
                        multiply_panel(in + x * inputs, inputs, layer.weights + inputs * (half * 2 * outputs + c),
                                       inputs, out + x * 2 * outputs + c, 2 * outputs,
                                       width - x < block ? width - x : block, false);
            }
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const Rows rows = {tiles, small_rows};
}  // namespace PLUGSTREAM_LEVEL

}  // namespace plugstream::unet
