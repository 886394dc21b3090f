// Joseph's projector for CUDA: the kernels of ct_cuda.py, which compiles them at run time; ct_joseph.py specifies them.
//
// Volumes lie as [y][x][z] and data as [view][column][row], so that the threads of a warp, which differ in z or row,
// read neighbours. Volumes have a margin of zeros, so that no loop asks whether a place is inside. The adjoint gathers:
// each voxel adds up the few rays that meet it, in a fixed order, with the weights of the forward direction.
//
// Compiled without contraction: what is fused is written as fmaf, and rays get the same numbers in every kernel. Every
// kernel has the same arguments, and none synchronises threads, so that tests run this very text on the CPU.

struct Problem {
    int views, rows, columns;       // of the data that these kernels see
    int depth, height, width;       // voxels along z, y, x
    int parallel, axis;             // axis: 1 for rays that advance along y, 2 along x; what an adjoint pass adds up
    int margin, z_margin, z_size;   // zeros around x and y; before z; numbers along z with all margins
    int row_margin, row_size;       // zeros before rows, and numbers along rows with all margins
    int column_margin, large;       // columns of zeros on either side; whether a volume has 2^32 numbers or more
    int batches, lines, length;     // of `pack` and `unpack`: matrices of `lines` rows of `length` neighbours
    int scaled, sum;                // whether `pack` multiplies by the rays' steps; whether an adjoint pass adds
    int first_plane;                // of a launch of `gather_cells`
    float first_row, beyond_row;    // of its data, from the middle, plus WHOLE
    float uneven;                   // how far rows are from equally many in equal heights, in rows of a thread's cells
    long long batch_stride, line_stride;      // where they lie as users have them
    long long packed_batch, packed_place, packed_line;  // and as the kernels do: one matrix, one number, one row to the next
    double spacing[3], origin[3];   // z, y, x
    const double* vectors;          // (all views, 12): source or direction, centre, u, v as x, y, z
    const double* middles;          // (all views, columns, 3), the middle row's pixels of a curved detector, or null
    const int* index;               // (views), which of all
    const float* maps;              // (all views, 2, 6), the column of a place, for either axis
    const int* spans;               // (all views, 2, 2), the first and the last column that advance along either axis
    const float4* forms;            // (views, 7), of ct_forms.py
    float4 *table, *steps, *ranges; // (views, columns, 2), or (views, 2) for parallel rays; (views, columns); (views, 2)
    float* edges;                   // of `gather_cells`
    const int* chosen;              // which matrices `pack` reads, or null for all in order
};

struct Line {                       // of a ray: places along the two other axes at the middle plane of its own
    int axis;
    double start[2], slope[2], step;
};

__device__ static Line find_line(const Problem& p, int view, int column, double row) {
    const int number = p.index[view];
    const double* vector = p.vectors + 12ll * number;
    double place[3], slope[3], square = 0;
    for (int b = 0; b < 3; ++b) {
        const double middle = p.middles ? p.middles[((long long)number * p.columns + column) * 3 + b]
                                        : vector[3 + b] + (column - (p.columns - 1) * 0.5) * vector[6 + b];
        const double pixel = middle + row * vector[9 + b], way = p.parallel ? vector[b] : pixel - vector[b];
        place[2 - b] = (pixel - p.origin[2 - b]) / p.spacing[2 - b];
        slope[2 - b] = way / p.spacing[2 - b];
        square += way * way;
    }
    Line line;
    line.axis = fabs(slope[0]) >= fabs(slope[1]) && fabs(slope[0]) >= fabs(slope[2]) ? 0
                : fabs(slope[1]) >= fabs(slope[2])                                   ? 1
                                                                                     : 2;
    const int a = line.axis, one = a == 0 ? 1 : 0, two = a == 2 ? 1 : 2;
    const double middle = ((a == 0 ? p.depth : a == 1 ? p.height : p.width) - 1) * 0.5;
    line.slope[0] = slope[one] / slope[a];
    line.slope[1] = slope[two] / slope[a];
    line.start[0] = place[one] + (middle - place[a]) * line.slope[0];
    line.start[1] = place[two] + (middle - place[a]) * line.slope[1];
    line.step = sqrt(square) / fabs(slope[a]);
    return line;
}

