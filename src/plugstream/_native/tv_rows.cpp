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
inline T size(T v) { return v < 0 ? -v : v; }
template <class T>
inline T shrinking(T squares) { return T(1) / root(at_least(squares, T(1))); }

// The order of the sums is that of `differences_adjoint`, so that both forms round alike.
template <bool volume, bool maps, class T>
void primal_row(const T* __restrict z, const T* __restrict outer_before, const T* __restrict outer,
                const T* __restrict middle_before, const T* __restrict middle, const T* __restrict across, T strength,
                const T* __restrict low, const T* __restrict high, long width, T* __restrict x) {
    auto others = [=](long j) {
        T sum = outer_before[j] - outer[j];
        if constexpr (volume) sum = (sum - middle[j]) + middle_before[j];
        return sum - across[j];
    };
    auto clip = [=](T v, long j) { return at_most(at_least(v, low[maps ? j : 0]), high[maps ? j : 0]); };
    x[0] = clip(z[0] - strength * others(0), 0);
    for (long j = 1; j < width; ++j) x[j] = clip(z[j] - strength * (others(j) + across[j - 1]), j);
    x[width] = x[width - 1];
}

template <class T>
void primal(const T* z, const T* outer_before, const T* outer, const T* middle_before, const T* middle,
            const T* across, T strength, const T* low, const T* high, bool maps, long width, T* x) {
    const auto row = middle == nullptr ? (maps ? primal_row<false, true, T> : primal_row<false, false, T>)
                                       : (maps ? primal_row<true, true, T> : primal_row<true, false, T>);
    row(z, outer_before, outer, middle_before, middle, across, strength, low, high, width, x);
}

// The field along the axes at one pixel; `m` stays out of it with two axes.
template <int axes, class T>
struct Field {
    T o, m, a;

    T squares() const {
        if constexpr (axes == 3) return o * o + m * m + a * a;
        return o * o + a * a;
    }
    T sizes() const {
        if constexpr (axes == 3) return size(o) + size(m) + size(a);
        return size(o) + size(a);
    }
};

template <int axes, bool isotropic, class T>
inline Field<axes, T> project(Field<axes, T> f) {
    if constexpr (isotropic) {
        const T shrink = shrinking(f.squares());
        return {f.o * shrink, axes == 3 ? f.m * shrink : T(0), f.a * shrink};
    } else {
        auto clip = [](T v) { return at_most(at_least(v, T(-1)), T(1)); };
        return {clip(f.o), axes == 3 ? clip(f.m) : T(0), clip(f.a)};
    }
}

// One component on its own.
template <int axes, bool isotropic, class T>
void dual_alone(const T* __restrict x, const T* __restrict middle, const T* __restrict outer, T rate, T momentum,
                long width, T* __restrict p_o, T* __restrict p_m, T* __restrict p_a, T* __restrict s_o,
                T* __restrict s_m, T* __restrict s_a) {
    // At the end of an axis the next row is x itself; all are only read, so that `__restrict` still holds.
    for (long j = 0; j < width; ++j) {
        Field<axes, T> f{s_o[j] + rate * (outer[j] - x[j]), T(0), s_a[j] + rate * (x[j + 1] - x[j])};
        if constexpr (axes == 3) f.m = s_m[j] + rate * (middle[j] - x[j]);
        f = project<axes, isotropic>(f);
        s_o[j] = f.o + momentum * (f.o - p_o[j]);
        if constexpr (axes == 3) s_m[j] = f.m + momentum * (f.m - p_m[j]);
        s_a[j] = f.a + momentum * (f.a - p_a[j]);
        p_o[j] = f.o;
        if constexpr (axes == 3) p_m[j] = f.m;
        p_a[j] = f.a;
    }
}

// Several components: the step, then how much each pixel is to shrink, then the projection and the momentum. What stays
// between these is in the row of s, which the cache holds.
template <bool first, class T>
void step_along(const T* __restrict x, const T* __restrict next, T rate, long width, T* __restrict s,
                T* __restrict squares) {
    for (long j = 0; j < width; ++j) {
        const T value = s[j] + rate * (next[j] - x[j]);
        s[j] = value;
        squares[j] = first ? value * value : squares[j] + value * value;
    }
}

template <class T>
void shrink_row(long width, T* __restrict squares) {
    for (long j = 0; j < width; ++j) squares[j] = shrinking(squares[j]);
}

template <class T>
void move_along(const T* __restrict shrink, T momentum, long width, T* __restrict p, T* __restrict s) {
    for (long j = 0; j < width; ++j) {
        const T value = s[j] * shrink[j];
        s[j] = value + momentum * (value - p[j]);
        p[j] = value;
    }
}

