// The adjoint of any flat detector, which ct_cuda.py compiles together with ct_cuda.cu: rolled, tilted, steep.
//
// On a plane, a ray is in a cell between 2 x 2 voxels, and its weights are products of its place (x, z) in it. A thread
// has HIGH cells above each other and adds up 1 and x times 1, sat(z), sat(z - 1), ... over the rays of all views, each of
// which is in one cell: four voxels share what is known of it. Threads side by side tell whose ray one is by the same bits,
// so that none is lost or counted twice. A warp adds up what its threads know of the same voxels; what it knows of those
// of other warps `fold_cells` adds.

constexpr int HIGH = 8;
constexpr int ABREAST = 4;         // threads of a warp whose cells are beside each other

struct Sums {                      // with weights 1 and x: of rays beyond all of n cells, of sat(z - n) of others
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

// max(0, min(1, a b + c)) and max(0, min(1, a + b)), each one instruction.
__device__ static float multiply_add_clamped(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    float sum;
    asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(sum) : "f"(a), "f"(b), "f"(c));
    return sum;
#else
    return fminf(fmaxf(fmaf(a, b, c), 0.0f), 1.0f);
#endif
}

__device__ static float add_clamped(float a, float b) {
#ifdef __CUDA_ARCH__
    float sum;
    asm("add.rn.ftz.sat.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
#else
    return fminf(fmaxf(a + b, 0.0f), 1.0f);
#endif
}

// A number that is not to be computed again where registers are scarce.
__device__ static float hold(float number) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+f"(number));
#endif
    return number;
}

// Read where it is written, before what comes after it asks whether it is needed.
__device__ static float4 read_now(const float4* from) {
#ifdef __CUDA_ARCH__
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
#else
    return *from;
#endif
}

// What `forms` are on each plane: (planes, views, 5).
extern "C" __global__ void tabulate_planes(Problem p, const float*, float*) {
    const int view = blockIdx.x * blockDim.x + threadIdx.x, plane = blockIdx.y;
    if (view >= p.views) return;
    const float t = (float)(plane - find_plane(p).planes / 2);
    const float4 *form = p.forms + 7 * view, one = form[0], two = form[1], three = form[2], four = form[3];
    const float4 column = form[4], distance = form[5], box = form[6];
    float4* to = p.table + 5 * ((long long)plane * p.views + view);
    to[0] = make_float4(fmaf(t, one.y, one.x), fmaf(t, one.w, one.z), fmaf(t, two.y, two.x), four.w);
    to[1] = make_float4(fmaf(t, two.w, two.z), fmaf(t, three.y, three.x), fmaf(t, three.w, three.z), box.x);
    to[2] = make_float4(four.x, four.y, four.z, box.y);
    to[3] = make_float4(fmaf(column.y, t, column.x), column.z, column.w, 0.0f);
    to[4] = make_float4(fmaf(distance.y, t, distance.x), distance.z, distance.w, 0.0f);
}

// Of a view and a column on a plane: Z, X and W of its ray in the middle row, and for a row more. Of a thread's rows, if
// they are nearly equally far apart: x and z in cells of the first, for a row more, and for its square.
struct Column {
    float z, x, distance, z_row, x_row, d_row;
    float first, first_x, first_z, each_x, each_z, bend_z;
};

// With z the height above the thread's first cell, sat(z - n) is known to be 1 for n < FROM, and 0 from n = TO on.
template <bool EVEN, int FROM, int TO>
__device__ static void add_ray(float x, float z, float near, float low, float value, bool valid, Sums& sums) {
    const float v = valid && __float_as_uint(x) < 0x3F800000u ? value : 0.0f, moment = v * x;
    sums.all[0][FROM] += v;
    sums.all[1][FROM] += moment;
#pragma unroll
    for (int n = FROM; n < TO; ++n) {
        const float part = EVEN ? add_clamped(z, (float)-n) : multiply_add_clamped(z, near, -(low + n));
        sums.parts[0][n] = fmaf(part, v, sums.parts[0][n]);
        sums.parts[1][n] = fmaf(part, moment, sums.parts[1][n]);
    }
}

