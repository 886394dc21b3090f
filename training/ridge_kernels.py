"""The kernels of `ridge_triton.py`, in a file of their own because importing them needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl


@triton.jit
def product(a, high, low):
    # a times a table, as good as single precision, by tensor cores, which read the front ten bits: those times those,
    # and the bits behind times the front ones, either way. The table comes in these two parts.
    front = (a.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    total = tl.dot(a - front, high, input_precision="tf32")
    total = tl.dot(front, low, total, input_precision="tf32")
    return tl.dot(front, high, total, input_precision="tf32")


@triton.jit
def tables(weights, PART: tl.constexpr):
    # The four parts of the folded filters, first the front bits of all and then the rest.
    return (
        tl.load(weights), tl.load(weights + PART), tl.load(weights + 2 * PART), tl.load(weights + 3 * PART),
        tl.load(weights + 4 * PART), tl.load(weights + 5 * PART), tl.load(weights + 6 * PART),
        tl.load(weights + 7 * PART),
    )  # fmt: skip


@triton.jit
def responses(x, parts, pixel, inside, along, against):
    # The four folded parts of the pixels around, each by the pairs of filters that see it. Those below to the right of
    # a pixel are `along` after it, those below to the left `against`, and those above as far before it.
    at, seen = pixel[:, None], inside[:, None]
    below_right = tl.load(x + (at + along[None, :]), mask=seen, other=0.0)
    below_left = tl.load(x + (at + against[None, :]), mask=seen, other=0.0)
    above_right = tl.load(x + (at - against[None, :]), mask=seen, other=0.0)
    above_left = tl.load(x + (at - along[None, :]), mask=seen, other=0.0)
    below_both, above_both = below_right + below_left, above_right + above_left
    below_apart, above_apart = below_right - below_left, above_right - above_left
    return (
        product(below_both + above_both, parts[0], parts[4]),
        product(below_apart - above_apart, parts[1], parts[5]),
        product(below_both - above_both, parts[2], parts[6]),
        product(below_apart + above_apart, parts[3], parts[7]),
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
    x, v, forward, backward, priors, shares, height, width,
    SIDE: tl.constexpr, TAPS: tl.constexpr, PAIRS: tl.constexpr, RATIOS: tl.constexpr, HESSIAN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # For a block of pixels: the responses of all filters, their slopes, and what each pixel gives to those around it.
    # A filter and its mirror image respond with the sum and the difference of two folded responses (ridge_fold.py).
    # The pixels are those of the image and of `middle` around it: what a pixel beyond the border gives is what the one
    # it mirrors gives, mirrored. x and v have a frame of twice that, and pixels are counted along its lines, so that
    # no address depends on where a line ends; what is between them is computed too, but not used.
    size: tl.constexpr = 2 * SIDE - 1
    middle: tl.constexpr = SIDE - 1
    part: tl.constexpr = TAPS * PAIRS
    odd: tl.constexpr = RATIOS * PAIRS
    image = tl.program_id(1).to(tl.int64)
    stride = width + 4 * middle
    plane = (height + 2 * middle) * stride - 2 * middle
    framed = image * (height + 4 * middle) * stride + middle * stride + middle
    x += framed
    v += framed
    shares += image * (size * size) * plane + (middle * size + middle) * plane
    tap = tl.arange(0, TAPS)
    pairs = tl.arange(0, PAIRS)
    slopes = priors + image * (4 * odd + 2) + pairs
    reaches = slopes + 2 * odd
    # Padded taps, whose weights are 0, read the pixel itself, and give nothing.
    real = tap < SIDE * SIDE
    a, b = tl.where(real, tap // SIDE, 0), tl.where(real, tap % SIDE, 0)
    along, against = a * stride + b, a * stride - b
    to_along, to_against = (a * size + b) * plane, (a * size - b) * plane
    ahead = tables(forward + tap[:, None] * PAIRS + pairs[None, :], part)
    back = tables(backward + pairs[:, None] * TAPS + tap[None, :], part)
    for first in tl.range(tl.program_id(0) * BLOCK, plane, tl.num_programs(0) * BLOCK, disable_licm=True):
        pixel = first + tl.arange(0, BLOCK)
        inside = pixel < plane
        ss, aa, sa, as_ = responses(x, ahead, pixel, inside, along, against)
        if HESSIAN:
            v0, v1, v2, v3 = responses(v, ahead, pixel, inside, along, against)
            one = curve(ss + aa, v0 + v1, slopes, reaches, RATIOS, PAIRS)
            other = curve(ss - aa, v0 - v1, slopes, reaches, RATIOS, PAIRS)
            one_odd = curve(sa + as_, v2 + v3, slopes + odd, reaches + odd, RATIOS, PAIRS)
            other_odd = curve(sa - as_, v2 - v3, slopes + odd, reaches + odd, RATIOS, PAIRS)
        else:
            one = slope(ss + aa, slopes, reaches, RATIOS, PAIRS)
            other = slope(ss - aa, slopes, reaches, RATIOS, PAIRS)
            one_odd = slope(sa + as_, slopes + odd, reaches + odd, RATIOS, PAIRS)
            other_odd = slope(sa - as_, slopes + odd, reaches + odd, RATIOS, PAIRS)
        ss = product(one + other, back[0], back[4])
        aa = product(one - other, back[1], back[5])
        sa = product(one_odd + other_odd, back[2], back[6])
        as_ = product(one_odd - other_odd, back[3], back[7])
        at, given = pixel[:, None], inside[:, None] & real[None, :]
        # What stands in the middle row or column is its own mirror image, and is given once.
        beside, above = given & (b > 0)[None, :], given & (a > 0)[None, :]
        tl.store(shares + (at + to_along[None, :]), (ss + sa) + (aa + as_), mask=given)
        tl.store(shares + (at + to_against[None, :]), (ss + sa) - (aa + as_), mask=beside)
        tl.store(shares + (at - to_against[None, :]), (ss - sa) - (aa - as_), mask=above)
        tl.store(shares + (at - to_along[None, :]), (ss - sa) + (aa - as_), mask=beside & above)


@triton.jit
def settle(
    x, z, old, priors, shares, height, width,
    SIZE: tl.constexpr, PRIOR: tl.constexpr, ALONE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Adds up what the pixels around give to each: grad R(x), or a product with its Hessian, which is all if ALONE.
    # Then x - step (x - z + grad R(x)) + momentum (x - old), which takes the place of `old`, and its mirror images the
    # place of the frame. Of x and old, which have one: z, and `old` if ALONE, do not.
    middle: tl.constexpr = SIZE // 2
    frame: tl.constexpr = 2 * middle
    image = tl.program_id(1).to(tl.int64)
    stride = width + 2 * frame
    plane = (height + 2 * middle) * stride - 2 * middle
    shares += image * (SIZE * SIZE) * plane
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < height * width
    i, j = pixel // width, pixel % width
    at = i * stride + j
    given = at + (2 * middle * stride + middle)
    total = tl.zeros([BLOCK], tl.float32)
    for row in tl.static_range(SIZE):
        for column in tl.static_range(SIZE):
            to = (row * SIZE + column) * plane - row * stride - (column - middle)
            total += tl.load(shares + (given + to), mask=inside, other=0.0)
    here = image * height * width + pixel
    if ALONE:
        tl.store(old + here, total, mask=inside)
    else:
        framed = image * (height + 2 * frame) * stride + frame * stride + frame
        x += framed
        old += framed
        now = tl.load(x + at, mask=inside, other=0.0)
        before = tl.load(old + at, mask=inside, other=0.0)
        r = now - tl.load(z + here, mask=inside, other=0.0) + total
        priors += image * PRIOR + PRIOR - 2
        step, momentum = tl.load(priors), tl.load(priors + 1)
        new = now - step * r + momentum * (now - before)
        tl.store(old + at, new, mask=inside)
        # By how far the mirror images above, below, left and right of it are.
        above, below = -(2 * i + 1) * stride, (2 * (height - i) - 1) * stride
        left, right = -(2 * j + 1), 2 * (width - j) - 1
        near_top, near_bottom = inside & (i < frame), inside & (i >= height - frame)
        near_left, near_right = inside & (j < frame), inside & (j >= width - frame)
        tl.store(old + at + above, new, mask=near_top)
        tl.store(old + at + below, new, mask=near_bottom)
        tl.store(old + at + left, new, mask=near_left)
        tl.store(old + at + right, new, mask=near_right)
        tl.store(old + at + above + left, new, mask=near_top & near_left)
        tl.store(old + at + above + right, new, mask=near_top & near_right)
        tl.store(old + at + below + left, new, mask=near_bottom & near_left)
        tl.store(old + at + below + right, new, mask=near_bottom & near_right)


@triton.jit
def frame(x, framed, again, height, width, FRAME: tl.constexpr, BLOCK: tl.constexpr):
    # Images in a frame of what they mirror, twice.
    image = tl.program_id(1).to(tl.int64)
    across = width + 2 * FRAME
    plane = (height + 2 * FRAME) * across
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j = at // across - FRAME, at % across - FRAME
    i, j = tl.where(i < 0, -1 - i, i), tl.where(j < 0, -1 - j, j)
    i, j = tl.where(i >= height, 2 * height - 1 - i, i), tl.where(j >= width, 2 * width - 1 - j, j)
    pixels = tl.load(x + image * height * width + i * width + j, mask=at < plane, other=0.0)
    tl.store(framed + image * plane + at, pixels, mask=at < plane)
    tl.store(again + image * plane + at, pixels, mask=at < plane)
