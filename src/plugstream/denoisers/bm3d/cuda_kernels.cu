// Parts of BM3D for CUDA: block transforms, the selection of groups, and how filtered blocks become an image again.
// cuda_kernels.py starts them; reference.py specifies them. Before this text are defined: STEP and
// RADIUS of the profile; FIRST and SECOND, the blocks of a group of stage 1 and 2; REFS and SIDE, references below and
// beside each other that are measured together; DOWN and LANES, the keys of a reference; LISTED, blocks of a position that
// are not in its chain; WIDE, positions of a block of `gather`.

#ifndef ON_CPU
#define SHARED(type, name, count) __shared__ type name[count]
// Without a branch, into which the compiler would move what leads to the value.
__device__ static void store_if(bool really, int* to, int value) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.s32 [%1], %2; }" ::"r"((int)really), "l"(to), "r"(value));
}
__device__ static void prefetch(const float* from, unsigned bytes) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"((const char*)from + bytes));
}
#else
static void prefetch(const float*, unsigned) {}
static void store_if(bool really, int* to, int value) {
    if (really) *to = value;
}
#endif

constexpr int BLOCK = 8, NUMBERS = 64;              // of a block
constexpr int NEVER = 0x7FFFFFFF, NUMBER = 0x7FF;   // the key that is never chosen; the bits of a candidate's number
constexpr unsigned ALL = 0xFFFFFFFF;

struct Problem {
    int height, width, across, positions;           // pixels of an image; block positions in a row, and in all
    int references, columns;                        // reference blocks, and how many in a row
    int begin, end;                                 // of the references of this launch, or of their groups of rows
    int size;                                       // blocks of a group
    float matrix[NUMBERS];                          // the analysis, or the synthesis times the window
    float window[BLOCK];
    const float *images, *sigma, *largest;          // (N, height, width); (N,); (N,): the largest absolute value
    float* spectra;                                 // (N, positions, 64)
    int* measured;                                  // (N, references, DOWN, LANES): keys
    int* groups;                                    // (N, references, size)
    int *heads, *lists, *next;                      // see `choose`: (N, positions, 2); (N, positions, LISTED); like groups
    const float *noisy, *guide, *common;            // spectra, (N, positions, 64); what two blocks share, (65, 64)
    float factor;                                   // the threshold in sigmas, or of sigma^2 in the Wiener filter
    float *blocks, *shares;                         // (N, references, size, 64); (N, references)
    float *numerator, *denominator;                 // (N, rows of positions, width, 8); the same without 8
    float* result;                                  // (N, height, width)
};

// The spectrum A b A^T of the block at every position. A thread has one column of it, and goes down a strip, in which
// each row of pixels is transformed across once. Grid: (strips of 32 columns, strips of TALL rows, N).
constexpr int TALL = 4;

extern "C" __global__ void __launch_bounds__(256) transform(Problem p, const float*, float*) {
    const int v = threadIdx.x % 8, x = blockIdx.x * 32 + threadIdx.x / 8, top = blockIdx.y * TALL;
    const int rows = p.height - BLOCK + 1;
    if (x >= p.across) return;
    const float* pixels = p.images + ((long long)blockIdx.z * p.height + top) * p.width + x;
    float* to = p.spectra + ((long long)blockIdx.z * p.positions + (long long)top * p.across + x) * NUMBERS + v;
    float mine[BLOCK], row[BLOCK];
#pragma unroll
    for (int j = 0; j < BLOCK; ++j) mine[j] = p.matrix[v * BLOCK + j];
#pragma unroll
    for (int s = 0; s < TALL + BLOCK - 1; ++s) {
        if (top + s >= p.height) return;
        float sum = pixels[0] * mine[0];
#pragma unroll
        for (int j = 1; j < BLOCK; ++j) sum = fmaf(pixels[j], mine[j], sum);
        row[s % BLOCK] = sum;
        pixels += p.width;
        if (s >= BLOCK - 1 && top + s - (BLOCK - 1) < rows) {
#pragma unroll
            for (int u = 0; u < BLOCK; ++u) {
                float all = row[(s + 1) % BLOCK] * p.matrix[u * BLOCK];
#pragma unroll
                for (int i = 1; i < BLOCK; ++i) all = fmaf(row[(s + 1 + i) % BLOCK], p.matrix[u * BLOCK + i], all);
                to[u * BLOCK] = all;
            }
            to += (long long)p.across * NUMBERS;
        }
    }
}

