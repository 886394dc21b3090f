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

template <int width>
struct Spot {
    static constexpr int rounded = (width + 7) / 8 * 8;
    float weights[3][rounded];
    long start;  // of the first cell, in complex numbers
    bool flipped;

    PLUGSTREAM_INLINE Spot(const Work& work, long point) {
        const Points& all = work.points;
        const int* first = all.first + 3 * point;
        const long* size = work.grid.size;
        for (int axis = 0; axis < 3; ++axis) {
            if (all.width[axis] == 1)
                weights[axis][0] = 1.0f;
            else
                weigh<rounded>(work, all.offset[3 * point + axis], weights[axis]);
        }
        start = (first[0] * size[1] + first[1]) * size[2] + first[2];
        flipped = all.flipped != nullptr && all.flipped[point] != 0;
    }
};

// The first `count` floats of a row as vectors, what is beyond them zero, and not touched in memory.
template <int count>
struct Strip {
    static constexpr int whole = count / lanes, rest = count % lanes, vectors = whole + (rest > 0);
    Floats part[vectors];

    PLUGSTREAM_INLINE Strip() {
        repeat<vectors>([&](auto n) { part[n.value] = Floats{}; });
    }
    PLUGSTREAM_INLINE explicit Strip(const float* from) {
        repeat<whole>([&](auto n) { part[n.value] = load(from + lanes * n.value); });
        if constexpr (rest > 0) {
#if defined(__AVX512F__)
            part[whole] = reinterpret_cast<Floats>(_mm512_maskz_loadu_ps((1u << rest) - 1, from + lanes * whole));
#else
            part[whole] = Floats{};
            for (int k = 0; k < rest; ++k) part[whole][k] = from[lanes * whole + k];
#endif
        }
    }
    PLUGSTREAM_INLINE void put(float* to) const {
        repeat<whole>([&](auto n) { store(to + lanes * n.value, part[n.value]); });
        if constexpr (rest > 0) {
#if defined(__AVX512F__)
            _mm512_mask_storeu_ps(to + lanes * whole, (1u << rest) - 1, reinterpret_cast<__m512>(part[whole]));
#else
            for (int k = 0; k < rest; ++k) to[lanes * whole + k] = part[whole][k];
#endif
        }
    }
    PLUGSTREAM_INLINE void add(float weight, const Strip& other) {
        repeat<vectors>([&](auto n) { part[n.value] += weight * other.part[n.value]; });
    }
};

// The weights of a point are found once for all images.
template <int width>
void read(const Work& work, const float* cells, const int* order, long count, float* values) {
    const long pitch = 2 * work.grid.size[2], plane = pitch * work.grid.size[1], image = plane * work.grid.size[0];
    for (long n = 0; n < count; ++n) {
        const long point = order[n];
        const Spot<width> spot(work, point);
        for (long m = 0; m < work.grid.images; ++m) {
            const float* corner = cells + m * image + 2 * spot.start;
            Strip<2 * width> total;
            for (int i = 0; i < work.points.width[0]; ++i)
                for (int j = 0; j < work.points.width[1]; ++j)
                    total.add(spot.weights[0][i] * spot.weights[1][j], Strip<2 * width>(corner + i * plane + j * pitch));
            float sum[2 * width];
            total.put(sum);
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

template <int width>
void write(const Work& work, float* cells, const int* order, long count, const float* values, long low, long high) {
    const long pitch = 2 * work.grid.size[2], plane = pitch * work.grid.size[1], image = plane * work.grid.size[0];
    for (long n = 0; n < count; ++n) {
        const long point = order[n];
        const Spot<width> spot(work, point);
        const long first = work.points.first[3 * point];
        for (long m = 0; m < work.grid.images; ++m) {
            const float* value = values + 2 * (m * work.points.count + point);
            const float real = value[0], imaginary = spot.flipped ? -value[1] : value[1];
            float share[2 * width];
            for (int k = 0; k < width; ++k) {
                share[2 * k] = spot.weights[2][k] * real;
                share[2 * k + 1] = spot.weights[2][k] * imaginary;
            }
            const Strip<2 * width> strip(share);
            float* corner = cells + m * image + 2 * spot.start;
            for (int i = 0; i < work.points.width[0]; ++i) {
                if (first + i < low || first + i >= high) continue;
                for (int j = 0; j < work.points.width[1]; ++j) {
                    float* row = corner + i * plane + j * pitch;
                    Strip<2 * width> there(row);
                    there.add(spot.weights[0][i] * spot.weights[1][j], strip);
                    there.put(row);
                }
            }
        }
    }
}

template <int width>
constexpr Rows of() {
    return {&read<width>, &write<width>};
}

}  // namespace

extern const Rows rows[widest + 1] = {{nullptr, nullptr}, of<1>(),  of<2>(),  of<3>(),  of<4>(),  of<5>(),
                                      of<6>(),            of<7>(),  of<8>(),  of<9>(),  of<10>(), of<11>(),
                                      of<12>(),           of<13>(), of<14>(), of<15>(), of<16>(), of<17>()};

}  // namespace plugstream::nufft::PLUGSTREAM_LEVEL