template <int FROM, int TO>
__device__ static void add_exactly(const Column& at, float row, float value, bool valid, float cell, float low, Sums& sums) {
    const float near = __fdividef(1.0f, fmaf(row, at.d_row, at.distance));
    const float x = fmaf(row, at.x_row, at.x) * near - cell, z = fmaf(row, at.z_row, at.z);
    add_ray<false, FROM, TO>(x, z, near, low, value, valid, sums);
}

// Row `ROW` of ROWS or ROWS - 1 that are in a thread's cells: they are HIGH / ROWS to HIGH / (ROWS - 1) apart.
template <bool EVEN, int ROWS, int ROW>
__device__ static void add_rows(const Column& at, const float* values, bool last, float cell, float low, Sums& sums) {
    if constexpr (ROW < ROWS) {
        constexpr int from = ROW * HIGH / ROWS, beyond = ((ROW + 1) * HIGH + ROWS - 2) / (ROWS - 1);
        constexpr int to = beyond < HIGH ? beyond : HIGH;
        const bool valid = ROW < ROWS - 1 || last;
        if (EVEN)
            add_ray<true, from, to>(ROW ? fmaf((float)ROW, at.each_x, at.first_x) : at.first_x,
                                    ROW ? fmaf((float)(ROW * ROW), at.bend_z, fmaf((float)ROW, at.each_z, at.first_z))
                                        : at.first_z, 1.0f, low, values[ROW], valid, sums);
        else
            add_exactly<from, to>(at, at.first + ROW, values[ROW], valid, cell, low, sums);
        add_rows<EVEN, ROWS, ROW + 1>(at, values, last, cell, low, sums);
    }
}

struct alignas(8) Pair {
    float even, odd;
};

// COUNT values from any place on, read in pairs.
template <int COUNT>
__device__ static void read_values(const float* data, unsigned from, float* values) {
    const Pair* pairs = (const Pair*)data + (from >> 1);
    float read[COUNT + 2];
    for (int n = 0; n < COUNT / 2 + 1; ++n) {
        const Pair pair = pairs[n];
        read[2 * n] = pair.even;
        read[2 * n + 1] = pair.odd;
    }
    for (int n = 0; n < COUNT; ++n) values[n] = from & 1 ? read[n + 1] : read[n];
}

// By their number, which is `most` or one less; false if that is none of those from ROWS to 5 / 4 HIGH.
template <bool EVEN, int ROWS>
__device__ static bool choose_rows(const Column& at, const float* data, unsigned from, float most, bool last, float cell,
                                   float low, Sums& sums) {
    if constexpr (ROWS <= HIGH * 5 / 4) {
        if (most == ROWS) {
            float values[ROWS];
            read_values<ROWS>(data, from, values);
            add_rows<EVEN, ROWS, 0>(at, values, last, cell, low, sums);
            return true;
        }
        return choose_rows<EVEN, ROWS + 1>(at, data, from, most, last, cell, low, sums);
    }
    return false;
}

// Write HIGH sums of a column of voxels, or add them to what is there.
__device__ static void add_column(const Plane& size, float* out, int plane, int tile, int wide, const float* sums, bool add) {
    const int first = (tile - 1) * HIGH;
    float* to = out + plane * size.stride + first * size.next + wide * size.across;
    if (HIGH % 4 == 0 && size.next == 1 && size.high % 4 == 0) {
#pragma unroll
        for (int n = 0; n < HIGH; n += 4) {
            if (first + n >= size.high) break;
            const float4 old = add ? *(float4*)(to + n) : make_float4(0, 0, 0, 0);
            *(float4*)(to + n) =
                make_float4(old.x + sums[n], old.y + sums[n + 1], old.z + sums[n + 2], old.w + sums[n + 3]);
        }
    } else {
#pragma unroll
        for (int n = 0; n < HIGH; ++n, to += size.next) {
            if (first + n >= size.high) break;
            *to = add ? *to + sums[n] : sums[n];
        }
    }
}

