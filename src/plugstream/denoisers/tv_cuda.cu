// Total variation of volumes for CUDA: the kernels of tv_cuda.py; tv.py specifies them.
//
// A thread goes along z through a column of voxels, so that what it reads of the last plane is in the cache. No kernel
// synchronises threads, and sums are one number a thread, which torch adds up in a fixed order.

struct Problem {
    int depth, height, width, isotropic;
    int planes;                     // of a thread
    float low, high, beta;          // the box; momentum
    const float *z, *strength;      // the volume; one number
    const double* mean;             // of the volume, one number
    const float *p, *before;        // the dual and the one before it, (3, depth, height, width); momentum is added to p
    float *next, *x;                // the dual after it; the image
    double* sums;                   // (2, threads)
};

struct Column {                     // what a thread works on
    int row, column, first, last;
    long long plane, voxels, thread, threads;
    float mean, strength, low, high;
    bool inside;
};

__device__ static Column find_column(const Problem& p) {
    Column c;
    c.column = blockIdx.x * blockDim.x + threadIdx.x;
    c.row = blockIdx.y * blockDim.y + threadIdx.y;
    c.first = blockIdx.z * p.planes;
    c.last = min(c.first + p.planes, p.depth);
    c.plane = (long long)p.height * p.width;
    c.voxels = c.plane * p.depth;
    c.threads = c.plane * gridDim.z;
    c.thread = blockIdx.z * c.plane + (long long)c.row * p.width + c.column;
    c.inside = c.row < p.height && c.column < p.width;
    const double mean = *p.mean;
    c.mean = (float)mean;
    c.strength = *p.strength;
    c.low = (float)(p.low - mean);
    c.high = (float)(p.high - mean);
    return c;
}

// The dual with its momentum, along an axis.
template <bool MOVED>
__device__ static float dual(const Problem& p, const Column& c, int axis, long long voxel) {
    const float value = p.p[axis * c.voxels + voxel];
    return MOVED ? fmaf(p.beta, value - p.before[axis * c.voxels + voxel], value) : value;
}

// strength D^T s at a voxel.
template <bool MOVED>
__device__ static float divergence(const Problem& p, const Column& c, int k, int i, int j) {
    const long long voxel = k * c.plane + (long long)i * p.width + j;
    float sum = 0;
    if (k > 0) sum += dual<MOVED>(p, c, 0, voxel - c.plane);
    if (k < p.depth - 1) sum -= dual<MOVED>(p, c, 0, voxel);
    if (i > 0) sum += dual<MOVED>(p, c, 1, voxel - p.width);
    if (i < p.height - 1) sum -= dual<MOVED>(p, c, 1, voxel);
    if (j > 0) sum += dual<MOVED>(p, c, 2, voxel - 1);
    if (j < p.width - 1) sum -= dual<MOVED>(p, c, 2, voxel);
    return c.strength * sum;
}

// x = clip(z - mean - strength D^T s) at a voxel.
template <bool MOVED>
__device__ static float primal(const Problem& p, const Column& c, int k, int i, int j) {
    const float z = p.z[k * c.plane + (long long)i * p.width + j];
    return fminf(fmaxf(z - c.mean - divergence<MOVED>(p, c, k, i, j), c.low), c.high);
}

// p+ = project(s + rate D x(s)), s being p with its momentum.
extern "C" __global__ void iterate(Problem p, const float*, float*) {
    const Column c = find_column(p);
    if (!c.inside) return;
    const float rate = c.strength > 0 ? 1.0f / (12.0f * c.strength) : 0.0f;
    float here = primal<true>(p, c, c.first, c.row, c.column);
    for (int k = c.first; k < c.last; ++k) {
        const long long voxel = k * c.plane + (long long)c.row * p.width + c.column;
        const float above = k + 1 < p.depth ? primal<true>(p, c, k + 1, c.row, c.column) : here;
        const float down = c.row + 1 < p.height ? primal<true>(p, c, k, c.row + 1, c.column) : here;
        const float right = c.column + 1 < p.width ? primal<true>(p, c, k, c.row, c.column + 1) : here;
        float a = k + 1 < p.depth ? fmaf(rate, above - here, dual<true>(p, c, 0, voxel)) : 0.0f;
        float b = c.row + 1 < p.height ? fmaf(rate, down - here, dual<true>(p, c, 1, voxel)) : 0.0f;
        float d = c.column + 1 < p.width ? fmaf(rate, right - here, dual<true>(p, c, 2, voxel)) : 0.0f;
        if (p.isotropic) {
            const float shrink = rsqrtf(fmaxf(a * a + b * b + d * d, 1.0f));
            a *= shrink, b *= shrink, d *= shrink;
        } else {
            a = fminf(fmaxf(a, -1.0f), 1.0f), b = fminf(fmaxf(b, -1.0f), 1.0f), d = fminf(fmaxf(d, -1.0f), 1.0f);
        }
        p.next[voxel] = a, p.next[c.voxels + voxel] = b, p.next[2 * c.voxels + voxel] = d;
        here = above;
    }
}

// x at the dual p, and of each thread its part of the duality gap, and how many places p is too long at.
extern "C" __global__ void look(Problem p, const float*, float*) {
    const Column c = find_column(p);
    if (!c.inside) return;
    double gap = 0, beyond = 0;
    for (int k = c.first; k < c.last; ++k) {
        const long long voxel = k * c.plane + (long long)c.row * p.width + c.column;
        const float moved = divergence<false>(p, c, k, c.row, c.column), z = p.z[voxel];
        const float here = fminf(fmaxf(z - c.mean - moved, c.low), c.high);
        const float a = k + 1 < p.depth ? primal<false>(p, c, k + 1, c.row, c.column) - here : 0.0f;
        const float b = c.row + 1 < p.height ? primal<false>(p, c, k, c.row + 1, c.column) - here : 0.0f;
        const float d = c.column + 1 < p.width ? primal<false>(p, c, k, c.row, c.column + 1) - here : 0.0f;
        const float pa = p.p[voxel], pb = p.p[c.voxels + voxel], pd = p.p[2 * c.voxels + voxel];
        const float length = p.isotropic ? sqrtf(a * a + b * b + d * d) : fabsf(a) + fabsf(b) + fabsf(d);
        gap += fmaxf(length - (a * pa + b * pb + d * pd), 0.0f);
        beyond += (p.isotropic ? pa * pa + pb * pb + pd * pd : fmaxf(fmaxf(fabsf(pa), fabsf(pb)), fabsf(pd))) > 1.00001f;
        p.x[voxel] = fminf(fmaxf(z - moved, p.low), p.high);
    }
    p.sums[c.thread] = c.strength * gap;
    p.sums[c.threads + c.thread] = beyond;
}

// Of each thread the sum of its voxels and of their squares.
extern "C" __global__ void add_up(Problem p, const float*, float*) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= p.height || column >= p.width) return;
    const long long plane = (long long)p.height * p.width, place = (long long)row * p.width + column;
    double sum = 0, squares = 0;
    for (int k = blockIdx.z * p.planes; k < min((int)(blockIdx.z + 1) * p.planes, p.depth); ++k) {
        const double z = p.z[k * plane + place];
        sum += z;
        squares += z * z;
    }
    p.sums[blockIdx.z * plane + place] = sum;
    p.sums[gridDim.z * plane + blockIdx.z * plane + place] = squares;
}
