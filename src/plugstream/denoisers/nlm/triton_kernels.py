"""The kernels of `triton_form.py`, in a file of their own because importing it needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl


@triton.jit
def affinities(
    padded, rates, out, height, width, halves,
    SEARCH: tl.constexpr, AROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One distance for BLOCK pixels. Half of all are numbered, row by row: (0, 1), .. (0, SEARCH), (1, -SEARCH), ...
    image, number = tl.program_id(2).to(tl.int64), tl.program_id(1)
    plane, pitch = height * width, width + AROUND - 1
    after = number + SEARCH + 1
    dy, dx = after // (2 * SEARCH + 1), after % (2 * SEARCH + 1) - SEARCH
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j = pixel // width, pixel % width
    inside = (pixel < plane) & (i + dy < height) & (j + dx >= 0) & (j + dx < width)
    patch = padded + image * (height + AROUND - 1) * pitch + i * pitch + j
    other_patch = patch + dy * pitch + dx
    distance = tl.zeros((BLOCK,), tl.float32)
    for k in range(AROUND):
        for m in tl.static_range(AROUND):
            step = tl.load(patch + k * pitch + m, mask=inside, other=0.0)
            step -= tl.load(other_patch + k * pitch + m, mask=inside, other=0.0)
            distance += step * step
    pyramid = (1.0 - dy / (SEARCH + 1.0)) * (1.0 - tl.abs(dx) / (SEARCH + 1.0))
    value = pyramid * tl.exp(tl.maximum(-tl.load(rates + image) * distance, -80.0))
    tl.store(out + (image * halves + number) * plane + pixel, tl.where(inside, value, 0.0), mask=pixel < plane)


@triton.jit
def add(one, two, row, v, z, i, j, dy, dx, height, width, inside, MODE: tl.constexpr):
    # What the pixels at (dy, dx) from these give to them, and those on the other side, where their affinities stand.
    pixel = i * width + j
    away = dy * width + dx
    after = inside & (i + dy < height) & (j + dx >= 0) & (j + dx < width)
    before = inside & (i - dy >= 0) & (j - dx >= 0) & (j - dx < width)
    to = tl.load(row + pixel, mask=after, other=0.0) * tl.load(v + pixel + away, mask=after, other=0.0)
    back = tl.load(row + pixel - away, mask=before, other=0.0) * tl.load(v + pixel - away, mask=before, other=0.0)
    if MODE < 3:
        one += to + back
    if MODE > 1:
        two += to * tl.load(z + pixel + away, mask=after, other=0.0)
        two += back * tl.load(z + pixel - away, mask=before, other=0.0)
    return one, two


@triton.jit
def multiply(
    affinity, v, z, rest, out, out_two, height, width, halves,
    MODE: tl.constexpr, SEARCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # MODE 0, balancing: out = sqrt(v / (A v)). 1: out = v A v. 2: that, and out_two = A (v z).
    # 3, applying: out = v A (v z) + rest z.
    image = tl.program_id(1).to(tl.int64)
    plane = height * width
    large = image * 0 + plane  # in 64 bits: the affinities of one image may be more numbers than 32 can count
    affinity += image * halves * plane
    v += image * plane
    z += image * plane
    rest += image * plane
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < plane
    i, j = pixel // width, pixel % width
    factor = tl.load(v + pixel, mask=inside, other=1.0)
    one = factor
    two = factor
    if MODE > 1:
        two = factor * tl.load(z + pixel, mask=inside, other=0.0)
    for dx in tl.static_range(1, SEARCH + 1):
        row = affinity + (dx - 1) * large
        one, two = add(one, two, row, v, z, i, j, 0, dx, height, width, inside, MODE)
    for dy in range(1, SEARCH + 1):
        first = affinity + (SEARCH + (dy - 1) * (2 * SEARCH + 1)) * large
        for dx in tl.static_range(-SEARCH, SEARCH + 1):
            row = first + (dx + SEARCH) * large
            one, two = add(one, two, row, v, z, i, j, dy, dx, height, width, inside, MODE)
    out += image * plane
    if MODE == 0:
        tl.store(out + pixel, tl.sqrt(factor / one), mask=inside)
    elif MODE == 3:
        unchanged = tl.load(rest + pixel, mask=inside, other=0.0) * tl.load(z + pixel, mask=inside, other=0.0)
        tl.store(out + pixel, factor * two + unchanged, mask=inside)
    else:
        tl.store(out + pixel, factor * one, mask=inside)
    if MODE == 2:
        tl.store(out_two + image * plane + pixel, two, mask=inside)
