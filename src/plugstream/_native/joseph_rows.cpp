// Sixteen neighbouring rays (or as many as a vector has lanes) cross a row within a few pixels of each other, so that
// two loads have all that they need of it, and permutations bring every ray its two pixels. The adjoint asks from the
// other side: the few rays that come within a pixel of sixteen neighbouring pixels are found by inverting the map from
// rays to places, which is nearly linear over a block, and weighed by their exact distance.
#include "joseph_rows.hpp"

#include "joseph_windows.hpp"

namespace plugstream::joseph::PLUGSTREAM_LEVEL {
namespace {

// For each row the pixel where the window of a block of rays begins, `none` where they miss the row, and the number that
// rounds places to whole pixels from there; how many pixels windows must have.
PLUGSTREAM_INLINE Floats find_windows(const float* scale, const float* shift, int rows, float one, float other, long width,
                                      int* first, float* rounding) {
    const long middle = width / 2;
    const Floats left = spread(static_cast<float>(-middle) - 1.5f);
    const Floats right = spread(static_cast<float>(width - middle) - 0.5f);
    Floats widest{};
    for (int r = 0; r < rows; r += lanes) {
        const Floats t = load(scale + r), c = load(shift + r);
        const Floats a = t * one + c, b = t * other + c;
        const Floats low = lesser(a, b), high = greater(a, b);
        const Ints seen = (high > left) & (low < right);
        const Floats inside = greater(lesser(low, right), left - 2.0f * reach);
        // One pixel to spare, so that rounding cannot matter.
        const Floats nearest = inside + magic;
        store(first + r, seen ? bits(nearest) - (magic_bits + 1) : Ints{} + none);
        store(rounding + r, magic - ((nearest - magic) - 1.0f));
        widest = greater(widest, seen ? high - low : Floats{});
    }
    return widest + 4.0f;
}

// The sum over the rows of a tile.
template <int vectors>
PLUGSTREAM_INLINE Floats sum_rows(const float* image, long pitch, int rows, Floats q, const float* t, const float* c,
                                  const int* first, const float* rounding) {
    Floats sum{};
    const long ahead = q[lanes - 1] > q[0] ? 24 : -24;  // what one of the next blocks will want
    for (int r = 0; r < rows; ++r) {
        if (first[r] == none) continue;
        const Floats at = q * t[r] + c[r];
        const Floats rounded = at + rounding[r];
        const float* from = image + r * pitch + first[r];
        if constexpr (lanes == 4) __builtin_prefetch(from + ahead);
        const Window<vectors> window(from);
        const Places places(rounded);
        const Floats below = window.take(places), above = window.take(places, 1);
        const Floats part = (at - (rounded - rounding[r])) + 0.5f;
        sum += below + part * (above - below);
    }
    return sum;
}

void project(const float* image, long pitch, long width, const float* scale, const float* shift, int rows,
             const float* place, int blocks, float* sums) {
    const long middle = width / 2;
    alignas(64) float t[tile + lanes] = {}, c[tile + lanes] = {}, roundings[2][tile + lanes];
    alignas(64) int firsts[2][tile + lanes];
    __builtin_memcpy(t, scale, rows * sizeof(float));
    __builtin_memcpy(c, shift, rows * sizeof(float));
    for (int k = rows; k < (rows + lanes - 1) / lanes * lanes; ++k) c[k] = 1e9f;  // rows that nothing crosses
    // Windows are found one block ahead: what was just written as vectors is slow to be read as numbers.
    auto find = [&](int b) {
        const float* at = place + b * lanes;
        return find_windows(t, c, rows, at[0], at[lanes - 1], width, firsts[b % 2], roundings[b % 2]);
    };
    const int count = blocks * (block / lanes);
    Floats next = find(0);
    for (int b = 0; b < count; ++b) {
        const Floats q = load(place + b * lanes), wide = next;
        const int* first = firsts[b % 2];
        const float* rounding = roundings[b % 2];
        if (b + 1 < count) next = find(b + 1);
        Floats sum{};  // of this tile, which rounds less than one sum over all rows
        const bool narrow = with_window(wide, [&](auto vectors) __attribute__((always_inline)) {
            sum = sum_rows<vectors.value>(image + middle, pitch, rows, q, t, c, first, rounding);
        });
        if (!narrow) {
            const Floats left = spread(static_cast<float>(-middle) - 1.5f);
            const Floats right = spread(static_cast<float>(width - middle) - 0.5f);
            for (int r = 0; r < rows; ++r) {
                if (first[r] == none) continue;
                const Floats at = greater(lesser(q * t[r] + c[r], right), left);  // a pixel outside is zero already
                const Floats rounded = at + magic;
                const Ints index = bits(rounded) - magic_bits;
                const float* row = image + r * pitch + middle;
                const Floats below = gather(row, index), above = gather(row, index + 1);
                const Floats part = (at - (rounded - magic)) + 0.5f;
                sum += below + part * (above - below);
            }
        }
        store(sums + b * lanes, load(sums + b * lanes) + sum);
    }
}

// Which ray is at the first pixel of every block: starts[b], one more than there are blocks.
PLUGSTREAM_INLINE void find_starts(const Fan& given, float scale, float shift, long middle, long blocks, float* starts) {
    const Fan fan = given;  // a copy, which what is stored cannot change
    const Floats numbers = lane_numbers();
    const float inverse = 1 / scale;
    const float straight = fan.table[1] - fan.table[0];
    for (long b = 0; b <= blocks; b += lanes) {
        const Floats x = (numbers + static_cast<float>(b)) * static_cast<float>(lanes) - (static_cast<float>(middle) + 0.5f);
        const Floats entry = ((x - shift) * inverse - fan.low) * fan.rate;
        if (fan.entries == 2) {  // of a parallel beam
            store(starts + b, entry * straight + fan.table[0]);
            continue;
        }
        const Floats whole = greater(lesser(entry, spread(static_cast<float>(fan.entries - 2))), Floats{});
        const Floats rounded = (whole - 0.5f) + magic;
        const Ints k = bits(rounded) - magic_bits;
        const Ints at = k > 0 ? k : Ints{};
        const Floats here = gather(fan.table, at), next = gather(fan.table, at + 1);
        store(starts + b, here + (entry - __builtin_convertvector(at, Floats)) * (next - here));
    }
}

// Of every block: the first ray of its window, or `none` where no ray is near; where its rays begin, from there and half
// a ray later; and how many there are to a pixel.
struct Blocks {
    float *starts, *begin, *step;
    int* first;
};

PLUGSTREAM_INLINE void find_rays(const Fan& fan, float around, long blocks, const Blocks& out) {
    const Floats least = spread(-static_cast<float>(reach)), most = spread(static_cast<float>(fan.count) + 1);
    for (long b = 0; b < blocks; b += lanes) {
        const Floats one = load(out.starts + b) - around, other = load(out.starts + b + 1) - around;
        const Floats low = lesser(one, other);
        const Ints seen = (low > least) & (low < most);
        const Floats inside = greater(lesser(low, most), least);
        const Floats nearest = (inside - 0.5f) + magic;
        const Floats first = (nearest - magic) - 1.0f;  // one to spare
        store(out.begin + b, (one - first) + 0.5f);
        store(out.step + b, (other - one) * (1.0f / lanes));
        store(out.first + b, seen ? bits(nearest) - (magic_bits + 1) : Ints{} + none);
    }
}

template <int count, int vectors>
PLUGSTREAM_INLINE Floats weigh(const Window<vectors>& data, const Window<vectors>& place, Places at, float scale,
                               float shift, Floats x) {
    Floats sum{};
    repeat<count>([&](auto k) __attribute__((always_inline)) {
        const Floats off = apart(place.take(at, k.value) * scale + shift, x);
        sum += data.take(at, k.value) * greater(1.0f - off, Floats{});
    });
    return sum;
}

template <int count, int vectors>
void add_blocks(const Fan& fan, float scale, float shift, const float* data, long middle, long blocks, const Blocks& rays,
                float* out) {
    const Floats numbers = lane_numbers();
    Floats x = numbers + (static_cast<float>(-middle) - 0.5f);
    const float *place = fan.place, *begin = rays.begin, *step = rays.step;
    const int* firsts = rays.first;
    for (long b = 0; b < blocks; ++b, x += static_cast<float>(lanes)) {
        const long first = firsts[b];
        if (first == none) continue;
        // The first ray at or after u - around: the nearest integer to half a ray more.
        const Floats ray = (numbers * step[b] + begin[b]) + magic;
        const Places at(ray);
        const Window<vectors> values(data + first), places(place + first);
        store(out + b * lanes, load(out + b * lanes) + weigh<count>(values, places, at, scale, shift, x));
    }
}

// Ray by ray, for rays finer or wider than windows are made for.
void add_each(const Fan& fan, float scale, float shift, const float* data, long width, float* out) {
    const long middle = width / 2, blocks = (width + lanes - 1) / lanes;
    const Floats numbers = lane_numbers();
    auto at = [&](long ray) { return fan.place[ray] * scale + shift; };
    const bool rising = at(fan.count - 1) >= at(0);
    // The first ray in order of place that is at `x` or beyond.
    auto find = [&](float x) {
        long low = 0, high = fan.count;
        while (low < high) {
            const long half = (low + high) / 2;
            if (at(rising ? half : fan.count - 1 - half) < x)
                low = half + 1;
            else
                high = half;
        }
        return low;
    };
    const float left = static_cast<float>(-middle) - 1.5f, right = static_cast<float>(width - middle) + 0.5f;
    long start = find(left);
    for (long b = 0; b < blocks && start < fan.count; ++b) {
        const Floats x = numbers + (static_cast<float>(b * lanes - middle) - 0.5f);
        const float end = lesser(x[lanes - 1] + 1, right);
        Floats sum = load(out + b * lanes);
        long ray = start;
        for (; ray < fan.count; ++ray) {
            const long number = rising ? ray : fan.count - 1 - ray;
            const float place = at(number);
            if (place > end) break;
            sum += data[number] * greater(1.0f - absolute(place - x), Floats{});
            if (place < end - 2) start = ray;  // the next block needs the rays of the last two pixels
        }
        store(out + b * lanes, sum);
    }
}

void back_project(const Fan& fan, long row, const float* data, long width, float* starts, float* out) {
    const float scale = fan.scale[row], shift = fan.shift[row];
    const long middle = width / 2, blocks = (width + lanes - 1) / lanes;
    const float spacing = absolute(scale) * fan.least, across = lanes / spacing;
    // How far the map from places to rays can be from a straight line over a block, and a little for rounding.
    const float slack = 0.01f + 1.5f * fan.bend / fan.least * (across * across / 8 + 1);
    const float around = 1 / spacing + slack;
    const float most = 2 * around + 1;
    // From the first lane's first ray to the last one's last, and three to spare and for rounding. On ARM, where a shorter
    // window is a faster one and rays beyond it count as zero, no more than are needed.
    const float wide = most_vectors > 2 ? __builtin_floorf(across + most + 1.01f) + 1 : across * (lanes - 1) / lanes + most + 3;
    if (!(most < 9 && wide <= reach)) return add_each(fan, scale, shift, data, width, out);
    const long room = (blocks + 1 + lanes - 1) / lanes * lanes + lanes;
    const Blocks rays{starts, starts + room, starts + 2 * room, reinterpret_cast<int*>(starts + 3 * room)};
    find_starts(fan, scale, shift, middle, blocks, starts);
    find_rays(fan, around, blocks, rays);
    const auto add = [&](auto count) {
        with_window(wide, [&](auto vectors) {
            add_blocks<count.value, vectors.value>(fan, scale, shift, data, middle, blocks, rays, out);
        });
    };
    if (most < 3) return add(Index<2>{});
    if (most < 4) return add(Index<3>{});
    if (most < 5) return add(Index<4>{});
    if (most < 6) return add(Index<5>{});
    return add(Index<8>{});
}

}  // namespace

const Rows rows{project, back_project};

}  // namespace plugstream::joseph::PLUGSTREAM_LEVEL
