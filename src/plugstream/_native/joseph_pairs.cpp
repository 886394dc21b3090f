// On a plane two rays at p and q share sum_n tri(p - n) tri(q - n) along each of its axes, and the product of both in all.
// Planes on which no pair of a block is near enough are left out.
#include "joseph_pairs.hpp"

#include "joseph_windows.hpp"

namespace plugstream::joseph::PLUGSTREAM_LEVEL {
namespace {

constexpr float still = 1e-20f;  // a slope that stands for none, since it has to divide

PLUGSTREAM_INLINE Floats triangle(Floats x) { return greater(1.0f - absolute(x), Floats{}); }

// Voxels are those from 0 to `size` - 1.
PLUGSTREAM_INLINE Floats share_axis(Floats p, Floats q, float size) {
    const Floats below = ((p - 0.5f) + magic) - magic, part = p - below, away = q - below;
    const Floats low = (below >= 0.0f) & (below < size) ? 1.0f - part : Floats{};
    const Floats high = (below >= -1.0f) & (below < size - 1.0f) ? part : Floats{};
    return low * triangle(away) + high * triangle(away - 1.0f);
}

// The planes k on which start + k slope is between low and high.
PLUGSTREAM_INLINE void narrow(Floats start, Floats slope, float low, float high, Floats& first, Floats& last) {
    const Floats rate = absolute(slope) < still ? spread(still) : slope;
    const Floats one = (low - start) / rate, two = (high - start) / rate;
    first = greater(first, lesser(one, two));
    last = lesser(last, greater(one, two));
}

void share(const Bundle& one, const Bundle& other, const Planes& planes, int count, float* sums) {
    for (int at = 0; at < block; at += lanes) {
        Floats p[2], q[2], along[2], beside[2], first{}, last = spread(static_cast<float>(planes.count - 1)), sum{};
        const float size[2] = {static_cast<float>(planes.size[0]), static_cast<float>(planes.size[1])};
        for (int axis = 0; axis < 2; ++axis) {
            p[axis] = load(one.start[axis] + at);
            q[axis] = load(other.start[axis] + at);
            along[axis] = load(one.slope[axis] + at);
            beside[axis] = load(other.slope[axis] + at);
            narrow(p[axis], along[axis], -1.0f, size[axis], first, last);
            narrow(q[axis] - p[axis], beside[axis] - along[axis], -2.0f, 2.0f, first, last);
        }
        long begin = planes.count, end = 0;
        for (int k = 0; k < lanes && at + k < count; ++k) {
            if (!(first[k] <= last[k])) continue;
            const long from = static_cast<long>(first[k]), to = static_cast<long>(last[k]) + 2;
            begin = from < begin ? from : begin;
            end = to > end ? to : end;
        }
        end = end < planes.count ? end : planes.count;
        for (long plane = begin; plane < end; ++plane) {
            const float k = static_cast<float>(plane);
            sum += share_axis(p[0] + k * along[0], q[0] + k * beside[0], size[0]) *
                   share_axis(p[1] + k * along[1], q[1] + k * beside[1], size[1]);
        }
        store(sums + at, sum);
    }
}

}  // namespace

const Pairs pairs{share};

}  // namespace plugstream::joseph::PLUGSTREAM_LEVEL