// The planes on which a place start + k slope, k from the middle, is nearer than one voxel to any of `size`: what is
// left of [*first, *last]. One thousandth of a voxel more does not matter, since the margin is two of them.
__device__ static void narrow(float start, float slope, int size, float middle, int* first, int* last) {
    const float low = -1.001f - start, high = size + 0.001f - start;
    if (fabsf(slope) < 1e-7f) {
        if (low > 0 || high < 0) *last = -1;
        return;
    }
    const float one = low / slope + middle, two = high / slope + middle;
    *first = max(*first, (int)ceilf(fminf(fmaxf(fminf(one, two), -1.0f), 1e9f)));
    *last = min(*last, (int)floorf(fminf(fmaxf(fmaxf(one, two), -1.0f), 1e9f)));
}

__device__ static float4 operator*(float w, float4 v) { return make_float4(w * v.x, w * v.y, w * v.z, w * v.w); }
__device__ static float multiply_add(float w, float v, float sum) { return fmaf(w, v, sum); }
__device__ static float4 multiply_add(float w, float4 v, float4 sum) {
    return make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z), fmaf(w, v.w, sum.w));
}
__device__ static float no(float) { return 0.0f; }
__device__ static float4 no(float4) { return make_float4(0, 0, 0, 0); }

// The integer below a place, as the low bits of a number that is so large that it has no fraction; | place | < 2^21.
constexpr float WHOLE = 12582912.0f;  // 1.5 * 2^23
constexpr unsigned WHOLE_BITS = 0x4B400000u;

// Slices that rays do not leave: one thread has one ray, in one slice or in four neighbours (T is float or float4).
template <class T>
__device__ static void project_slices(const Problem& p, const T* volume, T* out) {
    const int z = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    const int view = blockIdx.z, deep = p.z_size / (int)(sizeof(T) / sizeof(float));
    if (z >= deep || column >= p.columns) return;
    const Line line = find_line(p, view, column, 0.0);
    const bool along_y = line.axis == 1;
    const int planes = along_y ? p.height : p.width, size = along_y ? p.width : p.height;
    const float middle = (planes - 1) * 0.5f, start = (float)line.start[1], slope = (float)line.slope[1];
    const long long wide = (long long)(p.width + 2 * p.margin) * deep;
    const long long stride = along_y ? wide : deep, across = along_y ? deep : wide;
    int first = 0, last = planes - 1;
    narrow(start, slope, size, middle, &first, &last);
    const T* plane = volume + z + p.margin * (wide + deep) + first * stride - 2 * across;
    const unsigned each = (unsigned)across, shift = 2 * each - WHOLE_BITS * each;  // offsets wrap, their sum does not
    T sum = no(T());
    float k = first - middle;
#pragma unroll 4
    for (int left = last - first; left >= 0; --left, plane += stride, k += 1.0f) {
        const float place = fmaf(k, slope, start), below = __fadd_rd(place, WHOLE), part = place - (below - WHOLE);
        const T* voxel = plane + (__float_as_uint(below) * each + shift);
        sum = multiply_add(1.0f - part, voxel[0], multiply_add(part, voxel[across], sum));
    }
    out[((long long)view * p.columns + column) * deep + z] = (float)line.step * sum;
}

extern "C" __global__ void __launch_bounds__(256, 4) project_four_slices(Problem p, const float* volume, float* out) {
    project_slices(p, (const float4*)volume, (float4*)out);
}

extern "C" __global__ void project_one_slice(Problem p, const float* volume, float* out) {
    project_slices(p, volume, out);
}

