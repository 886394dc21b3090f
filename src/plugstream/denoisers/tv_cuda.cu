// Total variation of volumes for CUDA: the kernels of tv_cuda.py; tv.py specifies them.
//
// A thread goes along z through a column of voxels, so that what it reads of the last plane is in the cache. No kernel
// synchronises threads, and sums are one number a thread, which torch adds up in a fixed order.

struct Problem {
    int depth, height, width, isotropic;
    int planes, unused;             // of a thread
    float low, high, beta, spare;   // the box; momentum
    const float *z, *strength;      // the volume; one number
    const double* mean;             // of the volume, one number
    const float *p, *s;             // the dual, and with its momentum, (3, depth, height, width)
    float *next_p, *next_s, *x;     // both after an iteration, the first of which may be p; the image
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

// strength D^T s at a voxel, of which `at` is the number and s_k, s_i, s_j are the parts of s.
__device__ static float divergence(const Problem& p, const Column& c, const float* s, long long at, int k, int i, int j) {
    const float *s_k = s + at, *s_i = s_k + c.voxels, *s_j = s_i + c.voxels;
    float sum = 0;
    if (k > 0) sum += s_k[-c.plane];
    if (k < p.depth - 1) sum -= s_k[0];
    if (i > 0) sum += s_i[-p.width];
    if (i < p.height - 1) sum -= s_i[0];
    if (j > 0) sum += s_j[-1];
    if (j < p.width - 1) sum -= s_j[0];
    return c.strength * sum;
}

// x = clip(z - mean - strength D^T s) at a voxel.
__device__ static float primal(const Problem& p, const Column& c, const float* s, long long at, int k, int i, int j) {
    return fminf(fmaxf(p.z[at] - c.mean - divergence(p, c, s, at, k, i, j), c.low), c.high);
}

// p+ = project(s + rate D x(s)), s+ = p+ + beta (p+ - p).
extern "C" __global__ void iterate(Problem p, const float*, float*) {
    const Column c = find_column(p);
    if (!c.inside) return;
    const float rate = c.strength > 0 ? 1.0f / (12.0f * c.strength) : 0.0f;
    const int i = c.row, j = c.column;
    long long at = c.first * c.plane + (long long)i * p.width + j;
    float here = primal(p, c, p.s, at, c.first, i, j);
    for (int k = c.first; k < c.last; ++k, at += c.plane) {
        const bool up = k + 1 < p.depth, down = i + 1 < p.height, right = j + 1 < p.width;
        const float above = up ? primal(p, c, p.s, at + c.plane, k + 1, i, j) : here;
        const float next[3] = {above, down ? primal(p, c, p.s, at + p.width, k, i + 1, j) : here,
                               right ? primal(p, c, p.s, at + 1, k, i, j + 1) : here};
        const bool inside[3] = {up, down, right};
        float moved[3], square = 0;
        for (int a = 0; a < 3; ++a) {
            moved[a] = inside[a] ? fmaf(rate, next[a] - here, p.s[a * c.voxels + at]) : 0.0f;
            square += moved[a] * moved[a];
        }
        const float shrink = rsqrtf(fmaxf(square, 1.0f));
        for (int a = 0; a < 3; ++a) {
            const float now = p.isotropic ? moved[a] * shrink : fminf(fmaxf(moved[a], -1.0f), 1.0f);
            const long long place = a * c.voxels + at;
            const float last = p.p[place];
            p.next_p[place] = now;
            p.next_s[place] = fmaf(p.beta, now - last, now);
        }
        here = above;
    }
}

// x at the dual p, and of each thread its part of the duality gap, and how many places p is too long at.
extern "C" __global__ void look(Problem p, const float*, float*) {
    const Column c = find_column(p);
    if (!c.inside) return;
    double gap = 0, beyond = 0;
    const int i = c.row, j = c.column;
    long long at = c.first * c.plane + (long long)i * p.width + j;
    for (int k = c.first; k < c.last; ++k, at += c.plane) {
        const float moved = divergence(p, c, p.p, at, k, i, j), z = p.z[at];
        const float here = fminf(fmaxf(z - c.mean - moved, c.low), c.high);
        const float a = k + 1 < p.depth ? primal(p, c, p.p, at + c.plane, k + 1, i, j) - here : 0.0f;
        const float b = i + 1 < p.height ? primal(p, c, p.p, at + p.width, k, i + 1, j) - here : 0.0f;
        const float d = j + 1 < p.width ? primal(p, c, p.p, at + 1, k, i, j + 1) - here : 0.0f;
        const float pa = p.p[at], pb = p.p[c.voxels + at], pd = p.p[2 * c.voxels + at];
        const float length = p.isotropic ? sqrtf(a * a + b * b + d * d) : fabsf(a) + fabsf(b) + fabsf(d);
        gap += fmaxf(length - (a * pa + b * pb + d * pd), 0.0f);
        beyond += (p.isotropic ? pa * pa + pb * pb + pd * pd : fmaxf(fmaxf(fabsf(pa), fabsf(pb)), fabsf(pd))) > 1.00001f;
        p.x[at] = fminf(fmaxf(z - moved, p.low), p.high);
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
