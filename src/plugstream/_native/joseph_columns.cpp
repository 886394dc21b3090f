// Forward, two columns of voxels are blended first, and the blend is looked up at the pixels' heights, a window of
// registers at a time. The adjoint sums the pixels near each voxel of one column, and adds that to two.
#include "joseph_columns.hpp"

#include "joseph_windows.hpp"

namespace plugstream::joseph::PLUGSTREAM_LEVEL {
namespace {

// The integer below, of what is above -2^20.
PLUGSTREAM_INLINE int below(float x) { return static_cast<int>(x + 1048576.0f) - 1048576; }

// Without permutations (vectors = 0) every lane looks up its own voxels.
template <int vectors>
PLUGSTREAM_INLINE void project_with(const float* near, const float* far, float part, long depth, float start, float rise,
                                    long rows, float* sums) {
    const float left = static_cast<float>(-(depth / 2)) - 1.5f, right = static_cast<float>(depth - depth / 2) - 0.5f;
    const Floats numbers = lane_numbers();
    near += depth / 2;
    far += depth / 2;
    const float span = rise * (lanes - 1), down = lesser(span, 0.0f), up = greater(span, 0.0f);
    for (long k = 0; k < rows; k += lanes) {
        const float begin = static_cast<float>(k - rows / 2);
        const float low = begin * rise + start + down, high = begin * rise + start + up;
        if (!(high > left && low < right)) continue;
        const Floats at = (numbers + begin) * rise + start;
        Floats seen;
        if constexpr (vectors > 0) {
            const int first = below(low) - 1;  // one or two to spare
            Window<vectors> window(near + first);
            window.blend(far + first, part);
            const Floats rounded = at + magic;
            const Places places(bits(rounded) - (magic_bits + first));
            const Floats one = window.take(places), next = window.take(places, 1);
            seen = one + ((at - (rounded - magic)) + 0.5f) * (next - one);
        } else {
            const Floats inside = greater(lesser(at, spread(right)), spread(left));  // voxels outside are zero already
            const Floats rounded = inside + magic;
            const Ints index = bits(rounded) - magic_bits;
            const Floats height = (inside - (rounded - magic)) + 0.5f;
            auto look = [&](const float* column) __attribute__((always_inline)) {
                const Floats one = gather(column, index), next = gather(column, index + 1);
                return one + height * (next - one);
            };
            const Floats here = look(near);
            seen = here + part * (look(far) - here);
        }
        store(sums + k, load(sums + k) + seen);
    }
}

void project(const float* near, const float* far, float part, long depth, float start, float rise, long rows,
             float* sums) {
#if defined(__AVX2__) || defined(__aarch64__)
    if (with_window(absolute(rise) * (lanes - 1) + 4.0f, [&](auto vectors) __attribute__((always_inline)) {
            project_with<vectors.value>(near, far, part, depth, start, rise, rows, sums);
        }))
        return;
#endif
    project_with<0>(near, far, part, depth, start, rise, rows, sums);
}

// What pixels leave on the voxels of a block, whose first is at `x`: of `count` pixels from `index` on in a window.
template <int count, int vectors>
PLUGSTREAM_INLINE Floats weigh(const Window<vectors>& data, Places places, Floats pixel, float rise, float start,
                               Floats x) {
    Floats sum{};
    repeat<count>([&](auto k) __attribute__((always_inline)) {
        const Floats at = (pixel + static_cast<float>(k.value)) * rise + start;
        sum += data.take(places, k.value) * greater(1.0f - apart(at, x), Floats{});
    });
    return sum;
}

PLUGSTREAM_INLINE void add(float* near, float* far, float part, Floats sum) {
    store(near, load(near) + (1.0f - part) * sum);
    store(far, load(far) + part * sum);
}

template <int count, int vectors>
void add_blocks(const float* data, long rows, float start, float rise, float part, long depth, float around,
                float* near, float* far) {
    const Floats numbers = lane_numbers();
    const float inverse = 1 / rise, down = lesser(inverse * (lanes - 1), 0.0f);
    const float least = -static_cast<float>(rows / 2) - reach, most = static_cast<float>(rows - rows / 2) + 1;
    for (long z = 0; z < depth; z += lanes) {
        // Pixels from the middle one on, less what may lie on either side.
        const float voxel = static_cast<float>(z - depth / 2) - 0.5f, begin = (voxel - start) * inverse - around;
        const float low = begin + down;
        if (!(low > least && low < most)) continue;
        const int first = below(low) - 1;
        const Floats x = numbers + voxel;
        const Floats rounded = (numbers * inverse + (begin + 0.5f)) + magic;
        const Places places(bits(rounded) - (magic_bits + first));
        const Window<vectors> window(data + rows / 2 + first);
        add(near + z, far + z, part, weigh<count>(window, places, rounded - magic, rise, start, x));
    }
}

// Pixel by pixel, for pixels finer or wider than windows are made for.
void add_each(const float* data, long rows, float start, float rise, float part, long depth, float* near, float* far) {
    const Floats numbers = lane_numbers();
    const float middle = static_cast<float>(rows / 2), last = static_cast<float>(rows) - 1;
    for (long z = 0; z < depth; z += lanes) {
        const Floats x = numbers + (static_cast<float>(z - depth / 2) - 0.5f);
        long from = 0, to = rows;
        if (absolute(rise) > 1e-6f) {
            const float a = (x[0] - 1 - start) / rise + middle, b = (x[lanes - 1] + 1 - start) / rise + middle;
            from = static_cast<long>(greater(lesser(lesser(a, b) - 1, last + 1), 0.0f));
            to = static_cast<long>(greater(lesser(greater(a, b) + 2, last + 1), 0.0f));
        }
        if (from >= to) continue;
        Floats sum{};
        for (long k = from; k < to; ++k) {
            const float at = (static_cast<float>(k) - middle) * rise + start;
            sum += data[k] * greater(1.0f - absolute(at - x), Floats{});
        }
        add(near + z, far + z, part, sum);
    }
}

void back_project(const float* data, long rows, float start, float rise, float part, long depth, float* near,
                  float* far) {
    const float spacing = absolute(rise), across = lanes / spacing;
    const float around = 1 / spacing + 0.01f, most = 2 * around + 1;  // a little for rounding
    // From the first lane's first pixel to the last one's last, and four to spare and for rounding.
    const float wide = across * (lanes - 1) / lanes + most + 4;
    if (!(most < 9 && wide <= reach)) return add_each(data, rows, start, rise, part, depth, near, far);
    const auto add = [&](auto count) {
        with_window(wide, [&](auto vectors) {
            add_blocks<count.value, vectors.value>(data, rows, start, rise, part, depth, around, near, far);
        });
    };
    if (most < 3) return add(Index<2>{});
    if (most < 4) return add(Index<3>{});
    if (most < 5) return add(Index<4>{});
    if (most < 6) return add(Index<5>{});
    return add(Index<8>{});
}

void project_level(const float* near, const float* far, float part, long rows, float* sums) {
    for (long k = 0; k < rows; k += lanes) {
        const Floats one = load(near + k);
        store(sums + k, (load(sums + k) + one) + part * (load(far + k) - one));
    }
}

void back_project_level(const float* data, float part, long rows, float* near, float* far) {
    for (long k = 0; k < rows; k += lanes) add(near + k, far + k, part, load(data + k));
}

}  // namespace

const Columns columns{project, back_project, project_level, back_project_level};

}  // namespace plugstream::joseph::PLUGSTREAM_LEVEL