// The next row of x along an axis; across, it is the same row one pixel further.
template <class T>
inline const T* next_along(long axis, const Layout<T>& layout, const Near<T>& near) {
    return axis == 0 ? near.outer : axis + 1 == layout.axes ? near.x + 1 : near.middle;
}

template <class T>
void dual_coupled(const Layout<T>& layout, const Near<T>& near, T rate, T momentum, T* p, T* s) {
    const long axes = layout.axes, width = layout.width;
    T* const squares = layout.scratch;
    auto step = [&](long component, long axis, bool first) {
        const long part = component * (width + 1);
        const T *x = near.x + part, *next = next_along(axis, layout, near) + part;
        T* row = s + (component * axes + axis) * layout.field;
        first ? step_along<true>(x, next, rate, width, row, squares)
              : step_along<false>(x, next, rate, width, row, squares);
    };
    auto move = [&](long component, long axis) {
        const long row = (component * axes + axis) * layout.field;
        move_along(squares, momentum, width, p + row, s + row);
    };
    if (layout.isotropic) {
        for (long k = 0; k < layout.components; ++k)
            for (long a = 0; a < axes; ++a) step(k, a, k + a == 0);
        shrink_row(width, squares);
        for (long k = 0; k < layout.components; ++k)
            for (long a = 0; a < axes; ++a) move(k, a);
    } else {
        for (long a = 0; a < axes; ++a) {
            for (long k = 0; k < layout.components; ++k) step(k, a, k == 0);
            shrink_row(width, squares);
            for (long k = 0; k < layout.components; ++k) move(k, a);
        }
    }
}

template <int axes, class T>
void dual_of_axes(const Layout<T>& layout, const Near<T>& near, T rate, T momentum, T* p, T* s) {
    const long field = layout.field, across = (axes - 1) * field;
    if (layout.isotropic)
        dual_alone<axes, true>(near.x, near.middle, near.outer, rate, momentum, layout.width, p, p + field, p + across,
                               s, s + field, s + across);
    else
        dual_alone<axes, false>(near.x, near.middle, near.outer, rate, momentum, layout.width, p, p + field,
                                p + across, s, s + field, s + across);
}

