// The adjoint of any flat detector, which ct_cuda.py compiles together with ct_cuda.cu: rolled, tilted, steep.
//
// On a plane, a ray is in a cell between 2 x 2 voxels, and its weights are products of its place (x, z) in it. A thread
// has HIGH x WIDE cells and adds up 1, x times 1, sat(z), sat(z - 1), ... over the rays of all views, each of which is in
// one cell: four voxels share what is known of it. `fold_cells` makes voxels of these sums. Cells have rays by numbers
// that are the same bits in every thread, so that no ray is lost or counted twice.

constexpr int HIGH = 4, WIDE = 2;
constexpr int ABREAST = 4;         // groups of cells beside each other in a warp, whose columns begin alike
constexpr int SLOTS = (HIGH + 1) * (WIDE + 1);

struct Sums {                      // with weights 1 and x: of those that count fully from cell n on, of others' sat(z - n)
    float all[2][HIGH], parts[2][HIGH];
};

struct Plane {                     // sizes along the planes' axis and the two others
    int planes, high, wide;
    long long stride, next, across;
};

__device__ static Plane find_plane(const Problem& p) {
    const long long wide = (long long)p.width * p.depth;
    if (p.axis == 0) return {p.depth, p.height, p.width, 1, wide, p.depth};
    if (p.axis == 1) return {p.height, p.depth, p.width, wide, 1, p.depth};
    return {p.width, p.depth, p.height, p.depth, 1, wide};
}

// max(0, min(1, a b + c)), which is one instruction.
__device__ static float multiply_add_clamped(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    float sum;
    asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
    return sum;
#else
    return fminf(fmaxf(fmaf(a, b, c), 0.0f), 1.0f);
#endif
}

// A number that is not to be computed again where registers are scarce.
__device__ static float hold(float number) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+f"(number));
#endif
    return number;
}

struct Column {                    // of a view on a plane: Z, X and W of its ray in the middle row, and for a row more
    float z, x, distance, z_row, x_row, d_row;
};

// A ray of row r, if it is in the cells from `cell` on across: with z the cells' height up to it, sat(z - n) is known to
// be 1 for n < FROM, and 0 from n = TO on.
template <int FROM, int TO>
__device__ static void add_ray(const Column& at, float r, float value, bool valid, float cell, float low, Sums& sums) {
    const float near = __fdividef(1.0f, fmaf(r, at.d_row, at.distance));
    const float x = fmaf(r, at.x_row, at.x) * near - cell, z = fmaf(r, at.z_row, at.z);
    const float v = valid && __float_as_uint(x) < 0x3F800000u ? value : 0.0f, moment = v * x;
    sums.all[0][FROM] += v;
    sums.all[1][FROM] += moment;
#pragma unroll
    for (int n = FROM; n < TO; ++n) {
        const float part = multiply_add_clamped(z, near, -(low + n));
        sums.parts[0][n] = fmaf(part, v, sums.parts[0][n]);
        sums.parts[1][n] = fmaf(part, moment, sums.parts[1][n]);
    }
}

