// BM4D for CUDA: the kernels of cuda_form.py; reference.py specifies them.
//
// Compiled for one RADIUS, one size of GROUP, one number of CHANNELS and one stage (WIENER). Nothing is stored of cubes but which belong to a
// group: the filter reads their voxels, transforms them between the threads of a warp, and adds the filtered voxels up.
// They are added as whole numbers, whose sum does not depend on the order.

constexpr int SPAN = 2 * RADIUS + 1, SIDE = SPAN + 3, WINDOW = SPAN * SPAN * SPAN;
constexpr int THREADS = (SPAN * SPAN + 31) / 32 * 32;
constexpr int INDEX = (1 << 12) - 1, NEVER = 0x7FFFFFFF;
constexpr int WARPS = 4;                     // of a block of the filter, a group each
constexpr float LEAST_LEVEL = 1.0f / 4096, LEAST_VARIANCE = 1e-3f, ONE = 68719476736.0f;  // 2^36

struct Problem {
    int depth, height, width;
    int step, rows, columns;          // of references: how far apart, and how many along the last two axes
    int first, count;                 // which of them this is about
    int map;                          // whether there is one level for each position, and not one for all
    float alike, factor;              // `alike` over the 64 voxels of all channels; the threshold, or Wiener's factor
    const float *noisy, *guide;       // (channels, depth, height, width)
    const float *unit, *levels;       // of the noise: a power of two, and the variance of each cube over its square
    const float* largest;             // absolute value of the volume
    const int* order;                 // (WINDOW): the candidate of each rank
    const float *analysis, *synthesis, *table, *kaiser;  // (4, 4); with the window; (4, 4, 4, 64); (4)
    int* groups;                      // (count, GROUP) of positions
    long long *total, *weights;       // (channels, voxels), (channels, positions)
    float* out;                       // (channels, depth, height, width)
};

__device__ static float power_below(float value) {
    const float power = __int_as_float(__float_as_int(value) & 0x7F800000);
    return power > 0 ? power : 1.0f;
}

__device__ static void find_reference(const Problem& p, int reference, int& z, int& y, int& x) {
    z = min(reference / (p.rows * p.columns) * p.step, p.depth - 4);
    y = min(reference / p.columns % p.rows * p.step, p.height - 4);
    x = min(reference % p.columns * p.step, p.width - 4);
}

__device__ static float tree(float a, float b, float c, float d) { return (a + b) + (c + d); }

