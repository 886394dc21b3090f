// Total variation of volumes for CUDA: the kernels of tv_cuda.py; tv.py specifies them.
//
// A thread goes along z through a column of voxels, or four neighbouring ones, and forms x there, in the row below and in
// the column to the right; what it reads of neighbours is in the cache. No kernel synchronises threads, and sums are one
// number a thread, which torch adds up in a fixed order.

constexpr double FAR = 32;          // times the goal, a gap for which four steps are usually not enough

struct Problem {
    int depth, height, width, isotropic;
    int planes;                     // of a thread
    float low, high, beta;          // the box; momentum
    float pace, pace_after;         // how long a step is, times 1/L, and the one after it
    const float *z, *strength;      // the volume; one number
    const double* mean;             // of the volume, one number
    const float *p, *before;        // the dual and the one before it, (3, depth, height, width); momentum is added to p
    float *next, *x;                // the dual after it; the image
    double* sums;                   // (2, threads)
    const double* moments;          // of `decide`: sum and sum of squares of the volume, gap and places too long of a dual
    double *within, tolerance;      // 1 if that dual is near enough, so that no step is taken; -1 if it is far; or null
};

__device__ static bool is_near(const Problem& p) { return p.within && *p.within > 0; }
__device__ static bool is_far(const Problem& p) { return p.within && *p.within < 0; }

template <int V>
struct Row {                        // V neighbours along x
    float at[V];
};

template <int V>
__device__ static Row<V> load(const float* from) {
    Row<V> row;
    if constexpr (V == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        row.at[0] = four.x, row.at[1] = four.y, row.at[2] = four.z, row.at[3] = four.w;
    } else {
        row.at[0] = *from;
    }
    return row;
}

template <int V>
__device__ static void store(float* to, const Row<V>& row) {
    if constexpr (V == 4)
        *reinterpret_cast<float4*>(to) = make_float4(row.at[0], row.at[1], row.at[2], row.at[3]);
    else
        *to = row.at[0];
}

// The dual with its momentum, or zeros where it is not `there`, as beyond the border.
template <int V, bool MOVED>
__device__ static Row<V> dual(const Problem& p, long long place, bool there) {
    Row<V> row = {};
    if (!there) return row;
    row = load<V>(p.p + place);
    if constexpr (MOVED) {
        const Row<V> old = load<V>(p.before + place);
#pragma unroll
        for (int v = 0; v < V; ++v) row.at[v] = fmaf(p.beta, row.at[v] - old.at[v], row.at[v]);
    }
    return row;
}

// What a thread has of one row in one plane: the dual s along z, y and x, and x = clip(z - mean - strength D^T s).
template <int V>
struct Voxels {
    Row<V> a, b, d, x;
};

struct Constants {
    long long voxels, plane;        // from one axis of the dual to the next, from one plane to the next
    float mean, strength, low, high;
    int last;                       // plane
};

// A row of a plane. Arguments: its place and plane; a, of the plane before; b, of the row above; whether there is a row
// below, a column to the left and one to the right; x, where to write the image, or null.
template <int V, bool MOVED>
__device__ static Voxels<V> find_row(const Problem& p, const Constants& c, long long place, int k, const Row<V>& a,
                                     const Row<V>& b, float left, bool down, bool right, float* image) {
    Voxels<V> own;
    own.a = dual<V, MOVED>(p, place, k < c.last);
    own.b = dual<V, MOVED>(p, c.voxels + place, down);
    own.d = dual<V, MOVED>(p, 2 * c.voxels + place, V > 1 || right);
    if (V > 1 && !right) own.d.at[V - 1] = 0;
    const Row<V> z = load<V>(p.z + place);
    Row<V> full;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const float sum = (a.at[v] - own.a.at[v]) + (b.at[v] - own.b.at[v]) + (left - own.d.at[v]);
        const float moved = c.strength * sum;
        left = own.d.at[v];
        own.x.at[v] = fminf(fmaxf(z.at[v] - c.mean - moved, c.low), c.high);
        full.at[v] = fminf(fmaxf(z.at[v] - moved, p.low), p.high);
    }
    if (image) store<V>(image + place, full);
    return own;
}

