"""The kernels of `triton_form.py`, in a file of their own because importing them needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl


@triton.jit
def first(word):
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def second(word):
    return (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def mirror(i, size):
    # The pixel that a place beyond either end of a line mirrors.
    i = tl.where(i < 0, -1 - i, i)
    return tl.where(i >= size, 2 * size - 1 - i, i)


@triton.jit
def locate(responses, CELLS: tl.constexpr, STEP: tl.constexpr, REACH: tl.constexpr):
    # The cell of the table of each response, and its place there from -1/2 to 1/2.
    place = (responses + REACH) * (1.0 / STEP)
    place = tl.where(place < 0.0, 0.0, place)  # so written, a NaN stays one
    place = tl.where(place > CELLS - 0.001, CELLS - 0.001, place)
    cell = place.to(tl.int32)
    cell = tl.minimum(tl.maximum(cell, 0), CELLS - 1)  # of a NaN
    return cell, place - cell.to(tl.float32) - 0.5


@triton.jit
def evaluate(cubic, t):
    # The four coefficients of a cubic are two words of 64 bits, which are read twice as fast.
    lower, upper = tl.load(cubic), tl.load(cubic + 1)
    return ((second(upper) * t + first(upper)) * t + second(lower)) * t + first(lower)


@triton.jit
def drive(
    u, gains, forward, backward, table, shares, height, width,
    FIRST: tl.constexpr, CELLS: tl.constexpr, STEP: tl.constexpr, REACH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # For a block of pixels q, also 3 beyond the border: responses to all filters, a product of patches (q, tap) and
    # filters (tap, filter); their influence; and what each gives to the 49 pixels around, a product with (filter, tap).
    # Taps are padded from 49 to 64 and filters from 48 to 64, by zeros.
    image = tl.program_id(1).to(tl.int64)
    u += image * height * width
    wide = width + 6
    count = (height + 6) * wide
    shares += image * 49 * count
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.arange(0, 64)
    i = (pixel // wide)[:, None] + (tap // 7)[None, :] - 6
    j = (pixel % wide)[:, None] + (tap % 7)[None, :] - 6
    inside = (pixel < count)[:, None] & (tap < 49)[None, :]
    patches = tl.load(u + mirror(i, height) * width + mirror(j, width), mask=inside, other=0.0)
    if FIRST:
        patches *= tl.load(gains + image)
    k = tl.arange(0, 64)
    responses = tl.dot(patches, tl.load(forward + tap[:, None] * 64 + k[None, :]), input_precision=PRECISION)
    cell, t = locate(responses, CELLS, STEP, REACH)
    value = evaluate(table + (k[None, :] * CELLS + cell) * 2, t)
    back = tl.dot(value, tl.load(backward + k[:, None] * 64 + tap[None, :]), input_precision=PRECISION)
    tl.store(shares + tap[None, :] * count + pixel[:, None], back, mask=inside)


@triton.jit
def settle(
    u, noisy, gains, reactions, shares, out, height, width,
    FIRST: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Adds up what the 49 pixels around give to each, and takes the step; the last stage also undoes the gain.
    image = tl.program_id(1).to(tl.int64)
    wide = width + 6
    count = (height + 6) * wide
    shares += image * 49 * count
    plane = image * height * width
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < height * width
    corner = (pixel // width) * wide + pixel % width
    force = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(49):
        force += tl.load(shares + tap * count + corner + (6 - tap // 7) * wide + 6 - tap % 7, mask=inside, other=0.0)
    gain = tl.load(gains + image)
    back = tl.load(noisy + plane + pixel, mask=inside, other=0.0)
    if FIRST:  # noqa: SIM108 - Triton compiles one of the two
        before = gain * back
    else:
        before = tl.load(u + plane + pixel, mask=inside, other=0.0)
    after = before - (tl.load(reactions) * (before - gain * back) + force)
    if LAST:
        after = tl.where(gain != 0.0, after / tl.where(gain != 0.0, gain, 1.0), back)
    tl.store(out + plane + pixel, after, mask=inside)


@triton.jit
def bumps(x, weights, out, count, filters, BUMPS: tl.constexpr, SPACING: tl.constexpr, HALF: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    # phi of one block of the responses to one filter of one image.
    row = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < count
    weights += (row % filters) * BUMPS
    v = tl.load(x + row * count + pixel, mask=inside, other=0.0)
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(BUMPS):
        away = v - SPACING * (j - BUMPS // 2)
        total += tl.load(weights + j) * tl.exp(-HALF * away * away)
    tl.store(out + row * count + pixel, total, mask=inside)


@triton.jit
def bumps_gradients(x, weights, grad, grad_x, partial, count, filters, BUMPS: tl.constexpr, SPACING: tl.constexpr,
                    HALF: tl.constexpr, BLOCK: tl.constexpr, LOOPS: tl.constexpr):  # fmt: skip
    # The gradient of a long block of responses, and its share in that of the weights, added up elsewhere in a fixed
    # order so that training repeats itself to the bit.
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    j = tl.arange(0, 64)
    w = tl.load(weights + (row % filters) * BUMPS + j, mask=j < BUMPS, other=0.0)
    centre = SPACING * (j - BUMPS // 2).to(tl.float32)
    total = tl.zeros([64], tl.float32)
    for loop in range(LOOPS):
        pixel = (part * LOOPS + loop) * BLOCK + tl.arange(0, BLOCK)
        inside = pixel < count
        v = tl.load(x + row * count + pixel, mask=inside, other=0.0)
        g = tl.load(grad + row * count + pixel, mask=inside, other=0.0)
        away = v[:, None] - centre[None, :]
        bump = tl.exp(-HALF * away * away)
        total += tl.sum(bump * g[:, None], 0)
        slope = tl.sum(bump * away * w[None, :], 1)
        tl.store(grad_x + row * count + pixel, -2.0 * HALF * g * slope, mask=inside)
    tl.store(partial + (row * tl.num_programs(1) + part) * 64 + j, total)
