// Compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it. It includes no standard header with inline
// functions on purpose: one compiled here for AVX-512 could be the copy that the linker keeps for everyone.
#include "ridge_rows.hpp"

#include "lanes.hpp"

namespace plugstream::ridge {
namespace {

// Sums that fit the registers: of filters in `respond`; in `scatter` of taps beside each other, of which those in the
// middle column have one sum for each vector and the others two.
#if defined(__AVX512F__) || defined(__aarch64__)  // 32 registers
constexpr int most_filters = 12, first_taps = 6, more_taps = 5;
#else
constexpr int most_filters = 6, first_taps = 3, more_taps = 3;
#endif
constexpr int together = 2;  // columns

// One value in all lanes; so written, nothing is computed: x - 0 is x, while 0 + x is not for -0.
PLUGSTREAM_INLINE Floats everywhere(float value) { return value - Floats{}; }

// clip(u, -reach, reach), for a reach >= 0.
PLUGSTREAM_INLINE Floats clip(Floats u, Floats reach) {
#if defined(__AVX512F__)
    return (Floats)_mm512_range_ps((__m512)u, (__m512)reach, 2);  // the lesser size, with the sign of u
#else
    u = u > reach ? reach : u;
    return u < -reach ? -reach : u;
#endif
}

// Lanes of column c that lie within the row.
PLUGSTREAM_INLINE long lanes_within(const Strips& strips, long c) {
    return (strips.width - c + strips.columns - 1) / strips.columns;
}

PLUGSTREAM_INLINE Ints first_lanes(long count) {
    Ints lane;
    for (int k = 0; k < lanes; ++k) lane[k] = k;
    return lane < Ints{} + static_cast<int>(count);
}

PLUGSTREAM_INLINE Floats keep(Floats values, Ints mask) { return (Floats)((Ints)values & mask); }

template <int filters>
PLUGSTREAM_INLINE const float* add_products(Floats (&sums)[filters][together], const Floats (&pixels)[together],
                                            const float* taps) {
    repeat<filters>([&](auto k) {
        const Floats tap = everywhere(taps[k.value]);
        repeat<together>([&](auto v) { sums[k.value][v.value] += tap * pixels[v.value]; });
    });
    return taps + filters;
}

template <int filters>
PLUGSTREAM_INLINE void store_sums(const Floats (&sums)[filters][together], float* out) {
    repeat<filters>([&](auto k) {
        repeat<together>([&](auto v) { store(out + (k.value * together + v.value) * lanes, sums[k.value][v.value]); });
    });
}

// Responses of a block of filters at two columns: of the parts that do not change across, from the lines `plain`, and of
// those that do, from the lines `changing`, each with the number of lines; a line is a row folded with its mirror image.
template <int filters>
void respond(const float* plain, int plain_lines, const float* changing, int changing_lines, long pitch, int half,
             const float* taps, float* plain_out, float* changing_out) {
    {
        Floats sums[filters][together] = {};
        for (int a = 0; a < plain_lines; ++a, plain += pitch) {
            Floats pixels[together];
            repeat<together>([&](auto v) { pixels[v.value] = load(plain + v.value * lanes); });
            taps = add_products<filters>(sums, pixels, taps);
            for (int b = 1; b <= half; ++b) {
                repeat<together>([&](auto v) {
                    pixels[v.value] = load(plain + (v.value + b) * lanes) + load(plain + (v.value - b) * lanes);
                });
                taps = add_products<filters>(sums, pixels, taps);
            }
        }
        store_sums<filters>(sums, plain_out);
    }
    Floats sums[filters][together] = {};
    for (int a = 0; a < changing_lines; ++a, changing += pitch)
        for (int b = 1; b <= half; ++b) {
            Floats pixels[together];
            repeat<together>([&](auto v) {
                pixels[v.value] = load(changing + (v.value + b) * lanes) - load(changing + (v.value - b) * lanes);
            });
            taps = add_products<filters>(sums, pixels, taps);
        }
    store_sums<filters>(sums, changing_out);
}

using Respond = void (*)(const float*, int, const float*, int, long, int, const float*, float*, float*);

template <int... pairs>
Respond choose_respond(int block, std::integer_sequence<int, pairs...>) {
    static constexpr Respond all[] = {respond<2 * pairs + 2>...};
    return all[block / 2 - 1];
}

// Both responses of each pair through its profile: from the two parts to the sum and difference of what comes out.
template <int given>
void bend(float* plain, float* changing, int pairs, int ratios, const float* slopes, const float* reaches) {
    const int count = given > 0 ? given : ratios;
    for (int i = 0; i < pairs; ++i, slopes += count, reaches += count)
        repeat<together>([&](auto v) {
            const long at = (i * together + v.value) * lanes;
            const Floats one = load(plain + at), two = load(changing + at), u = one + two, mirrored = one - two;
            Floats first = {}, second = {};
            for (int j = 0; j < count; ++j) {
                const Floats reach = everywhere(reaches[j]), slope = everywhere(slopes[j]);
                first += slope * clip(u, reach);
                second += slope * clip(mirrored, reach);
            }
            store(plain + at, first + second);
            store(changing + at, first - second);
        });
}

// To the shares of one a at two columns, what the taps `from`, `from` + 1, ... give; with `middle` the first of them is
// in the middle column, where nothing changes.
template <int taps, bool middle>
PLUGSTREAM_INLINE void scatter(const float* plain, const float* changing, int pairs, const float* plain_taps,
                               const float* changing_taps, int half, int from, float* shares) {
    constexpr int skipped = middle ? 1 : 0;
    Floats sums[taps][together] = {}, changes[taps][together] = {};
    for (int i = 0; i < pairs; ++i, plain += together * lanes, plain_taps += half + 1) {
        Floats values[together];
        repeat<together>([&](auto v) { values[v.value] = load(plain + v.value * lanes); });
        repeat<taps>([&](auto b) {
            const Floats tap = everywhere(plain_taps[b.value]);
            repeat<together>([&](auto v) { sums[b.value][v.value] += tap * values[v.value]; });
        });
    }
    for (int i = 0; i < pairs; ++i, changing += together * lanes, changing_taps += half) {
        Floats values[together];
        repeat<together>([&](auto v) { values[v.value] = load(changing + v.value * lanes); });
        repeat<taps - skipped>([&](auto b) {
            const Floats tap = everywhere(changing_taps[b.value]);
            repeat<together>([&](auto v) { changes[b.value + skipped][v.value] += tap * values[v.value]; });
        });
    }
    // Column v + b gets what tap b gives to the right of column v, column v - b what it gives to the left.
    float *right = shares + from * lanes, *left = shares - from * lanes;
    repeat<taps + together - 1>([&](auto at) {
        Floats total = load(right + at.value * lanes);
        repeat<together>([&](auto v) {
            constexpr int b = at.value - v.value;
            if constexpr (b >= 0 && b < taps) total += sums[b][v.value] + changes[b][v.value];
        });
        store(right + at.value * lanes, total);
    });
    repeat<taps - skipped + together - 1>([&](auto at) {
        constexpr int place = together - 1 - at.value - skipped;  // from the right end to the left
        Floats total = load(left + place * lanes);
        repeat<together>([&](auto v) {
            constexpr int b = v.value - place;
            if constexpr (b >= skipped && b < taps) total += sums[b][v.value] - changes[b][v.value];
        });
        store(left + place * lanes, total);
    });
}

using Scatter = void (*)(const float*, const float*, int, const float*, const float*, int, int, float*);

template <int taps, bool middle>
void scatter_some(const float* plain, const float* changing, int pairs, const float* plain_taps,
                  const float* changing_taps, int half, int from, float* shares) {
    scatter<taps, middle>(plain, changing, pairs, plain_taps, changing_taps, half, from, shares);
}

template <bool middle, int... taps>
Scatter choose_scatter(int count, std::integer_sequence<int, taps...>) {
    static constexpr Scatter all[] = {scatter_some<taps + 1, middle>...};
    return all[count - 1];
}

using Bend = void (*)(float*, float*, int, int, const float*, const float*);

Bend choose_bend(int ratios) {
    static constexpr Bend all[] = {bend<0>, bend<1>, bend<2>, bend<3>, bend<4>};
    return all[ratios <= 4 ? ratios : 0];
}

long scratch(const Prior& prior, const Strips& strips) {
    const long responses = 4L * prior.block * prior.blocks * together;
    return 2 * (2 * prior.half + 1) * strips.pitch + responses * lanes;
}

// Vectors from .. end - 1 of the rows a below and a above added up, half + 1 lines of them, and of their differences,
// from a = 1 on.
PLUGSTREAM_INLINE void fold(const float* const* rows, const Strips& strips, long from, long end, float* lines) {
    float *sum = lines, *difference = lines + (strips.half + 1) * strips.pitch;
    for (long v = from; v < end; ++v) store(sum + v * lanes, load(rows[0] + v * lanes));
    for (int a = 1; a <= strips.half; ++a, difference += strips.pitch) {
        const float *below = rows[a], *above = rows[-a];
        sum += strips.pitch;
        for (long v = from; v < end; ++v) {
            const Floats one = load(below + v * lanes), two = load(above + v * lanes);
            store(sum + v * lanes, one + two);
            store(difference + v * lanes, one - two);
        }
    }
}

// Vectors from .. end - 1 of the shares, which are complete, added to the rows a below and a above.
PLUGSTREAM_INLINE void hand_over(const float* shares, const Strips& strips, long from, long end, float* const* rows) {
    const float *plain = shares, *changing = shares + (strips.half + 1) * strips.pitch;
    auto add = [&](float* row, long v, Floats share) __attribute__((always_inline)) {
        store(row + v * lanes, load(row + v * lanes) + share);
    };
    if (rows[0] != nullptr)
        for (long v = from; v < end; ++v) add(rows[0], v, load(plain + v * lanes));
    for (int a = 1; a <= strips.half; ++a, changing += strips.pitch) {
        plain += strips.pitch;
        if (rows[a] != nullptr)
            for (long v = from; v < end; ++v) add(rows[a], v, load(plain + v * lanes) + load(changing + v * lanes));
        if (rows[-a] != nullptr)
            for (long v = from; v < end; ++v) add(rows[-a], v, load(plain + v * lanes) - load(changing + v * lanes));
    }
}

void spread(const Prior& prior, const Strips& strips, const float* const* rows, float* const* gradient, float* lines) {
    const int half = prior.half, pairs = prior.pairs, padded = prior.block * prior.blocks, kinds = 2 * half + 1;
    const long pitch = strips.pitch;
    float* const shares = lines + kinds * pitch;
    float* const values = shares + kinds * pitch;  // responses of even filters, plain and changing, then of odd ones
    auto part = [&](int k) { return values + static_cast<long>(k) * padded * together * lanes; };
    const Respond respond_block = choose_respond(prior.block, std::make_integer_sequence<int, most_filters / 2>{});
    const Bend bend_all = choose_bend(prior.ratios);
    const int first = half + 1 < first_taps ? half + 1 : first_taps;
    const Scatter scatter_first = choose_scatter<true>(first, std::make_integer_sequence<int, first_taps>{});
    const float *same = lines + half * lanes, *changed = lines + (half + 1) * pitch + half * lanes;
    // Taps of a block of even filters, then of odd ones: (half + 1)^2 + half^2, and twice (half + 1) half.
    const long even_taps = static_cast<long>(prior.block) * ((half + 1) * (half + 1) + half * half);
    const long odd_taps = 2L * prior.block * (half + 1) * half, backward_taps = static_cast<long>(pairs) * kinds;
    const long profiles = static_cast<long>(pairs) * prior.ratios;
    // Lines are formed and shares handed over as they are needed and complete, while they are in the nearest cache.
    long seen = 0;
    for (long c = 0; c < strips.columns; c += together) {
        const long reach = c + together + 2 * half;
        fold(rows, strips, seen, reach, lines);
        for (int k = 0; k < kinds; ++k)
            for (long v = seen; v < reach; ++v) store(shares + k * pitch + v * lanes, Floats{});
        seen = reach;
        const float *lines_same = same + c * lanes, *lines_changed = changed + c * lanes;
        const float* taps = prior.forward;
        for (int k = 0; k < prior.blocks; ++k, taps += even_taps) {
            const long at = static_cast<long>(k) * prior.block * together * lanes;
            respond_block(lines_same, half + 1, lines_changed, half, pitch, half, taps, part(0) + at, part(1) + at);
        }
        for (int k = 0; k < prior.blocks; ++k, taps += odd_taps) {
            const long at = static_cast<long>(k) * prior.block * together * lanes;
            respond_block(lines_changed, half, lines_same, half + 1, pitch, half, taps, part(2) + at, part(3) + at);
        }
        bend_all(part(0), part(1), pairs, prior.ratios, prior.slopes, prior.reaches);
        bend_all(part(2), part(3), pairs, prior.ratios, prior.slopes + profiles, prior.reaches + profiles);
        if (lanes_within(strips, c + together - 1) < lanes)
            for (int v = 0; v < together; ++v) {  // what stands beyond the row gives nothing
                const Ints mask = first_lanes(lanes_within(strips, c + v));
                for (int i = 0; i < 4 * padded; ++i) {
                    float* value = values + (static_cast<long>(i) * together + v) * lanes;
                    store(value, keep(load(value), mask));
                }
            }
        const float* back = prior.backward;
        float* share = shares + (half + c) * lanes;
        for (int k = 0; k < kinds; ++k, back += backward_taps, share += pitch) {
            const float *plain = part(k <= half ? 0 : 2), *changing = part(k <= half ? 3 : 1);
            const float* changing_taps = back + static_cast<long>(pairs) * (half + 1);
            scatter_first(plain, changing, pairs, back, changing_taps, half, 0, share);
            for (int from = first; from <= half; from += more_taps) {
                const int count = half + 1 - from < more_taps ? half + 1 - from : more_taps;
                choose_scatter<false>(count, std::make_integer_sequence<int, more_taps>{})(
                    plain, changing, pairs, back + from, changing_taps + from - 1, half, from, share);
            }
        }
        hand_over(shares, strips, c, c + together, gradient);
    }
    hand_over(shares, strips, strips.columns, strips.vectors, gradient);
}

double step(const Step& given, const Strips& strips, const Run* runs, long count) {
    for (long k = 0; k < count; ++k) {
        const float* beside = given.gradient + runs[k].beside;
        float* inside = given.gradient + runs[k].inside;
        for (long i = 0; i < runs[k].length; ++i) inside[i] += beside[i];
    }
    Floats squares = {};
    const long start = static_cast<long>(strips.half) * lanes;
    for (long c = 0; c < strips.columns; ++c) {
        const long at = start + c * lanes;
        const Floats x = load(given.x + at);
        Floats residual = x - load(given.z + c * lanes) + load(given.gradient + at);
        if (const long within = lanes_within(strips, c); within < lanes) residual = keep(residual, first_lanes(within));
        squares += residual * residual;
        if (given.heavy_ball) {
            store(given.next + at, x + given.momentum * (x - load(given.next + at)) - given.rate * residual);
        } else {
            const Floats fresh = x - given.rate * residual, before = given.begins ? x : load(given.kept + c * lanes);
            store(given.kept + c * lanes, fresh);
            store(given.next + at, fresh + given.momentum * (fresh - before));
        }
    }
    for (long x = 0; x < strips.vectors * lanes; x += lanes) store(given.gradient + x, Floats{});
    for (long k = 0; k < count; ++k) {
        const float* inside = given.next + runs[k].inside;
        float* beside = given.next + runs[k].beside;
        for (long i = 0; i < runs[k].length; ++i) beside[i] = inside[i];
    }
    double sum = 0;
    for (int k = 0; k < lanes; ++k) sum += squares[k];
    return sum;
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const Rows rows = {lanes, most_filters, scratch, spread, step};
}  // namespace PLUGSTREAM_LEVEL

}  // namespace plugstream::ridge
