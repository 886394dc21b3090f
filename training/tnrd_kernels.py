"""The kernels of `tnrd_triton.py`, in a file of their own because importing them needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl

from plugstream.denoisers.tnrd.triton_kernels import evaluate, locate, mirror


@triton.jit
def drive_gradients(
    u, grad, forward, backward, table, shares, responses, pulled, partial, height, width, images,
    CELLS: tl.constexpr, STEP: tl.constexpr, REACH: tl.constexpr, BLOCK: tl.constexpr, LOOPS: tl.constexpr,
    FILTERS: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    # The transpose of `drive`. With patches P(q, tap) of u and Q(q, tap) of the gradient, which is 0 beyond the border,
    #   responses r = P K and the gradient that reaches their influence, G = -Q K;
    #   of the responses G phi'(r), which gives to the pixels around G phi'(r) K^T;
    #   of the filters (G phi'(r))^T P - phi(r)^T Q, in which a program adds up LOOPS blocks of pixels.
    # r and G are written for `bump_sums`, which needs them filter by filter.
    image = tl.program_id(1).to(tl.int64)
    u += image * height * width
    grad += image * height * width
    wide = width + 6
    count = (height + 6) * wide
    shares += image * 49 * count
    tap = tl.arange(0, 64)
    k = tl.arange(0, 64)
    down = tl.load(forward + tap[:, None] * 64 + k[None, :])
    up = tl.load(backward + k[:, None] * 64 + tap[None, :])
    total = tl.zeros([64, 64], tl.float32)
    for loop in range(LOOPS):
        pixel = (tl.program_id(0) * LOOPS + loop) * BLOCK + tl.arange(0, BLOCK)
        i = (pixel // wide)[:, None] + (tap // 7)[None, :] - 6
        j = (pixel % wide)[:, None] + (tap % 7)[None, :] - 6
        real = (pixel < count)[:, None] & (tap < 49)[None, :]
        inside_image = real & (i >= 0) & (i < height) & (j >= 0) & (j < width)
        behind = tl.load(grad + i * width + j, mask=inside_image, other=0.0)
        patches = tl.load(u + mirror(i, height) * width + mirror(j, width), mask=real, other=0.0)
        r = tl.dot(patches, down, input_precision=EXACT)
        g = -tl.dot(behind, down, input_precision=FAST)
        cell, t = locate(r, CELLS, STEP, REACH)
        # Eight coefficients in 32 bytes: the cubic of phi, then that of its derivative.
        cubic = table + (k[None, :] * CELLS + cell) * 4
        value, slope = evaluate(cubic, t), evaluate(cubic + 2, t)
        of_response = g * slope
        back = tl.dot(of_response, up, input_precision=FAST)
        tl.store(shares + tap[None, :] * count + pixel[:, None], back, mask=real)
        filled = (pixel < count)[:, None] & (k < FILTERS)[None, :]
        where = (k[None, :].to(tl.int64) * images + image) * count + pixel[:, None]
        tl.store(responses + where, r, mask=filled)
        tl.store(pulled + where, g, mask=filled)
        total += tl.dot(tl.trans(of_response), patches, input_precision=FAST)
        total -= tl.dot(tl.trans(value), behind, input_precision=FAST)
    partial += (image * tl.num_programs(0) + tl.program_id(0)) * 4096
    tl.store(partial + k[:, None] * 64 + tap[None, :], total)


@triton.jit
def unfold(shares, out, height, width, BLOCK: tl.constexpr):
    # Adds up what the 49 positions around give to each pixel of the image continued by 6: the transpose of its patches.
    image = tl.program_id(1).to(tl.int64)
    tall, wide = height + 6, width + 6
    count = tall * wide
    shares += image * 49 * count
    size = (height + 12) * (width + 12)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j = pixel // (width + 12), pixel % (width + 12)
    total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(49):
        a, b = i - tap // 7, j - tap % 7
        inside_image = (a >= 0) & (a < tall) & (b >= 0) & (b < wide)
        total += tl.load(shares + tap * count + a * wide + b, mask=inside_image, other=0.0)
    tl.store(out + image * size + pixel, total, mask=pixel < size)


@triton.jit
def reflect(continued, grad, reaction, out, height, width, BLOCK: tl.constexpr):
    # Adds what lies beyond the border to the pixels it is a copy of, and the step's own share 1 - p: the last of three
    # places down and of three across are there only where an image is smaller than 12.
    image = tl.program_id(1).to(tl.int64)
    wide = width + 12
    continued += image * (height + 12) * wide
    plane = image * height * width
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < height * width
    i, j = pixel // width, pixel % width
    total = (1.0 - tl.load(reaction)) * tl.load(grad + plane + pixel, mask=inside, other=0.0)
    for down in tl.static_range(3):
        if down == 0:
            a, rows = i + 6, i >= 0
        elif down == 1:
            a, rows = 5 - i, i < 6
        else:
            a, rows = 2 * height + 5 - i, i >= height - 6
        for across in tl.static_range(3):
            if across == 0:
                b, columns = j + 6, j >= 0
            elif across == 1:
                b, columns = 5 - j, j < 6
            else:
                b, columns = 2 * width + 5 - j, j >= width - 6
            total += tl.load(continued + a * wide + b, mask=inside & rows & columns, other=0.0)
    tl.store(out + plane + pixel, total, mask=inside)


@triton.jit
def bump_sums(
    responses, pulled, partial, count, BUMPS: tl.constexpr, SPACING: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    # sum_q G(q) exp(-(r(q) - mu_j)^2 / 200) for one filter and a part of the pixels, over those bumps only that a block
    # of responses comes near: within 55 of its least and greatest, where a bump is 3e-7 high.
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    j = tl.arange(0, 64)
    total = tl.zeros([64], tl.float32)
    for loop in range(LOOPS):
        pixel = (part * LOOPS + loop) * BLOCK + tl.arange(0, BLOCK)
        inside = pixel < count
        v = tl.load(responses + row * count + pixel, mask=inside, other=0.0)
        g = tl.load(pulled + row * count + pixel, mask=inside, other=0.0)
        least = (tl.min(v, 0) - 55.0) * (1.0 / SPACING) + BUMPS // 2
        most = (tl.max(v, 0) + 55.0) * (1.0 / SPACING) + BUMPS // 2
        # Clamped as numbers before they become integers, so that a NaN cannot make the loop a long one.
        begin = tl.minimum(tl.maximum(least, 0.0), BUMPS - 1.0).to(tl.int32)
        end = tl.minimum(tl.maximum(most, 0.0), BUMPS - 1.0).to(tl.int32)
        end = tl.minimum(tl.maximum(end, 0), BUMPS - 1)
        begin = tl.minimum(tl.maximum(begin, 0), BUMPS - 1)
        for bump in range(begin, end + 1):
            away = v - SPACING * (bump - BUMPS // 2)
            total += tl.where(j == bump, tl.sum(g * tl.exp(-HALF * away * away), 0), 0.0)
    tl.store(partial + (row * tl.num_programs(1) + part) * 64 + j, total)
