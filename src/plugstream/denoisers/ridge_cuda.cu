// The prox of a ridge prior for CUDA: all iterations of the heavy ball in one launch, by the blocks of a team that share
// an image. ridge_cuda.py has the tables and starts it; ridge_prior.py specifies it.
//
// A block has tiles of 16 x 32 pixels. Tensor cores multiply the pixels around 16 pixels in a row (81 taps) by all
// filters, and the slopes that come of it, which are already where the second product wants them, by the same filters
// again. Numbers are pairs of half precision, front and rest, of which three products are taken: 22 bits. What pixels
// give to each other is added up in whole numbers, whose sum does not depend on the order of its terms, so that a result
// has the same bits every time. FILTERS (a multiple of 16), RATIOS and RUNS, 2 or 4, are defined before this text.

constexpr int TALL = 16, WIDE = 32, BY = 4;         // a tile, and how far a filter reaches
constexpr int ROWS = TALL + 2 * BY, COLUMNS = WIDE + 2 * BY, REGION = ROWS * COLUMNS;
constexpr int PITCH = 28, COPY = ROWS * PITCH + 16;  // of pairs of pixels; odd pixels are elsewhere than even ones
constexpr int THREADS = 1024 / RUNS, ALONG = 6, TILES = FILTERS / 8, TAPS = 11;  // steps of 16 taps; eights of filters, of taps
constexpr int COARSE = 20;                          // iterations that may be coarse
constexpr int STEP = (2 * RATIOS + 1) * FILTERS, ROW = STEP + 5;
constexpr float WHOLE = 12582912.0f;                // 1.5 2^23: added to a number, it leaves a whole one in the last bits

struct Tile {                                       // and what is around it, of which each thread keeps its own pixels
    int at[REGION];                                 // which pixel of the image; the complement where it is another tile's
    float z[REGION], x[3][REGION];                  // without the mean; the last three images
};

struct Problem {
    int count, height, width, down, across;         // images; pixels; tiles
    int team, limit;                                // blocks that share an image; iterations
    double goal, coarse;                            // tol^2; how many times that the squares of a residual are large
    const float *z, *start;                         // (count, height, width)
    const float* rows;                              // (count, ROW): see ridge_cuda.py
    const uint4 *forward, *backward;                // filters as a warp reads them
    Tile* tiles;                                    // (teams, down, across), where a block has more than one
    int* sums;                                      // (3, count, height, width): gradients in units
    double* parts;                                  // (teams, 5, team): what each block adds to a sum
    unsigned* arrived;                              // (teams + 1,), 0 before and after: of each team, and at the end
    float* out;                                     // (count, height, width)
    int* near;                                      // (count,): whether the tolerance is reached
};

#ifndef ON_CPU
#define SHARED(type, name, count) __shared__ type name[count]
__device__ static void relax() {}
// What a block wrote before it arrived, others see that look and find it there.
__device__ static void arrive(unsigned* at) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory"); }
__device__ static unsigned look(const unsigned* at) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
__device__ static unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ static float unpack(unsigned both, bool high) {
    float value;
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a; }" : "=f"(value) : "r"(high ? both >> 16 : both));
    return value;
}
// a b + c, as far as it is between 0 and 1, in one instruction.
__device__ static float saturate(float a, float b, float c) {
    float value;
    asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(value) : "f"(a), "f"(b), "f"(c));
    return value;
}
// c += a b for 16 x 16 and 16 x 8 numbers, spread over a warp.
__device__ static void multiply(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
static void arrive(unsigned* at) { atomicAdd(at, 1u); }
static float saturate(float a, float b, float c) { return __saturatef(fmaf(a, b, c)); }
static unsigned look(const unsigned* at) { return *(const volatile unsigned*)at; }
#endif

struct Scratch {                                    // of a block
    unsigned pixels[4 * COPY];                      // front, front from the next pixel on, rest, rest from the next on
    unsigned sums[REGION];                          // what the pixels of a tile give to those around
    float row[ROW];
    double each[2 * THREADS / 32];
    Tile tile;                                      // where a block has no more than one
};

struct Block {
    int team, rank, image;
    unsigned round;
    float mean, scale;                              // scale: of pixels in half precision
};

// A pixel of the image beyond the borders of which it is its own mirror image.
__device__ static int mirrored(int place, int size) {
    if (place < 0) place = -1 - place;
    if (place >= size) place = 2 * size - 1 - place;
    return max(0, min(place, size - 1));            // only pixels that nobody uses are farther away
}

enum Join { SUM, LARGEST };

template <Join JOIN, class Number>
__device__ static Number join(Number a, Number b) { return JOIN == SUM ? a + b : fmax(a, b); }

template <Join JOIN, class Number>
__device__ static Number over_warp(Number value) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value = join<JOIN>(value, __shfl_xor_sync(0xFFFFFFFF, value, apart));
    return value;
}