// The keys of all candidates of REFS x SIDE references. A lane has DOWN candidates below each other for each reference.
// Pixel row s of its strip meets pixel row s - e of the references' strip for candidate e. The sums of that row serve
// every reference whose block has the row, and references beside each other share squares and parts of their sums: with
// the usual numbers, 51 rows of 17 pixels are read and 153 rows of 17 differences squared for 168 distances of 64. A turn
// of the loop has STEP rows, after which the next references are done. Nothing is fused that reference.py does not
// fuse, so that distances are those to the bit. Grid: (groups of columns, groups of rows, parts of the lanes and N); the
// last group of columns is for a reference that breaks the step, which the last group of rows has besides its own.
constexpr int SPAN = 2 * RADIUS + 1, COLUMNS = STEP * (SIDE - 1) + BLOCK;
// The last row of a turn ends the sums of the lane's last candidate and this turn's reference. Turns before the first one's:
constexpr int TO_FIRST = (BLOCK + DOWN - 1 + STEP - 1) / STEP - 1;
constexpr int EARLY = STEP * (TO_FIRST + 1) - (BLOCK + DOWN - 1);  // rows that these have before the first pixel
constexpr int ROWS = STEP * REFS + BLOCK - 1;                      // pixels of references, one that breaks the step included
constexpr int TEAM = LANES < 32 ? 32 : LANES < 256 ? LANES : 256;  // threads
constexpr int STRIPS = (TEAM + SPAN - 2) / SPAN + 1;               // of lanes, that a block may have
constexpr int SEEN_ROWS = DOWN * (STRIPS - 1) + ROWS + DOWN - 1, SEEN = SPAN - 1 + COLUMNS, PADDED = (COLUMNS + 3) / 4 * 4;

struct Match {                                      // of a candidate and a column of references
    float row, pairs[3], fours[5];                  // the last row's sum; sums of two and of four rows, the last ones first
};

// The distance of the block whose last row this is; what is not used of it is not computed.
__device__ static float add_row(Match& m, float sum) {
    m.pairs[2] = m.pairs[1];
    m.pairs[1] = m.pairs[0];
    m.pairs[0] = m.row + sum;
#pragma unroll
    for (int k = 4; k > 0; --k) m.fours[k] = m.fours[k - 1];
    m.fours[0] = m.pairs[2] + m.pairs[0];
    m.row = sum;
    return m.fours[4] + m.fours[0];
}

struct Lane {
    const float4* references;                       // (.., PADDED / 4), from the turn's first row on
    const float* candidates;                        // (.., SEEN), from this lane's first column of that row on
    int* keys;                                      // of this turn's reference
    int turn, count, top, down, over, number;       // of the references; from a reference to the lane's first candidate
    int beside[SIDE];                               // NEVER for candidates beside the image, else 0
    bool real[SIDE];                                // whether there is a reference, and this lane has candidates
};

// Row S of a turn and candidate E.
template <int S, int E>
__device__ static void measure_row(const Problem& p, const Lane& lane, const float (&candidate)[COLUMNS],
                                   Match (&match)[DOWN][SIDE]) {
    float square[PADDED];
#pragma unroll
    for (int j = 0; j < PADDED / 4; ++j) {
        const float4 four = lane.references[(S - E) * (PADDED / 4) + j];
        square[4 * j] = four.x;
        square[4 * j + 1] = four.y;
        square[4 * j + 2] = four.z;
        square[4 * j + 3] = four.w;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
        const float d = square[j] - candidate[j];
        square[j] = d * d;
    }
#pragma unroll
    for (int c = 0; c < SIDE; ++c) {
        const float* const q = square + STEP * c;
        const float sum = ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
        const float distance = add_row(match[E][c], sum);
        if constexpr ((S + DOWN - E) % STEP == 0) {
            constexpr int ahead = (S + DOWN - E) / STEP - 1;
            const int reference = lane.turn + ahead, y = lane.top + reference * STEP, dy = lane.down + E;
            const bool valid = (unsigned)(y + dy) <= (unsigned)(p.height - BLOCK) && dy <= RADIUS;
            const int number = valid && (dy != 0 || lane.over != 0) ? lane.number + E * SPAN : NEVER;
            const int key = (__float_as_int(distance) & ~NUMBER) | number | lane.beside[c];
            store_if(lane.real[c] && (unsigned)reference < (unsigned)lane.count,
                     lane.keys + (c + (long long)ahead * p.columns) * (DOWN * LANES) + E * LANES, key);
        }
    }
    if constexpr (E + 1 < DOWN) measure_row<S, E + 1>(p, lane, candidate, match);
}

