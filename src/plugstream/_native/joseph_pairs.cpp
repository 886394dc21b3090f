// On a plane two rays at p and q share sum_n tri(p - n) tri(q - n) along each of its axes, and the product of both in all.
// Planes on which no pair of a block is near enough are left out.
#include "joseph_pairs.hpp"

#include "joseph_windows.hpp"

namespace plugstream::joseph::PLUGSTREAM_LEVEL {
namespace {

constexpr float still = 1e-20f;  // a slope that stands for none, since it has to divide

PLUGSTREAM_INLINE Floats triangle(Floats x) { return greater(1.0f - absolute(x), Floats{}); }

// Voxels are those from 0 to `size` - 1; with `inside` both that are next to p are known to be.
template <bool inside>
PLUGSTREAM_INLINE Floats share_axis(Floats p, Floats q, float size) {
    const Floats below = ((p - 0.5f) + magic) - magic, part = p - below, away = q - below;
    Floats low = 1.0f - part, high = part;
    if constexpr (!inside) {
        low = (below >= 0.0f) & (below < size) ? low : Floats{};
        high = (below >= -1.0f) & (below < size - 1.0f) ? high : Floats{};
    }
    return low * triangle(away) + high * triangle(away - 1.0f);
}

// Two blocks of rays, along both axes of the planes.
struct Two {
    Floats p[2], q[2], along[2], beside[2];
    float size[2];
};

template <bool inside>
PLUGSTREAM_INLINE Floats share_planes(const Two& two, long begin, long end, Floats sum) {
    for (long plane = begin; plane < end; ++plane) {
        const float k = static_cast<float>(plane);
        sum += share_axis<inside>(two.p[0] + k * two.along[0], two.q[0] + k * two.beside[0], two.size[0]) *
               share_axis<inside>(two.p[1] + k * two.along[1], two.q[1] + k * two.beside[1], two.size[1]);
    }
    return sum;
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
        Two two;
        Floats first{}, last = spread(static_cast<float>(planes.count - 1)), enter = first, leave = last;
        for (int axis = 0; axis < 2; ++axis) {
            two.size[axis] = static_cast<float>(planes.size[axis]);
            two.p[axis] = load(one.start[axis] + at);
            two.q[axis] = load(other.start[axis] + at);
            two.along[axis] = load(one.slope[axis] + at);
            two.beside[axis] = load(other.slope[axis] + at);
            narrow(two.p[axis], two.along[axis], -1.0f, two.size[axis], first, last);
            narrow(two.q[axis] - two.p[axis], two.beside[axis] - two.along[axis], -2.0f, 2.0f, first, last);
            narrow(two.p[axis], two.along[axis], 0.01f, two.size[axis] - 1.01f, enter, leave);
        }
        // From `begin` to `end` a pair may share something; from `open` to `close` all rays that count are inside.
        long begin = planes.count, end = 0;
        for (int k = 0; k < lanes && at + k < count; ++k) {
            if (!(first[k] <= last[k])) continue;
            const long from = static_cast<long>(first[k]), to = static_cast<long>(last[k]) + 2;
            begin = from < begin ? from : begin;
            end = to > end ? to : end;
        }
        end = end < planes.count ? end : planes.count;
        float late = 0.0f, early = static_cast<float>(planes.count - 1);
        for (int k = 0; k < lanes && at + k < count; ++k) {
            late = enter[k] > late ? enter[k] : late;
            early = leave[k] < early ? leave[k] : early;
        }
        long open = end, close = end;
        if (late <= early) {
            open = static_cast<long>(late) + 1;
            open = open < begin ? begin : open < end ? open : end;
            close = static_cast<long>(early);
            close = close < open ? open : close < end ? close : end;
        }
        Floats sum = share_planes<false>(two, begin, open, Floats{});
        sum = share_planes<true>(two, open, close, sum);
        store(sums + at, share_planes<false>(two, close, end, sum));
    }
}

}  // namespace

const Pairs pairs{share};

}  // namespace plugstream::joseph::PLUGSTREAM_LEVEL