// The cubes most like a reference: a block each; a thread has the candidates of one row and column of the window.
extern "C" __global__ void __launch_bounds__(THREADS, CHANNELS == 1 ? 4 : 2) match(Problem p, const float*, float*) {
    __shared__ float window[CHANNELS][SIDE * SIDE * SIDE];
    __shared__ __align__(16) float cube[CHANNELS][64];
    __shared__ int keys[SPAN][THREADS], counts[32], chosen[32], taken;
    const int reference = p.first + blockIdx.x, thread = threadIdx.x;
    int z, y, x;
    find_reference(p, reference, z, y, x);
    const long long voxels = (long long)p.depth * p.height * p.width;
    for (int c = 0; c < CHANNELS; ++c)
        for (int k = thread; k < SIDE * SIDE * SIDE; k += THREADS) {
            const int a = min(max(z - RADIUS + k / (SIDE * SIDE), 0), p.depth - 1);
            const int b = min(max(y - RADIUS + k / SIDE % SIDE, 0), p.height - 1);
            const int d = min(max(x - RADIUS + k % SIDE, 0), p.width - 1);
            window[c][k] = p.guide[c * voxels + ((long long)a * p.height + b) * p.width + d];
        }
    if (thread < 32) counts[thread] = 0;
    if (thread == 0) taken = 0;
    __syncthreads();
    for (int k = thread; k < 64 * CHANNELS; k += THREADS)
        cube[k / 64][k % 64] =
            window[k / 64][((RADIUS + k % 64 / 16) * SIDE + RADIUS + k / 4 % 4) * SIDE + RADIUS + k % 4];
    __syncthreads();

    const int down = thread / SPAN, over = thread % SPAN;
    const bool mine = thread < SPAN * SPAN;
    const bool inside = mine && y + down - RADIUS >= 0 && y + down - RADIUS <= p.height - 4 && x + over - RADIUS >= 0 &&
                        x + over - RADIUS <= p.width - 4;
    const long long position = (long long)z * (p.height - 3) * (p.width - 3) + (long long)y * (p.width - 3) + x;
    const float floor = p.alike * (*p.unit * *p.unit) * p.levels[p.map ? position : 0];
    float first = 0, pair = 0, third = 0, before = 0;  // sums of planes of candidates that are not complete
#pragma unroll 1
    for (int s = 0; s < SIDE; ++s) {
        // Plane s of the window is plane i of the candidate that begins at s - i.
        float sums[4][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float squares[4][4];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                const float* row = &window[c][(s * SIDE + (mine ? down : 0) + j) * SIDE + (mine ? over : 0)];
                const float v0 = row[0], v1 = row[1], v2 = row[2], v3 = row[3];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float4 own = *reinterpret_cast<const float4*>(&cube[c][(i * 4 + j) * 4]);
                    const float d0 = own.x - v0, d1 = own.y - v1, d2 = own.z - v2, d3 = own.w - v3;
                    squares[i][0] = c ? squares[i][0] + d0 * d0 : d0 * d0;
                    squares[i][1] = c ? squares[i][1] + d1 * d1 : d1 * d1;
                    squares[i][2] = c ? squares[i][2] + d2 * d2 : d2 * d2;
                    squares[i][3] = c ? squares[i][3] + d3 * d3 : d3 * d3;
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[i][j] = tree(squares[i][0], squares[i][1], squares[i][2], squares[i][3]);
        }
        float plane[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) plane[i] = tree(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
        if (s >= 3) {
            const int deep = s - 3;
            const float distance = fmaxf(before + (third + plane[3]), floor);
            const bool valid = inside && z + deep - RADIUS >= 0 && z + deep - RADIUS <= p.depth - 4;
            const int number = (deep * SPAN + down) * SPAN + over;
            keys[deep][thread] = valid ? (__float_as_int(distance) & ~INDEX) | p.order[WINDOW + number] : NEVER;
        }
        before = pair, third = plane[2];
        pair = first + plane[1];
        first = plane[0];
    }

    // The least bound that GROUP keys are within, by halving.
    int low = 0, high = NEVER - 1;
    for (int step = 0; step < 31 && low < high; ++step) {
        const int middle = low + (high - low) / 2;
        int within = 0;
#pragma unroll
        for (int k = 0; k < SPAN; ++k) within += keys[k][thread] <= middle;
        within = __reduce_add_sync(0xFFFFFFFFu, within);
        if (thread % 32 == 0) atomicAdd(&counts[step], within);
        __syncthreads();
        const int all = counts[step];
        if (all >= GROUP) high = middle;
        if (all < GROUP) low = middle + 1;
        if (all == GROUP) break;
    }
#pragma unroll
    for (int k = 0; k < SPAN; ++k)
        if (keys[k][thread] <= high) {
            const int place = atomicAdd(&taken, 1);
            if (place < GROUP) chosen[place] = keys[k][thread];  // more come only where voxels are not finite
        }
    __syncthreads();
    if (thread < GROUP) {
        const int key = chosen[thread];
        int rank = 0;
        for (int k = 0; k < GROUP; ++k) rank += chosen[k] < key;
        const int number = p.order[min(key & INDEX, WINDOW - 1)];
        const int a = z + number / (SPAN * SPAN) - RADIUS, b = y + number / SPAN % SPAN - RADIUS;
        const int d = x + number % SPAN - RADIUS;
        p.groups[(long long)blockIdx.x * GROUP + rank] = (a * (p.height - 3) + b) * (p.width - 3) + d;
    }
}

// A matrix along the three axes of a cube whose voxel (a, b, u) is number 16 a + 4 b + u: lane 16 (a % 2) + 4 b + u has
// it in value a / 2.
struct Transform {
    float across[4], down[4], deep[2][4];

    __device__ Transform(const float* m, int lane) {
        const int u = lane & 3, b = lane >> 2 & 3, a = lane >> 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) across[j] = m[u * 4 + (u ^ j)], down[j] = m[b * 4 + (b ^ j)];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float* row = m + (a + 2 * r) * 4;
            deep[r][0] = row[a], deep[r][1] = row[a + 2], deep[r][2] = row[a ^ 1], deep[r][3] = row[(a ^ 1) + 2];
        }
    }

    __device__ static float along(float value, const float (&m)[4], int apart) {
        float sum = m[0] * value;
#pragma unroll
        for (int j = 1; j < 4; ++j) sum = fmaf(m[j], __shfl_xor_sync(0xFFFFFFFFu, value, j * apart), sum);
        return sum;
    }

    __device__ void operator()(float (&x)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) x[r] = along(along(x[r], across, 1), down, 4);
        const float s0 = __shfl_xor_sync(0xFFFFFFFFu, x[0], 16), s1 = __shfl_xor_sync(0xFFFFFFFFu, x[1], 16);
        const float x0 = x[0], x1 = x[1];
