"""The kernels of `nufft_triton.py`, in a file of their own because importing them needs Triton."""

# mypy: ignore-errors
# Triton kernels are not Python to a type checker.
import triton
import triton.language as tl


@triton.jit
def csr_product(
    starts, columns, values, vectors, out, row_sign, column_sign, rows, length,
    FLIP_ROWS: tl.constexpr, FLIP_COLUMNS: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    # Complex numbers are pairs; a sign of -1 conjugates a result, or an entry of the vector.
    image = tl.program_id(1).to(tl.int64)
    vectors += image * 2 * length
    out += image * 2 * rows
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    start = tl.load(starts + row, mask=inside, other=0)
    end = tl.load(starts + row + 1, mask=inside, other=0)
    entry = tl.arange(0, ENTRIES)
    real = tl.zeros([ROWS, ENTRIES], dtype=out.dtype.element_ty)
    imag = tl.zeros([ROWS, ENTRIES], dtype=out.dtype.element_ty)
    for offset in range(0, tl.max(end - start), ENTRIES):
        at = start[:, None] + offset + entry[None, :]
        there = at < end[:, None]
        weight = tl.load(values + at, mask=there, other=0.0)
        column = tl.load(columns + at, mask=there, other=0)
        real += weight * tl.load(vectors + 2 * column, mask=there, other=0.0)
        if FLIP_COLUMNS:
            weight *= tl.load(column_sign + column, mask=there, other=0.0)
        imag += weight * tl.load(vectors + 2 * column + 1, mask=there, other=0.0)
    tl.store(out + 2 * row, tl.sum(real, 1), mask=inside)
    total = tl.sum(imag, 1)
    if FLIP_ROWS:
        total *= tl.load(row_sign + row, mask=inside, other=0.0)
    tl.store(out + 2 * row + 1, total, mask=inside)


@triton.jit
def expand_products(values, totals, out, half, BLOCK: tl.constexpr):
    # One program a block of a row p of the four quadrants; values are pairs, (half, half).
    image = tl.program_id(2).to(tl.int64)
    values += image * 2 * half * half
    out += image * 4 * half * half
    p = tl.program_id(1)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = q < half
    low, high = tl.minimum(p, q), tl.maximum(p, q)
    a = values + 2 * (high * half + low)
    b = values + 2 * (low * half + high)
    a_real, a_imag = tl.load(a, mask=inside, other=0.0), tl.load(a + 1, mask=inside, other=0.0)
    b_real, b_imag = tl.load(b, mask=inside, other=0.0), tl.load(b + 1, mask=inside, other=0.0)
    total = tl.load(totals + image)
    b_real = tl.where(p == q, total, b_real)
    b_imag = tl.where(p == q, 0.0, tl.where(p < q, b_imag, -b_imag))
    width = 2 * half
    cosine = out + p * width + q
    sine = out + (p + half) * width + q
    tl.store(cosine, a_real + b_real, mask=inside)
    tl.store(cosine + half, a_imag - b_imag, mask=inside)
    tl.store(sine, a_imag + b_imag, mask=inside)
    tl.store(sine + half, b_real - a_real, mask=inside)


@triton.jit
def fold_products(products, out, half, BLOCK: tl.constexpr):
    # The transpose of the former: below the diagonal a[p, q] + a[q, p], above it b[p, q] + conj(b[q, p]).
    image = tl.program_id(2).to(tl.int64)
    products += image * 4 * half * half
    out += image * 2 * half * half
    p = tl.program_id(1)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = q < half
    width = 2 * half
    cosine = products + p * width + q
    sine = products + (p + half) * width + q
    cc, cs = tl.load(cosine, mask=inside, other=0.0), tl.load(cosine + half, mask=inside, other=0.0)
    sc, ss = tl.load(sine, mask=inside, other=0.0), tl.load(sine + half, mask=inside, other=0.0)
    off = inside & (p != q)
    turned_cosine = products + q * width + p
    turned_sine = products + (q + half) * width + p
    cc_t, cs_t = tl.load(turned_cosine, mask=off, other=0.0), tl.load(turned_cosine + half, mask=off, other=0.0)
    sc_t, ss_t = tl.load(turned_sine, mask=off, other=0.0), tl.load(turned_sine + half, mask=off, other=0.0)
    above = p < q
    real = tl.where(above, (cc + ss) + (cc_t + ss_t), (cc - ss) + (cc_t - ss_t))
    imag = tl.where(above, (sc - cs) - (sc_t - cs_t), (sc + cs) + (sc_t + cs_t))
    at = out + 2 * (p * half + q)
    tl.store(at, real, mask=inside)
    tl.store(at + 1, imag, mask=inside)


@triton.jit
def pad_rows(images, scale, out, total, height, width, columns, BLOCK: tl.constexpr):
    # images * scale, (n, H, W), along rows of `columns` with the pixel at the centre first and zeros between.
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    column = at % columns
    row = at // columns
    behind = width // 2
    front = column < width - behind
    pixel = tl.where(front, column + behind, column - (columns - behind))
    there = inside & (front | (column >= columns - behind))
    value = tl.load(images + row * width + pixel, mask=there, other=0.0)
    factor = tl.load(scale + (row % height) * width + pixel, mask=there, other=0.0)
    tl.store(out + at, value * factor, mask=inside)


@triton.jit
def crop_rows(padded, scale, out, total, height, width, columns, BLOCK: tl.constexpr):
    # The transpose.
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    pixel = at % width
    row = at // width
    behind = width // 2
    column = tl.where(pixel >= behind, pixel - behind, pixel + (columns - behind))
    value = tl.load(padded + row * columns + column, mask=inside, other=0.0)
    factor = tl.load(scale + (row % height) * width + pixel, mask=inside, other=0.0)
    tl.store(out + at, value * factor, mask=inside)


@triton.jit
def take_columns(
    half, out, height, rows, columns, stored, left, count,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # (n, H, stored) pairs to (n, count, rows): frequencies -left .. count - left - 1, rows padded and rolled likewise.
    image = tl.program_id(2).to(tl.int64)
    half += image * 2 * height * stored
    out += image * 2 * count * rows
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]
    inside = (c < count) & (r < rows)
    frequency = c - left
    conjugate = (frequency < 0) | (frequency >= stored)
    source = tl.where(frequency < 0, -frequency, tl.where(frequency >= stored, columns - frequency, frequency))
    behind = height // 2
    front = r < height - behind
    row = tl.where(front, r + behind, r - (rows - behind))
    there = inside & (front | (r >= rows - behind))
    at = half + 2 * (row * stored + source)
    real, imag = tl.load(at, mask=there, other=0.0), tl.load(at + 1, mask=there, other=0.0)
    to = out + 2 * (c * rows + r)
    tl.store(to, real, mask=inside)
    tl.store(to + 1, tl.where(conjugate, -imag, imag), mask=inside)


@triton.jit
def put_columns(
    grid, out, height, rows, columns, stored, left, count,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # The transpose, with every frequency but the first and the last halved, as the inverse real FFT wants it.
    image = tl.program_id(2).to(tl.int64)
    grid += image * 2 * count * rows
    out += image * 2 * height * stored
    f = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = (f < stored) & (i < height)
    behind = height // 2
    r = tl.where(i >= behind, i - behind, i + (rows - behind))
    at = grid + 2 * ((f + left) * rows + r)
    there = inside & (f + left < count)
    real, imag = tl.load(at, mask=there, other=0.0), tl.load(at + 1, mask=there, other=0.0)
    at = grid + 2 * ((left - f) * rows + r)
    there = inside & (f >= 1) & (f <= left)
    real += tl.load(at, mask=there, other=0.0)
    imag -= tl.load(at + 1, mask=there, other=0.0)
    at = grid + 2 * ((left + columns - f) * rows + r)
    there = inside & (columns - f >= stored) & (left + columns - f < count)
    real += tl.load(at, mask=there, other=0.0)
    imag -= tl.load(at + 1, mask=there, other=0.0)
    share = tl.where((f == 0) | (2 * f == columns), 1.0, 0.5)
    to = out + 2 * (i * stored + f)
    tl.store(to, real * share, mask=inside)
    tl.store(to + 1, imag * share, mask=inside)