// The turn's rows from S on.
template <int S>
__device__ static void measure_rows(const Problem& p, const Lane& lane, Match (&match)[DOWN][SIDE]) {
    float candidate[COLUMNS];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) candidate[j] = lane.candidates[S * SEEN + j];
    measure_row<S, 0>(p, lane, candidate, match);
    if constexpr (S + 1 < STEP) measure_rows<S + 1>(p, lane, match);
}

extern "C" __global__ void __launch_bounds__(TEAM, 512 / TEAM) measure(Problem p, const float*, float*) {
    SHARED(float, seen, (SEEN_ROWS + EARLY) * SEEN);
    SHARED(float4, references, (ROWS + EARLY + 2 * DOWN - 2) * PADDED / 4);
    const int parts = (LANES + TEAM - 1) / TEAM, image = blockIdx.z / parts;
    const int begin = blockIdx.z % parts * TEAM, thread = begin + threadIdx.x, from = begin / SPAN;
    const float* const pixels = p.images + (long long)image * p.height * p.width;
    // References that are STEP apart; one more may follow.
    const int all = (p.height - BLOCK) / STEP + 1, group = p.begin + blockIdx.y, top = group * (STEP * REFS);
    const bool regular_across = blockIdx.x < (p.width - BLOCK) / STEP / SIDE + 1;
    const int left = regular_across ? blockIdx.x * (STEP * SIDE) : p.width - BLOCK;
    for (int k = threadIdx.x; k < SEEN_ROWS * SEEN; k += TEAM) {
        const int y = top - RADIUS + from * DOWN + k / SEEN, x = left - RADIUS + k % SEEN;
        seen[EARLY * SEEN + k] = pixels[(long long)max(0, min(y, p.height - 1)) * p.width + max(0, min(x, p.width - 1))];
    }
    for (int k = threadIdx.x; k < ROWS * PADDED; k += TEAM) {
        const int y = top + k / PADDED, x = left + k % PADDED;
        ((float*)references)[(EARLY + DOWN - 1) * PADDED + k] =
            pixels[(long long)min(y, p.height - 1) * p.width + min(x, p.width - 1)];
    }
    __syncthreads();
    const int strip = thread / SPAN, column = regular_across ? blockIdx.x * SIDE : p.columns - 1;
    Lane lane;
    lane.down = strip * DOWN - RADIUS;
    lane.over = thread % SPAN - RADIUS;
    lane.number = strip * DOWN * SPAN + thread % SPAN;
#pragma unroll
    for (int c = 0; c < SIDE; ++c) {
        const int x = left + STEP * c;
        lane.beside[c] = x + lane.over >= 0 && x + lane.over <= p.width - BLOCK ? 0 : NEVER;
        lane.real[c] = x <= p.width - BLOCK && thread < LANES;
    }
    int row = group * REFS;
    lane.top = top;
    lane.count = min(REFS, all - row);
    const bool more = row + REFS >= all && (p.height - BLOCK) % STEP != 0;
    for (int run = 0; run <= (int)more; ++run) {
        if (run == 1) {
            row = all;
            lane.top = p.height - BLOCK;
            lane.count = 1;
        }
        lane.references = references + (lane.top - top + DOWN - 1) * (PADDED / 4);
        lane.candidates = seen + (lane.top - top + (strip - from) * DOWN) * SEEN + thread % SPAN;
        lane.keys = p.measured + thread +
                    ((long long)image * p.references + (row - TO_FIRST) * p.columns + column) * (DOWN * LANES);
        Match match[DOWN][SIDE] = {};
#pragma unroll 1
        for (lane.turn = -TO_FIRST; lane.turn < lane.count; ++lane.turn) {
            measure_rows<0>(p, lane, match);
            lane.references += STEP * PADDED / 4;
            lane.candidates += STEP * SEEN;
            lane.keys += (long long)p.columns * (DOWN * LANES);
        }
    }
}

// Sort 64 numbers, of which a lane has those at `lane` and `lane + 32`.
__device__ static void sort(int (&value)[2], int lane) {
#pragma unroll
    for (int run = 2; run <= 64; run *= 2)
#pragma unroll
        for (int apart = run / 2; apart > 0; apart /= 2) {
            int other[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) other[h] = apart == 32 ? value[1 - h] : __shfl_xor_sync(ALL, value[h], apart);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int at = 32 * h + lane;
                value[h] = ((at & run) == 0) == ((at & apart) == 0) ? min(value[h], other[h]) : max(value[h], other[h]);
            }
        }
}

