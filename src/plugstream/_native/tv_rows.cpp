// Compiled once for each instruction set, with PLUGSTREAM_LEVEL naming it. It includes no standard header on purpose:
// an inline library function compiled here for AVX-512 could be the copy that the linker keeps for everyone.
#include "tv_rows.hpp"

namespace plugstream::tv {
namespace {

inline float root(float v) { return __builtin_sqrtf(v); }
inline double root(double v) { return __builtin_sqrt(v); }

// Written so that a NaN in v comes out as a NaN.
template <class T>
inline T at_least(T v, T bound) { return v < bound ? bound : v; }
template <class T>
inline T at_most(T v, T bound) { return v > bound ? bound : v; }

template <class T>
void primal(const T* __restrict z, const T* __restrict above, const T* __restrict s_down,
            const T* __restrict s_across, T strength, T low, T high, long width, T* __restrict x) {
    // The order of the sums is that of `differences_adjoint`, so that both forms round alike.
    const T first = (above[0] - s_down[0]) - s_across[0];
    x[0] = at_most(at_least(z[0] - strength * first, low), high);
    for (long j = 1; j < width; ++j) {
        const T adjoint = ((above[j] - s_down[j]) - s_across[j]) + s_across[j - 1];
        x[j] = at_most(at_least(z[j] - strength * adjoint, low), high);
    }
    x[width] = x[width - 1];
}

template <bool isotropic, class T>
inline void project(T& down, T& across) {
    if constexpr (isotropic) {
        const T shrink = T(1) / root(at_least(down * down + across * across, T(1)));
        down *= shrink;
        across *= shrink;
    } else {
        down = at_most(at_least(down, T(-1)), T(1));
        across = at_most(at_least(across, T(-1)), T(1));
    }
}

template <bool isotropic, class T>
void dual_row(const T* __restrict x, const T* __restrict below, T rate, T momentum, long width, T* __restrict p_down,
              T* __restrict p_across, T* __restrict s_down, T* __restrict s_across) {
    for (long j = 0; j < width; ++j) {
        T down = s_down[j] + rate * (below[j] - x[j]);
        T across = s_across[j] + rate * (x[j + 1] - x[j]);
        project<isotropic>(down, across);
        s_down[j] = down + momentum * (down - p_down[j]);
        s_across[j] = across + momentum * (across - p_across[j]);
        p_down[j] = down;
        p_across[j] = across;
    }
}

template <class T>
void dual(const T* x, const T* below, T rate, T momentum, bool isotropic, long width, T* p_down, T* p_across,
          T* s_down, T* s_across) {
    // On the last row `below` is x itself; both are only read, so that `__restrict` still holds.
    if (isotropic)
        dual_row<true>(x, below, rate, momentum, width, p_down, p_across, s_down, s_across);
    else
        dual_row<false>(x, below, rate, momentum, width, p_down, p_across, s_down, s_across);
}

template <bool isotropic, class T>
inline double gap_term(T down, T across, T p_down, T p_across) {
    T length;
    if constexpr (isotropic)
        length = root(down * down + across * across);
    else
        length = (down < 0 ? -down : down) + (across < 0 ? -across : across);
    return static_cast<double>(at_least(length - (down * p_down + across * p_across), T(0)));
}

// The sum of term(j) over a row. A fixed number of partial sums: it vectorises, and every instruction set adds in the
// same order.
template <class Term>
inline double sum_row(long width, Term term) {
    constexpr long lanes = 16;
    double sums[lanes] = {};
    long j = 0;
    for (; j + lanes <= width; j += lanes)
        for (long k = 0; k < lanes; ++k) sums[k] += term(j + k);
    double total = 0;
    for (; j < width; ++j) total += term(j);
    for (long k = 0; k < lanes; ++k) total += sums[k];
    return total;
}

template <bool isotropic, class T>
double gap_row(const T* __restrict x, const T* __restrict below, const T* __restrict p_down,
               const T* __restrict p_across, long width) {
    return sum_row(width, [=](long j) {
        return gap_term<isotropic>(below[j] - x[j], x[j + 1] - x[j], p_down[j], p_across[j]);
    });
}

template <class T>
double gap(const T* x, const T* below, const T* p_down, const T* p_across, bool isotropic, long width) {
    return isotropic ? gap_row<true>(x, below, p_down, p_across, width)
                     : gap_row<false>(x, below, p_down, p_across, width);
}

template <class T>
double energy(const T* z, long width) {
    return sum_row(width, [=](long j) { return static_cast<double>(z[j]) * static_cast<double>(z[j]); });
}

template <bool isotropic, class T>
void feasible_row(const T* __restrict down, const T* __restrict across, bool last, long width, T* __restrict p_down,
                  T* __restrict p_across) {
    for (long j = 0; j < width; ++j) {
        T d = last ? T(0) : down[j], a = j + 1 < width ? across[j] : T(0);
        project<isotropic>(d, a);
        p_down[j] = d;
        p_across[j] = a;
    }
}

template <class T>
void feasible(const T* down, const T* across, bool last, bool isotropic, long width, T* p_down, T* p_across) {
    if (isotropic)
        feasible_row<true>(down, across, last, width, p_down, p_across);
    else
        feasible_row<false>(down, across, last, width, p_down, p_across);
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const Rows<float> rows32 = {primal<float>, dual<float>, gap<float>, feasible<float>, energy<float>};
extern const Rows<double> rows64 = {primal<double>, dual<double>, gap<double>, feasible<double>, energy<double>};
}  // namespace PLUGSTREAM_LEVEL

}  // namespace plugstream::tv