#pragma unroll
        for (int r = 0; r < 2; ++r)
            x[r] = fmaf(deep[r][0], x0, deep[r][1] * x1) + fmaf(deep[r][2], s0, deep[r][3] * s1);
    }
};

__device__ constexpr int level_of(int i, int group) {
    int level = 0;
    if (i == 0) {
        while ((1 << level) < group) ++level;
        return level;
    }
    while (i % 2 == 0) i /= 2, ++level;
    return level + 1;
}

// Sums and differences of numbers so far apart.
__device__ static void add_and_subtract(float (&x)[GROUP][2], int half) {
#pragma unroll
    for (int a = 0; a < GROUP; a += 2 * half)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float difference = x[a][r] - x[a + half][r];
            x[a][r] += x[a + half][r];
            x[a + half][r] = difference;
        }
}

__device__ static void haar(float (&x)[GROUP][2]) {
#pragma unroll
    for (int half = 1; half < GROUP; half *= 2) add_and_subtract(x, half);
}

__device__ static void haar_back(float (&x)[GROUP][2]) {
#pragma unroll
    for (int half = GROUP / 2; half > 0; half /= 2) add_and_subtract(x, half);
}

__device__ static float add_lanes(float value) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, apart);
    return value;
}

// How much noise each number of `haar` holds, v[GROUP][64] of the warp; `place` has the lane's cube, a byte for each axis.
__device__ static void variances(const float* table, unsigned place, int lane, float* v) {
    unsigned near = 0;
    for (int j = 0; j < GROUP; ++j) {
        const unsigned apart = __vabsdiffu4(place, __shfl_sync(0xFFFFFFFFu, place, j));
        near |= (apart & 0xFCFCFCFCu) == 0 ? 1u << j : 0;
    }
#pragma unroll 1
    for (int half = 1; half < GROUP; half *= 2)
#pragma unroll 1
        for (int a = 0; a < GROUP; a += 2 * half) {
            const int b = a + half;
            const unsigned right = ((1u << half) - 1) << b;
            float shared[2] = {0, 0};
#pragma unroll 1
            for (int i = a; i < b; ++i) {
                const unsigned own = __shfl_sync(0xFFFFFFFFu, place, i);
#pragma unroll 1
                for (unsigned pairs = __shfl_sync(0xFFFFFFFFu, near, i) & right; pairs != 0; pairs &= pairs - 1) {
                    const unsigned apart = __vabsdiffu4(own, __shfl_sync(0xFFFFFFFFu, place, __ffs(pairs) - 1));
                    const float* row = table + ((apart & 255) * 16 + (apart >> 8 & 255) * 4 + (apart >> 16)) * 64 + lane;
                    shared[0] += row[0], shared[1] += row[32];
                }
            }
            const float count = 2 * half;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float *left = v + a * 64 + 32 * r + lane, *right_half = v + b * 64 + 32 * r + lane;
                const float within = half == 1 ? 0 : *left + *right_half;
                *right_half = fmaxf(count + 2 * (within - shared[r]), LEAST_VARIANCE * count);
                *left = within + shared[r];
            }
        }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float* mean = v + 32 * r + lane;
        *mean = fmaxf(GROUP + (GROUP > 1 ? 2 * *mean : 0), LEAST_VARIANCE * GROUP);
    }
}