// The blocks of the size - 1 smallest keys, ascending, after the reference; and for each position the blocks that groups
// have there: how many, the first LISTED in any order, and a chain of the others, whose head and links are a block's number
// and 1, or 0 at its end. A warp has a reference. Grid: (fours of references, 1, N).
//
// Of the least keys of 64 parts, that many are at most the last of them: so are the keys that are looked for, and few
// others, which are sorted. If they are more than 64, the next larger key is looked for again and again.
constexpr int KEYS = DOWN * LANES, PARTS = (KEYS + 31) / 32;  // of a lane

extern "C" __global__ void __launch_bounds__(128, 7) choose(Problem p, const float*, float*) {
    SHARED(int, close, 4 * 64);
    const int lane = threadIdx.x % 32, reference = p.begin + blockIdx.x * 4 + threadIdx.x / 32;
    if (reference >= p.end) return;
    const long long entry = (long long)blockIdx.z * p.references + reference;
    const int* const keys = p.measured + entry * KEYS;
    int* const mine = close + threadIdx.x / 32 * 64;
    const int wanted = p.size - 1;
    int key[PARTS], found[2] = {NEVER, NEVER};
#pragma unroll
    for (int k = 0; k < PARTS; ++k) {
        // Candidates below each other are often alike: no lane is to have all of them.
        key[k] = 32 * k + 32 <= KEYS   ? keys[32 * k + ((lane + 11 * (k * 32 / LANES)) & 31)]
                 : 32 * k + lane < KEYS ? keys[32 * k + lane]
                                        : NEVER;
        found[k % 2] = min(found[k % 2], key[k]);
    }
    sort(found, lane);
    const int limit = __shfl_sync(ALL, found[0], max(wanted - 1, 0));
    int count = 0;
#pragma unroll
    for (int k = 0; k < PARTS; ++k) count += key[k] <= limit;
    int before = count;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const int other = __shfl_up_sync(ALL, before, apart);
        if (lane >= apart) before += other;
    }
    const int all = __shfl_sync(ALL, before, 31);
    int least = NEVER;
    if (all <= 64) {
        before -= count;
#pragma unroll
        for (int k = 0; k < PARTS; ++k)
            if (key[k] <= limit) mine[before++] = key[k];
        __syncwarp();
        for (int h = 0; h < 2; ++h) found[h] = 32 * h + lane < all ? mine[32 * h + lane] : NEVER;
        sort(found, lane);
        least = found[0];
    } else {
        int last = -1;
        for (int round = 0; round < wanted; ++round) {
            int next = NEVER;
#pragma unroll
            for (int k = 0; k < PARTS; ++k) next = min(next, key[k] > last ? key[k] : NEVER);
            for (int apart = 16; apart > 0; apart /= 2) next = min(next, __shfl_xor_sync(ALL, next, apart));
            last = next;
            if (lane == round) least = last;
        }
    }
    const int y = min(reference / p.columns * STEP, p.height - BLOCK);
    const int x = min(reference % p.columns * STEP, p.width - BLOCK);
    const int place = (lane + 1) % 32, number = least & NUMBER;  // the last lane's is 0
    if (place >= p.size) return;
    const int dy = place == 0 ? 0 : number / SPAN - RADIUS, dx = place == 0 ? 0 : number % SPAN - RADIUS;
    const int position = (y + dy) * p.across + x + dx, at = (int)(entry * p.size) + place;
    p.groups[at] = position;
    const long long here = (long long)blockIdx.z * p.positions + position;
    const int slot = atomicAdd(p.heads + 2 * here, 1);
    if (slot < LISTED)
        p.lists[LISTED * here + slot] = at;
    else
        p.next[at] = atomicExch(p.heads + 2 * here + 1, at + 1);
}

// Filtering. A thread has one coefficient of all K blocks of a group, in registers, so that the Haar transform along them
// costs additions only. Its coefficients stay unscaled (sums and differences): one of level l is 2^(l/2) times the
// orthonormal one, as is its noise, and the way back needs a factor 2^-l, which is exact. Their order: the sum, the
// difference of the highest level, two of the next, ..., K/2 of level 1.
template <int K>
struct Tree {                                       // whose lowest level is 1
    static constexpr int LEVELS = K == 1 ? 0 : K == 2 ? 1 : K == 4 ? 2 : K == 8 ? 3 : K == 16 ? 4 : 5;
    static constexpr int COUNTED = K == 32 ? 2 : 0;  // levels whose pairs are counted: they have 16 and 8 blocks a half
    // Where the differences of a level begin, and its pairs: K / 2, K, 2 K ... of them, in fours.
    __device__ static constexpr int first(int level) { return K >> level; }
    __device__ static constexpr int pairs(int level) {
        return level == 1 ? 0 : K < 8 ? 4 : K / 2 * ((1 << (level - 1)) - 1);
    }
    __device__ static int level(int k) { return k == 0 ? LEVELS : LEVELS - 31 + __clz(k); }
};

