"""The kernels of `triton_form.py`, in a file of its own because importing it needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl


@triton.jit
def convolve(
    image, weights, out, values, first, second, pixels, height, width,
    KIND: tl.constexpr, THEN: tl.constexpr, ADDS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    BEND: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, SUM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # out = then(W image) + first + second, for PIXELS of the smaller image and CHANNELS of the result, with sums over
    # SUM channels at once. height and width are those of the smaller image, pixels those of all images.
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    k = tl.arange(0, SUM)
    inside = p < pixels
    line, x = p // width, p % width
    y = line % height
    PARTS: tl.constexpr = INPUTS // SUM
    TAPS: tl.constexpr = 9 if KIND == "same" else 4 if KIND == "shrink" else 1
    COLUMNS: tl.constexpr = 4 * OUTPUTS if KIND == "grow" else OUTPUTS
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for step in tl.range(TAPS * PARTS, num_stages=STAGES):
        tap = step // PARTS
        source, there = p, inside
        if KIND == "same":
            b, a = y + tap // 3 - 1, x + tap % 3 - 1
            there = inside & (b >= 0) & (b < height) & (a >= 0) & (a < width)
            source = p + (tap // 3 - 1) * width + tap % 3 - 1
        elif KIND == "shrink":
            source = (2 * line + tap // 2) * 2 * width + 2 * x + tap % 2
        part = tl.load(
            image + source[:, None] * INPUTS + (step % PARTS * SUM + k)[None, :], mask=there[:, None], other=0.0
        )
        total = tl.dot(part, tl.load(weights + (step * SUM + k)[:, None] * COLUMNS + c[None, :]), total)
    if KIND == "grow":  # each pixel is four
        tap = c // OUTPUTS
        target = (2 * line[:, None] + tap[None, :] // 2) * 2 * width + 2 * x[:, None] + tap[None, :] % 2
        where = target * OUTPUTS + (c % OUTPUTS)[None, :]
    else:
        where = p[:, None] * OUTPUTS + c[None, :]
    there = inside[:, None]
    if THEN == "relu":
        total = tl.maximum(total, 0.0)
    elif THEN == "celu":
        total = tl.where(total > 0.0, total, BEND * (tl.exp(tl.minimum(total, 0.0) / BEND) - 1.0))
    elif THEN == "slope":
        value = tl.load(values + where, mask=there, other=0.0).to(tl.float32)
        total *= tl.minimum(value / BEND + 1.0, 1.0)
    if ADDS > 0:
        total += tl.load(first + where, mask=there, other=0.0).to(tl.float32)
    if ADDS > 1:
        total += tl.load(second + where, mask=there, other=0.0).to(tl.float32)
    tl.store(out + where, total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _find_pixels(pixels, height, width, PIXELS: tl.constexpr):
    # Of PIXELS of the smaller images: number, and places of their four in the larger one; which image each is of.
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    c = tl.arange(0, 16)
    line, x = p // width, p % width
    four = (2 * line[:, None] + c[None, :] // 2) * 2 * width + 2 * x[:, None] + c[None, :] % 2
    return p, c[None, :], four, line // height, (p < pixels)[:, None]


@triton.jit
def put(image, sigma, largest, out, pixels, height, width, LARGEST: tl.constexpr, PIXELS: tl.constexpr):
    # 2 x 2 pixels and sigma, divided where the largest pixel is above LARGEST, as 16 channels.
    p, c, four, image_number, inside = _find_pixels(pixels, height, width, PIXELS)
    known = p < pixels
    scale = tl.maximum(tl.load(largest + image_number, mask=known, other=0.0) / LARGEST, 1.0)
    value = tl.load(image + four, mask=inside & (c < 4), other=0.0)
    level = tl.load(sigma + image_number, mask=known, other=0.0)
    value = tl.where(c == 4, level[:, None], value) / scale[:, None]
    tl.store(out + p[:, None] * 16 + c, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def take(noise, largest, out, pixels, height, width, LARGEST: tl.constexpr, PIXELS: tl.constexpr):
    # The first four of 16 channels as 2 x 2 pixels, times what `put` divided by.
    p, c, four, image_number, inside = _find_pixels(pixels, height, width, PIXELS)
    scale = tl.maximum(tl.load(largest + image_number, mask=p < pixels, other=0.0) / LARGEST, 1.0)
    mask = inside & (c < 4)
    value = tl.load(noise + p[:, None] * 16 + c, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + four, value * scale[:, None], mask=mask)