// The nearest vector of length at most 1.
__device__ static void shorten(bool isotropic, float& a, float& b, float& d) {
    if (isotropic) {
        const float shrink = rsqrtf(fmaxf(a * a + b * b + d * d, 1.0f));
        a *= shrink, b *= shrink, d *= shrink;
    } else {
        a = fminf(fmaxf(a, -1.0f), 1.0f), b = fminf(fmaxf(b, -1.0f), 1.0f), d = fminf(fmaxf(d, -1.0f), 1.0f);
    }
}

// With STEP, p+ = project(s + rate D x(s)), s being p with its momentum if that is MOVED. With LOOK, x at the dual p, and
// of each thread its part of the duality gap and how many places p is too long at.
template <int V, bool MOVED, bool STEP, bool LOOK>
__device__ static void go_through(const Problem& p) {
    if (!LOOK && is_near(p)) return;
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * V, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= p.height || column >= p.width) return;
    const bool up = row > 0, left = column > 0, down = row + 1 < p.height, right = column + V < p.width;
    const int first = blockIdx.z * p.planes, end = min(first + p.planes, p.depth), width = p.width;
    const double mean = *p.mean;
    Constants c;
    c.plane = (long long)p.height * width, c.voxels = c.plane * p.depth;
    c.mean = (float)mean, c.strength = *p.strength;
    c.low = (float)(p.low - mean), c.high = (float)(p.high - mean), c.last = p.depth - 1;
    const float rate = c.strength > 0 ? p.pace / (12.0f * c.strength) : 0.0f;
    const long long y_axis = c.voxels, x_axis = 2 * c.voxels;
    float* const image = LOOK ? p.x : nullptr;
    double gap = 0, beyond = 0;

    long long place = first * c.plane + (long long)row * width + column;
    const bool earlier = first > 0;
    Row<V> below_a = dual<V, MOVED>(p, place - c.plane + width, earlier && down);
    Row<1> right_a = dual<1, MOVED>(p, place - c.plane + V, earlier && right);
    Voxels<V> own = find_row<V, MOVED>(p, c, place, first, dual<V, MOVED>(p, place - c.plane, earlier),
                                       dual<V, MOVED>(p, y_axis + place - width, up),
                                       dual<1, MOVED>(p, x_axis + place - 1, left).at[0], down, right, image);
    for (int k = first; k < end; ++k, place += c.plane) {
        Voxels<V> above = own;
        if (k < c.last)
            above = find_row<V, MOVED>(p, c, place + c.plane, k + 1, own.a,
                                       dual<V, MOVED>(p, y_axis + place + c.plane - width, up),
                                       dual<1, MOVED>(p, x_axis + place + c.plane - 1, left).at[0], down, right,
                                       k + 1 < end ? image : nullptr);
        Row<V> below_x = own.x;
        if (down) {
            const Voxels<V> below =
                find_row<V, MOVED>(p, c, place + width, k, below_a, own.b,
                                   dual<1, MOVED>(p, x_axis + place + width - 1, left).at[0], row + 2 < p.height, right,
                                   nullptr);
            below_a = below.a, below_x = below.x;
        }
        float right_x = own.x.at[V - 1];
        if (right) {
            const Voxels<1> beside =
                find_row<1, MOVED>(p, c, place + V, k, right_a, dual<1, MOVED>(p, y_axis + place + V - width, up),
                                   own.d.at[V - 1], down, column + V + 1 < width, nullptr);
            right_a = beside.a, right_x = beside.x.at[0];
        }
        Row<V> a, b, d;
        float part = 0;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const float here = own.x.at[v], da = above.x.at[v] - here, db = below_x.at[v] - here;
            const float dd = (v + 1 < V ? own.x.at[v + 1 < V ? v + 1 : v] : right_x) - here;
            const float pa = own.a.at[v], pb = own.b.at[v], pd = own.d.at[v];
            if constexpr (LOOK) {
                const float length = p.isotropic ? sqrtf(da * da + db * db + dd * dd) : fabsf(da) + fabsf(db) + fabsf(dd);
                part += fmaxf(length - (da * pa + db * pb + dd * pd), 0.0f);
                beyond += (p.isotropic ? pa * pa + pb * pb + pd * pd : fmaxf(fmaxf(fabsf(pa), fabsf(pb)), fabsf(pd))) > 1.00001f;
            }
            if constexpr (STEP) {
                a.at[v] = fmaf(rate, da, pa), b.at[v] = fmaf(rate, db, pb), d.at[v] = fmaf(rate, dd, pd);
                shorten(p.isotropic, a.at[v], b.at[v], d.at[v]);
            }
        }
        if constexpr (STEP) {
            store<V>(p.next + place, a);
            store<V>(p.next + y_axis + place, b);
            store<V>(p.next + x_axis + place, d);
        }
        gap += part;
        own = above;
    }
    if constexpr (LOOK) {
        const long long wide = p.width / V, threads = wide * p.height * gridDim.z;
        const long long thread = (blockIdx.z * (long long)p.height + row) * wide + column / V;
        p.sums[thread] = c.strength * gap;
        p.sums[threads + thread] = beyond;
    }
}

