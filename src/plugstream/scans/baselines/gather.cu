// Back-projection by interpolation for CUDA: the kernels of gather_cuda.py, which compiles them at run time. What they
// compute is specified by voxel_views.py: the sum over views of the data at the place that sees each voxel.
//
// Sums lie as [y][x][z] and data as [view][column][line], where a line is a slice or a row of the detector, so that the
// threads of a warp, which differ in z, read neighbours; zeros around the data stand for what is outside the detector.
// Places are counted from the volume's middle, all of it, and sums go on from what they were: blocks of slices and of
// views make no difference to a bit. No kernel synchronises threads, so that tests run this very text on the CPU.

struct Problem {
    int views, rows, columns;      // of the data that are given
    int depth, height, width;      // voxels of these sums along z, y, x
    int size, first_slice;         // numbers along z of the sums; which slice of the volume is the first here
    int lines, length;             // numbers along a packed line; from one row to the next before
    int first_row, all_rows;       // which row of the detector is the first of these; rows of the whole detector
    int parallel, sum, planes;     // sum: whether sums go on; planes: whether lines are slices, read from rows
    float middle[3];               // of the volume, as numbers of voxels: x, y, z
    const float4* forms;           // (views, 4): 1, x, y, z of column * scale, row * scale, scale, and U
    const float* scales;           // (views)
    const double* places;          // (views, 2): the row that sees slice 0, and rows from a slice to the next
};

constexpr int ACROSS = 4;    // voxels along x of a thread, where slices are summed
constexpr int BESIDE = 2;    // and where rays cross slices
constexpr int ALONG = 4;     // voxels along z of a thread where rays cross slices, a warp apart
constexpr int WARP = 32;
constexpr int PACKED = 4;    // lines that a thread moves
constexpr int BEFORE = 1, AROUND = 3;  // zeros before the data, and before and after them together

// A float from -2^22 to 2^22 plus this has its whole part in the last bits.
constexpr float WHOLE = 12582912.0f;  // 1.5 * 2^23
constexpr unsigned WHOLE_BITS = 0x4B400000u;

// A number that lies so many bytes behind an address that all threads have, below 2^32: one instruction finds it.
template <typename T> __device__ static T read(const T* data, unsigned offset) {
    return *(const T*)((const char*)data + offset);
}

__device__ static void blend(float4& sum, float low, float high, float4 one, float4 two) {
    sum.x = fmaf(high, two.x, fmaf(low, one.x, sum.x));
    sum.y = fmaf(high, two.y, fmaf(low, one.y, sum.y));
    sum.z = fmaf(high, two.z, fmaf(low, one.z, sum.z));
    sum.w = fmaf(high, two.w, fmaf(low, one.w, sum.w));
}

__device__ static void blend(float& sum, float low, float high, float one, float two) {
    sum = fmaf(high, two, fmaf(low, one, sum));
}

__device__ static float place(float4 form, float x, float y) { return fmaf(form.z, y, fmaf(form.y, x, form.x)); }

// Slices that rays do not leave: all of them read the same columns, four in a thread if T is float4.
template <typename T, bool PARALLEL> __device__ static void gather_slices(const Problem& p, const T* data, T* out) {
    const int lanes = p.size * sizeof(float) / sizeof(T), next = p.lines * sizeof(float) / sizeof(T);
    const int z = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.z * blockDim.z + threadIdx.z;
    const int x = (blockIdx.y * blockDim.y + threadIdx.y) * ACROSS;
    if (z >= lanes || y >= p.height || x >= p.width) return;
    T sums[ACROSS];
    T* to = out + ((long long)y * p.width + x) * lanes + z;
#pragma unroll
    for (int n = 0; n < ACROSS; ++n) sums[n] = p.sum && x + n < p.width ? to[n * lanes] : T();
    const float wide = x - p.middle[0], deep = y - p.middle[1], last = p.columns;
    const unsigned column_bytes = p.lines * sizeof(float), start = z * sizeof(T) - (WHOLE_BITS - BEFORE) * column_bytes;
    for (int view = 0; view < p.views; ++view, data += (p.columns + AROUND) * (long long)next) {
        const float4 column = p.forms[4 * view];
#pragma unroll
        for (int n = 0; n < ACROSS; ++n) {
            float u = place(column, wide + n, deep), weight = 1.0f;
            if (!PARALLEL) {
                const float depth = place(p.forms[4 * view + 3], wide + n, deep);
                u = __fdividef(u, place(p.forms[4 * view + 2], wide + n, deep));
                weight = __fdividef(1.0f, depth * depth);
            }
            u = fminf(fmaxf(u, -1.0f), last);
            const float below = __fadd_rd(u, WHOLE), part = u - (below - WHOLE);
            const unsigned offset = __float_as_uint(below) * column_bytes + start;
            blend(sums[n], PARALLEL ? 1.0f - part : weight - weight * part, PARALLEL ? part : weight * part,
                  read(data, offset), read(data + next, offset));
        }
    }
#pragma unroll
    for (int n = 0; n < ACROSS; ++n)
        if (x + n < p.width) to[n * lanes] = sums[n];
}