// Any ray: one thread each, a warp along a column of the detector. NEXT is the stride of the first other axis if known;
// Offset has 32 bits where a volume's numbers can be counted so.
template <int NEXT, class Offset>
__device__ static float follow_ray(const Problem& p, const Line& line, const float* volume) {
    const int sizes[3] = {p.depth, p.height, p.width};
    const long long strides[3] = {1, (long long)(p.width + 2 * p.margin) * p.z_size, p.z_size};
    const int a = line.axis, one = a == 0 ? 1 : 0, two = a == 2 ? 1 : 2;
    const float middle = (sizes[a] - 1) * 0.5f;
    const float start_one = (float)line.start[0], slope_one = (float)line.slope[0];
    const float start_two = (float)line.start[1], slope_two = (float)line.slope[1];
    int first = 0, last = sizes[a] - 1;
    narrow(start_one, slope_one, sizes[one], middle, &first, &last);
    narrow(start_two, slope_two, sizes[two], middle, &first, &last);
    const Offset next = NEXT ? NEXT : (Offset)strides[one], across = (Offset)strides[two];
    const Offset zero = WHOLE_BITS * (next + across);  // offsets wrap around, and the sum does not
    // From two voxels below the first along both axes, so that no offset is negative.
    const long long corner = p.margin * (strides[1] + strides[2]) + p.z_margin - 2 * (strides[one] + strides[two]);
    const float* plane = volume + corner + first * strides[a];
    const Offset shift = 2 * (next + across) - zero;
    float sum = 0, k = first - middle;
#pragma unroll 4
    for (int left = last - first; left >= 0; --left, plane += strides[a], k += 1.0f) {
        const float high = fmaf(k, slope_one, start_one), wide = fmaf(k, slope_two, start_two);
        const float below = __fadd_rd(high, WHOLE), beside = __fadd_rd(wide, WHOLE);
        const float up = high - (below - WHOLE), right = wide - (beside - WHOLE);
        const Offset offset = __float_as_uint(below) * next + __float_as_uint(beside) * across + shift;
        const float* voxel = plane + offset;
        const float *other = voxel + across, low_near = voxel[0], low_far = other[0];
        const float near = fmaf(up, voxel[next] - low_near, low_near), far = fmaf(up, other[next] - low_far, low_far);
        sum += fmaf(right, far - near, near);
    }
    return (float)line.step * sum;
}

extern "C" __global__ void project_rays(Problem p, const float* volume, float* out) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    const int view = blockIdx.z;
    if (row >= p.rows || column >= p.columns) return;
    const Line line = find_line(p, view, column, row - (p.rows - 1) * 0.5);
    out[((long long)view * p.columns + column) * p.rows + row] =
        line.axis == 0 || p.large ? follow_ray<0, unsigned long long>(p, line, volume)
                                  : follow_ray<1, unsigned>(p, line, volume);
}

constexpr float FAR = 1e9f;

// Of each column whose rays have one place across at every plane, 8 numbers: that place at the middle plane and its
// change from plane to plane, 0, 0 (far off where the axis is another); z = a + b row at the middle plane as a, change of a, b, change of b. Of a view
// of parallel rays, for either axis the 4 numbers of `add_parallel`, the last being 0 for the axis that is not its own.
// Of each column, the square of the rays' step: 1, row and row^2 times three numbers. Of each view, its map and span.
extern "C" __global__ void tabulate(Problem p, const float*, float*) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, view = blockIdx.y;
    if (column >= p.columns) return;
    const Line line = find_line(p, view, column, 0.0), next = find_line(p, view, column, 1.0);
    const long long place = (long long)view * p.columns + column;
    const double here = line.step * line.step;
    if (p.parallel) {
        const float* map = p.maps + 12ll * p.index[view];
        for (int axis = 1; axis <= 2 && column == 0; ++axis, map += 6)
            p.table[2 * view + axis - 1] =
                make_float4(map[0], map[1], map[2], axis == line.axis ? 1.0f / fabsf(map[0]) : 0.0f);
        p.steps[place] = make_float4((float)here, 0, 0, 0);
        return;
    }
    if (column == 0) {
        const float* map = p.maps + 12ll * p.index[view] + 6 * (p.axis - 1);
        const int* span = p.spans + 4ll * p.index[view] + 2 * (p.axis - 1);
        p.ranges[2 * view] = make_float4(map[0], map[1], map[2], map[3]);
        p.ranges[2 * view + 1] = make_float4(map[4], map[5], (float)span[0], (float)span[1]);
    }
    p.table[2 * place] = make_float4(line.axis == p.axis ? (float)line.start[1] : FAR, (float)line.slope[1], 0, 0);
    p.table[2 * place + 1] =
        make_float4((float)line.start[0], (float)line.slope[0], (float)(next.start[0] - line.start[0]),
                    (float)(next.slope[0] - line.slope[0]));
    const double before = find_line(p, view, column, -1.0).step, after = next.step * next.step;
    const double bend = 0.5 * (after + before * before) - here;
    p.steps[place] = make_float4((float)here, (float)(after - here - bend), (float)bend, 0);
}

