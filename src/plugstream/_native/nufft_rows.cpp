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

template <int width>
void read(const Work& work, const float* cells, const int* order, long count, float* values) {
    const long pitch = 2 * work.grid.size[2], plane = pitch * work.grid.size[1];
    for (long n = 0; n < count; ++n) {
        const long point = order[n];
        const Spot<width> spot(work, point);
        float sum[2 * width] = {};
        for (int i = 0; i < work.points.width[0]; ++i)
            for (int j = 0; j < work.points.width[1]; ++j) {
                const float* row = cells + 2 * spot.start + i * plane + j * pitch;
                const float weight = spot.weights[0][i] * spot.weights[1][j];
                for (int k = 0; k < 2 * width; ++k) sum[k] += weight * row[k];
            }
        float real = 0, imaginary = 0;
        for (int k = 0; k < width; ++k) {
            real += spot.weights[2][k] * sum[2 * k];
            imaginary += spot.weights[2][k] * sum[2 * k + 1];
        }
        values[2 * point] = real;
        values[2 * point + 1] = spot.flipped ? -imaginary : imaginary;
    }
}

template <int width>
void write(const Work& work, float* cells, const int* order, long count, const float* values, long low, long high) {
    const long pitch = 2 * work.grid.size[2], plane = pitch * work.grid.size[1];
    for (long n = 0; n < count; ++n) {
        const long point = order[n];
        const Spot<width> spot(work, point);
        const float real = values[2 * point], imaginary = spot.flipped ? -values[2 * point + 1] : values[2 * point + 1];
        float share[2 * width];
        for (int k = 0; k < width; ++k) {
            share[2 * k] = spot.weights[2][k] * real;
            share[2 * k + 1] = spot.weights[2][k] * imaginary;
        }
        const long first = work.points.first[3 * point];
        for (int i = 0; i < work.points.width[0]; ++i) {
            if (first + i < low || first + i >= high) continue;
            for (int j = 0; j < work.points.width[1]; ++j) {
                float* row = cells + 2 * spot.start + i * plane + j * pitch;
                const float weight = spot.weights[0][i] * spot.weights[1][j];
                for (int k = 0; k < 2 * width; ++k) row[k] += weight * share[k];
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
