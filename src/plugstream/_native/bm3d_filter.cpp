// The filters of BM3D, compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it; contraction to fused
// multiply-adds is on here. No function of the standard library is called, as in bm3d_match.cpp.
//
// Haar along the group is done without its factors: sums and differences only. A difference of level l (pairs of 2^l
// blocks) is then sqrt(2)^l times its coefficient, so that thresholds are raised by that, and on the way back it is
// multiplied by 2^-l, which is exact.
#include "bm3d_kernels.hpp"
#include "bm3d_lanes.hpp"
#include "bm3d_transform.hpp"

namespace plugstream::bm3d {
namespace {

constexpr int log2_of(int n) { return n > 1 ? 1 + log2_of(n / 2) : 0; }
// The level of the number that `haar` leaves at index i: of the sum at 0, of the differences elsewhere.
constexpr int level_of(int i, int group) {
    if (i == 0) return log2_of(group);
    return i % 2 != 0 ? 1 : 1 + level_of(i / 2, group / 2);
}
constexpr float power_of_half(int level) { return level == 0 ? 1.0f : 0.5f * power_of_half(level - 1); }

template <int group, int half = 1>
PLUGSTREAM_INLINE void haar(Floats (&x)[group]) {
    if constexpr (half < group) {
        repeat<group / (2 * half)>([&](auto k) __attribute__((always_inline)) {
            constexpr int a = decltype(k)::value * 2 * half, b = a + half;
            const Floats difference = x[a] - x[b];
            x[a] = x[a] + x[b];
            x[b] = difference;
        });
        haar<group, 2 * half>(x);
    }
}

template <int group, int half = group / 2>
PLUGSTREAM_INLINE void haar_back(Floats (&x)[group]) {
    if constexpr (half > 0) {
        repeat<group / (2 * half)>([&](auto k) __attribute__((always_inline)) {
            constexpr int a = decltype(k)::value * 2 * half, b = a + half;
            const Floats difference = x[a] - x[b];
            x[a] = x[a] + x[b];
            x[b] = difference;
        });
        haar_back<group, half / 2>(x);
    }
}

template <int group>
PLUGSTREAM_INLINE void gather(const float* spectra, const int32_t* positions, int chunk, Floats (&x)[group]) {
    repeat<group>([&](auto k) __attribute__((always_inline)) {
        constexpr int i = decltype(k)::value;
        x[i] = load(spectra + static_cast<long>(positions[i]) * coefficients + chunk);
    });
}

// Back from the filtered numbers to blocks, which are added where they came from.
template <int group>
PLUGSTREAM_INLINE void add_back(const float* filtered, const int32_t* positions, float weight, float* total,
                                float* weights) {
    for (int chunk = 0; chunk < coefficients; chunk += lanes) {
        Floats x[group];
        repeat<group>([&](auto k) __attribute__((always_inline)) {
            constexpr int i = decltype(k)::value;
            x[i] = load(filtered + i * coefficients + chunk);
        });
        haar_back(x);
        repeat<group>([&](auto k) __attribute__((always_inline)) {
            constexpr int i = decltype(k)::value;
            float* at = total + static_cast<long>(positions[i]) * coefficients + chunk;
            store(at, load(at) + weight * x[i]);
        });
    }
    for (int k = 0; k < group; ++k) weights[positions[k]] += weight;
}

// x * scale where |x| > bound, else 0; counts the former.
PLUGSTREAM_INLINE Floats keep(Floats x, float bound, float scale, Ints& kept) {
#if defined(__AVX512F__)
    const __mmask16 large = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(bound), _CMP_GT_OQ);
    kept = reinterpret_cast<Ints>(_mm512_mask_add_epi32(reinterpret_cast<__m512i>(kept), large,
                                                        reinterpret_cast<__m512i>(kept), _mm512_set1_epi32(1)));
    return _mm512_maskz_mul_ps(large, x, _mm512_set1_ps(scale));
#else
    const Floats size = reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & 0x7fffffff);
    const Ints large = size > bound;
    kept -= large;
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x * scale) & large);
#endif
}

// e / (e + noise)
template <bool exact>
PLUGSTREAM_INLINE Floats gain_of(Floats energy, float noise) {
    const Floats sum = energy + noise;
#if defined(__AVX512F__)
    if constexpr (!exact) {
        // An estimate of 14 bits and one step of Newton's: a division would take as long as all the rest.
        const Floats guess = _mm512_rcp14_ps(sum);
        return energy * (guess * (2.0f - sum * guess));
    }
#endif
    return energy / sum;
}