constexpr int ACROSS = 4;  // voxels across that a thread adds up

struct Tile {              // the voxels of a thread: neighbours on a plane
    int plane, first;
    float distance, left;  // the same, from the volume's middle
    long long stride, start;
    int size;
    bool inside;
};

__device__ static Tile find_tile(const Problem& p, int deep) {
    Tile tile;
    const bool along_y = p.axis == 1;
    const int planes = along_y ? p.height : p.width;
    tile.size = along_y ? p.width : p.height;
    tile.first = (blockIdx.y * blockDim.y + threadIdx.y) * ACROSS;
    tile.plane = blockIdx.z * blockDim.z + threadIdx.z;
    tile.distance = tile.plane - (planes - 1) * 0.5f;
    tile.left = tile.first - (tile.size - 1) * 0.5f;
    const long long wide = (long long)p.width * deep;
    tile.stride = along_y ? deep : wide;
    tile.start = tile.plane * (along_y ? wide : (long long)deep) + tile.first * tile.stride;
    tile.inside = tile.plane < planes && tile.first < tile.size;
    return tile;
}

// The columns of a view that come within a voxel of a tile's; false if there are none.
__device__ static bool find_columns(const Problem& p, int view, const Tile& tile, int* low, int* high) {
    const float4 map = p.ranges[2 * view], rest = p.ranges[2 * view + 1];
    if (rest.z > rest.w) return false;
    const float top = fmaf(map.y, tile.distance, map.z), bottom = fmaf(rest.x, tile.distance, rest.y);
    const float before = tile.left - 1, after = tile.left + ACROSS;
    const float one = __fdividef(fmaf(map.x, before, top), fmaf(map.w, before, bottom));
    const float two = __fdividef(fmaf(map.x, after, top), fmaf(map.w, after, bottom));
    const float first = fmaxf(ceilf(fminf(one, two) - 0.01f), rest.z), last = fminf(floorf(fmaxf(one, two) + 0.01f), rest.w);
    if (first > last) return false;
    *low = (int)first;
    *high = (int)last;
    return true;
}

__device__ static void find_weights(const float4 ray, const Tile& tile, float* weights) {
    const float place = fmaf(tile.distance, ray.y, ray.x) - tile.first;
    for (int n = 0; n < ACROSS; ++n) weights[n] = fmaxf(1.0f - fabsf(place - n), 0.0f);
}

