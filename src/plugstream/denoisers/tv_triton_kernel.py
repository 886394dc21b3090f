"""The kernel of `tv_triton.py`, in a file of its own because importing it needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl

__all__ = ["iterate"]


@triton.jit
def primal(z, s, strength, low, high, i, j, height, width, inside):
    # x = clip(z - strength D^T s), with s zero in the last row (down) and the last column (across).
    plane = height * width
    at = i * width + j
    down = tl.load(s + at, mask=inside & (i < height - 1), other=0.0)
    above = tl.load(s + at - width, mask=inside & (i > 0), other=0.0)
    across = tl.load(s + plane + at, mask=inside & (j < width - 1), other=0.0)
    left = tl.load(s + plane + at - 1, mask=inside & (j > 0), other=0.0)
    x = tl.load(z + at, mask=inside, other=0.0) - strength * (((0.0 - down) + above - across) + left)
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def iterate(
    z, s, p, new_s, strengths, rates, actives, momentum, lows, highs, height, width,
    ISOTROPIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    plane = height * width
    z += image * plane
    s += image * 2 * plane
    p += image * 2 * plane
    new_s += image * 2 * plane
    strength, rate = tl.load(strengths + image), tl.load(rates + image)
    active = tl.load(actives + image)
    low, high = tl.load(lows + image), tl.load(highs + image)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < plane
    i, j = at // width, at % width
    has_below, has_right = inside & (i < height - 1), inside & (j < width - 1)
    here = primal(z, s, strength, low, high, i, j, height, width, inside)
    below = primal(z, s, strength, low, high, i + 1, j, height, width, has_below)
    right = primal(z, s, strength, low, high, i, j + 1, height, width, has_right)
    old_down, old_across = tl.load(s + at, mask=inside), tl.load(s + plane + at, mask=inside)
    down = old_down + rate * tl.where(has_below, below - here, 0.0)
    across = old_across + rate * tl.where(has_right, right - here, 0.0)
    if ISOTROPIC:
        scale = 1.0 / tl.sqrt(tl.maximum(down * down + across * across, 1.0))
        down, across = down * scale, across * scale
    else:
        down = tl.minimum(tl.maximum(down, -1.0), 1.0)
        across = tl.minimum(tl.maximum(across, -1.0), 1.0)
    p_down, p_across = tl.load(p + at, mask=inside), tl.load(p + plane + at, mask=inside)
    s_down, s_across = down + momentum * (down - p_down), across + momentum * (across - p_across)
    tl.store(p + at, tl.where(active, down, p_down), mask=inside)
    tl.store(p + plane + at, tl.where(active, across, p_across), mask=inside)
    tl.store(new_s + at, tl.where(active, s_down, old_down), mask=inside)
    tl.store(new_s + plane + at, tl.where(active, s_across, old_across), mask=inside)
