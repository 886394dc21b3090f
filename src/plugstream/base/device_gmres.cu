// The small matrices of a step of device_gmres.py, which compiles this at run time for either precision (REAL).
//
// One block of threads. Sums are taken in a fixed order, in double precision.

#define MOST 16                             // rows of a block
struct Complex { REAL x, y; };
struct Double { double x, y; };

struct Problem {
    int rows, earlier, stride, second;      // new products; those before; of the triangle; whether they were turned once
    double share;                           // of a product, squared, below which it is left out
    const Complex *parts, *more_parts;      // (rows, earlier), what was subtracted; null for none
    const Complex* overlaps;                // (rows, 2 rows), of products with each other, and with the residuals
    const REAL *norms, *tolerance;          // (rows), of the residuals; (1)
    Complex *turn, *shares;                 // (rows, rows), to orthonormal products; of those in the residuals
    Double *triangle, *all_shares;          // (., stride), products before by orthonormal ones; (rows, stride)
    long long* order;                       // (stride), the direction that each row of the triangle is of
    REAL* rank;                             // (1), of the new products
};

__device__ static Double times(Double a, Double b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }
__device__ static Double widen(Complex a) { return {a.x, a.y}; }
__device__ static Complex narrow(Double a) { return {(REAL)a.x, (REAL)a.y}; }
__device__ static bool is_finite(double a) { return a - a == 0.0; }

__device__ static Double part(const Problem& p, int row, int column) {
    if (!p.parts) return {0.0, 0.0};
    Double a = widen(p.parts[row * p.earlier + column]);
    if (!p.more_parts) return a;
    Double b = widen(p.more_parts[row * p.earlier + column]);
    return {a.x + b.x, a.y + b.y};
}

