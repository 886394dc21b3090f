// The 2-D transforms of the blocks at all positions of a tile. Both are done along rows and then down, and the half
// that is done along a row of pixels serves all eight rows of blocks which that row belongs to.
#pragma once

#include "bm3d_kernels.hpp"
#include "lanes.hpp"

namespace plugstream::bm3d {
namespace {

PLUGSTREAM_INLINE Eight load8(const float* p) { return *reinterpret_cast<const EightAnywhere*>(p); }
PLUGSTREAM_INLINE void store8(float* p, Eight v) { *reinterpret_cast<EightAnywhere*>(p) = v; }

// Multiplies an 8 x 8 array from the left: row a of the result is the sum over b of m[a][b] rows[b].
struct Down {
#if defined(__AVX512F__)
    __m512 pairs[block / 2][block];  // [k][b]: m[2k][b] eight times, then m[2k + 1][b]

    explicit Down(const float* m) {
        for (int k = 0; k < block / 2; ++k)
            for (int b = 0; b < block; ++b)
                pairs[k][b] = _mm512_insertf32x8(_mm512_set1_ps(m[2 * k * block + b]),
                                                 _mm256_set1_ps(m[(2 * k + 1) * block + b]), 1);
    }

    template <class Row>
    PLUGSTREAM_INLINE void operator()(Row row, float* out) const {
        __m512 sums[block / 2];
        const __m512 first = _mm512_broadcast_f32x8(_mm256_loadu_ps(row(0)));
        for (int k = 0; k < block / 2; ++k) sums[k] = _mm512_mul_ps(pairs[k][0], first);
#pragma GCC unroll 8
        for (int b = 1; b < block; ++b) {
            const __m512 both = _mm512_broadcast_f32x8(_mm256_loadu_ps(row(b)));
#pragma GCC unroll 4
            for (int k = 0; k < block / 2; ++k) sums[k] = _mm512_fmadd_ps(pairs[k][b], both, sums[k]);
        }
        for (int k = 0; k < block / 2; ++k) _mm512_storeu_ps(out + 2 * k * block, sums[k]);
    }
#else
    const float* m;

    explicit Down(const float* matrix) : m(matrix) {}

    template <class Row>
    PLUGSTREAM_INLINE void operator()(Row row, float* out) const {
        for (int a = 0; a < block; ++a) {
            Eight sum = m[a * block] * load8(row(0));
            for (int b = 1; b < block; ++b) sum += m[a * block + b] * load8(row(b));
            store8(out + a * block, sum);
        }
    }
#endif
};

// Sum over j of values[j] columns[j].
PLUGSTREAM_INLINE Eight combine(const Eight (&columns)[block], const float* values) {
    Eight even = columns[0] * values[0], odd = columns[1] * values[1];
    even += columns[2] * values[2];
    odd += columns[3] * values[3];
    even += columns[4] * values[4];
    odd += columns[5] * values[5];
    even += columns[6] * values[6];
    odd += columns[7] * values[7];
    return even + odd;
}

void forward(const float* image, long pitch, long rows, long columns, const float* analysis, float* ring,
             float* spectra) {
    Eight across[block];  // across[j][u] = analysis[u][j]
    for (int j = 0; j < block; ++j)
        for (int u = 0; u < block; ++u) across[j][u] = analysis[u * block + j];
    const Down down(analysis);
    for (long r = 0; r < rows + block - 1; ++r) {
        const float* pixels = image + r * pitch;
        float* half = ring + (r % block) * columns * block;
        for (long x = 0; x < columns; ++x) store8(half + x * block, combine(across, pixels + x));
        if (r < block - 1) continue;
        const float* eight[block];
        for (int i = 0; i < block; ++i) eight[i] = ring + ((r + 1 + i) % block) * columns * block;
        float* out = spectra + (r - (block - 1)) * columns * coefficients;
        for (long x = 0; x < columns; ++x)
            down([&](int i) __attribute__((always_inline)) { return eight[i] + x * block; }, out + x * coefficients);
    }
}

// A row of pixels from the eight numbers at each position of it: `out` has columns + 7.
void inverse_row(float* half, long columns, const Eight (&across)[block], float* out) {
    const Eight zero = {};
    Eight sums = zero;  // of the pixels x .. x + 7, from the positions so far
    for (long x = 0; x < columns; ++x) {
        sums += combine(across, half + x * block);
        out[x] = sums[0];
        sums = __builtin_shufflevector(sums, zero, 1, 2, 3, 4, 5, 6, 7, 8);
    }
    for (int i = 0; i < block - 1; ++i) out[columns + i] = sums[i];
    for (long x = 0; x < columns * block; ++x) half[x] = 0;
}

void inverse(float* spectra, float* weights, long rows, long columns, const float* synthesis, const float* kaiser,
             float* ring, float* top, float* bottom) {
    constexpr int over = block - 1;
    const long width = columns + over;
    // The window is folded into the matrices.
    alignas(64) float scaled[coefficients];
    Eight across[block];  // across[u][j] = synthesis[j][u] kaiser[j]
    for (int i = 0; i < block; ++i)
        for (int u = 0; u < block; ++u) across[u][i] = scaled[i * block + u] = synthesis[i * block + u] * kaiser[i];
    const Down down(scaled);
    float* padded = ring + block * columns * block;  // weights of a row, with zeros on either side
    float* spread = padded + columns + 2 * over;
    for (long x = 0; x < block * columns * block; ++x) ring[x] = 0;
    for (long x = 0; x < columns + 2 * over; ++x) padded[x] = 0;
    for (long k = 0; k < (rows + over) * width; ++k) bottom[k] = 0;
    alignas(64) float rows_of_block[coefficients];
    for (long y = 0; y < rows; ++y) {
        float *row = spectra + y * columns * coefficients, *weight = weights + y * columns;
        for (long x = 0; x < columns; ++x) {
            if (weight[x] == 0) continue;  // never found: its spectrum is zero
            float* spectrum = row + x * coefficients;
            down([&](int v) __attribute__((always_inline)) { return spectrum + v * block; }, rows_of_block);
            for (int i = 0; i < coefficients; i += lanes) store(spectrum + i, Floats{});
            for (int i = 0; i < block; ++i) {
                float* at = ring + (((y + i) % block) * columns + x) * block;
                store8(at, load8(at) + load8(rows_of_block + i * block));
            }
        }
        inverse_row(ring + (y % block) * columns * block, columns, across, top + y * width);
        for (long x = 0; x < columns; ++x) {
            padded[over + x] = weight[x];
            weight[x] = 0;
        }
        for (long x = 0; x < width; ++x) {
            float sum = 0;
            for (int j = 0; j < block; ++j) sum += kaiser[j] * padded[over + x - j];
            spread[x] = sum;
        }
        for (int i = 0; i < block; ++i)
            for (long x = 0; x < width; ++x) bottom[(y + i) * width + x] += kaiser[i] * spread[x];
    }
    for (long y = rows; y < rows + over; ++y)
        inverse_row(ring + (y % block) * columns * block, columns, across, top + y * width);
}

}  // namespace
}  // namespace plugstream::bm3d