template <int group>
void threshold_groups(const float* noisy, const int32_t* positions, long count, float threshold, float* total,
                      float* weights) {
    float bounds[log2_of(largest_group) + 1] = {threshold};
    for (int l = 1; l <= log2_of(group); ++l)
        bounds[l] = l % 2 != 0 ? static_cast<float>(bounds[l - 1] * 1.4142135623730951) : 2 * bounds[l - 2];
    alignas(64) float filtered[group * coefficients];
    for (long n = 0; n < count; ++n, positions += group) {
        Ints kept = {};
        for (int chunk = 0; chunk < coefficients; chunk += lanes) {
            Floats x[group];
            gather<group>(noisy, positions, chunk, x);
            haar(x);
            repeat<group>([&](auto k) __attribute__((always_inline)) {
                constexpr int i = decltype(k)::value, level = level_of(i, group);
                store(filtered + i * coefficients + chunk, keep(x[i], bounds[level], power_of_half(level), kept));
            });
        }
        int all = 0;
        for (int i = 0; i < lanes; ++i) all += kept[i];
        add_back<group>(filtered, positions, 1.0f / static_cast<float>(all > 1 ? all : 1), total, weights);
    }
}

template <int group, bool exact>
void wiener_groups(const float* noisy, const float* guide, const int32_t* positions, long count, float noise,
                   float* total, float* weights) {
    alignas(64) float filtered[group * coefficients];
    for (long n = 0; n < count; ++n, positions += group) {
        Floats squares[4] = {};  // several, so that no addition waits for the one before
        for (int chunk = 0; chunk < coefficients; chunk += lanes) {
            Floats x[group];
            gather<group>(guide, positions, chunk, x);
            haar(x);
            repeat<group>([&](auto k) __attribute__((always_inline)) {
                constexpr int i = decltype(k)::value, level = level_of(i, group);
                const Floats gain = gain_of<exact>(x[i] * x[i], noise / power_of_half(level));
                squares[i % 4] += gain * gain;
                store(filtered + i * coefficients + chunk, gain * power_of_half(level));
            });
            gather<group>(noisy, positions, chunk, x);
            haar(x);
            repeat<group>([&](auto k) __attribute__((always_inline)) {
                constexpr int i = decltype(k)::value;
                float* at = filtered + i * coefficients + chunk;
                store(at, load(at) * x[i]);
            });
        }
        float all = 0;
        const Floats squared = (squares[0] + squares[1]) + (squares[2] + squares[3]);
        for (int i = 0; i < lanes; ++i) all += squared[i];
        constexpr float least = 1.17549435e-38f;  // the smallest normal number, as in the reference
        add_back<group>(filtered, positions, 1.0f / (all < least ? least : all), total, weights);
    }
}

void threshold(const float* noisy, const int32_t* positions, long count, int group, float bound, float* total,
               float* weights) {
    switch (group) {
        case 1: return threshold_groups<1>(noisy, positions, count, bound, total, weights);
        case 2: return threshold_groups<2>(noisy, positions, count, bound, total, weights);
        case 4: return threshold_groups<4>(noisy, positions, count, bound, total, weights);
        case 8: return threshold_groups<8>(noisy, positions, count, bound, total, weights);
        case 16: return threshold_groups<16>(noisy, positions, count, bound, total, weights);
        default: return threshold_groups<32>(noisy, positions, count, bound, total, weights);
    }
}

template <bool exact>
void wiener_with(const float* noisy, const float* guide, const int32_t* positions, long count, int group, float noise,
                 float* total, float* weights) {
    switch (group) {
        case 1: return wiener_groups<1, exact>(noisy, guide, positions, count, noise, total, weights);
        case 2: return wiener_groups<2, exact>(noisy, guide, positions, count, noise, total, weights);
        case 4: return wiener_groups<4, exact>(noisy, guide, positions, count, noise, total, weights);
        case 8: return wiener_groups<8, exact>(noisy, guide, positions, count, noise, total, weights);
        case 16: return wiener_groups<16, exact>(noisy, guide, positions, count, noise, total, weights);
        default: return wiener_groups<32, exact>(noisy, guide, positions, count, noise, total, weights);
    }
}

void wiener(const float* noisy, const float* guide, const int32_t* positions, long count, int group, float noise,
            float* total, float* weights) {
#if defined(__AVX512F__)
    // The estimated reciprocal overflows for the very smallest numbers.
    if (noise > 1e-30f) return wiener_with<false>(noisy, guide, positions, count, group, noise, total, weights);
#endif
    wiener_with<true>(noisy, guide, positions, count, group, noise, total, weights);
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const FilterKernels filter_kernels = {forward, inverse, threshold, wiener};
}

}  // namespace plugstream::bm3d
