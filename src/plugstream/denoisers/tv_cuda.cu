// Total variation of volumes for CUDA: the kernels of tv_cuda.py; tv.py specifies them.
//
// A thread goes along z through a column of voxels, or four neighbouring ones, and forms x there, in the row below and in
// the column to the right; what it reads of neighbours is in the cache. No kernel synchronises threads, and sums are one
// number a thread, which torch adds up in a fixed order.

struct Problem {
    int depth, height, width, isotropic;
    int planes;                     // of a thread
    float low, high, beta, pace;    // the box; momentum; how long a step is, times 1/L
    const float *z, *strength;      // the volume; one number
    const double* mean;             // of the volume, one number
    const float *p, *before;        // the dual and the one before it, (3, depth, height, width); momentum is added to p
    float *next, *x;                // the dual after it; the image
    double* sums;                   // (2, threads)
};

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

// With STEP, p+ = project(s + rate D x(s)), s being p with its momentum if that is MOVED. With LOOK, x at the dual p, and
// of each thread its part of the duality gap and how many places p is too long at.
template <int V, bool MOVED, bool STEP, bool LOOK>
__device__ static void go_through(const Problem& p) {
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
                float na = fmaf(rate, da, pa), nb = fmaf(rate, db, pb), nd = fmaf(rate, dd, pd);
                if (p.isotropic) {
                    const float shrink = rsqrtf(fmaxf(na * na + nb * nb + nd * nd, 1.0f));
                    na *= shrink, nb *= shrink, nd *= shrink;
                } else {
                    na = fminf(fmaxf(na, -1.0f), 1.0f), nb = fminf(fmaxf(nb, -1.0f), 1.0f), nd = fminf(fmaxf(nd, -1.0f), 1.0f);
                }
                a.at[v] = na, b.at[v] = nb, d.at[v] = nd;
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

#define KERNEL(name, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) name##_4(Problem p, const float*, float*) { __VA_ARGS__(4) } \
    extern "C" __global__ void __launch_bounds__(256) name##_1(Problem p, const float*, float*) { __VA_ARGS__(1) }
#define ADD_UP(V) add_voxels<V>(p);
#define BEGIN(V) go_through<V, false, true, true>(p);
#define DESCEND(V) go_through<V, false, true, false>(p);
#define ACCELERATE(V) go_through<V, true, true, false>(p);
#define LOOK(V) go_through<V, false, false, true>(p);
KERNEL(add_up, ADD_UP)
KERNEL(begin, BEGIN)            // a step from the dual p, and the gap there
KERNEL(descend, DESCEND)        // a step
KERNEL(accelerate, ACCELERATE)  // a step with momentum
KERNEL(look, LOOK)              // x and the gap