template <int K, int N = K>
__device__ static void haar(float (&value)[K]) {
    if constexpr (N > 1) {                          // the first N are sums; their differences follow their sums
        float details[N / 2];
#pragma unroll
        for (int m = 0; m < N / 2; ++m) {
            const float a = value[2 * m], b = value[2 * m + 1];
            details[m] = a - b;
            value[m] = a + b;
        }
#pragma unroll
        for (int m = 0; m < N / 2; ++m) value[N / 2 + m] = details[m];
        haar<K, N / 2>(value);
    }
}

// Undo `haar`, for coefficients of level l times 2^-l.
template <int K, int N = 2>
__device__ static void haar_back(float (&value)[K]) {
    if constexpr (N <= K) {
        float sums[N];
#pragma unroll
        for (int m = 0; m < N / 2; ++m) {
            sums[2 * m] = value[m] + value[N / 2 + m];
            sums[2 * m + 1] = value[m] - value[N / 2 + m];
        }
#pragma unroll
        for (int m = 0; m < N; ++m) value[m] = sums[m];
        haar_back<K, 2 * N>(value);
    }
}

// A number so many bytes after an address that all threads have: a sum of 32 bits.
__device__ static float read(const float* from, unsigned bytes) {
    return __ldg((const float*)((const char*)from + bytes));
}

// Where `common` has what two blocks share, whose codes are 64 y + x: in row 8 |dy| + |dx|, or 64 if they do not overlap;
// in bytes.
__device__ static int common_row(int one, int other) {
    const int apart = one - other + 8 * 64 + 8, dy = abs((apart >> 6) - 8), dx = abs((apart & 63) - 8);
    return 4 * NUMBERS * (dy < BLOCK && dx < BLOCK ? BLOCK * dy + dx : NUMBERS);
}

constexpr int GROUPS = 2;                           // of a block of threads

template <int K>
struct Shared {                                     // of a group, which 64 threads have
    unsigned places[K];
    int codes[K];
    alignas(16) int rows[K == 32 ? 112 : K * K / 2 + 4];  // of pairs
    alignas(16) float counts[NUMBERS][4];
    float masses[2];
};

// The variance that white noise of sigma 1 has in each output of `haar`. Over the pairs of blocks of a node of the
// transform's tree, what they share adds up to S = S_left + S_right + X, with X over the pairs that have a block in
// either half. Of n blocks, the difference of the halves has the variance n + 2 (S_left + S_right - X), and the sum of
// all K has K + 2 S. In the upper levels of large groups many pairs have few distances between them: it is counted how
// many lie |dy|, |dx| apart, for each node.
template <int K>
__device__ static void find_variances(const Problem& p, Shared<K>& s, int c, float (&variance)[K]) {
    constexpr int COUNTED = Tree<K>::COUNTED, DIRECT = Tree<K>::LEVELS - COUNTED;
#pragma unroll
    for (int level = 1; level <= DIRECT; ++level) {
        const int half = 1 << (level - 1);
        for (int q = c; q < K / 2 * half; q += NUMBERS) {
            const int start = q / (half * half) * 2 * half;
            s.rows[Tree<K>::pairs(level) + q] = common_row(s.codes[start + q / half % half], s.codes[start + half + q % half]);
        }
    }
    if (COUNTED) {
        int* const counts = (int*)s.counts;
        for (int k = c; k < 4 * NUMBERS; k += NUMBERS) counts[k] = 0;
        __syncthreads();
        for (int q = c; q < 384; q += NUMBERS) {
            const int node = q < 256 ? 0 : 1 + (q - 256) / 64, half = q < 256 ? 16 : 8, pair = q < 256 ? q : q % 64;
            const int start = node == 2 ? 16 : 0;
            const int row = common_row(s.codes[start + pair / half], s.codes[start + half + pair % half]);
            if (row < 4 * NUMBERS * NUMBERS) atomicAdd(counts + row / NUMBERS + node, 1);
        }
    }
    __syncthreads();
    const unsigned mine = 4 * c;
    float within[K];
#pragma unroll
    for (int k = 0; k < K; ++k) within[k] = 0;
#pragma unroll
    for (int level = 1; level <= DIRECT; ++level) {
        const int half = 1 << (level - 1);
#pragma unroll
        for (int m = 0; m < K >> level; ++m) {
            float x = 0;
            const int* const rows = s.rows + Tree<K>::pairs(level) + m * half * half;
            if (half == 1) {
                x = read(p.common, mine + rows[0]);
            } else {
#pragma unroll
                for (int q = 0; q < half * half / 4; ++q) {
                    const int4 four = ((const int4*)rows)[q];
                    x += (read(p.common, mine + four.x) + read(p.common, mine + four.y)) +
                         (read(p.common, mine + four.z) + read(p.common, mine + four.w));
                }
            }
            const float halves = within[2 * m] + within[2 * m + 1];
            variance[Tree<K>::first(level) + m] = fmaxf(2 * half + 2 * (halves - x), 2e-3f * half);
            within[m] = halves + x;
        }
    }
    if (COUNTED) {
        float x[3] = {0, 0, 0};
#pragma unroll 8
        for (int d = 1; d < NUMBERS; ++d) {
            const int4 count = *(const int4*)s.counts[d];
            const float share = read(p.common, mine + d * (4 * NUMBERS));
            x[0] = fmaf((float)count.x, share, x[0]);
            x[1] = fmaf((float)count.y, share, x[1]);
            x[2] = fmaf((float)count.z, share, x[2]);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            const float halves = within[2 * m] + within[2 * m + 1];
            variance[2 + m] = fmaxf(K / 2 + 2 * (halves - x[1 + m]), 1e-3f * (K / 2));
            within[m] = halves + x[1 + m];
        }
        const float halves = within[0] + within[1];
        variance[1] = fmaxf(K + 2 * (halves - x[0]), 1e-3f * K);
        within[0] = halves + x[0];
    }
    variance[0] = fmaxf(K + 2 * within[0], 1e-3f * K);
}