// Parallel rays: a voxel's weight falls from 1 at its own column to 0 at one voxel from it, in the same way everywhere.
template <class T>
__device__ static void add_parallel(const Problem& p, const T* data, int deep, int z, const Tile& tile, T* sums) {
    const T* values = data + (long long)p.column_margin * deep + z;
    const float4* maps = p.table + (p.axis - 1);
    const long long size = (long long)(p.columns + 2 * p.column_margin) * deep;
    float4 following = maps[0];
    for (int view = 0; view < p.views; ++view, values += size) {
        const float4 map = following;  // columns a voxel across, a plane, and at the middle; voxels a column
        following = maps[2 * min(view + 1, p.views - 1)];
        if (map.w == 0.0f) continue;
        const float reach = fabsf(map.x), lowest = -1.0f - reach, highest = p.columns + reach;
        const float place = fmaf(map.x, tile.left, fmaf(map.y, tile.distance, map.z));
        if (reach <= 1.0f) {
#pragma unroll
            for (int n = 0; n < ACROSS; ++n) {
                const float column = fminf(fmaxf(fmaf((float)n, map.x, place), lowest), highest);
                const float below = __fadd_rd(column, WHOLE), part = column - (below - WHOLE);
                const T* value = values + (int)(__float_as_uint(below) - WHOLE_BITS) * deep;
                sums[n] = multiply_add(fmaxf(fmaf(-part, map.w, 1.0f), 0.0f), value[0], sums[n]);
                sums[n] = multiply_add(fmaxf(fmaf(part - 1.0f, map.w, 1.0f), 0.0f), value[deep], sums[n]);
            }
        } else {
            for (int n = 0; n < ACROSS; ++n) {
                const float column = fminf(fmaxf(fmaf((float)n, map.x, place), lowest), highest);
                const float from = ceilf(column - reach), to = column + reach;
                const T* value = values + (int)from * deep;
                for (float c = from; c < to; c += 1.0f, value += deep)
                    sums[n] = multiply_add(fmaxf(fmaf(-fabsf(c - column), map.w, 1.0f), 0.0f), *value, sums[n]);
            }
        }
    }
}

template <class T>
__device__ static void add_fans(const Problem& p, const T* data, int deep, int z, const Tile& tile, T* sums) {
    for (int view = 0; view < p.views; ++view) {
        int low, high;
        if (!find_columns(p, view, tile, &low, &high)) continue;
        const float4* rays = p.table + (long long)view * p.columns * 2;
        const T* values = data + ((long long)view * (p.columns + 2 * p.column_margin) + p.column_margin) * deep + z;
        for (int column = low; column <= high; ++column) {
            const float4 ray = rays[2 * column];
            const T value = values[(long long)column * deep];
            float weights[ACROSS];
            find_weights(ray, tile, weights);
            for (int n = 0; n < ACROSS; ++n) sums[n] = multiply_add(weights[n], value, sums[n]);
        }
    }
}

template <class T>
__device__ static void gather_slices(const Problem& p, const T* data, T* out) {
    const int deep = p.z_size / (int)(sizeof(T) / sizeof(float)), z = blockIdx.x * blockDim.x + threadIdx.x;
    const Tile tile = find_tile(p, deep);
    if (z >= deep || !tile.inside) return;
    T sums[ACROSS];
    for (int n = 0; n < ACROSS; ++n) sums[n] = no(T());
    if (p.parallel)
        add_parallel(p, data, deep, z, tile, sums);
    else
        add_fans(p, data, deep, z, tile, sums);
    for (int n = 0; n < ACROSS && tile.first + n < tile.size; ++n) {
        T* to = out + tile.start + n * tile.stride + z;
        *to = p.sum ? multiply_add(1.0f, sums[n], *to) : sums[n];
    }
}

extern "C" __global__ void __launch_bounds__(256, 5) gather_four_slices(Problem p, const float* data, float* out) {
    gather_slices(p, (const float4*)data, (float4*)out);
}

extern "C" __global__ void gather_one_slice(Problem p, const float* data, float* out) { gather_slices(p, data, out); }

constexpr int WARP = 32;

constexpr int ALONG = 4;  // voxels along z that a thread adds up in cones, a warp apart

