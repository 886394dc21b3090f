// A point's cells are rows of neighbours along the last axis. Reading, rows are summed with the weights of the other two
// axes and weighted along the last axis once, at the end; writing is the same backwards.
#include "nufft_rows.hpp"

#include "lanes.hpp"

namespace plugstream::nufft::PLUGSTREAM_LEVEL {
namespace {

// The weights of the cells along an axis.
template <int rounded>
PLUGSTREAM_INLINE void weigh(const Work& work, float offset, float* out) {
    const float z = 2 * offset - 1;
    float sum[rounded] = {};
    for (int power = work.degree; power >= 0; --power)
        for (int k = 0; k < rounded; ++k) sum[k] = sum[k] * z + work.coefficients[power][k];
    for (int k = 0; k < rounded; ++k) out[k] = sum[k];
}

template <int vectors>
struct Spot {
    static constexpr int rounded = (vectors * lanes / 2 + 7) / 8 * 8;
    float weights[3][rounded];
    long start;  // of the first cell, in complex numbers
    bool flipped;

    PLUGSTREAM_INLINE Spot(const Work& work, long point) {
        const Points& all = work.points;
        const int* first = all.first + 3 * point;
        const long* size = work.grid.size;
        for (int axis = 0; axis < 3; ++axis) {
            if (all.width[axis] == 1)
                for (int k = 0; k < rounded; ++k) weights[axis][k] = k == 0 ? 1.0f : 0.0f;
            else
                weigh<rounded>(work, all.offset[3 * point + axis], weights[axis]);
        }
        start = (first[0] * size[1] + first[1]) * size[2] + first[2];
        flipped = all.flipped != nullptr && all.flipped[point] != 0;
    }
};

// Those lanes of a vector that are the first so many, an even number.
struct Lanes {
#if defined(__AVX512F__)
    __mmask16 mask;
    explicit Lanes(int count) : mask(static_cast<__mmask16>((1u << count) - 1)) {}
    PLUGSTREAM_INLINE Floats take(const float* from) const { return (Floats)_mm512_maskz_loadu_ps(mask, from); }
    PLUGSTREAM_INLINE void put(float* to, Floats v) const { _mm512_mask_storeu_ps(to, mask, (__m512)v); }
#elif defined(__AVX2__)
    Ints mask;
    explicit Lanes(int count) {
        for (int k = 0; k < lanes; ++k) mask[k] = k < count ? -1 : 0;
    }
    PLUGSTREAM_INLINE Floats take(const float* from) const { return (Floats)_mm256_maskload_ps(from, (__m256i)mask); }
    PLUGSTREAM_INLINE void put(float* to, Floats v) const { _mm256_maskstore_ps(to, (__m256i)mask, (__m256)v); }
#else
    bool all;
    explicit Lanes(int count) : all(count == lanes) {}
    PLUGSTREAM_INLINE Floats take(const float* from) const { return all ? load(from) : Floats{from[0], from[1]}; }
    PLUGSTREAM_INLINE void put(float* to, Floats v) const {
        if (all) return store(to, v);
        to[0] = v[0];
        to[1] = v[1];
    }
#endif
};

// The first floats of a row as vectors: of the last one only some lanes, where the others are zero, and not touched in
// memory.
template <int vectors>
struct Strip {
    static constexpr int whole = vectors - 1;
    Floats part[vectors];

    PLUGSTREAM_INLINE Strip() {
        repeat<vectors>([&](auto n) { part[n.value] = Floats{}; });
    }
    PLUGSTREAM_INLINE Strip(const float* from, Lanes last) {
        repeat<whole>([&](auto n) { part[n.value] = load(from + lanes * n.value); });
        part[whole] = last.take(from + lanes * whole);
    }
    PLUGSTREAM_INLINE void put(float* to, Lanes last) const {
        repeat<whole>([&](auto n) { store(to + lanes * n.value, part[n.value]); });
        last.put(to + lanes * whole, part[whole]);
    }
    PLUGSTREAM_INLINE void add(float weight, const Strip& other) {
        repeat<vectors>([&](auto n) { part[n.value] += weight * other.part[n.value]; });
    }
};

// The weights of a point are found once for all images.
template <int vectors>
void read(const Work& work, const float* cells, const int* order, long count, float* values) {
    const int width = work.points.width[2];
    const Lanes last(2 * width - (vectors - 1) * lanes);
    const long pitch = 2 * work.grid.size[2], plane = pitch * work.grid.size[1], image = plane * work.grid.size[0];
    for (long n = 0; n < count; ++n) {
        const long point = order[n];
        const Spot<vectors> spot(work, point);
        for (long m = 0; m < work.grid.images; ++m) {
            const float* corner = cells + m * image + 2 * spot.start;
            Strip<vectors> total;
            for (int i = 0; i < work.points.width[0]; ++i)
                for (int j = 0; j < work.points.width[1]; ++j)
                    total.add(spot.weights[0][i] * spot.weights[1][j],
                              Strip<vectors>(corner + i * plane + j * pitch, last));
            float sum[vectors * lanes];
            total.put(sum, last);
            float real = 0, imaginary = 0;
            for (int k = 0; k < width; ++k) {
                real += spot.weights[2][k] * sum[2 * k];
                imaginary += spot.weights[2][k] * sum[2 * k + 1];
            }
            float* value = values + 2 * (m * work.points.count + point);
            value[0] = real;
            value[1] = spot.flipped ? -imaginary : imaginary;
        }
    }
}

template <int vectors>
void write(const Work& work, float* cells, const int* order, long count, const float* values, long low, long high) {
    const Lanes last(2 * work.points.width[2] - (vectors - 1) * lanes);
    const long pitch = 2 * work.grid.size[2], plane = pitch * work.grid.size[1], image = plane * work.grid.size[0];
    for (long n = 0; n < count; ++n) {
        const long point = order[n];
        const Spot<vectors> spot(work, point);
        const long first = work.points.first[3 * point];
        for (long m = 0; m < work.grid.images; ++m) {
            const float* value = values + 2 * (m * work.points.count + point);
            const float real = value[0], imaginary = spot.flipped ? -value[1] : value[1];
            float share[vectors * lanes];
            for (int k = 0; k < vectors * lanes / 2; ++k) {
                share[2 * k] = spot.weights[2][k] * real;
                share[2 * k + 1] = spot.weights[2][k] * imaginary;
            }
            const Strip<vectors> strip(share, last);
            float* corner = cells + m * image + 2 * spot.start;
            for (int i = 0; i < work.points.width[0]; ++i) {
                if (first + i < low || first + i >= high) continue;
                for (int j = 0; j < work.points.width[1]; ++j) {
                    float* row = corner + i * plane + j * pitch;
                    Strip<vectors> there(row, last);
                    there.add(spot.weights[0][i] * spot.weights[1][j], strip);
                    there.put(row, last);
                }
            }
        }
    }
}

// For kernels of a width along the last axis, whose cells are twice as many numbers.
template <int width>
constexpr Rows of() {
    constexpr int vectors = (2 * width + lanes - 1) / lanes;
    return {&read<vectors>, &write<vectors>};
}

}  // namespace

extern const Rows rows[widest + 1] = {{nullptr, nullptr}, of<1>(),  of<2>(),  of<3>(),  of<4>(),  of<5>(),
                                      of<6>(),            of<7>(),  of<8>(),  of<9>(),  of<10>(), of<11>(),
                                      of<12>(),           of<13>(), of<14>(), of<15>(), of<16>(), of<17>()};

}  // namespace plugstream::nufft::PLUGSTREAM_LEVEL
