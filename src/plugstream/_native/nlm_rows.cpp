// Compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it. It includes no standard header with inline
// functions on purpose: one compiled here for AVX-512 could be the copy that the linker keeps for everyone.
#include "nlm_rows.hpp"

#include "lanes.hpp"

namespace plugstream::nlm {
namespace {

constexpr int together = 4;  // vectors whose sums stay in registers

void affinities(const float* here, const float* there, long guide_pitch, int around, float rate, int count,
                const float* pyramid, long width, float* sums, long pitch, float* out) {
    const long reach = (width + lanes - 1) / lanes * lanes + around - 1;
    for (int j = 0; j < count; ++j)  // down the columns of the patches first, for all j: what is read then is there
        for (long x = 0; x < reach; x += lanes) {
            Floats sum = {};
            for (int k = 0; k < around; ++k) {
                const Floats apart = load(here + k * guide_pitch + x) - load(there + k * guide_pitch + x + j);
                sum += apart * apart;
            }
            store(sums + j * guide_pitch + x, sum);
        }
    for (int j = 0; j < count; ++j)
        for (long x = 0; x < width; x += lanes) {
            Floats sum = load(sums + j * guide_pitch + x);
            for (int k = 1; k < around; ++k) sum += load(sums + j * guide_pitch + x + k);
            store(out + j * pitch + x, pyramid[j] * exponential(sum * -rate));
        }
}

// out[x] += sum over j of piece[j * step + x] v[j * stride + x].
template <int images, int vectors>
PLUGSTREAM_INLINE void product(const float* piece, long step, int stride, int count, long ahead,
                               const float* const* v, float* const* out, long x) {
    Floats sums[images][vectors];
    const float* values[images];
    repeat<images>([&](auto n) {
        values[n.value] = v[n.value] + x;
        repeat<vectors>([&](auto k) { sums[n.value][k.value] = load(out[n.value] + x + k.value * lanes); });
    });
    const float* weights = piece + x;
    for (int j = 0; j < count; ++j, weights += step) {
        repeat<vectors>([&](auto k) {
            if (ahead != 0) __builtin_prefetch(weights + ahead + k.value * lanes);
            const Floats weight = load(weights + k.value * lanes);
            repeat<images>([&](auto n) { sums[n.value][k.value] += weight * load(values[n.value] + k.value * lanes); });
        });
        repeat<images>([&](auto n) { values[n.value] += stride; });
    }
    repeat<images>([&](auto n) {
        repeat<vectors>([&](auto k) { store(out[n.value] + x + k.value * lanes, sums[n.value][k.value]); });
    });
}

template <int images>
void multiply_images(const float* piece, long pitch, int first, int count, long width, const float* const* v_above,
                     const float* const* v_below, float* const* above, float* const* below) {
    const float *right[images], *left[images];
    for (int n = 0; n < images; ++n) {
        right[n] = v_below[n] + first;
        left[n] = v_above[n] - first;
    }
    // The first product fetches the piece and, while it is at it, the next one; the second finds this one in the cache.
    long x = 0;
    for (; x + (together - 1) * lanes < width; x += together * lanes)
        product<images, together>(piece, pitch, 1, count, count * pitch, right, above, x);
    for (; x < width; x += lanes) product<images, 1>(piece, pitch, 1, count, count * pitch, right, above, x);
    x = 0;
    for (; x + (together - 1) * lanes < width; x += together * lanes)
        product<images, together>(piece - first, pitch - 1, -1, count, 0, left, below, x);
    for (; x < width; x += lanes) product<images, 1>(piece - first, pitch - 1, -1, count, 0, left, below, x);
}

void multiply(const float* piece, long pitch, int first, int count, long width, int images,
              const float* const* v_above, const float* const* v_below, float* const* above, float* const* below) {
    if (images == 1)
        multiply_images<1>(piece, pitch, first, count, width, v_above, v_below, above, below);
    else
        multiply_images<2>(piece, pitch, first, count, width, v_above, v_below, above, below);
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const Rows rows = {affinities, multiply};
}  // namespace PLUGSTREAM_LEVEL

}  // namespace plugstream::nlm
