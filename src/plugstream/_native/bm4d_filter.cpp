// The filters of BM4D, compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it; contraction to fused
// multiply-adds is on here. No function of the standard library is called, as in bm3d_match.cpp.
//
// The transform of a cube is done along rows, then down, then over the planes; what is done along a line of voxels
// serves all 16 cubes that the line belongs to in part, and what is done in a plane all four planes of cubes.
#include "bm4d_kernels.hpp"
#include "group_filters.hpp"
#include "lanes.hpp"

namespace plugstream::bm4d {
namespace {

typedef float Four __attribute__((vector_size(16)));
typedef float FourAnywhere __attribute__((vector_size(16), aligned(4), may_alias));

constexpr int square = block * block;

PLUGSTREAM_INLINE Four load4(const float* p) { return *reinterpret_cast<const FourAnywhere*>(p); }
PLUGSTREAM_INLINE void store4(float* p, Four v) { *reinterpret_cast<FourAnywhere*>(p) = v; }

// Row a of m times four vectors.
template <class Vector>
PLUGSTREAM_INLINE Vector combine(const float* m, int a, Vector p0, Vector p1, Vector p2, Vector p3) {
    m += a * block;
    return (m[0] * p0 + m[1] * p1) + (m[2] * p2 + m[3] * p3);
}

void forward(const float* volume, long plane, long pitch, const Box& box, const float* analysis, float* ring,
             float* spectra) {
    Four across[block];  // across[j][u] = analysis[u][j]
    for (int j = 0; j < block; ++j)
        for (int u = 0; u < block; ++u) across[j][u] = analysis[u * block + j];
    const long columns = box.columns, in_plane = box.rows * columns;
    float* lines = ring + block * in_plane * square;
    for (long z = 0; z < box.planes + block - 1; ++z) {
        float* filled = ring + (z % block) * in_plane * square;
        for (long y = 0; y < box.rows + block - 1; ++y) {
            const float* voxels = volume + z * plane + y * pitch;
            float* line = lines + (y % block) * columns * block;
            for (long x = 0; x < columns; ++x)
                store4(line + x * block, (across[0] * voxels[x] + across[1] * voxels[x + 1]) +
                                             (across[2] * voxels[x + 2] + across[3] * voxels[x + 3]));
            if (y < block - 1) continue;
            const float* four[block];
            for (int i = 0; i < block; ++i) four[i] = lines + ((y + 1 + i) % block) * columns * block;
            float* to = filled + (y - block + 1) * columns * square;
            for (long x = 0; x < columns; ++x, to += square) {
                const long at = x * block;
                const Four p0 = load4(four[0] + at), p1 = load4(four[1] + at);
                const Four p2 = load4(four[2] + at), p3 = load4(four[3] + at);
                for (int v = 0; v < block; ++v) store4(to + v * block, combine(analysis, v, p0, p1, p2, p3));
            }
        }
        if (z < block - 1) continue;
        const float* four[block];
        for (int i = 0; i < block; ++i) four[i] = ring + ((z + 1 + i) % block) * in_plane * square;
        float* to = spectra + (z - block + 1) * in_plane * coefficients;
        for (long at = 0; at < in_plane * square; at += square, to += coefficients)
            for (int part = 0; part < square; part += lanes) {
                const Floats p0 = load(four[0] + at + part), p1 = load(four[1] + at + part);
                const Floats p2 = load(four[2] + at + part), p3 = load(four[3] + at + part);
                for (int w = 0; w < block; ++w) store(to + w * square + part, combine(analysis, w, p0, p1, p2, p3));
            }
    }
}

void inverse(float* spectra, float* weights, const Box& box, const float* synthesis, const float* kaiser, float* ring,
             float* top, float* bottom) {
    constexpr int over = block - 1;
    const long columns = box.columns, in_plane = box.rows * columns;
    const long width = columns + over, height = box.rows + over, depth = box.planes + over;
    // The window is folded into the matrix.
    float scaled[square];
    Four across[block];  // across[u][j] = scaled[j][u]
    for (int i = 0; i < block; ++i)
        for (int u = 0; u < block; ++u) across[u][i] = scaled[i * block + u] = synthesis[i * block + u] * kaiser[i];
    float* lines = ring + block * in_plane * square;
    float* spread = lines + block * columns * block;
    for (long k = 0; k < block * in_plane * square + block * columns * block; ++k) ring[k] = 0;
    for (long k = 0; k < depth * height * width; ++k) top[k] = bottom[k] = 0;
    for (long z = 0; z < depth; ++z) {
        if (z < box.planes) {
            float *spectrum = spectra + z * in_plane * coefficients, *weight = weights + z * in_plane;
            for (long at = 0; at < in_plane; ++at, spectrum += coefficients) {
                if (weight[at] == 0) continue;  // never found: its spectrum is zero
                for (int part = 0; part < square; part += lanes) {
                    const Floats p0 = load(spectrum + part), p1 = load(spectrum + square + part);
                    const Floats p2 = load(spectrum + 2 * square + part), p3 = load(spectrum + 3 * square + part);
                    for (int i = 0; i < block; ++i) {
                        float* to = ring + ((z + i) % block * in_plane + at) * square + part;
                        store(to, load(to) + combine(scaled, i, p0, p1, p2, p3));
                        store(spectrum + i * square + part, Floats{});
                    }
                }
            }
            for (long y = 0; y < box.rows; ++y) {
                float* row = weight + y * columns;
                for (long x = 0; x < width; ++x) spread[x] = 0;
                for (int j = 0; j < block; ++j)
                    for (long x = 0; x < columns; ++x) spread[x + j] += kaiser[j] * row[x];
                for (long x = 0; x < columns; ++x) row[x] = 0;
                for (int i = 0; i < square; ++i) {
                    const float factor = kaiser[i / block] * kaiser[i % block];
                    float* to = bottom + ((z + i / block) * height + y + i % block) * width;
                    for (long x = 0; x < width; ++x) to[x] += factor * spread[x];
                }
            }
        }
        float* filled = ring + (z % block) * in_plane * square;
        for (long y = 0; y < height; ++y) {
            if (y < box.rows) {
                float* from = filled + y * columns * square;
                for (long x = 0; x < columns; ++x, from += square) {
                    const Four p0 = load4(from), p1 = load4(from + 4), p2 = load4(from + 8), p3 = load4(from + 12);
                    for (int i = 0; i < block; ++i) {
                        float* to = lines + ((y + i) % block * columns + x) * block;
                        store4(to, load4(to) + combine(scaled, i, p0, p1, p2, p3));
                        store4(from + i * block, Four{});
                    }
                }
            }
            float *line = lines + (y % block) * columns * block, *to = top + (z * height + y) * width;
            for (long x = 0; x < columns; ++x, line += block) {
                store4(to + x, load4(to + x) + ((across[0] * line[0] + across[1] * line[1]) +
                                                (across[2] * line[2] + across[3] * line[3])));
                store4(line, Four{});
            }
        }
    }
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const FilterKernels filter_kernels = {forward, inverse, bm3d::threshold<true>, bm3d::wiener<true>};
}

}  // namespace plugstream::bm4d