// What the values of a column, which begin at `start`, are at z, z + WARP, ...: of the rows within one voxel, ROWS of
// them or, for 0, any number.
template <int ROWS, bool CLAMP>
__device__ static void resample(const float* data, unsigned start, float zero, float each, float size, int rows, float* out) {
    const float reach = fabsf(each), lowest = -1.0f - reach, highest = rows + reach;
    const float second = 1.0f - size, third = second - size;
    start -= WHOLE_BITS;
#pragma unroll
    for (int t = 0; t < ALONG; ++t) {
        float row = fmaf((float)(t * WARP), each, zero);
        if (CLAMP) row = fminf(fmaxf(row, lowest), highest);
        if (ROWS == 2) {
            const float below = __fadd_rd(row, WHOLE), part = row - (below - WHOLE);
            const float* value = data + (start + __float_as_uint(below));
            out[t] = fmaf(fmaxf(fmaf(part, size, second), 0.0f), value[1],
                          fmaxf(fmaf(-part, size, 1.0f), 0.0f) * value[0]);
        } else if (ROWS == 3) {
            const float from = __fadd_ru(row - reach, WHOLE), part = row - (from - WHOLE);
            const float* value = data + (start + __float_as_uint(from));
            const float sum = fmaf(fmaxf(fmaf(-fabsf(part - 1.0f), size, 1.0f), 0.0f), value[1],
                                   fmaxf(fmaf(-part, size, 1.0f), 0.0f) * value[0]);
            out[t] = fmaf(fmaxf(fmaf(part, size, third), 0.0f), value[2], sum);
        } else {
            const float from = ceilf(row - reach), to = row + reach;
            const float* value = data + (start + WHOLE_BITS + (unsigned)(int)from);
            out[t] = 0;
            for (float n = from; n < to; n += 1.0f, ++value)
                out[t] = fmaf(fmaxf(fmaf(-fabsf(n - row), size, 1.0f), 0.0f), *value, out[t]);
        }
    }
}

// Cones whose columns are parallel to z: of a column, the rows near a voxel follow from z = a + b row.
template <bool CLAMP>
__device__ static void gather_cone(const Problem& p, const float* data, float* out) {
    const int z = blockIdx.x * WARP * ALONG + threadIdx.x;
    const Tile tile = find_tile(p, p.depth);
    if (z >= p.depth || !tile.inside) return;
    const float middle = (p.rows - 1) * 0.5f, high_z = (float)z;
    float sums[ALONG][ACROSS];
    for (int t = 0; t < ALONG; ++t)
        for (int n = 0; n < ACROSS; ++n) sums[t][n] = 0;
    for (int view = 0; view < p.views; ++view) {
        int low, high;
        if (!find_columns(p, view, tile, &low, &high)) continue;
        const float4* rays = p.table + ((long long)view * p.columns + low) * 2;
        unsigned start = (unsigned)(view * p.columns + low) * p.row_size + p.row_margin;
        float4 next_ray = rays[0], next_up = rays[1];
        for (int left = high - low; left >= 0; --left, start += p.row_size) {
            const float4 ray = next_ray, up = next_up;
            rays += left > 0 ? 2 : 0;
            next_ray = rays[0];
            next_up = rays[1];
            const float a = fmaf(tile.distance, up.y, up.x), b = fmaf(tile.distance, up.w, up.z), size = fabsf(b);
            const float each = __fdividef(1.0f, b), zero = fmaf(high_z - a, each, middle);
            float found[ALONG], weights[ACROSS];
            if (size >= 1.0f)
                resample<2, CLAMP>(data, start, zero, each, size, p.rows, found);
            else if (size >= 0.67f)
                resample<3, CLAMP>(data, start, zero, each, size, p.rows, found);
            else
                resample<0, CLAMP>(data, start, zero, each, size, p.rows, found);
            find_weights(ray, tile, weights);
#pragma unroll
            for (int t = 0; t < ALONG; ++t)
                for (int n = 0; n < ACROSS; ++n) sums[t][n] = fmaf(weights[n], found[t], sums[t][n]);
        }
    }
    for (int t = 0; t < ALONG && z + t * WARP < p.depth; ++t)
        for (int n = 0; n < ACROSS && tile.first + n < tile.size; ++n) {
            float* to = out + tile.start + n * tile.stride + z + t * WARP;
            *to = p.sum ? *to + sums[t][n] : sums[t][n];
        }
}

// With more registers fewer warps run at once, and more of what they share is still in the cache.
extern "C" __global__ void __launch_bounds__(128, 8) gather_cone_inside(Problem p, const float* data, float* out) {
    gather_cone<false>(p, data, out);
}

extern "C" __global__ void __launch_bounds__(128, 8) gather_cone_beyond(Problem p, const float* data, float* out) {
    gather_cone<true>(p, data, out);
}

constexpr int PACKED = 4;  // lines that a thread moves