// Where a warp leaves, for each plane, what others add to their voxels: of the last of its columns of cells the voxels to
// the right, and one more above them, (HIGH + 1) x tiles for each column; of its uppermost cells the voxels above, tiles
// for each column of cells.
struct Edges {
    int tiles, groups, columns;
    __device__ explicit Edges(const Plane& size)
        : tiles((size.high - 1) / HIGH + 2), groups(size.wide + 1), columns((groups + ABREAST - 1) / ABREAST) {}
    __device__ long long size() const { return (long long)tiles * ((HIGH + 1) * columns + groups); }
    __device__ int right(int tile, int group, int n) const { return (group / ABREAST * (HIGH + 1) + n) * tiles + tile; }
    __device__ int above(int tile, int group) const { return ((HIGH + 1) * columns + group) * tiles + tile; }
    __device__ bool is_uppermost(int tile, int column) const { return (column * tiles + tile + 1) * ABREAST % 32 == 0; }
};

template <bool EVEN>
__device__ static void gather_cells(const Problem& p, const float* data, float* out) {
    const Plane size = find_plane(p);
    const Edges edges(size);
    const int number = blockIdx.x * blockDim.x + threadIdx.x;
    const int tile = number / ABREAST % edges.tiles, group = number / (ABREAST * edges.tiles) * ABREAST + number % ABREAST;
    const int place = blockIdx.z, plane = p.first_plane + place, lane = threadIdx.x % 32;
    const float low = (float)((tile - 1) * HIGH - size.high / 2), top = low + HIGH, middle = low + 0.5f * HIGH;
    const float cell = (float)(min(group, size.wide) + 3), uneven = p.uneven + 1e-4f;
    Sums sums;
    for (int n = 0; n < 2 * HIGH; ++n) sums.all[n / HIGH][n % HIGH] = sums.parts[n / HIGH][n % HIGH] = 0;
    const float4* table = p.table + 5ll * plane * p.views;
    unsigned corner = p.columns / 2 * p.row_size + p.row_margin + p.rows / 2 - WHOLE_BITS * (p.row_size + 1);
    for (int view = 0; view < p.views; ++view, table += 5, corner += p.columns * p.row_size) {
        const float4 z = read_now(table), x = read_now(table + 1), d = read_now(table + 2);
        const float4 hit = read_now(table + 3), far = read_now(table + 4);
        const float middle_hit = fmaf(hit.z, middle, hit.x), middle_far = fmaf(far.z, middle, far.x);
        const float below = hold(fmaf(-low, d.y, z.y)), above = fmaf(-top, d.y, z.y);
        const float last = fminf(below, above) > 0.0f ? d.w : -FAR;
        const float each_below = hold(__fdividef(1.0f, below)), each_above = hold(__fdividef(1.0f, above));
        const float before = __fdividef(fmaf(hit.y, cell, middle_hit), fmaf(far.y, cell, middle_far));
        const float after = __fdividef(fmaf(hit.y, cell + 1.0f, middle_hit), fmaf(far.y, cell + 1.0f, middle_far));
        const float from = fmaxf(ceilf(fminf(before, after) - z.w), x.w);
        const float to = hold(fminf(fmaxf(before, after) + z.w, last));
        for (float c = from; c <= to; c += 1.0f) {
            Column at = {fmaf(c, z.z, z.x), fmaf(c, x.z, x.x), fmaf(c, d.z, d.x), z.y, x.y, d.y};
            const float start = fmaf(low, at.distance, -at.z) * each_below;
            const float end = fmaf(top, at.distance, -at.z) * each_above, rows = end - start;
            const float begin = __fadd_ru(start, WHOLE), stop = __fadd_ru(end, WHOLE);
            // Rows off the detector are zeros, as many as are read here.
            if (!(begin < p.beyond_row && stop > p.first_row)) continue;
            const unsigned side = corner + __float_as_uint(c + WHOLE) * p.row_size;
            at.first = begin - WHOLE;
            if (EVEN) {
                const float near = __fdividef(1.0f, fmaf(at.first, at.d_row, at.distance));
                const float first_x = fmaf(at.first, at.x_row, at.x) * near, change = at.d_row * near;
                const float slope = fmaf(-first_x, at.d_row, at.x_row) * near;
                at.first_x = first_x - cell;
                // That of the line nearest to x in 5 / 4 HIGH rows; a multiple of 2^-22, as places from 2 on are, so
                // that x of every row is exact, whatever the cell.
                at.each_x = __fadd_rn(fmaf(slope, -0.94f * HIGH * change, slope), 3.0f) - 3.0f;
                // z is (r - start) below / W, and W changes little from row to row.
                const float since = at.first - start, height = below * near;
                at.bend_z = -height * change;
                at.first_z = since * height;
                at.each_z = fmaf(since, at.bend_z, height);
            }
            const float most = __fadd_ru(rows, WHOLE) - WHOLE, less = most - rows;
            if (less >= uneven && less <= 1.0f - uneven &&
                choose_rows<EVEN, HIGH * 3 / 4 + 1>(at, data, side + __float_as_uint(begin), most, stop - begin == most,
                                                    cell, low, sums))
                continue;
            const float beyond = fminf(stop, p.beyond_row);
            for (float row = fmaxf(begin, p.first_row); row < beyond; row += 1.0f)
                add_exactly<0, HIGH>(at, row - WHOLE, data[side + __float_as_uint(row)], true, cell, low, sums);
        }
    }
    float left[HIGH + 1], right[HIGH + 1];
#pragma unroll
    for (int n = 0; n <= HIGH; ++n) {
        float parts[2] = {0, 0};
        for (int b = 0; b < 2; ++b) {
            if (n > 0) parts[b] += sums.parts[b][n - 1];
            if (n < HIGH) parts[b] += sums.all[b][n] - sums.parts[b][n];
        }
        left[n] = parts[0] - parts[1];
        right[n] = parts[1];
        const float beside = __shfl_up_sync(0xFFFFFFFFu, right[n], 1);
        if (group % ABREAST) left[n] += beside;
    }
    const float under = __shfl_up_sync(0xFFFFFFFFu, left[HIGH], ABREAST);
    const float under_right = __shfl_up_sync(0xFFFFFFFFu, right[HIGH], ABREAST);
    if (group >= edges.groups) return;  // not earlier, as threads of a warp wait for each other
    if (tile > 0 && lane >= ABREAST) left[0] += under, right[0] += under_right;
    float* const own = p.edges + place * edges.size();
    if (group % ABREAST == ABREAST - 1)
        for (int n = 0; n <= HIGH; ++n) own[edges.right(tile, group, n)] = right[n];
    if (lane >= 32 - ABREAST) own[edges.above(tile, group)] = left[HIGH];
    if (tile > 0 && group > 0) add_column(size, out, plane, tile, group - 1, left, p.sum);
}