// The sum over a block's threads, in a fixed order, or the largest of numbers >= 0, for all of them; of `also` the sum.
template <Join JOIN, class Number>
__device__ static Number over_block(Scratch& s, Number value, Number* also = nullptr) {
    Number* const each = (Number*)s.each;
    value = over_warp<JOIN>(value);
    if (also) *also = over_warp<SUM>(*also);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        each[threadIdx.x / 32] = value;
        if (also) each[THREADS / 32 + threadIdx.x / 32] = *also;
    }
    __syncthreads();
    Number all[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < THREADS / 32; ++k) {
        all[0] = join<JOIN>(all[0], each[k]);
        if (also) all[1] += each[THREADS / 32 + k];
    }
    if (also) *also = all[1];
    return all[0];
}

template <class Number = double>
__device__ static Number& part_of(const Problem& p, const Block& b, int kind, int rank) {
    return (Number&)p.parts[((long long)b.team * 5 + kind) * p.team + rank];
}

// The same over a team, of what each block gave before the team last met.
template <Join JOIN>
__device__ static double over_team(const Problem& p, Scratch& s, const Block& b, int kind) {
    double all = 0;
    for (int rank = threadIdx.x; rank < p.team; rank += THREADS)
        all = join<JOIN>(all, __ldcg(&part_of(p, b, kind, rank)));
    return over_block<JOIN>(s, all);
}

// Wait until all blocks of the team are here; then each sees what the others wrote.
__device__ static void meet(const Problem& p, Block& b) {
    ++b.round;
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive(p.arrived + b.team);
        while (look(p.arrived + b.team) < b.round * p.team) relax();
    }
    __syncthreads();
}

// Apply a function to each pixel of the block's tiles.
template <class Function>
__device__ static void for_own_pixels(const Problem& p, const Block& b, Function function) {
    for (int tile = b.rank; tile < p.down * p.across; tile += p.team)
        for (int k = threadIdx.x; k < TALL * WIDE; k += THREADS) {
            const int y = tile / p.across * TALL + k / WIDE, x = tile % p.across * WIDE + k % WIDE;
            if (y < p.height && x < p.width) function(((long long)b.image * p.height + y) * p.width + x);
        }
}

__device__ static Tile& tile_of(const Problem& p, Scratch& s, const Block& b, int tile) {
    const int tiles = p.down * p.across;
    return tiles == p.team ? s.tile : p.tiles[(long long)b.team * tiles + tile];
}

// A tile before its first iterate.
__device__ static void begin(const Problem& p, const Block& b, Tile& tile, int top, int left) {
    const float* const start = p.start ? p.start : p.z;
    const long long first = b.image * ((long long)p.height * p.width);
    for (int place = threadIdx.x; place < REGION; place += THREADS) {
        const int i = place / COLUMNS - BY, j = place % COLUMNS - BY;
        const bool own = i >= 0 && i < TALL && j >= 0 && j < WIDE && top + i < p.height && left + j < p.width;
        const int at = mirrored(top + i, p.height) * p.width + mirrored(left + j, p.width);
        tile.at[place] = own ? at : ~at;
        tile.z[place] = p.z[first + at] - b.mean;
        tile.x[1][place] = tile.x[2][place] = start[first + at] - b.mean;
    }
}