// Two steps in one pass, in tiles of 32 x 32 columns of which the inner 28 x 28 are written: a warp has four rows of 32. When plane m is read, the first step is taken at plane m - 1 and the second at m - 2; neighbours along
// x are asked by shuffles, and rows of other warps through shared memory. With LOOK, the gap of the dual before both.
template <bool LOOK>
__device__ static void go_twice(const Problem& p) {
    if (!LOOK && is_near(p)) return;
    constexpr int R = 4, W = 8, EDGE = 2;  // rows of a warp, warps, and columns and rows that are not written
    __shared__ float last_b[2][W][32], first_x[2][W][32];
    const int lane = threadIdx.x, warp = threadIdx.y, height = p.height, width = p.width, depth = p.depth;
    const int column = (int)blockIdx.x * (32 - 2 * EDGE) - EDGE + lane;
    const int row = (int)blockIdx.y * (R * W - 2 * EDGE) - EDGE + warp * R;
    const int first = blockIdx.z * p.planes, end = min(first + p.planes, depth);
    const long long plane = (long long)height * width, voxels = plane * depth;
    const double exact = *p.mean;
    const float mean = (float)exact, strength = *p.strength, low = (float)(p.low - exact), high = (float)(p.high - exact);
    const float rate = strength > 0 ? p.pace / (12.0f * strength) : 0.0f;
    const float rate_after = strength > 0 ? p.pace_after / (12.0f * strength) : 0.0f;
    const bool wide = column >= 0 && column < width, right_there = column >= 0 && column + 1 < width;
    bool there[R], below_there[R], written[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int tile_row = warp * R + r;
        there[r] = wide && row + r >= 0 && row + r < height;
        below_there[r] = row + r >= 0 && row + r + 1 < height;
        written[r] = there[r] && lane >= EDGE && lane < 32 - EDGE && tile_row >= EDGE && tile_row < R * W - EDGE;
    }
    // Of plane m - 1 the dual, x and z, and of m - 2 the dual after one step and its x.
    float a0[R] = {}, b0[R] = {}, d0[R] = {}, x0[R] = {}, z0[R] = {}, a1[R] = {}, b1[R] = {}, d1[R] = {}, x1[R] = {};
    const long long corner = (long long)row * width + column;
    if (first >= 2) {
#pragma unroll
        for (int r = 0; r < R; ++r)
            if (there[r]) a0[r] = p.p[(first - 2) * plane + corner + r * width];
    }
    double gap = 0;
    int beyond = 0;
    float a[R], b[R], d[R], z[R], next_a[R], next_b[R], next_d[R], next_z[R];
    const auto read = [&](int m) {
        const long long place = m * plane + corner;
        const bool inside = m >= 0 && m < depth, above_there = m >= 0 && m + 1 < depth;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const float* from = p.p + place + r * width;
            next_a[r] = above_there && there[r] ? from[0] : 0.0f;
            next_b[r] = inside && there[r] && below_there[r] ? from[voxels] : 0.0f;
            next_d[r] = inside && there[r] && right_there ? from[2 * voxels] : 0.0f;
            next_z[r] = inside && there[r] ? p.z[place + r * width] : 0.0f;
        }
    };
    // x from the dual: its fall along z, and what it is along y, above and here, and along x.
    const auto find_x = [&](float voxel, float fall, float up, float along_y, float along_x) {
        const float sum = fall + (up - along_y) + (__shfl_up_sync(~0u, along_x, 1) - along_x);
        return fminf(fmaxf(voxel - mean - strength * sum, low), high);
    };
    // From row r of a plane's x to the plane above it, the row below and the column to the right.
    const auto differ = [&](const float (&x)[R], int r, float over, bool above, float below, float& a, float& b, float& d) {
        const float right = __shfl_down_sync(~0u, x[r], 1), here = x[r];
        a = above ? over - here : 0.0f;
        b = below_there[r] ? (r + 1 < R ? x[r + 1 < R ? r + 1 : r] : below) - here : 0.0f;
        d = right_there ? right - here : 0.0f;
    };
    read(first - 1);
    for (int m = first - 1; m < end + 2; ++m) {
#pragma unroll
        for (int r = 0; r < R; ++r) a[r] = next_a[r], b[r] = next_b[r], d[r] = next_d[r], z[r] = next_z[r];
        if (m <= end) read(m + 1);  // early, as it takes a while
        last_b[0][warp][lane] = b[R - 1], first_x[0][warp][lane] = x0[0], first_x[1][warp][lane] = x1[0];
        __syncthreads();
        float up = warp > 0 ? last_b[0][warp - 1][lane] : 0.0f;
        const float below = warp + 1 < W ? first_x[0][warp + 1][lane] : 0.0f;
        const float below_after = warp + 1 < W ? first_x[1][warp + 1][lane] : 0.0f;
        const bool above = m >= 1 && m < depth;
        float qa[R], qb[R], qd[R], x[R];
        float part = 0;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            x[r] = find_x(z[r], a0[r] - a[r], up, b[r], d[r]);
            up = b[r];
            float da, db, dd;
            differ(x0, r, x[r], above, below, da, db, dd);
            if constexpr (LOOK) {
                const float pa = a0[r], pb = b0[r], pd = d0[r], square = fmaf(da, da, fmaf(db, db, dd * dd));
                // To a few roundings, as `look` is asked before anything ends.
                const float length = p.isotropic ? square * rsqrtf(fmaxf(square, 1e-30f)) : fabsf(da) + fabsf(db) + fabsf(dd);
                const float size = p.isotropic ? fmaf(pa, pa, fmaf(pb, pb, pd * pd)) : fmaxf(fmaxf(fabsf(pa), fabsf(pb)), fabsf(pd));
                if (written[r] && m > first && m <= end) {
                    part += fmaxf(length - fmaf(da, pa, fmaf(db, pb, dd * pd)), 0.0f);
                    beyond += size > 1.00001f;
                }
            }
            qa[r] = fmaf(rate, da, a0[r]), qb[r] = fmaf(rate, db, b0[r]), qd[r] = fmaf(rate, dd, d0[r]);
            shorten(p.isotropic, qa[r], qb[r], qd[r]);
        }
        gap += part;
        last_b[1][warp][lane] = qb[R - 1];
        __syncthreads();
        up = warp > 0 ? last_b[1][warp - 1][lane] : 0.0f;
        const bool above_after = m >= 2 && m <= depth;
        float* to = p.next + (m - 2) * plane + corner;
        float now[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            now[r] = find_x(z0[r], a1[r] - qa[r], up, qb[r], qd[r]);
            up = qb[r];
            float da, db, dd;
            differ(x1, r, now[r], above_after, below_after, da, db, dd);
            float ra = fmaf(rate_after, da, a1[r]), rb = fmaf(rate_after, db, b1[r]), rd = fmaf(rate_after, dd, d1[r]);
            shorten(p.isotropic, ra, rb, rd);
            if (written[r] && m >= first + 2) to[r * width] = ra, to[voxels + r * width] = rb, to[2 * voxels + r * width] = rd;
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            a1[r] = qa[r], b1[r] = qb[r], d1[r] = qd[r], x1[r] = now[r];
            a0[r] = a[r], b0[r] = b[r], d0[r] = d[r], x0[r] = x[r], z0[r] = z[r];
        }
    }
    if constexpr (LOOK) {
        const long long blocks = (long long)gridDim.x * gridDim.y * gridDim.z;
        const long long block = blockIdx.x + gridDim.x * (blockIdx.y + (long long)gridDim.y * blockIdx.z);
        const long long thread = block * (32 * W) + warp * 32 + lane;
        p.sums[thread] = strength * gap;
        p.sums[blocks * (32 * W) + thread] = beyond;
    }
}