extern "C" __global__ void __launch_bounds__(256, 5) gather_four_parallel(Problem p, const float* data, float* out) {
    gather_slices<float4, true>(p, (const float4*)data, (float4*)out);
}

extern "C" __global__ void gather_one_parallel(Problem p, const float* data, float* out) {
    gather_slices<float, true>(p, data, out);
}

extern "C" __global__ void gather_four_fan(Problem p, const float* data, float* out) {
    gather_slices<float4, false>(p, (const float4*)data, (float4*)out);
}

extern "C" __global__ void gather_one_fan(Problem p, const float* data, float* out) {
    gather_slices<float, false>(p, data, out);
}

// Rays that cross slices. Where the detector's columns are parallel to z (UPRIGHT), all voxels of one x and y are seen
// by the same place between two columns, and their rows are equally far apart.
template <bool UPRIGHT> __device__ static void gather_rows(const Problem& p, const float* data, float* out) {
    const int z = blockIdx.x * WARP * ALONG + threadIdx.x, y = blockIdx.z * blockDim.z + threadIdx.z;
    const int x = (blockIdx.y * blockDim.y + threadIdx.y) * BESIDE;
    if (z >= p.depth || y >= p.height || x >= p.width) return;
    float sums[BESIDE][ALONG];
    float* to = out + ((long long)y * p.width + x) * p.size + z;
#pragma unroll
    for (int n = 0; n < BESIDE; ++n)
        for (int t = 0; t < ALONG; ++t)
            sums[n][t] = p.sum && x + n < p.width && z + t * WARP < p.depth ? to[n * p.size + t * WARP] : 0.0f;
    const float wide = x - p.middle[0], deep = y - p.middle[1], high = z + p.first_slice - p.middle[2];
    const float last = p.columns, top = p.first_row + p.rows, bottom = p.first_row - 1.0f;
    const unsigned column_bytes = p.lines * sizeof(float);  // offsets wrap around, and their sum does not
    const unsigned start = (BEFORE - p.first_row - WHOLE_BITS) * sizeof(float) - (WHOLE_BITS - BEFORE) * column_bytes;
    for (int view = 0; view < p.views; ++view, data += (p.columns + AROUND) * (long long)p.lines) {
        const float4 column = p.forms[4 * view], row = p.forms[4 * view + 1], scale = p.forms[4 * view + 2];
        const float4 depth = p.forms[4 * view + 3];
#pragma unroll
        for (int n = 0; n < BESIDE; ++n) {
            const float column_zero = place(column, wide + n, deep), row_zero = place(row, wide + n, deep);
            const float scale_zero = place(scale, wide + n, deep), far = place(depth, wide + n, deep);
            const float weight = __fdividef(1.0f, far * far), inverse = __fdividef(1.0f, scale_zero);
            const float line_zero = row_zero * inverse, line_step = row.w * inverse;
            float u = fminf(fmaxf(column_zero * inverse, -1.0f), last);
            float below = __fadd_rd(u, WHOLE), part = u - (below - WHOLE);
            float right = weight * part, left = weight - right;
            unsigned offset = __float_as_uint(below) * column_bytes + start;
#pragma unroll
            for (int t = 0; t < ALONG; ++t) {
                const float at = high + (float)(t * WARP);
                float v = fmaf(line_step, at, line_zero);
                if (!UPRIGHT) {
                    const float each = __fdividef(1.0f, fmaf(scale.w, at, scale_zero));
                    v = fmaf(row.w, at, row_zero) * each;
                    u = fminf(fmaxf(fmaf(column.w, at, column_zero) * each, -1.0f), last);
                    below = __fadd_rd(u, WHOLE);
                    part = u - (below - WHOLE);
                    right = weight * part;
                    left = weight - right;
                    offset = __float_as_uint(below) * column_bytes + start;
                }
                v = fminf(fmaxf(v, bottom), top);
                const float under = __fadd_rd(v, WHOLE), share = v - (under - WHOLE);
                const unsigned at_row = __float_as_uint(under) * sizeof(float) + offset;
                const float one = read(data, at_row), two = read(data + p.lines, at_row);
                const float one_up = read(data + 1, at_row), two_up = read(data + p.lines + 1, at_row);
                sums[n][t] = fmaf(left, fmaf(share, one_up - one, one), sums[n][t]);
                sums[n][t] = fmaf(right, fmaf(share, two_up - two, two), sums[n][t]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < BESIDE; ++n)
        for (int t = 0; t < ALONG; ++t)
            if (x + n < p.width && z + t * WARP < p.depth) to[n * p.size + t * WARP] = sums[n][t];
}

// With 64 registers a thread has all its loads under way at once, which is worth more than more threads.
extern "C" __global__ void __launch_bounds__(256, 4) gather_upright(Problem p, const float* data, float* out) {
    gather_rows<true>(p, data, out);
}

extern "C" __global__ void __launch_bounds__(256, 4) gather_any(Problem p, const float* data, float* out) {
    gather_rows<false>(p, data, out);
}

// Rows of the detector, (views, rows, length), as [view][column][line] with zeros around, times the views' scales.
extern "C" __global__ void pack(Problem p, const float* from, float* to) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x - BEFORE, view = blockIdx.z;
    const int first = (blockIdx.y * blockDim.y + threadIdx.y) * PACKED;
    if (column >= p.columns + AROUND - BEFORE || first >= p.lines) return;
    const bool inside = column >= 0 && column < p.columns;
    const float scale = p.scales[view];
    from += view * (long long)p.rows * p.length + column;
    float values[PACKED];
    for (int n = 0; n < PACKED; ++n) {
        const int line = first + n;
        values[n] = 0.0f;
        if (!inside) continue;
        if (!p.planes) {
            const int row = line - BEFORE;
            if (row >= 0 && row < p.rows) values[n] = scale * from[(long long)row * p.length];
        } else if (line < p.depth) {  // slices just beyond the outermost rows are theirs
            const double row = p.places[2 * view] + p.places[2 * view + 1] * (p.first_slice + line);
            if (row <= -0.5 - 1e-9 || row >= p.all_rows - 0.5 + 1e-9) continue;
            const int low = max((int)floor(row), 0), high = min(low + 1, p.all_rows - 1);
            const float part = fmaxf((float)(row - low), 0.0f);
            values[n] = scale * fmaf(part, from[(long long)(high - p.first_row) * p.length],
                                     (1.0f - part) * from[(long long)(low - p.first_row) * p.length]);
        }
    }
    to += ((long long)view * (p.columns + AROUND) + column + BEFORE) * p.lines + first;
    if (p.lines % 4 == 0)
        *(float4*)to = make_float4(values[0], values[1], values[2], values[3]);
    else
        for (int n = 0; n < PACKED && first + n < p.lines; ++n) to[n] = values[n];
}

// From [y x][z] to [z][y x].
extern "C" __global__ void unpack(Problem p, const float* from, float* to) {
    const long long places = (long long)p.height * p.width;
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const int first = (blockIdx.y * blockDim.y + threadIdx.y) * PACKED;
    if (at >= places || first >= p.depth) return;
    from += at * p.size + first;
    float each[PACKED];
    if (p.size % 4 == 0) {
        const float4 values = *(const float4*)from;
        each[0] = values.x, each[1] = values.y, each[2] = values.z, each[3] = values.w;
    } else {
        for (int n = 0; n < PACKED; ++n) each[n] = first + n < p.depth ? from[n] : 0.0f;
    }
    for (int n = 0; n < PACKED && first + n < p.depth; ++n) to[(first + n) * places + at] = each[n];
}
