"""The kernels of `nufft_spread_triton.py`, in a file of their own because importing them needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl


@triton.jit
def read_points(
    cells, first, u, v, w, flipped, out, points, size0, size1, size2,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, TAPS: tl.constexpr, FLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One program a block of points; complex numbers are pairs, TAPS is W2 rounded up to a power of two.
    image = tl.program_id(1).to(tl.int64)
    cells += image * 2 * size0 * size1 * size2
    out += image * 2 * points
    point = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = point < points
    tap = tl.arange(0, TAPS)[None, :]
    there = inside[:, None] & (tap < W2)
    a = tl.load(first + 3 * point, mask=inside, other=0).to(tl.int64)
    b = tl.load(first + 3 * point + 1, mask=inside, other=0).to(tl.int64)
    c = tl.load(first + 3 * point + 2, mask=inside, other=0).to(tl.int64)
    real = tl.zeros([BLOCK, TAPS], dtype=out.dtype.element_ty)
    imag = tl.zeros([BLOCK, TAPS], dtype=out.dtype.element_ty)
    for i in range(W0):
        outer = tl.load(u + point * W0 + i, mask=inside, other=0.0)
        for j in range(W1):
            weight = outer * tl.load(v + point * W1 + j, mask=inside, other=0.0)
            at = 2 * ((((a + i) * size1 + b + j) * size2 + c)[:, None] + tap)
            real += weight[:, None] * tl.load(cells + at, mask=there, other=0.0)
            imag += weight[:, None] * tl.load(cells + at + 1, mask=there, other=0.0)
    along = tl.load(w + point[:, None] * W2 + tap, mask=there, other=0.0)
    total = tl.sum(imag * along, 1)
    if FLIP:
        total = tl.where(tl.load(flipped + point, mask=inside, other=0) != 0, -total, total)
    tl.store(out + 2 * point, tl.sum(real * along, 1), mask=inside)
    tl.store(out + 2 * point + 1, total, mask=inside)


@triton.jit
def write_tiles(
    values, first, u, v, w, flipped, order, starts, cells, points, size0, size1, size2, bins1, bins2,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, FLIP: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One program a tile of TILE x TILE cells of a plane, to which it adds what all points near it leave there. Points
    # are sorted by bins of (first cell along axis 0, tile along axis 1, tile along axis 2); with kernels of at most
    # TILE + 1 cells those of a tile and of the ones before it are all that reach it.
    image = tl.program_id(1).to(tl.int64)
    cells += image * 2 * size0 * size1 * size2
    values += image * 2 * points
    tile = tl.program_id(0)
    plane = tile // (bins1 * bins2)
    bin1 = (tile // bins2) % bins1
    bin2 = tile % bins2
    row = bin1 * TILE + tl.arange(0, TILE)
    column = bin2 * TILE + tl.arange(0, TILE)
    real = tl.zeros([TILE, TILE], dtype=cells.dtype.element_ty)
    imag = tl.zeros([TILE, TILE], dtype=cells.dtype.element_ty)
    low1 = tl.maximum(bin1 - 1, 0)
    low2 = tl.maximum(bin2 - 1, 0)
    for back in range(W0):
        layer = plane - (W0 - 1) + back
        if layer >= 0:
            for bin in range(low1, bin1 + 1):
                begin = tl.load(starts + (layer * bins1 + bin) * bins2 + low2)
                end = tl.load(starts + (layer * bins1 + bin) * bins2 + bin2 + 1)
                for at in range(begin, end, BLOCK):
                    n = at + tl.arange(0, BLOCK)
                    inside = n < end
                    point = tl.load(order + n, mask=inside, other=0)
                    outer = tl.load(u + point * W0 + (W0 - 1 - back), mask=inside, other=0.0)
                    x = tl.load(values + 2 * point, mask=inside, other=0.0) * outer
                    y = tl.load(values + 2 * point + 1, mask=inside, other=0.0) * outer
                    if FLIP:
                        y = tl.where(tl.load(flipped + point, mask=inside, other=0) != 0, -y, y)
                    i = row[None, :] - tl.load(first + 3 * point + 1, mask=inside, other=0)[:, None]
                    j = column[None, :] - tl.load(first + 3 * point + 2, mask=inside, other=0)[:, None]
                    near = inside[:, None] & (i >= 0) & (i < W1)
                    down = tl.load(v + point[:, None] * W1 + i, mask=near, other=0.0)
                    near = inside[:, None] & (j >= 0) & (j < W2)
                    along = tl.load(w + point[:, None] * W2 + j, mask=near, other=0.0)
                    real += tl.sum((down * x[:, None])[:, :, None] * along[:, None, :], 0)
                    imag += tl.sum((down * y[:, None])[:, :, None] * along[:, None, :], 0)
    place = 2 * ((plane.to(tl.int64) * size1 + row[:, None]) * size2 + column[None, :])
    there = (row[:, None] < size1) & (column[None, :] < size2)
    real += tl.load(cells + place, mask=there, other=0.0)
    imag += tl.load(cells + place + 1, mask=there, other=0.0)
    tl.store(cells + place, real, mask=there)
    tl.store(cells + place + 1, imag, mask=there)


@triton.jit
def write_rows(
    values, first, u, w, flipped, order, starts, cells, points, images, size0, size2, bins2,
    W0: tl.constexpr, W2: tl.constexpr, FLIP: tl.constexpr, IMAGES: tl.constexpr, TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # `write_tiles` for images, which have one cell along axis 1: a program has TILE cells of a row, in IMAGES images,
    # whose points have the same weights.
    image = (tl.program_id(1) * IMAGES + tl.arange(0, IMAGES)).to(tl.int64)
    plane = tl.program_id(0) // bins2
    bin2 = tl.program_id(0) % bins2
    column = bin2 * TILE + tl.arange(0, TILE)
    real = tl.zeros([IMAGES, TILE], dtype=cells.dtype.element_ty)
    imag = tl.zeros([IMAGES, TILE], dtype=cells.dtype.element_ty)
    low2 = tl.maximum(bin2 - 1, 0)
    for back in range(W0):
        layer = plane - (W0 - 1) + back
        if layer >= 0:
            begin = tl.load(starts + layer * bins2 + low2)
            end = tl.load(starts + layer * bins2 + bin2 + 1)
            for at in range(begin, end, BLOCK):
                n = at + tl.arange(0, BLOCK)
                inside = n < end
                point = tl.load(order + n, mask=inside, other=0)
                outer = tl.load(u + point * W0 + (W0 - 1 - back), mask=inside, other=0.0)
                j = column[None, :] - tl.load(first + 3 * point + 2, mask=inside, other=0)[:, None]
                near = inside[:, None] & (j >= 0) & (j < W2)
                weight = outer[:, None] * tl.load(w + point[:, None] * W2 + j, mask=near, other=0.0)
                here = (image < images)[:, None] & inside[None, :]
                at_point = values + 2 * (image[:, None] * points + point[None, :])
                x = tl.load(at_point, mask=here, other=0.0)
                y = tl.load(at_point + 1, mask=here, other=0.0)
                if FLIP:
                    y = tl.where(tl.load(flipped + point, mask=inside, other=0)[None, :] != 0, -y, y)
                real += tl.sum(x[:, :, None] * weight[None, :, :], 1)
                imag += tl.sum(y[:, :, None] * weight[None, :, :], 1)
    place = cells + 2 * ((image[:, None] * size0 + plane) * size2 + column[None, :])
    there = (image < images)[:, None] & (column < size2)[None, :]
    tl.store(place, real + tl.load(place, mask=there, other=0.0), mask=there)
    tl.store(place + 1, imag + tl.load(place + 1, mask=there, other=0.0), mask=there)