// Iterate k of a tile and around it, also in half precision. Returns the tile's share of the squares of the last residual,
// r = x - z + grad R(x), of pixels in half precision.
__device__ static float step(const Problem& p, Scratch& s, const Block& b, Tile& tile, int k) {
    constexpr int EACH = (REGION + THREADS - 1) / THREADS;
    const long long pixels = (long long)p.height * p.width, numbers = p.count * pixels;
    const int* const sums = p.sums + (k + 2) % 3 * numbers + b.image * pixels;
    int* const zero = p.sums + (k + 1) % 3 * numbers + b.image * pixels;
    float* const next = tile.x[k % 3];
    const float *const now = tile.x[(k + 2) % 3], *const before = tile.x[(k + 1) % 3];
    const float length = k > 0 ? s.row[STEP] : 0.0f, momentum = s.row[STEP + 1], unit = s.row[STEP + 2];
    unsigned short* const halves = (unsigned short*)s.pixels;
    int at[EACH], given[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {                // all at once, so that no read waits for another
        at[e] = tile.at[min((int)threadIdx.x + e * THREADS, REGION - 1)];
        given[e] = k > 0 ? __ldcg(sums + max(at[e], ~at[e])) : 0;
    }
    float squares = 0;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int place = threadIdx.x + e * THREADS, i = place / COLUMNS, j = place % COLUMNS;
        if (place >= REGION) break;
        const float here = now[place], r = fmaf((float)given[e], unit, here - tile.z[place]);
        const float value = fmaf(momentum, here - before[place], fmaf(-length, r, here)), scaled = value * b.scale;
        next[place] = value;
        const int givers = min(min(i + 1, ROWS - i), 2 * BY + 1) * min(min(j + 1, COLUMNS - j), 2 * BY + 1);
        s.sums[place] = (unsigned)-givers * (unsigned)__float_as_int(WHOLE);
        if (at[e] >= 0) {
            zero[at[e]] = 0;
            squares = fmaf(r * b.scale, r * b.scale, squares);
        }
        const unsigned front = pack(scaled, 0.0f), rest = pack(scaled - unpack(front, false), 0.0f);
        const int to = i * 2 * PITCH + j;
        halves[to] = (unsigned short)front;
        halves[4 * COPY + to] = (unsigned short)rest;
        if (j > 0) {
            halves[2 * COPY + to - 1] = (unsigned short)front;
            halves[6 * COPY + to - 1] = (unsigned short)rest;
        }
    }
    return squares;
}

// What the pixels of a tile give to those around, into s.sums. Not FINE, by the product of fronts alone. A warp has RUNS runs of 16 pixels, two a row.
template <bool FINE>
__device__ static void spread(const Problem& p, Scratch& s, int top, int left) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const unsigned* const pixels = s.pixels + (g & 1) * COPY + RUNS / 2 * warp * PITCH + g / 2;
    // Moved on from one to the next: the places of all of them would take registers.
    const uint4 *forward = p.forward + lane, *backward = p.backward + lane;
    float sums[RUNS][TILES][4];
#pragma unroll
    for (int m = 0; m < RUNS; ++m)
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
#pragma unroll
    for (int step = 0; step < ALONG; ++step) {
        int from[2];                                // pairs of taps, five a row
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int pair = 8 * step + 4 * h + t;
            from[h] = pair < 45 ? pair / 5 * PITCH + pair % 5 : 0;
        }
        unsigned front[RUNS][4], rest[RUNS][4];
#pragma unroll
        for (int m = 0; m < RUNS; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned* at = pixels + (m / 2 * PITCH + m % 2 * 8 + i % 2 * 4) + from[i / 2];
                front[m][i] = at[0];
                if (FINE) rest[m][i] = at[2 * COPY];
            }
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
            const uint4 w = __ldg(forward);
            forward += 32;
#pragma unroll
            for (int m = 0; m < RUNS; ++m) multiply(sums[m][n], front[m], w.x, w.y);
            if (!FINE) continue;
#pragma unroll
            for (int m = 0; m < RUNS; ++m) multiply(sums[m][n], front[m], w.z, w.w);
