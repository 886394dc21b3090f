"""The kernel of `tv_triton.py`, in a file of its own because importing it needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl


@triton.jit
def bounds(lows, highs, place, inside, MAPPED: tl.constexpr):
    # The box at these pixels: one for all of them, or from maps.
    if MAPPED:
        low, high = tl.load(lows + place, mask=inside, other=0.0), tl.load(highs + place, mask=inside, other=0.0)
    else:
        low, high = tl.load(lows), tl.load(highs)
    return low, high


@triton.jit
def primal(z, s, strength, lows, highs, i, j, height, width, inside, MAPPED: tl.constexpr):
    # x = clip(z - strength D^T s), with s zero in the last row (down) and the last column (across).
    plane = height * width
    place = i * width + j
    down = tl.load(s + place, mask=inside & (i < height - 1), other=0.0)
    above = tl.load(s + place - width, mask=inside & (i > 0), other=0.0)
    across = tl.load(s + plane + place, mask=inside & (j < width - 1), other=0.0)
    left = tl.load(s + plane + place - 1, mask=inside & (j > 0), other=0.0)
    x = tl.load(z + place, mask=inside, other=0.0) - strength * (((0.0 - down) + above - across) + left)
    low, high = bounds(lows, highs, place, inside, MAPPED)
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def iterate(
    z, s, p, new_s, strengths, rates, actives, momentum, lows, highs, height, width,
    ISOTROPIC: tl.constexpr, MAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    plane = height * width
    z += image * plane
    lows += image * plane if MAPPED else image
    highs += image * plane if MAPPED else image
    s += image * 2 * plane
    p += image * 2 * plane
    new_s += image * 2 * plane
    strength, rate = tl.load(strengths + image), tl.load(rates + image)
    active = tl.load(actives + image)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < plane
    i, j = place // width, place % width
    has_below, has_right = inside & (i < height - 1), inside & (j < width - 1)
    centre = primal(z, s, strength, lows, highs, i, j, height, width, inside, MAPPED)
    below = primal(z, s, strength, lows, highs, i + 1, j, height, width, has_below, MAPPED)
    right = primal(z, s, strength, lows, highs, i, j + 1, height, width, has_right, MAPPED)
    old_down, old_across = tl.load(s + place, mask=inside), tl.load(s + plane + place, mask=inside)
    down = old_down + rate * tl.where(has_below, below - centre, 0.0)
    across = old_across + rate * tl.where(has_right, right - centre, 0.0)
    if ISOTROPIC:
        scale = 1.0 / tl.sqrt(tl.maximum(down * down + across * across, 1.0))
        down, across = down * scale, across * scale
    else:
        down = tl.minimum(tl.maximum(down, -1.0), 1.0)
        across = tl.minimum(tl.maximum(across, -1.0), 1.0)
    p_down, p_across = tl.load(p + place, mask=inside), tl.load(p + plane + place, mask=inside)
    s_down, s_across = down + momentum * (down - p_down), across + momentum * (across - p_across)
    tl.store(p + place, tl.where(active, down, p_down), mask=inside)
    tl.store(p + plane + place, tl.where(active, across, p_across), mask=inside)
    tl.store(new_s + place, tl.where(active, s_down, old_down), mask=inside)
    tl.store(new_s + plane + place, tl.where(active, s_across, old_across), mask=inside)


@triton.jit
def primal_coupled(
    z, s, strength, lows, highs, i, j, k, depth, height, width, part, inside, AXES: tl.constexpr, MAPPED: tl.constexpr
):  # fmt: skip
    # The same for a block of components and pixels, (K, BLOCK); `part` is the number of each component.
    plane = height * width
    pixels = tl.full((), depth, tl.int64) * plane
    place = i * plane + j * width + k
    dual = s + part * AXES * pixels + place
    adjoint = tl.zeros_like(inside.to(tl.float32))
    if AXES == 3:
        centre = tl.load(dual, mask=inside & (i < depth - 1), other=0.0)
        adjoint = (adjoint - centre) + tl.load(dual - plane, mask=inside & (i > 0), other=0.0)
        dual += pixels
    down = tl.load(dual, mask=inside & (j < height - 1), other=0.0)
    adjoint = (adjoint - down) + tl.load(dual - width, mask=inside & (j > 0), other=0.0)
    dual += pixels
    across = tl.load(dual, mask=inside & (k < width - 1), other=0.0)
    adjoint = (adjoint - across) + tl.load(dual - 1, mask=inside & (k > 0), other=0.0)
    x = tl.load(z + part * pixels + place, mask=inside, other=0.0) - strength * adjoint
    if MAPPED:
        low = tl.load(lows + part * pixels + place, mask=inside, other=0.0)
        high = tl.load(highs + part * pixels + place, mask=inside, other=0.0)
    else:
        low, high = lows, highs
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def shrinking(squares):
    return 1.0 / tl.sqrt(tl.maximum(squares, 1.0))


@triton.jit
def move(p, s, new_s, place, value, old, momentum, active, inside):
    # p+ and s+ of one axis, or what was there for an image at rest.
    before = tl.load(p + place, mask=inside, other=0.0)
    tl.store(new_s + place, tl.where(active, value + momentum * (value - before), old), mask=inside)
    tl.store(p + place, tl.where(active, value, before), mask=inside)


@triton.jit
def iterate_coupled(
    z, s, p, new_s, strengths, rates, actives, momentum, lows, highs, components, depth, height, width,
    AXES: tl.constexpr, ISOTROPIC: tl.constexpr, MAPPED: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Volumes, and images whose components share their edges: PARTS is a power of two of at least `components`.
    image = tl.program_id(1).to(tl.int64)
    plane = height * width
    pixels = tl.full((), depth, tl.int64) * plane
    z += image * components * pixels
    s += image * components * AXES * pixels
    p += image * components * AXES * pixels
    new_s += image * components * AXES * pixels
    strength, rate = tl.load(strengths + image), tl.load(rates + image)
    active = tl.load(actives + image)
    part = tl.arange(0, PARTS)[:, None].to(tl.int64)
    real = part < components
    if MAPPED:
        low, high = lows + image * components * pixels, highs + image * components * pixels
    else:
        low = tl.load(lows + image * components + part, mask=real, other=0.0)
        high = tl.load(highs + image * components + part, mask=real, other=0.0)
    pixel = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = real & (pixel < pixels)
    i, j, k = pixel // plane, pixel % plane // width, pixel % width
    behind_in, below_in, right_in = inside & (i < depth - 1), inside & (j < height - 1), inside & (k < width - 1)
    centre = primal_coupled(z, s, strength, low, high, i, j, k, depth, height, width, part, inside, AXES, MAPPED)
    below = primal_coupled(z, s, strength, low, high, i, j + 1, k, depth, height, width, part, below_in, AXES, MAPPED)
    right = primal_coupled(z, s, strength, low, high, i, j, k + 1, depth, height, width, part, right_in, AXES, MAPPED)
    down_at = (part * AXES + AXES - 2) * pixels + pixel
    across_at = down_at + pixels
    old_down, old_across = tl.load(s + down_at, mask=inside, other=0.0), tl.load(s + across_at, mask=inside, other=0.0)
    down = old_down + rate * tl.where(below_in, below - centre, 0.0)
    across = old_across + rate * tl.where(right_in, right - centre, 0.0)
    down_squares, across_squares = tl.sum(down * down, axis=0), tl.sum(across * across, axis=0)
    squares = down_squares + across_squares
    if AXES == 3:
        behind = primal_coupled(
            z, s, strength, low, high, i + 1, j, k, depth, height, width, part, behind_in, AXES, MAPPED
        )
        deep_at = part * AXES * pixels + pixel
        old_deep = tl.load(s + deep_at, mask=inside, other=0.0)
        deep = old_deep + rate * tl.where(behind_in, behind - centre, 0.0)
        deep_squares = tl.sum(deep * deep, axis=0)
        squares = deep_squares + squares
        if ISOTROPIC:
            deep_squares = squares
        deep = deep * shrinking(deep_squares)[None, :]
        move(p, s, new_s, deep_at, deep, old_deep, momentum, active, inside)
    if ISOTROPIC:
        down_squares, across_squares = squares, squares
    down, across = down * shrinking(down_squares)[None, :], across * shrinking(across_squares)[None, :]
    move(p, s, new_s, down_at, down, old_down, momentum, active, inside)
    move(p, s, new_s, across_at, across, old_across, momentum, active, inside)
