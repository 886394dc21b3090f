// Rays in any direction share nothing, so each lane gathers its own four voxels. The adjoint adds to them one by one.
#include "joseph_crossings.hpp"

#include "joseph_windows.hpp"

namespace plugstream::joseph::PLUGSTREAM_LEVEL {
namespace {

// Along one axis of a plane: the voxels below and above a place as offsets, and their weights, 0 outside.
struct Pair {
    Ints low, high;
    Floats less, more;
};

PLUGSTREAM_INLINE Pair find_pair(Floats place, long size, long stride) {
    const Floats last = spread(static_cast<float>(size));
    // Places outside are brought to -1 or the size, where both weights are 0.
    const Floats at = greater(lesser(place, last), spread(-1.0f)) - 0.5f;
    const Floats rounded = at + magic;
    const Ints below = bits(rounded) - magic_bits;
    const Floats part = (at - (rounded - magic)) + 0.5f;
    const Ints end = Ints{} + static_cast<int>(size);
    const Ints low_in = (below >= 0) & (below < end), high_in = (below >= -1) & (below + 1 < end);
    Pair out;
    out.less = low_in ? 1.0f - part : Floats{};
    out.more = high_in ? part : Floats{};
    out.low = (low_in ? below : Ints{}) * static_cast<int>(stride);
    out.high = (high_in ? below + 1 : Ints{}) * static_cast<int>(stride);
    return out;
}

PLUGSTREAM_INLINE Floats place(const Bundle& rays, int axis, long first, float plane) {
    return load(rays.slope[axis] + first) * plane + load(rays.start[axis] + first);
}

void project(const float* volume, const Planes& planes, const Bundle& rays, float* sums) {
    for (long first = 0; first < block; first += lanes) {
        Floats sum{};
        for (long plane = 0; plane < planes.count; ++plane) {
            const float number = static_cast<float>(plane);
            const Pair one = find_pair(place(rays, 0, first, number), planes.size[0], planes.strides[0]);
            const Pair two = find_pair(place(rays, 1, first, number), planes.size[1], planes.strides[1]);
            if (!any((one.less + one.more) * (two.less + two.more) != 0.0f)) continue;
            const float* from = volume + plane * planes.stride;
            const Floats near = two.less * gather(from, one.low + two.low) + two.more * gather(from, one.low + two.high);
            const Floats far = two.less * gather(from, one.high + two.low) + two.more * gather(from, one.high + two.high);
            sum += one.less * near + one.more * far;
        }
        store(sums + first, load(sums + first) + sum);
    }
}

void back_project(const float* data, const Planes& planes, const Bundle& rays, long plane, float* volume) {
    float* to = volume + plane * planes.stride;
    const float number = static_cast<float>(plane);
    for (long first = 0; first < block; first += lanes) {
        const Pair one = find_pair(place(rays, 0, first, number), planes.size[0], planes.strides[0]);
        const Pair two = find_pair(place(rays, 1, first, number), planes.size[1], planes.strides[1]);
        const Floats values = load(data + first);
        if (!any((one.less + one.more) * (two.less + two.more) != 0.0f)) continue;
        const Floats near = one.less * values, far = one.more * values;
        for (int k = 0; k < lanes; ++k) {
            to[one.low[k] + two.low[k]] += near[k] * two.less[k];
            to[one.low[k] + two.high[k]] += near[k] * two.more[k];
            to[one.high[k] + two.low[k]] += far[k] * two.less[k];
            to[one.high[k] + two.high[k]] += far[k] * two.more[k];
        }
    }
}

}  // namespace

const Crossings crossings{project, back_project};

}  // namespace plugstream::joseph::PLUGSTREAM_LEVEL