// Orthonormal combinations of the rows with this Gram matrix, by Cholesky's factors with pivots. Rows of solved
// residuals are left out, and rows that others nearly explain; what they leave is zero, in all results.
extern "C" __global__ void orthonormalize(Problem p, const float*, float*) {
    __shared__ Double gram[2][MOST * MOST], turns[2][MOST * MOST], l[MOST * MOST];
    __shared__ Complex overlaps[2 * MOST * MOST];
    __shared__ double length[MOST], sums[MOST * MOST];
    __shared__ int out[MOST], pivots[MOST], broken;
    const int n = p.rows, k = p.earlier, thread = threadIdx.x, step = blockDim.x;
    if (thread == 0) broken = 0;
    for (int i = thread; i < 2 * n * n; i += step) overlaps[i] = p.overlaps[i];
    for (int i = thread; i < n * MOST; i += step) {
        double sum = 0.0;
        for (int c = i % MOST; c < k && !p.second; c += MOST) {
            Double v = part(p, i / MOST, c);
            sum += v.x * v.x + v.y * v.y;
        }
        sums[i] = sum;
    }
    __syncthreads();
    for (int i = thread; i < 2 * n * n; i += step)
        if (!is_finite(overlaps[i].x) || !is_finite(overlaps[i].y)) broken = 1;
    for (int r = thread; r < n; r += step) {
        double own = overlaps[r * 2 * n + r].x, sum = own;
        for (int c = 0; c < MOST; ++c) sum += sums[r * MOST + c];
        length[r] = p.second ? 1.0 : sqrt(sum);
        out[r] = p.second ? !(own > 0.25) : !(p.norms[r] > *p.tolerance && sum > 0.0);
        if (!is_finite(sum)) broken = 1;
    }
    __syncthreads();
    for (int i = thread; i < n * n; i += step) {
        int r = i / n, c = i % n;
        bool left_out = out[r] || out[c] || broken;
        double scale = left_out ? 0.0 : 1.0 / (length[r] * length[c]);
        Complex v = overlaps[r * 2 * n + c];
        gram[0][i] = left_out ? Double{0.0, 0.0} : Double{v.x * scale, v.y * scale};
        turns[0][i] = {r == c ? 1.0 : 0.0, 0.0};
        l[i] = {0.0, 0.0};
    }
    __syncthreads();

    int rank = 0;
    unsigned used = 0;
    for (; rank < n; ++rank) {  // every thread finds the same pivot; what one writes, others read in the next round
        const Double *a = gram[rank % 2], *z = turns[rank % 2];
        Double *next_a = gram[(rank + 1) % 2], *next_z = turns[(rank + 1) % 2];
        int pivot = -1;
        double most = p.second ? 0.0 : p.share;
        for (int r = p.second ? rank : 0; r < (p.second ? rank + 1 : n); ++r)
            if (!(used >> r & 1) && a[r * n + r].x > most) most = a[r * n + r].x, pivot = r;
        if (pivot < 0) break;
        used |= 1u << pivot;
        double inverse = 1.0 / most, root = sqrt(inverse);
        for (int i = thread; i < n * n; i += step) {
            int r = i / n, c = i % n;
            Double below = a[r * n + pivot], beside = a[c * n + pivot], top = z[pivot * n + c];
            bool rest = !(used >> r & 1);
            Double down = times(below, top), square = times(below, {beside.x, -beside.y});
            next_a[i] = rest ? Double{a[i].x - square.x * inverse, a[i].y - square.y * inverse} : a[i];
            next_z[i] = rest ? Double{z[i].x - down.x * inverse, z[i].y - down.y * inverse}
                      : r == pivot ? Double{top.x * root, top.y * root} : z[i];
            if (c == 0 && (rest || r == pivot)) l[r * n + rank] = {below.x * root, below.y * root};
        }
        if (thread == 0) pivots[rank] = pivot;
        __syncthreads();
    }
    if (thread == 0) {
        int place = rank;
        for (int r = 0; r < n; ++r)
            if (!(used >> r & 1)) pivots[place++] = r;
        *p.rank = rank;
    }
    __syncthreads();

    const Double* z = turns[rank % 2];
    Double *turn = gram[0], *last = gram[1];
    for (int i = thread; i < n * n; i += step) {
        int m = i / n, c = i % n;
        Double v = z[pivots[m] * n + c];
        turn[i] = m < rank && length[c] > 0.0 ? Double{v.x / length[c], v.y / length[c]} : Double{0.0, 0.0};
        p.turn[i] = narrow(turn[i]);
        Double sum = {m == c ? 1.0 : 0.0, 0.0};  // the triangle's last block, by what was turned before
        if (m < rank) sum = {l[pivots[m] * n + c].x * length[pivots[m]], l[pivots[m] * n + c].y * length[pivots[m]]};
        if (m < rank && p.second) {
            sum = {0.0, 0.0};
            for (int s = 0; s <= m; ++s) {
                Double v = times(p.triangle[(long long)(k + m) * p.stride + k + s], l[s * n + c]);
                sum.x += v.x, sum.y += v.y;
            }
        }
        last[i] = sum;
    }
    __syncthreads();
    for (int i = thread; i < n * n; i += step) {
        int b = i / n, m = i % n;
        Double sum = {0.0, 0.0};
        for (int r = 0; r < n && m < rank; ++r) {
            Double v = times(turn[m * n + r], widen(overlaps[r * 2 * n + n + b]));
            sum.x += v.x, sum.y -= v.y;
        }
        p.shares[i] = narrow(sum);
        p.all_shares[(long long)b * p.stride + k + m] = sum;
        p.triangle[(long long)(k + b) * p.stride + k + m] = last[i];
    }
    for (int i = thread; i < n * k; i += step) {
        int m = i / k, c = i % k;
        if (!p.second || m >= rank)
            p.triangle[(long long)(k + m) * p.stride + c] = m < rank ? part(p, pivots[m], c) : Double{0.0, 0.0};
    }
    for (int m = thread; m < n && !p.second; m += step) p.order[k + m] = k + pivots[m];
}