// Of each thread the sum of its voxels and of their squares.
template <int V>
__device__ static void add_voxels(const Problem& p) {
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * V, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= p.height || column >= p.width) return;
    const long long plane = (long long)p.height * p.width, wide = p.width / V, threads = wide * p.height * gridDim.z;
    const long long thread = (blockIdx.z * (long long)p.height + row) * wide + column / V;
    double sum = 0, squares = 0;
    for (int k = blockIdx.z * p.planes; k < min((int)(blockIdx.z + 1) * p.planes, p.depth); ++k) {
        const Row<V> z = load<V>(p.z + k * plane + (long long)row * p.width + column);
#pragma unroll
        for (int v = 0; v < V; ++v) sum += z.at[v], squares += (double)z.at[v] * z.at[v];
    }
    p.sums[thread] = sum;
    p.sums[threads + thread] = squares;
}

// Whether the gap is within the tolerance, or far from it, by one thread; as tv_cuda.py decides it.
extern "C" __global__ void decide(Problem p, const float*, float*) {
    const double voxels = (double)p.depth * p.height * p.width, total = p.moments[0];
    const double goal = p.tolerance * p.tolerance * (p.moments[1] - total * (total / voxels));
    const double gap = p.moments[2], ratio = gap > goal ? gap / goal : 0;  // infinite if the goal is 0
    *p.within = p.moments[3] > 0 || ratio >= FAR ? -1 : ratio > 1 ? 0 : 1;
}

#define KERNEL(name, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) name##_4(Problem p, const float*, float*) { __VA_ARGS__(4) } \
    extern "C" __global__ void __launch_bounds__(256) name##_1(Problem p, const float*, float*) { __VA_ARGS__(1) }
#define ADD_UP(V) add_voxels<V>(p);
#define BEGIN(V) go_through<V, false, true, true>(p);
#define DESCEND(V) go_through<V, false, true, false>(p);
#define ACCELERATE(V) go_through<V, true, true, false>(p);
#define LOOK(V)                                 \
    if (is_far(p)) return;                      \
    if (is_near(p)) p.p = p.before;             \
    go_through<V, false, false, true>(p);
KERNEL(add_up, ADD_UP)
KERNEL(begin, BEGIN)            // a step from the dual p, and the gap there
KERNEL(descend, DESCEND)        // a step
KERNEL(accelerate, ACCELERATE)  // a step with momentum
KERNEL(look, LOOK)              // x and the gap
extern "C" __global__ void __launch_bounds__(256, 2) begin_twice(Problem p, const float*, float*) { go_twice<true>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) descend_twice(Problem p, const float*, float*) { go_twice<false>(p); }