#pragma unroll
            for (int m = 0; m < RUNS; ++m) multiply(sums[m][n], rest[m], w.x, w.y);
        }
    }
    // The slopes of filters 2 t and 2 t + 1 of each eight, where the next product wants them.
    unsigned front[RUNS][TILES][2], rest[RUNS][TILES][2];
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int m = 0; m < RUNS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float slope[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float* const row = s.row + 8 * n + 2 * t + e;
                    float sum = row[2 * RATIOS * FILTERS];
#pragma unroll
                    for (int r = 0; r < RATIOS; ++r) {
                        const float u = saturate(sums[m][n][2 * h + e], row[2 * r * FILTERS], 0.5f);
                        sum = fmaf(row[(2 * r + 1) * FILTERS], u, sum);
                    }
                    slope[e] = sum;
                }
                const unsigned both = pack(slope[0], slope[1]);
                front[m][n][h] = both;
                if (FINE) rest[m][n][h] = pack(slope[0] - unpack(both, false), slope[1] - unpack(both, true));
            }
    if (top + TALL > p.height || left + WIDE > p.width)  // the image ends within the tile
#pragma unroll
        for (int m = 0; m < RUNS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (top + RUNS / 2 * warp + m / 2 < p.height && left + m % 2 * 16 + h * 8 + g < p.width) continue;
#pragma unroll
                for (int n = 0; n < TILES; ++n) front[m][n][h] = rest[m][n][h] = 0;
            }
    const float to_units = s.row[STEP + 3];
    unsigned* const around = s.sums + RUNS / 2 * warp * COLUMNS + g;
#pragma unroll
    for (int j = 0; j < TAPS; ++j) {
        float gives[RUNS][4];
#pragma unroll
        for (int m = 0; m < RUNS; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) gives[m][i] = 0;
#pragma unroll
        for (int k = 0; k < TILES / 2; ++k) {
            const uint4 w = __ldg(backward);
            backward += 32;
#pragma unroll
            for (int m = 0; m < RUNS; ++m) multiply(gives[m], &front[m][2 * k][0], w.x, w.y);
            if (!FINE) continue;
#pragma unroll
            for (int m = 0; m < RUNS; ++m) multiply(gives[m], &front[m][2 * k][0], w.z, w.w);
#pragma unroll
            for (int m = 0; m < RUNS; ++m) multiply(gives[m], &rest[m][2 * k][0], w.x, w.y);
        }
        // Eight taps are two columns of four rows, so that no two threads add to one place, or the bottom row; the
        // last tap of that has a place that is free.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int e = i % 2;
            const bool spare = j < 10 && j % 5 == 4 && e == 1;
            if (spare && (j != 4 || t != 0)) continue;
            const int to = spare     ? 8 * COLUMNS + 8
                           : j == 10 ? 8 * COLUMNS + 2 * t + e
                                     : (4 * (j / 5) + t) * COLUMNS + 2 * (j % 5) + e;
#pragma unroll
            for (int m = 0; m < RUNS; ++m) {
                const float units = fmaf(gives[m][i], to_units, WHOLE);  // `step` took WHOLE off, each time
                atomicAdd(around + (m / 2 * COLUMNS + m % 2 * 16 + i / 2 * 8) + to, (unsigned)__float_as_int(units));
            }
        }
    }
}

// Add what a tile gave to the image; what lies beyond a border goes to the pixel that it mirrors.
__device__ static void give(const Problem& p, const Scratch& s, const Block& b, const Tile& tile, int k) {
    const long long pixels = (long long)p.height * p.width;
    int* const sums = p.sums + (k % 3 * p.count + b.image) * pixels;
    for (int place = threadIdx.x; place < REGION; place += THREADS)
        if (s.sums[place]) atomicAdd(sums + max(tile.at[place], ~tile.at[place]), (int)s.sums[place]);
}