// Filter a group and add it to the sums: a warp each. Grid: (groups, channels).
extern "C" __global__ void __launch_bounds__(32 * WARPS, WIENER ? 4 : 1) filter(Problem p, const float*, float*) {
    __shared__ float all_variances[WARPS][GROUP * 64];
    const int lane = threadIdx.x % 32, channel = blockIdx.y, group = blockIdx.x * WARPS + threadIdx.x / 32;
    if (group >= p.count) return;
    const long long plane = (long long)p.height * p.width, voxels = p.depth * plane;
    const int in_row = p.width - 3, in_plane = (p.height - 3) * in_row;
    int z, y, x;
    find_reference(p, p.first + group, z, y, x);
    const int position = p.groups[(long long)group * GROUP + lane % GROUP];
    const int a = position / in_plane, b = position / in_row % (p.height - 3), c = position % in_row;
    const unsigned place = (a - z + RADIUS) | (b - y + RADIUS) << 8 | (c - x + RADIUS) << 16;
    const long long corner = a * plane + (long long)b * p.width + c;

    float level = p.levels[0];
    if (p.map) {
        level = p.levels[position];
        for (int apart = 1; apart < GROUP; apart *= 2) level += __shfl_xor_sync(0xFFFFFFFFu, level, apart);
        level /= GROUP;
    }
    level = fmaxf(level, LEAST_LEVEL);

    // The voxels of this lane in a cube.
    const long long mine = (lane >> 4) * plane + (long long)(lane >> 2 & 3) * p.width + (lane & 3);
    const Transform analysis(p.analysis, lane);
    auto read = [&](const float* volume, float (&values)[GROUP][2]) {
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
            const float* at = volume + channel * voxels + __shfl_sync(0xFFFFFFFFu, corner, k) + mine;
            values[k][0] = at[0], values[k][1] = at[2 * plane];
            analysis(values[k]);
        }
        haar(values);
    };

    float values[GROUP][2], left = 0;
    float* const v = all_variances[threadIdx.x / 32];
    variances(p.table, place, lane, v);
    read(p.guide, values);
    if (WIENER) {
        const float noise = p.factor * (*p.unit * *p.unit) * level;
#pragma unroll
        for (int k = 0; k < GROUP; ++k)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float& variance = v[k * 64 + 32 * r + lane];
                const float scale = 1.0f / (1 << level_of(k, GROUP)), energy = values[k][r] * values[k][r];
                float gain = __fdividef(energy, energy + noise * variance);
                if (k == 0 && r == 0 && lane == 0) gain = 1;
                left += gain * gain * scale * variance;
                variance = gain * scale;  // what the noisy numbers are multiplied by
            }
        read(p.noisy, values);
#pragma unroll
        for (int k = 0; k < GROUP; ++k)
#pragma unroll
            for (int r = 0; r < 2; ++r) values[k][r] *= v[k * 64 + 32 * r + lane];
        left = fmaxf(add_lanes(left), 1.17549435e-38f);
    } else {
        const float bound = 1.0f / (p.factor * *p.unit * sqrtf(level));
#pragma unroll
        for (int k = 0; k < GROUP; ++k)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float variance = v[k * 64 + 32 * r + lane];
                const float scale = 1.0f / (1 << level_of(k, GROUP)), ratio = values[k][r] * bound;
                const bool kept = ratio * ratio > variance || (k == 0 && r == 0 && lane == 0);
                left += kept ? variance * scale : 0;
                values[k][r] = kept ? values[k][r] * scale : 0;
            }
        left = fmaxf(add_lanes(left), 1.0f);
    }
    haar_back(values);

    const float share = ONE / (left * level), unit = share / power_below(*p.largest);
    const Transform synthesis(p.synthesis, lane);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
        synthesis(values[k]);
        long long* at = p.total + channel * voxels + __shfl_sync(0xFFFFFFFFu, corner, k) + mine;
        atomicAdd((unsigned long long*)at, (unsigned long long)__float2ll_rn(values[k][0] * unit));
        atomicAdd((unsigned long long*)(at + 2 * plane), (unsigned long long)__float2ll_rn(values[k][1] * unit));
    }
    if (lane < GROUP)
        atomicAdd((unsigned long long*)(p.weights + (long long)channel * (p.depth - 3) * in_plane + position),
                  (unsigned long long)__float2ll_rn(share));
}

// Each voxel's sum over that of the weights of the cubes over it. Grid: (columns / 32, rows / 8, channels x planes).
extern "C" __global__ void divide(Problem p, const float*, float*) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    const int channel = blockIdx.z / p.depth, z = blockIdx.z % p.depth;
    if (x >= p.width || y >= p.height) return;
    const int in_row = p.width - 3, in_plane = (p.height - 3) * in_row;
    const long long* weights = p.weights + (long long)channel * (p.depth - 3) * in_plane;
    double sum = 0;
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
            for (int k = 0; k < 4; ++k) {
                const int a = z - i, b = y - j, c = x - k;
                if (a >= 0 && a < p.depth - 3 && b >= 0 && b < p.height - 3 && c >= 0 && c < in_row)
                    sum += (double)(p.kaiser[i] * p.kaiser[j] * p.kaiser[k]) *
                           (double)weights[(long long)a * in_plane + b * in_row + c];
            }
    const long long voxel = (((long long)channel * p.depth + z) * p.height + y) * p.width + x;
    p.out[voxel] = (float)((double)p.total[voxel] / sum) * power_below(*p.largest);
}