// The step of a flat detector's ray, 0 if it does not advance along p.axis. That is decided in double precision where it
// is close, as for the same ray forward.
__device__ static float find_step(const Problem& p, int view, int column, double row) {
    const double* vector = p.vectors + 12ll * p.index[view];
    float slope[3], square = 0;
    for (int b = 0; b < 3; ++b) {
        const double across = (column - (p.columns - 1) * 0.5) * vector[6 + b] + row * vector[9 + b];
        const float way = (float)(p.parallel ? vector[b] : vector[3 + b] - vector[b] + across);
        slope[2 - b] = fabsf(way) / (float)p.spacing[2 - b];
        square = fmaf(way, way, square);
    }
    const float most = fmaxf(fmaxf(slope[0], slope[1]), slope[2]), own = slope[p.axis];
    const float other = p.axis == 0 ? fmaxf(slope[1], slope[2]) : fmaxf(slope[0], slope[3 - p.axis]);
    if (fminf(own, other) > 0.9999f * most) {
        const Line ray = find_line(p, view, column, row);
        return ray.axis == p.axis ? (float)ray.step : 0.0f;
    }
    return own == most ? sqrtf(square) / own : 0.0f;
}

// From as users have them, [batch][line][place] or [line][batch][place], to [batch][place][line].
extern "C" __global__ void pack(Problem p, const float* from, float* to) {
    const int place = blockIdx.x * blockDim.x + threadIdx.x, batch = blockIdx.z;
    const int first = (blockIdx.y * blockDim.y + threadIdx.y) * PACKED;
    if (place >= p.length || first >= p.lines) return;
    const long long source = p.chosen ? p.chosen[batch] : batch;
    float values[PACKED];
    for (int n = 0; n < PACKED; ++n) {
        const int line = first + n;
        values[n] = line < p.lines ? from[source * p.batch_stride + line * p.line_stride + place] : 0.0f;
    }
    if (p.scaled == 3) {
        for (int n = 0; n < PACKED; ++n) {
            const float step = find_step(p, batch, place, first + n - (p.rows - 1) * 0.5);
            values[n] = step > 0 ? step * values[n] : 0.0f;
        }
    } else if (p.scaled) {
        const float4 step = p.steps[(long long)batch * p.columns + place];
        for (int n = 0; n < PACKED; ++n) {
            const float row = p.scaled == 1 ? 0.0f : first + n - (p.rows - 1) * 0.5f;
            values[n] *= sqrtf(fmaf(row, fmaf(row, step.z, step.y), step.x));
        }
    }
    float* out = to + batch * p.packed_batch + place * p.packed_place + first * p.packed_line;
    if (p.packed_line == 1 && p.packed_place % 4 == 0 && (unsigned long long)out % 16 == 0 && first + PACKED <= p.lines)
        *(float4*)out = make_float4(values[0], values[1], values[2], values[3]);
    else
        for (int n = 0; n < PACKED && first + n < p.lines; ++n) out[n * p.packed_line] = values[n];
}

extern "C" __global__ void unpack(Problem p, const float* from, float* to) {
    const int place = blockIdx.x * blockDim.x + threadIdx.x, batch = blockIdx.z;
    const int first = (blockIdx.y * blockDim.y + threadIdx.y) * PACKED;
    if (place >= p.length || first >= p.lines) return;
    const float* in = from + batch * p.packed_batch + place * p.packed_place + first;
    float4 values = make_float4(0, 0, 0, 0);
    if (p.packed_place % 4 == 0 && (unsigned long long)in % 16 == 0 && first + PACKED <= p.lines) {
        values = *(const float4*)in;
    } else {
        values.x = in[0];
        if (first + 1 < p.lines) values.y = in[1];
        if (first + 2 < p.lines) values.z = in[2];
        if (first + 3 < p.lines) values.w = in[3];
    }
    const float each[PACKED] = {values.x, values.y, values.z, values.w};
    for (int n = 0; n < PACKED && first + n < p.lines; ++n)
        to[batch * p.batch_stride + (first + n) * p.line_stride + place] = each[n];
}