// Shrink a group, and write its blocks, weighted. Grid: (pairs of references, 1, N).
template <int K, bool WIENER>
__device__ static void filter(const Problem& p, Shared<K>* all) {
    const int c = threadIdx.x % NUMBERS;
    Shared<K>& s = all[threadIdx.x / NUMBERS];
    // The last group may be done twice, for threads to meet.
    const int reference = min((int)(p.begin + blockIdx.x * GROUPS + threadIdx.x / NUMBERS), p.end - 1);
    const long long entry = (long long)blockIdx.z * p.references + reference;
    const long long image = (long long)blockIdx.z * p.positions * NUMBERS;
    const float *const noisy = p.noisy + image, *const guide = (WIENER ? p.guide : p.noisy) + image;
    const unsigned mine = 4 * c;
    if (c < K) {
        const int place = p.groups[entry * K + c];
        s.places[c] = place * (4 * NUMBERS);        // in bytes, of which there are 2^32
        s.codes[c] = place + place / p.across * (64 - p.across);
    }
    __syncthreads();
    if (c < 2 * K) {                                // half a block each, while variances are found
        prefetch(guide, s.places[c / 2] + c % 2 * (2 * NUMBERS));
        if (WIENER) prefetch(noisy, s.places[c / 2] + c % 2 * (2 * NUMBERS));
    }
    float variance[K], value[K];
    find_variances<K>(p, s, c, variance);
#pragma unroll
    for (int k = 0; k < K; ++k) value[k] = read(guide, mine + s.places[k]);
    haar<K>(value);
    const float sigma = p.sigma[blockIdx.z];
    float mass = 0;
    if (WIENER) {
        const float noise = p.factor * (sigma * sigma);
        float other[K];
#pragma unroll
        for (int k = 0; k < K; ++k) other[k] = read(noisy, mine + s.places[k]);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const float energy = value[k] * value[k], scale = 1.0f / (1 << Tree<K>::level(k));
            // The sum: at c = 0 it is the mean of the group, which stays as it is.
            const float gain = k == 0 && c == 0 ? 1.0f : __fdividef(energy, fmaf(noise, variance[k], energy));
            mass = fmaf(gain * gain, variance[k] * scale, mass);
            value[k] = gain * scale;
        }
        haar<K>(other);
#pragma unroll
        for (int k = 0; k < K; ++k) value[k] *= other[k];
    } else {
        const float scale = 1 / (p.factor * sigma);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const float ratio = value[k] * scale, part = 1.0f / (1 << Tree<K>::level(k));
            const bool passes = ratio * ratio > variance[k] || (k == 0 && c == 0);
            mass += passes ? variance[k] * part : 0.0f;
            value[k] = passes ? value[k] * part : 0.0f;
        }
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) mass += __shfl_xor_sync(ALL, mass, apart);
    if (c % 32 == 0) s.masses[c / 32] = mass;
    haar_back<K>(value);
    __syncthreads();
    const float share = 1 / fmaxf(s.masses[0] + s.masses[1], WIENER ? 1.1754943508222875e-38f : 1.0f);
