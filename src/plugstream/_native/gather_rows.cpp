// Compiled once for each instruction set. Loops are written so that the compiler makes vectors of them, with gathers.
#include "gather_rows.hpp"

namespace plugstream::gather::PLUGSTREAM_LEVEL {
namespace {

float at(const Form& form, int x) { return form.start + static_cast<float>(x) * form.step; }

// A place among `count` pixels, counted from the zero before them; beside them, and NaN, among the zeros.
float inside(float place, float count) {
    const float below = place < count ? place : count;
    return (below > -1.0f ? below : -1.0f) + 1.0f;
}

void parallel(const float* __restrict data, long columns, const Line& line, long width, float* __restrict out) {
    const Form column = line.column;
    const float most = static_cast<float>(columns);
    const int end = static_cast<int>(width);
    for (int x = 0; x < end; ++x) {
        const float place = inside(at(column, x), most);
        const int low = static_cast<int>(place);
        const float part = place - static_cast<float>(low);
        out[x] += data[low] + part * (data[low + 1] - data[low]);
    }
}

void fan(const float* __restrict data, long columns, const Line& line, long width, float* __restrict out) {
    const Form column = line.column, scale = line.scale, depth = line.depth;
    const float most = static_cast<float>(columns);
    const int end = static_cast<int>(width);
    for (int x = 0; x < end; ++x) {
        const float away = at(depth, x);
        const float place = inside(at(column, x) / at(scale, x), most);
        const int low = static_cast<int>(place);
        const float part = place - static_cast<float>(low);
        out[x] += (data[low] + part * (data[low + 1] - data[low])) / (away * away);
    }
}

void cone(const float* __restrict data, long rows, long columns, const Line& line, long width, float* __restrict out) {
    const Form column = line.column, row = line.row, scale = line.scale, depth = line.depth;
    const float most = static_cast<float>(columns), highest = static_cast<float>(rows);
    const int pitch = static_cast<int>(columns) + 3, end = static_cast<int>(width);
    for (int x = 0; x < end; ++x) {
        const float away = at(depth, x), inverse = 1.0f / at(scale, x);
        const float across = inside(at(column, x) * inverse, most), down = inside(at(row, x) * inverse, highest);
        const int low = static_cast<int>(across), above = static_cast<int>(down);
        const float part = across - static_cast<float>(low), share = down - static_cast<float>(above);
        const int first = above * pitch + low;
        const float upper = data[first] + part * (data[first + 1] - data[first]);
        const float lower = data[first + pitch] + part * (data[first + pitch + 1] - data[first + pitch]);
        out[x] += (upper + share * (lower - upper)) / (away * away);
    }
}

}  // namespace

const Rows rows{parallel, fan, cone};

}  // namespace plugstream::gather::PLUGSTREAM_LEVEL