extern "C" __global__ void __launch_bounds__(128, 6) gather_cells(Problem p, const float* data, float* out) {
    const Plane size = find_plane(p);
    const int tiles = (size.high - 1) / HIGH + 2, groups = (size.wide + WIDE) / WIDE;
    const int number = blockIdx.x * blockDim.x + threadIdx.x;
    const int tile = number / ABREAST % tiles, group = number / (ABREAST * tiles) * ABREAST + number % ABREAST;
    const int place = blockIdx.z * blockDim.z + threadIdx.z, plane = p.first_plane + place;
    if (group >= groups || plane >= p.last_plane) return;
    const float t = (float)(plane - size.planes / 2);
    const float low = (float)((tile - 1) * HIGH - size.high / 2), top = low + HIGH, middle = low + 0.5f * HIGH;
    const float left = (float)(group * WIDE + 1);
    Sums sums[WIDE];
    for (int w = 0; w < WIDE; ++w)
        for (int n = 0; n < 2 * HIGH; ++n) sums[w].all[n / HIGH][n % HIGH] = sums[w].parts[n / HIGH][n % HIGH] = 0;
    const float4* forms = p.forms;
    unsigned corner = p.columns / 2 * p.row_size + p.row_margin + p.rows / 2 - WHOLE_BITS * (p.row_size + 1);
    for (int view = 0; view < p.views; ++view, forms += 7, corner += p.columns * p.row_size) {
        const float4 one = forms[0], two = forms[1], three = forms[2], four = forms[3];
        const float4 column = forms[4], weight = forms[5], box = forms[6];
        const float z_zero = fmaf(t, one.y, one.x), z_row = fmaf(t, one.w, one.z), z_column = fmaf(t, two.y, two.x);
        const float below = fmaf(-low, four.y, z_row), above = fmaf(-top, four.y, z_row);
        if (!(fminf(below, above) > 0.0f)) continue;
        const float x_zero = fmaf(t, two.w, two.z), x_row = fmaf(t, three.y, three.x);
        const float x_column = fmaf(t, three.w, three.z);
        const float each_below = hold(__fdividef(1.0f, below)), each_above = hold(__fdividef(1.0f, above));
        const float hit = fmaf(column.w, middle, fmaf(column.y, t, column.x));
        const float far = fmaf(weight.w, middle, fmaf(weight.y, t, weight.x));
        float edge = __fdividef(fmaf(column.z, left, hit), fmaf(weight.z, left, far));
#pragma unroll
        for (int w = 0; w < WIDE; ++w) {
            const float cell = left + w, before = edge;
            edge = hold(__fdividef(fmaf(column.z, cell + 1.0f, hit), fmaf(weight.z, cell + 1.0f, far)));
            const float from = fmaxf(ceilf(fminf(before, edge) - four.w), box.x);
            const float to = hold(fminf(fmaxf(before, edge) + four.w, box.y));
            for (float c = from; c <= to; c += 1.0f) {
                const Column at = {fmaf(c, z_column, z_zero), fmaf(c, x_column, x_zero), fmaf(c, four.z, four.x),
                                   z_row, x_row, four.y};
                const float start = fmaf(low, at.distance, -at.z) * each_below;
                const float end = fmaf(top, at.distance, -at.z) * each_above, rows = end - start;
                const float begin = __fadd_ru(start, WHOLE), stop = __fadd_ru(end, WHOLE);
                // Rows off the detector are zeros, as many as are read here.
                if (!(begin < box.w && stop > box.z)) continue;
                const unsigned side = corner + __float_as_uint(c + WHOLE) * p.row_size;
                const float* value = data + (side + __float_as_uint(begin));
                const float first = begin - WHOLE;
                if (rows >= 3.0f && rows <= 4.0f - p.uneven) {
                    const float one_value = value[0], two_value = value[1], three_value = value[2], four_value = value[3];
                    add_ray<0, 2>(at, first, one_value, true, cell, low, sums[w]);
                    add_ray<1, 3>(at, first + 1, two_value, true, cell, low, sums[w]);
                    add_ray<2, 4>(at, first + 2, three_value, true, cell, low, sums[w]);
                    add_ray<3, 4>(at, first + 3, four_value, begin + 3 < stop, cell, low, sums[w]);
                } else if (rows >= 4.0f + p.uneven && rows <= 5.0f) {
                    const float one_value = value[0], two_value = value[1], three_value = value[2], four_value = value[3];
                    const float five_value = value[4];
                    add_ray<0, 1>(at, first, one_value, true, cell, low, sums[w]);
                    add_ray<0, 2>(at, first + 1, two_value, true, cell, low, sums[w]);
                    add_ray<1, 3>(at, first + 2, three_value, true, cell, low, sums[w]);
                    add_ray<2, 4>(at, first + 3, four_value, true, cell, low, sums[w]);
                    add_ray<3, 4>(at, first + 4, five_value, begin + 4 < stop, cell, low, sums[w]);
                } else {
                    const float beyond = fminf(stop, box.w);
                    for (float row = fmaxf(begin, box.z); row < beyond; row += 1.0f)
                        add_ray<0, HIGH>(at, row - WHOLE, data[side + __float_as_uint(row)], true, cell, low, sums[w]);
                }
            }
        }
    }
    const int threads = tiles * groups;
    float* to = out + (long long)place * SLOTS * threads + group * tiles + tile;
    float carry[HIGH + 1];
    for (int n = 0; n <= HIGH; ++n) carry[n] = 0;
#pragma unroll
    for (int w = 0; w <= WIDE; ++w)
#pragma unroll
        for (int n = 0; n <= HIGH; ++n, to += threads) {
            float parts[2] = {0, 0};
            for (int b = 0; b < 2 && w < WIDE; ++b) {
                if (n > 0) parts[b] += sums[w].parts[b][n - 1];
                if (n < HIGH) parts[b] += sums[w].all[b][n] - sums[w].parts[b][n];
            }
            *to = carry[n] + parts[0] - parts[1];
            carry[n] = parts[1];
        }
}

// A voxel is a corner of up to four threads' cells; a thread makes HIGH of them.
extern "C" __global__ void fold_cells(Problem p, const float* cells, float* out) {
    const Plane size = find_plane(p);
    const int tiles = (size.high - 1) / HIGH + 2, threads = tiles * ((size.wide + WIDE) / WIDE);
    const int tile = blockIdx.x * blockDim.x + threadIdx.x + 1, wide = blockIdx.y * blockDim.y + threadIdx.y;
    if (tile >= tiles || wide >= size.wide) return;
    const int group = (wide + 1) / WIDE, w = (wide + 1) % WIDE, first = (tile - 1) * HIGH;
    const float* from = cells + (long long)blockIdx.z * SLOTS * threads + group * tiles + tile;
    float sums[HIGH];
    for (int n = 0; n < HIGH; ++n) sums[n] = from[(w * (HIGH + 1) + n) * threads];
    sums[0] += from[(w * (HIGH + 1) + HIGH) * threads - 1];
    if (w == 0) {
        from += WIDE * (HIGH + 1) * threads - tiles;
        for (int n = 0; n < HIGH; ++n) sums[n] += from[n * threads];
        sums[0] += from[HIGH * threads - 1];
    }
    float* to = out + (p.first_plane + (int)blockIdx.z) * size.stride + first * size.next + wide * size.across;
    if (size.next == 1 && size.high % 4 == 0) {
        const float4 old = p.sum ? *(float4*)to : make_float4(0, 0, 0, 0);
        *(float4*)to = make_float4(old.x + sums[0], old.y + sums[1], old.z + sums[2], old.w + sums[3]);
    } else {
        for (int n = 0; n < HIGH && first + n < size.high; ++n, to += size.next) *to = p.sum ? *to + sums[n] : sums[n];
    }
}