#pragma unroll
    for (int k = 0; k < K; ++k) p.blocks[(entry * K + k) * NUMBERS + c] = value[k] * share;
    if (c == 0) p.shares[entry] = share;
}

extern "C" __global__ void __launch_bounds__(GROUPS * NUMBERS) threshold(Problem p, const float*, float*) {
    SHARED(Shared<FIRST>, all, GROUPS);
    filter<FIRST, false>(p, all);
}

extern "C" __global__ void __launch_bounds__(GROUPS * NUMBERS, 4) wiener(Problem p, const float*, float*) {
    SHARED(Shared<SECOND>, all, GROUPS);
    filter<SECOND, true>(p, all);
}

// The power of two at or below a number >= 0; infinity where it is that, or NaN. Not below 2^-80.
__device__ static float power_below(float largest) {
    return fmaxf(__int_as_float(__float_as_int(largest) & 0x7F800000), 8.271806125530277e-25f);
}

// The sum of the weighted blocks at each position, its transform undone across, and added up over a row of positions:
// sum over j, v of S[j, v] T(y, x - j)[u, v]. Half a warp has a position. Blocks are added as whole numbers of 64 bits,
// multiples of 2^-42 of the power of two at or below the largest pixel, so that their order does not matter. A
// weighted block is below 2^9 times that power, and a position has fewer than 2^11 of them, so that no sum reaches 2^63;
// the least weight of a group is 2^-11, which leaves 31 bits of 24. Grid: (tiles of WIDE - 7 columns, rows of positions, N).
constexpr int TOGETHER = 2;                         // blocks that are read at once
constexpr int GIVES = WIDE - BLOCK + 1, APART = WIDE * BLOCK + 4;
constexpr float ONE = 4398046511104.0f;             // 2^42

struct Total {                                      // of a quarter of a block's row
    long long block[4];
    __device__ void add(const float4& more, float units) {
        block[0] += (long long)(more.x * units);
        block[1] += (long long)(more.y * units);
        block[2] += (long long)(more.z * units);
        block[3] += (long long)(more.w * units);
    }
};