// Rows are equally far apart on all of a thread's cells, but for less than rounding.
extern "C" __global__ void __launch_bounds__(128, 7) gather_even_cells(Problem p, const float* data, float* out) {
    gather_cells<true>(p, data, out);
}

extern "C" __global__ void __launch_bounds__(128, 7) gather_uneven_cells(Problem p, const float* data, float* out) {
    gather_cells<false>(p, data, out);
}

// What warps know of the voxels of others: a thread has those of ABREAST columns, from the last of the warps to the left on.
extern "C" __global__ void fold_cells(Problem p, const float*, float* out) {
    const Plane size = find_plane(p);
    const Edges edges(size);
    const int tile = blockIdx.x * blockDim.x + threadIdx.x + 1, column = blockIdx.y * blockDim.y + threadIdx.y;
    const int plane = p.first_plane + (int)blockIdx.z, wide = column * ABREAST - 1;
    if (tile >= edges.tiles || column >= edges.columns) return;
    const float* const own = p.edges + blockIdx.z * edges.size();
    const bool upper = edges.is_uppermost(tile - 1, column);
    if (column > 0 && wide < size.wide) {
        float sums[HIGH];
        for (int n = 0; n < HIGH; ++n) sums[n] = own[edges.right(tile, wide, n)];
        if (edges.is_uppermost(tile - 1, column - 1)) sums[0] += own[edges.right(tile - 1, wide, HIGH)];
        if (upper) sums[0] += own[edges.above(tile - 1, wide + 1)];
        add_column(size, out, plane, tile, wide, sums, true);
    }
    float* to = out + plane * size.stride + (tile - 1) * HIGH * size.next + (wide + 1) * size.across;
    for (int n = 1; upper && n < ABREAST && wide + n < size.wide; ++n, to += size.across)
        *to += own[edges.above(tile - 1, wide + 1 + n)];
}
