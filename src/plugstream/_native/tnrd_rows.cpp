// Compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it. It includes no standard header with inline
// functions on purpose: one compiled here for AVX-512 could be the copy that the linker keeps for everyone.
#include "tnrd_rows.hpp"

#include "lanes.hpp"
#include "tnrd.hpp"

namespace plugstream::tnrd {
namespace {

// Blocks of sums that fit the registers: filters and vectors in `respond`, vectors in `spread`, which has 7 sums each.
#if defined(__AVX512F__)
constexpr int respond_filters = 12, spread_vectors = 3;
#else
constexpr int respond_filters = 6, spread_vectors = 1;
#endif
constexpr int respond_vectors = 2;

template <int vectors>
PLUGSTREAM_INLINE void respond_block(const float* u, long pitch, const float* forward, float* responses) {
    Floats sums[respond_filters][vectors] = {};
    for (int a = 0; a < taps; ++a, u += pitch) {
        repeat<taps>([&](auto b) {
            Floats pixels[vectors];
            repeat<vectors>([&](auto v) { pixels[v.value] = load(u + b.value + v.value * lanes); });
            repeat<respond_filters>([&](auto k) {
                const float tap = forward[b.value * together + k.value];
                repeat<vectors>([&](auto v) { sums[k.value][v.value] += tap * pixels[v.value]; });
            });
        });
        forward += taps * together;
    }
    repeat<respond_filters>([&](auto k) {
        repeat<vectors>([&](auto v) { store(responses + k.value * pitch + v.value * lanes, sums[k.value][v.value]); });
    });
}

void respond(const float* u, long pitch, long width, const float* forward, float* responses) {
    for (int first = 0; first < filters; first += respond_filters) {
        const float* group = forward + first / together * (taps * taps * together) + first % together;
        float* out = responses + first * pitch;
        long x = 0;
        for (; x + lanes < width; x += respond_vectors * lanes)
            respond_block<respond_vectors>(u + x, pitch, group, out + x);
        if (x < width) respond_block<1>(u + x, pitch, group, out + x);
    }
}

// The coefficients of degree m of the cells given, which lie within 0 .. cells - 1.
PLUGSTREAM_INLINE Floats gather(const float* table, Ints cell) {
#if defined(__AVX512F__)
    return (Floats)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, (__m512i)cell, table, 4);
#elif defined(__AVX2__)
    return (Floats)_mm256_i32gather_ps(table, (__m256i)cell, 4);
#else
    Floats out;
    for (int k = 0; k < lanes; ++k) out[k] = table[cell[k]];
    return out;
#endif
}

void influence(float* responses, long pitch, long width, const float* table) {
    constexpr float reach = cells / 2, last = cells - 1e-5f;
    for (int i = 0; i < filters; ++i, responses += pitch, table += (degree + 1) * cells) {
#if defined(__AVX512F__)
        // The 32 cells in the middle, where nearly all responses lie, in registers.
        constexpr int from = cells / 2 - 16;
        Floats low[degree + 1], high[degree + 1];
        repeat<degree + 1>([&](auto m) {
            low[m.value] = load(table + m.value * cells + from);
            high[m.value] = load(table + m.value * cells + from + 16);
        });
#elif defined(__aarch64__)
        constexpr int from = cells / 2 - 8;  // and 16 here
        uint8x16x4_t middle[degree + 1];
        repeat<degree + 1>([&](auto m) { middle[m.value] = vld1q_u8_x4((const uint8_t*)(table + m.value * cells + from)); });
#endif
        for (long x = 0; x < width; x += lanes) {
            const Floats response = load(responses + x);
            Floats at = response * 0.1f + reach;
            at = at < 0.0f ? Floats{} : at;  // so written, a NaN stays one
            at = at > last ? Floats{} + last : at;
            Ints cell = __builtin_convertvector(at, Ints);
            const Floats t = at - __builtin_convertvector(cell, Floats) - 0.5f;
            Floats value;
#if defined(__AVX512F__)
            const __m512 size = _mm512_abs_ps((__m512)response);
            if (_mm512_cmp_ps_mask(size, _mm512_set1_ps(159.9f), _CMP_LT_OQ) == 0xffff) {
                const __m512i place = (__m512i)(cell - from);
                auto pick = [&](auto m) __attribute__((always_inline)) {
                    return (Floats)_mm512_permutex2var_ps((__m512)low[m.value], place, (__m512)high[m.value]);
                };
                value = pick(Index<degree>{});
                repeat<degree>([&](auto m) { value = value * t + pick(Index<degree - 1 - m.value>{}); });
                store(responses + x, value);
                continue;
            }
#elif defined(__aarch64__)
            if (vmaxvq_f32(vabsq_f32((float32x4_t)response)) < 79.9f) {  // not for a NaN
                const uint8x16_t place = (uint8x16_t)((cell - from) * 0x04040404 + 0x03020100);
                auto pick = [&](auto m) __attribute__((always_inline)) {
                    return (Floats)vqtbl4q_u8(middle[m.value], place);
                };
                value = pick(Index<degree>{});
                repeat<degree>([&](auto m) { value = value * t + pick(Index<degree - 1 - m.value>{}); });
                store(responses + x, value);
                continue;
            }
#endif
            cell = cell < 0 ? Ints{} : cell;  // what a NaN becomes
            cell = cell > cells - 1 ? Ints{} : cell;
            value = gather(table + degree * cells, cell);
            repeat<degree>([&](auto m) { value = value * t + gather(table + (degree - 1 - m.value) * cells, cell); });
            store(responses + x, value);
        }
    }
}

template <int vectors>
PLUGSTREAM_INLINE void spread_block(const float* values, long pitch, const float* backward, float* const* force,
                                    long x) {
    Floats sums[taps][vectors] = {};
    for (int i = 0; i < filters; ++i, values += pitch, backward += taps * column)
        repeat<taps>([&](auto b) {
            Floats driven[vectors];
            repeat<vectors>([&](auto v) { driven[v.value] = load(values + x + b.value + v.value * lanes); });
            repeat<taps>([&](auto a) {
                const float tap = backward[b.value * column + a.value];
                repeat<vectors>([&](auto v) { sums[a.value][v.value] += tap * driven[v.value]; });
            });
        });
    repeat<vectors>([&](auto v) { store(force[0] + x + v.value * lanes, sums[0][v.value]); });
    for (int a = 1; a < taps; ++a)
        for (int v = 0; v < vectors; ++v) {
            float* out = force[a] + x + v * lanes;
            store(out, load(out) + sums[a][v]);
        }
}

void spread(const float* values, long pitch, long width, const float* backward, float* const* force) {
    long x = 0;
    for (; x + (spread_vectors - 1) * lanes < width; x += spread_vectors * lanes)
        spread_block<spread_vectors>(values, pitch, backward, force, x);
    for (; x < width; x += lanes) spread_block<1>(values, pitch, backward, force, x);
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const Rows rows = {respond, influence, spread};
}  // namespace PLUGSTREAM_LEVEL

}  // namespace plugstream::tnrd