extern "C" __global__ void __launch_bounds__(256, 4) gather(Problem p, const float*, float*) {
    SHARED(float, sums, 8 * APART);
    SHARED(float, weights, WIDE);
    const int lane = threadIdx.x % 32, part = lane % 16, left = blockIdx.x * GIVES - (BLOCK - 1), y = blockIdx.y;
    const int rows = p.height - BLOCK + 1, half = part % 2;
    const float power = power_below(p.largest[blockIdx.z]), units = ONE / power, unit = power / ONE;
    const long long image = (long long)blockIdx.z * p.positions;
    float matrix[2][4][4];                          // S[4 (0 or 1) + j, 4 half + v]
#pragma unroll
    for (int m = 0; m < 32; ++m)
        matrix[m / 16][m / 4 % 4][m % 4] = half ? p.matrix[m / 4 * BLOCK + 4 + m % 4] : p.matrix[m / 4 * BLOCK + m % 4];
    const int shift = 31 - __clz(p.size);
    // While the blocks of a position are added, those of the next one are on their way, and the list of that after it.
    const auto look_up = [&](int k, int2& head, int& mine) {
        const int x = left + k;
        const long long there = image + (long long)y * p.across + x;
        const bool inside = k < WIDE && x >= 0 && x < p.across;
        head = inside ? *(const int2*)(p.heads + 2 * there) : int2{0, 0};
        mine = inside ? p.lists[LISTED * there + part] : 0;
    };
    const auto ask_for = [&](bool real, int at) {
        if (!real) return;
        prefetch(p.blocks + (long long)at * NUMBERS, 0);
        prefetch(p.blocks + (long long)at * NUMBERS, 2 * NUMBERS);
    };
    int2 head, next_head, far_head;
    int mine, next, far;
    look_up(threadIdx.x / 16, head, mine);
    look_up(threadIdx.x / 16 + 16, next_head, next);
    ask_for(part < head.x, mine);
    for (int k = threadIdx.x / 16; k < WIDE; k += 16, head = next_head, mine = next, next_head = far_head, next = far) {
        const long long here = image + (long long)y * p.across + left + k;
        ask_for(part < next_head.x, next);
        look_up(k + 32, far_head, far);
        const int listed = min(head.x, LISTED), most = max(listed, __shfl_xor_sync(ALL, listed, 16));
        if (most == 0) {
            if (part == 0) weights[k] = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[(4 * half + j) * APART + k * BLOCK + part / 2] = 0;
            continue;
        }
        Total total = {};
        long long weight = 0;                       // of the blocks of which this thread has the number
        for (int first = 0; first < most; first += TOGETHER) {
            if (first % 16 == 0) {
                if (first > 0) {
                    mine = first + part < listed ? p.lists[LISTED * here + first + part] : 0;
                    ask_for(first + part < listed, mine);
                }
                if (first + part < listed) weight += (long long)(p.shares[mine >> shift] * ONE);
            }
            float4 block[TOGETHER];                 // that do not wait for each other
#pragma unroll
            for (int m = 0; m < TOGETHER; ++m) {
                const int at = __shfl_sync(ALL, mine, (first + m) % 16, 16);
                block[m] = first + m < listed ? ((const float4*)p.blocks)[(long long)at * 16 + part] : float4{0, 0, 0, 0};
            }
#pragma unroll
            for (int m = 0; m < TOGETHER; ++m) total.add(block[m], units);
        }
        for (int link = head.y; link > 0;) {
            const int at = link - 1;
            link = p.next[at];
            total.add(((const float4*)p.blocks)[(long long)at * 16 + part], units);
            if (part == 0) weight += (long long)(p.shares[at >> shift] * ONE);
        }
        __syncwarp();
#pragma unroll
        for (int apart = 8; apart > 0; apart /= 2) weight += __shfl_xor_sync(ALL, weight, apart);
        if (part == 0) weights[k] = (float)weight / ONE;
        float value[4], across[2][4];
#pragma unroll
        for (int v = 0; v < 4; ++v) value[v] = (float)total.block[v] * unit;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float sum = value[0] * matrix[h][j][0];
#pragma unroll
                for (int v = 1; v < 4; ++v) sum = fmaf(value[v], matrix[h][j][v], sum);
                across[h][j] = sum;
            }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; ++j) {               // of j below 4 the even lane gets the sum, of the others the odd one
            const float other = __shfl_xor_sync(ALL, half ? across[0][j] : across[1][j], 1);
            sums[(4 * half + j) * APART + k * BLOCK + part / 2] = (half ? across[1][j] : across[0][j]) + other;
        }
    }
    __syncthreads();
    const long long row = ((long long)blockIdx.z * rows + y) * p.width;
    for (int k = threadIdx.x; k < GIVES * BLOCK; k += 256) {
        const int x = k / BLOCK, u = k % BLOCK, column = blockIdx.x * GIVES + x;
        if (column >= p.width) break;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < BLOCK; ++j) sum += sums[j * APART + (x + BLOCK - 1 - j) * BLOCK + u];
        p.numerator[(row + column) * BLOCK + u] = sum;
        if (u == 0) {
            float share = 0;
#pragma unroll
            for (int j = 0; j < BLOCK; ++j) share = fmaf(weights[x + BLOCK - 1 - j], p.window[j], share);
            p.denominator[row + column] = share;
        }
    }
}

// The same down the columns, and the quotient. Grid: (eights of 32 columns, rows, N).
extern "C" __global__ void __launch_bounds__(256) fold_rows(Problem p, const float*, float*) {
    const int x = blockIdx.x * 256 + threadIdx.x, y = blockIdx.y, rows = p.height - BLOCK + 1;
    if (x >= p.width) return;
    float sum = 0, share = 0;
#pragma unroll
    for (int i = 0; i < BLOCK; ++i) {
        if (y - i < 0 || y - i >= rows) continue;
        const long long at = ((long long)blockIdx.z * rows + y - i) * p.width + x;
        const float4 *const from = (const float4*)(p.numerator + at * BLOCK), a = from[0], b = from[1];
        const float* const s = p.matrix + i * BLOCK;
        sum = fmaf(a.x, s[0], fmaf(a.y, s[1], fmaf(a.z, s[2], fmaf(a.w, s[3], sum))));
        sum = fmaf(b.x, s[4], fmaf(b.y, s[5], fmaf(b.z, s[6], fmaf(b.w, s[7], sum))));
        share = fmaf(p.denominator[at], p.window[i], share);
    }
    const long long at = ((long long)blockIdx.z * p.height + y) * p.width + x;
    p.result[at] = p.sigma[blockIdx.z] == 0 ? p.images[at] : sum / share;
}