template <class T>
void dual(const Layout<T>& layout, const Near<T>& near, T rate, T momentum, T* p, T* s) {
    if (layout.components > 1)
        dual_coupled(layout, near, rate, momentum, p, s);
    else if (layout.axes == 2)
        dual_of_axes<2>(layout, near, rate, momentum, p, s);
    else
        dual_of_axes<3>(layout, near, rate, momentum, p, s);
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

template <int axes, bool isotropic, class T>
double gap_alone(const T* __restrict x, const T* __restrict middle, const T* __restrict outer, long width,
                 const T* __restrict p_o, const T* __restrict p_m, const T* __restrict p_a) {
    return sum_row(width, [=](long j) {
        Field<axes, T> f{outer[j] - x[j], T(0), x[j + 1] - x[j]};
        T inner = f.o * p_o[j];
        if constexpr (axes == 3) {
            f.m = middle[j] - x[j];
            inner += f.m * p_m[j];
        }
        inner += f.a * p_a[j];
        const T length = isotropic ? root(f.squares()) : f.sizes();
        return static_cast<double>(at_least(length - inner, T(0)));
    });
}

template <bool first, class T>
void add_squares(const T* __restrict x, const T* __restrict next, long width, T* __restrict squares) {
    for (long j = 0; j < width; ++j) {
        const T value = next[j] - x[j];
        squares[j] = first ? value * value : squares[j] + value * value;
    }
}

// -<Dx, p> along one axis, and the length of Dx where it is known already, are added to `rest`.
template <bool first, class T>
void add_product(const T* __restrict x, const T* __restrict next, const T* __restrict p, long width,
                 T* __restrict rest) {
    for (long j = 0; j < width; ++j) {
        const T value = (next[j] - x[j]) * p[j];
        rest[j] = first ? value : rest[j] + value;
    }
}

template <bool first, class T>
void add_roots(const T* __restrict squares, long width, T* __restrict lengths) {
    for (long j = 0; j < width; ++j) lengths[j] = first ? root(squares[j]) : lengths[j] + root(squares[j]);
}

template <class T>
double gap_coupled(const Layout<T>& layout, const Near<T>& near, const T* p) {
    const long axes = layout.axes, width = layout.width;
    T *const lengths = layout.scratch, *const other = layout.scratch + width;
    auto squares = [&](long component, long axis, bool first, T* out) {
        const long part = component * (width + 1);
        const T *x = near.x + part, *next = next_along(axis, layout, near) + part;
        first ? add_squares<true>(x, next, width, out) : add_squares<false>(x, next, width, out);
    };
    if (layout.isotropic) {
        for (long k = 0; k < layout.components; ++k)
            for (long a = 0; a < axes; ++a) squares(k, a, k + a == 0, lengths);
        add_roots<true>(lengths, width, other);
        for (long j = 0; j < width; ++j) lengths[j] = other[j];
    } else {
        for (long a = 0; a < axes; ++a) {
            for (long k = 0; k < layout.components; ++k) squares(k, a, k == 0, other);
            a == 0 ? add_roots<true>(other, width, lengths) : add_roots<false>(other, width, lengths);
        }
    }
    T* const inner = other;
    for (long k = 0; k < layout.components; ++k)
        for (long a = 0; a < axes; ++a) {
            const long part = k * (width + 1);
            const T *x = near.x + part, *next = next_along(a, layout, near) + part;
            const T* row = p + (k * axes + a) * layout.field;
            k + a == 0 ? add_product<true>(x, next, row, width, inner) : add_product<false>(x, next, row, width, inner);
        }
    return sum_row(width,
                   [=](long j) { return static_cast<double>(at_least(lengths[j] - inner[j], T(0))); });
}

template <int axes, class T>
double gap_of_axes(const Layout<T>& layout, const Near<T>& near, const T* p) {
    const long field = layout.field, across = (axes - 1) * field;
    return layout.isotropic ? gap_alone<axes, true>(near.x, near.middle, near.outer, layout.width, p, p + field,
                                                    p + across)
                            : gap_alone<axes, false>(near.x, near.middle, near.outer, layout.width, p, p + field,
                                                     p + across);
}

template <class T>
double gap(const Layout<T>& layout, const Near<T>& near, const T* p) {
    if (layout.components > 1) return gap_coupled(layout, near, p);
    return layout.axes == 2 ? gap_of_axes<2>(layout, near, p) : gap_of_axes<3>(layout, near, p);
}

template <class T>
double energy(const T* z, long width) {
    return sum_row(width, [=](long j) { return static_cast<double>(z[j]) * static_cast<double>(z[j]); });
}

template <bool first, class T>
void copy_along(const T* __restrict warm, bool zero, long end, long width, T* __restrict p, T* __restrict squares) {
    for (long j = 0; j < width; ++j) {
        const T value = zero || j >= end ? T(0) : warm[j];
        p[j] = value;
        squares[j] = first ? value * value : squares[j] + value * value;
    }
}

template <class T>
void clip_along(long width, T* __restrict p) {
    for (long j = 0; j < width; ++j) p[j] = at_most(at_least(p[j], T(-1)), T(1));
}

template <class T>
void scale_along(const T* __restrict shrink, long width, T* __restrict p) {
    for (long j = 0; j < width; ++j) p[j] *= shrink[j];
}

template <class T>
void feasible(const Layout<T>& layout, const T* warm, bool last_outer, bool last_middle, T* p) {
    const long axes = layout.axes, width = layout.width;
    T* const squares = layout.scratch;
    auto copy = [&](long component, long axis, bool first) {
        const bool across = axis + 1 == axes, zero = axis == 0 ? last_outer : !across && last_middle;
        const long row = (component * axes + axis) * layout.field, end = across ? width - 1 : width;
        first ? copy_along<true>(warm + row, zero, end, width, p + row, squares)
              : copy_along<false>(warm + row, zero, end, width, p + row, squares);
    };
    auto scale = [&](long component, long axis) {
        scale_along(squares, width, p + (component * axes + axis) * layout.field);
    };
    if (layout.isotropic) {
        for (long k = 0; k < layout.components; ++k)
            for (long a = 0; a < axes; ++a) copy(k, a, k + a == 0);
        shrink_row(width, squares);
        for (long k = 0; k < layout.components; ++k)
            for (long a = 0; a < axes; ++a) scale(k, a);
    } else {
        for (long a = 0; a < axes; ++a) {
            for (long k = 0; k < layout.components; ++k) copy(k, a, k == 0);
            if (layout.components == 1) {
                clip_along(width, p + a * layout.field);
            } else {
                shrink_row(width, squares);
                for (long k = 0; k < layout.components; ++k) scale(k, a);
            }
        }
    }
}

}  // namespace

namespace PLUGSTREAM_LEVEL {
extern const Rows<float> rows32 = {primal<float>, dual<float>, gap<float>, feasible<float>, energy<float>};
extern const Rows<double> rows64 = {primal<double>, dual<double>, gap<double>, feasible<double>, energy<double>};
}  // namespace PLUGSTREAM_LEVEL

}  // namespace plugstream::tv