// The image whose squares of the residual are at most the goal, and whether there is one; else the last. The first
// iterations are not fine, but for two that may find a good start, as long as the residual is large beside the error.
__device__ static int iterate(const Problem& p, Scratch& s, Block& b, float goal, bool& near) {
    bool fine = true, last = true, earlier = true;  // this iteration, the last one and the one before it
    for (int k = 0;; ++k, earlier = last, last = fine) {
        // The residual of x_(k-2) was found with x_(k-1). A NaN counts as near, which no iteration would cure.
        float residual = 0, squares = 0;
        if (k >= 2)
            for (int rank = threadIdx.x; rank < p.team; rank += THREADS)
                residual += __ldcg(&part_of<float>(p, b, (k - 1) % 2, rank));
        for (int tile = b.rank; tile < p.down * p.across; tile += p.team) {
            const int top = tile / p.across * TALL, left = tile % p.across * WIDE;
            const bool last_tile = tile + p.team >= p.down * p.across;
            Tile& here = tile_of(p, s, b, tile);
            if (k == 0) begin(p, b, here, top, left);
            squares += step(p, s, b, here, k);
            if (tile == b.rank || last_tile) {
                float sum = squares;
                residual = over_block<SUM>(s, residual, &sum);
                if (last_tile && threadIdx.x == 0) part_of<float>(p, b, k % 2, b.rank) = sum;
            } else {
                __syncthreads();
            }
            if (tile == b.rank) {
                near = k >= 2 && earlier && !(residual > goal);
                if (near) return k - 2;
                if (k == p.limit + 2) return k - 1;
                fine = k < 2 || k >= COARSE || !(residual > p.coarse * goal);
            }
            if (fine)
                spread<true>(p, s, top, left);
            else
                spread<false>(p, s, top, left);
            __syncthreads();
            give(p, s, b, here, k);
            if (!last_tile) __syncthreads();
        }
        meet(p, b);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) solve(Problem p, const float*, float*) {
    SHARED(Scratch, scratch, 1);
    Scratch& s = scratch[0];
    Block b;
    b.team = blockIdx.x / p.team;
    b.rank = blockIdx.x % p.team;
    b.round = 0;
    const int teams = gridDim.x / p.team;
    const long long pixels = (long long)p.height * p.width;
    for (int k = threadIdx.x; k < 4 * COPY; k += THREADS) s.pixels[k] = 0;
    for (b.image = b.team; b.image < p.count; b.image += teams) {
        __syncthreads();
        for (int k = threadIdx.x; k < ROW; k += THREADS) s.row[k] = p.rows[(long long)b.image * ROW + k];
        // The mean from the first pixel on, so that a constant image becomes exactly 0.
        const double first = p.z[b.image * pixels];
        double sum = 0, squares = 0, largest = 0;
        for_own_pixels(p, b, [&](long long at) {
            sum += p.z[at] - first;
            p.sums[at] = 0;                         // of the first iteration, which comes after all have met
        });
        sum = over_block<SUM>(s, sum);
        if (threadIdx.x == 0) part_of(p, b, 2, b.rank) = sum;
        meet(p, b);
        b.mean = (float)(first + over_team<SUM>(p, s, b, 2) / (double)pixels);
        for_own_pixels(p, b, [&](long long at) {
            const double away = p.z[at] - b.mean;
            squares += away * away;
            largest = fmax(largest, fabs(away));
        });
        squares = over_block<SUM>(s, squares);
        largest = over_block<LARGEST>(s, largest);
        if (threadIdx.x == 0) {
            part_of(p, b, 3, b.rank) = squares;
            part_of(p, b, 4, b.rank) = largest;
        }
        meet(p, b);
        const double goal = p.goal * over_team<SUM>(p, s, b, 3);
        const float most = fmaxf((float)over_team<LARGEST>(p, s, b, 4), 1e-30f);
        // In half precision, pixels are below 64 of 65504, and multiples of 2^-30 of that.
        const float power = __int_as_float(__float_as_int(most) & 0x7F800000);
        b.scale = 32.0f / power;
        for (int k = threadIdx.x; k < RATIOS * FILTERS; k += THREADS)
            s.row[k + k / FILTERS * FILTERS] *= power / 32.0f;
        bool near = true;
        if (goal == 0 || s.row[STEP + 4] <= 0) {
            for_own_pixels(p, b, [&](long long at) { p.out[at] = p.z[at]; });
        } else {
            const int k = iterate(p, s, b, (float)(goal * b.scale * b.scale), near) % 3;
            for (int tile = b.rank; tile < p.down * p.across; tile += p.team) {
                const Tile& here = tile_of(p, s, b, tile);
                for (int place = threadIdx.x; place < REGION; place += THREADS)
                    if (here.at[place] >= 0) p.out[b.image * pixels + here.at[place]] = here.x[k][place] + b.mean;
            }
        }
        if (b.rank == 0 && threadIdx.x == 0) p.near[b.image] = near;
    }
    if (threadIdx.x == 0 && atomicAdd(p.arrived + teams, 1u) == gridDim.x - 1)  // the last of all: nobody waits any more
        for (int k = 0; k <= teams; ++k) p.arrived[k] = 0;
}
