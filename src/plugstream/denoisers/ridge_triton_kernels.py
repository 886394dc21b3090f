"""The kernels of `ridge_triton.py`, in a file of their own because importing them needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl

__all__ = ["judge", "settle", "spread"]


@triton.jit
def mirrored(i, count):
    # Where pixel i lies that may be beyond either end of a line of `count` pixels, by fewer than that.
    i = tl.where(i < 0, -1 - i, i)
    return tl.where(i >= count, 2 * count - 1 - i, i)


@triton.jit
def responses(x, even_up, odd_up, even_left, odd_left, pixel, inside, height, width, tap, pairs,
              SIDE: tl.constexpr, TAPS: tl.constexpr, PAIRS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    # The four folded parts of the pixels around, each by the pairs of filters that see it.
    i, j = (pixel // width)[:, None], (pixel % width)[:, None]
    a, b = (tap // SIDE)[None, :], (tap % SIDE)[None, :]
    above, below = mirrored(i - a, height) * width, mirrored(i + a, height) * width
    left, right = mirrored(j - b, width), mirrored(j + b, width)
    below_right = tl.load(x + below + right, mask=inside, other=0.0)
    below_left = tl.load(x + below + left, mask=inside, other=0.0)
    above_right = tl.load(x + above + right, mask=inside, other=0.0)
    above_left = tl.load(x + above + left, mask=inside, other=0.0)
    weight = tap[:, None] * PAIRS + pairs[None, :]
    below_both, above_both = below_right + below_left, above_right + above_left
    below_apart, above_apart = below_right - below_left, above_right - above_left
    return (
        tl.dot(below_both + above_both, tl.load(even_up + weight), input_precision=PRECISION),
        tl.dot(below_apart - above_apart, tl.load(odd_up + weight), input_precision=PRECISION),
        tl.dot(below_both - above_both, tl.load(even_left + weight), input_precision=PRECISION),
        tl.dot(below_apart + above_apart, tl.load(odd_left + weight), input_precision=PRECISION),
    )


@triton.jit
def slope(u, slopes, reaches, RATIOS: tl.constexpr, PAIRS: tl.constexpr):
    # sigma psi'(u / sigma) = sum_j c_j clip(u, -r_j, r_j), for a block of pixels and pairs.
    total = tl.zeros_like(u)
    for k in tl.static_range(RATIOS):
        c, r = tl.load(slopes + k * PAIRS)[None, :], tl.load(reaches + k * PAIRS)[None, :]
        total += c * tl.minimum(tl.maximum(u, -r), r)
    return total


@triton.jit
def curve(u, v, slopes, reaches, RATIOS: tl.constexpr, PAIRS: tl.constexpr):
    # psi''(u / sigma) v.
    total = tl.zeros_like(u)
    for k in tl.static_range(RATIOS):
        c, r = tl.load(slopes + k * PAIRS)[None, :], tl.load(reaches + k * PAIRS)[None, :]
        total += tl.where(tl.abs(u) < r, c, 0.0)
    return total * v


@triton.jit
def spread(
    x, v, forward, backward, slopes, reaches, resting, shares, height, width,
    SIDE: tl.constexpr, TAPS: tl.constexpr, PAIRS: tl.constexpr, RATIOS: tl.constexpr, HESSIAN: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # For a block of pixels: the responses of all filters, their slopes, and what each pixel gives to those around it.
    # A filter and its mirror image respond with the sum and the difference of two folded responses (`ridge_fold.py`).
    size: tl.constexpr = 2 * SIDE - 1
    middle: tl.constexpr = SIDE - 1
    part: tl.constexpr = TAPS * PAIRS
    odd: tl.constexpr = RATIOS * PAIRS
    image = tl.program_id(1).to(tl.int64)
    plane = height * width
    x += image * plane
    v += image * plane
    shares += image * (size * size) * plane
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, TAPS)
    pairs = tl.arange(0, PAIRS)
    slopes += image * (2 * odd) + pairs
    reaches += image * (2 * odd) + pairs
    if tl.load(resting + image) == 0:
        inside = (pixel < plane)[:, None] & (tap < SIDE * SIDE)[None, :]
        ss, aa, sa, as_ = responses(
            x, forward, forward + part, forward + 2 * part, forward + 3 * part, pixel, inside, height, width, tap,
            pairs, SIDE, TAPS, PAIRS, PRECISION,
        )  # fmt: skip
        if HESSIAN:
            v0, v1, v2, v3 = responses(
                v, forward, forward + part, forward + 2 * part, forward + 3 * part, pixel, inside, height, width, tap,
                pairs, SIDE, TAPS, PAIRS, PRECISION,
            )  # fmt: skip
            one = curve(ss + aa, v0 + v1, slopes, reaches, RATIOS, PAIRS)
            other = curve(ss - aa, v0 - v1, slopes, reaches, RATIOS, PAIRS)
            one_odd = curve(sa + as_, v2 + v3, slopes + odd, reaches + odd, RATIOS, PAIRS)
            other_odd = curve(sa - as_, v2 - v3, slopes + odd, reaches + odd, RATIOS, PAIRS)
        else:
            one = slope(ss + aa, slopes, reaches, RATIOS, PAIRS)
            other = slope(ss - aa, slopes, reaches, RATIOS, PAIRS)
            one_odd = slope(sa + as_, slopes + odd, reaches + odd, RATIOS, PAIRS)
            other_odd = slope(sa - as_, slopes + odd, reaches + odd, RATIOS, PAIRS)
        weight = pairs[:, None] * TAPS + tap[None, :]
        ss = tl.dot(one + other, tl.load(backward + weight), input_precision=PRECISION)
        aa = tl.dot(one - other, tl.load(backward + part + weight), input_precision=PRECISION)
        sa = tl.dot(one_odd + other_odd, tl.load(backward + 2 * part + weight), input_precision=PRECISION)
        as_ = tl.dot(one_odd - other_odd, tl.load(backward + 3 * part + weight), input_precision=PRECISION)
        a, b = (tap // SIDE)[None, :], (tap % SIDE)[None, :]
        at = pixel[:, None]
        down, up, right, left = middle + a, middle - a, middle + b, middle - b
        # What stands in the middle row or column is its own mirror image, and is given once.
        tl.store(shares + (down * size + right) * plane + at, (ss + sa) + (aa + as_), mask=inside)
        tl.store(shares + (down * size + left) * plane + at, (ss + sa) - (aa + as_), mask=inside & (b > 0))
        tl.store(shares + (up * size + right) * plane + at, (ss - sa) - (aa - as_), mask=inside & (a > 0))
        tl.store(shares + (up * size + left) * plane + at, (ss - sa) + (aa - as_), mask=inside & (a > 0) & (b > 0))


@triton.jit
def settle(
    x, z, old, steps, momenta, resting, shares, squares, height, width,
    SIZE: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Adds up what the pixels around give to each: grad R(x), or a product with its Hessian, which is all if ALONE.
    # Then r = x - z + grad R(x), its squares, and x - step r + momentum (x - old), which takes the place of `old`.
    image = tl.program_id(1).to(tl.int64)
    plane = height * width
    shares += image * (SIZE * SIZE) * plane
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < plane
    if tl.load(resting + image) == 0:
        i, j = at // width, at % width
        total = tl.zeros([BLOCK], tl.float32)
        for row in tl.static_range(SIZE):
            # What a pixel beyond the border would give comes from the one it mirrors, which gives it the mirrored way.
            from_i = i - (row - SIZE // 2)
            beyond = (from_i < 0) | (from_i >= height)
            line = shares + tl.where(beyond, SIZE - 1 - row, row) * (SIZE * plane) + mirrored(from_i, height) * width
            for column in tl.static_range(SIZE):
                from_j = j - (column - SIZE // 2)
                beyond = (from_j < 0) | (from_j >= width)
                given = tl.where(beyond, SIZE - 1 - column, column) * plane + mirrored(from_j, width)
                total += tl.load(line + given, mask=inside, other=0.0)
        here = image * plane + at
        if ALONE:
            tl.store(old + here, total, mask=inside)
        else:
            now = tl.load(x + here, mask=inside, other=0.0)
            before = tl.load(old + here, mask=inside, other=0.0)
            r = now - tl.load(z + here, mask=inside, other=0.0) + total
            r = tl.where(inside, r, 0.0)
            tl.store(squares + image * tl.num_programs(0) + tl.program_id(0), tl.sum(r * r, 0))
            step, momentum = tl.load(steps + image), tl.load(momenta + image)
            tl.store(old + here, now - step * r + momentum * (now - before), mask=inside)


@triton.jit
def judge(squares, goals, resting, parts, BLOCK: tl.constexpr):
    # An image rests once the squares of its r add up to no more than its goal, or to a NaN, and for good: those of an
    # image that rests are not written any more.
    image = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    if tl.load(resting + image) == 0:
        total = tl.zeros([BLOCK], tl.float32)
        for first in range(0, parts, BLOCK):
            total += tl.load(squares + image * parts + first + at, mask=first + at < parts, other=0.0)
        far = tl.sum(total, 0) > tl.load(goals + image)
        tl.store(resting + image, tl.where(far, 0, 1))
