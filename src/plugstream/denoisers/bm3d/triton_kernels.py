"""The Triton kernels of BM3D's filter. What they compute is in `reference.py`; here is how, and what they are passed.

Loops over `tl.static_range` are unrolled, so that a tuple of tensors is a register file: a thread keeps one coefficient
of all K blocks of a group, and the Haar transform along them costs additions only, without exchange between threads.
The Haar coefficients stay unscaled (sums and differences): a coefficient of level l is 2^(l/2) times the orthonormal
one, which goes into the threshold and the Wiener gain, and the way back needs a factor 2^-l, which is exact.
"""

# Inside kernels this is Triton's language, whose tuples grow and whose arguments have no types.
# mypy: ignore-errors
# ruff: noqa: RUF005 - Triton has no unpacking.

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_up", "filter_groups", "fold_columns", "fold_rows", "transform"]

# Sizes are not specialised on (`do_not_specialize`): a kernel is compiled once for a profile, not for every image.
# The kernels read module constants only as `tl.constexpr`.
_TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit(do_not_specialize=["height", "width"])
def transform(
    images,  # (N, H, W)
    guides,  # (N, H, W), read where TWO
    matrix,  # (8, 8), the analysis A
    spectra,  # (N, positions, 64) out
    guide_spectra,  # (N, positions, 64) out where TWO
    total,  # (N, positions, 64) out: zeros where CLEAR
    weight,  # (N, positions) out: zeros where CLEAR
    height,
    width,
    TWO: tl.constexpr,
    CLEAR: tl.constexpr,
    TILE: tl.constexpr,
    TALL: tl.constexpr,
):
    """The 2-D transform A b A^T of the block at every position. Grid: (tiles of columns, strips of rows, N)."""
    top, n = tl.program_id(1) * TALL, tl.program_id(2)
    x = tl.program_id(0) * TILE + tl.arange(0, TILE)
    first = n.to(tl.int64) * (height - 7)
    source = n.to(tl.int64) * height * width + tl.minimum(x, width - 8)
    _analyse(images + source, matrix, spectra, x, first, top, height, width, TALL)
    if TWO:
        _analyse(guides + source, matrix, guide_spectra, x, first, top, height, width, TALL)
    if CLEAR:
        for s in tl.static_range(TALL):
            inside = (x < width - 7) & (x * 0 + (top + s) < height - 7)
            at = (first + (top + s)) * (width - 7) + x
            cells = at[:, None] * 64 + tl.arange(0, 64)[None, :]
            tl.store(total + cells, tl.zeros([TILE, 64], tl.float32), mask=inside[:, None])
            tl.store(weight + at, tl.zeros([TILE], tl.float32), mask=inside)


@triton.jit
def _analyse(source, matrix, spectra, x, first, top, height, width, TALL: tl.constexpr):
    """Down a strip: each pixel row is transformed across once, and serves the eight rows of blocks that have it."""
    c = tl.arange(0, 64)
    by_column = ()
    by_row = ()
    for j in tl.static_range(8):
        by_column = by_column + (tl.load(matrix + (c % 8) * 8 + j),)
        by_row = by_row + (tl.load(matrix + (c // 8) * 8 + j),)
    rows = ()
    for s in tl.static_range(TALL + 7):
        pixels = source + tl.minimum(top + s, height - 1) * width
        row = tl.load(pixels)[:, None] * by_column[0][None, :]
        for j in tl.static_range(1, 8):
            row += tl.load(pixels + j)[:, None] * by_column[j][None, :]
        rows = rows + (row,)
        if s >= 7:
            block = rows[s - 7] * by_row[0][None, :]
            for i in tl.static_range(1, 8):
                block += rows[s - 7 + i] * by_row[i][None, :]
            inside = (x < width - 7) & (x * 0 + (top + s - 7) < height - 7)
            at = (first + (top + s - 7)) * (width - 7) + x
            tl.store(spectra + at[:, None] * 64 + c[None, :], block, mask=inside[:, None])


@triton.jit
def _haar(blocks, K: tl.constexpr, LEVELS: tl.constexpr):
    """Sums and differences of pairs, then of the sums: K/2 differences of level 1, K/4 of level 2, ..., the sum."""
    details = ()
    sums = blocks
    for level in tl.static_range(LEVELS):
        halves = ()
        for m in tl.static_range(K >> (level + 1)):
            details = details + (sums[2 * m] - sums[2 * m + 1],)
            halves = halves + (sums[2 * m] + sums[2 * m + 1],)
        sums = halves
    return details + sums


@triton.jit
def _haar_back(coefficients, K: tl.constexpr, LEVELS: tl.constexpr):
    """Undo `_haar`, for coefficients of level l times 2^-l."""
    sums = (coefficients[K - 1],)
    for up in tl.static_range(LEVELS):
        doubled = ()
        for m in tl.static_range(1 << up):
            detail = coefficients[K - (K >> (LEVELS - 1 - up)) + m]
            doubled = doubled + (sums[m] + detail, sums[m] - detail)
        sums = doubled
    return sums


@triton.jit(do_not_specialize=["positions", "references"])
def filter_groups(
    spectra,  # (N, positions, 64)
    guide_spectra,  # (N, positions, 64), read where WIENER
    groups,  # (N, references, K) int32
    sigma,  # (N,)
    total,  # (N, positions, 64) added to; where LIST (N, references, K, 64) written: the weighted blocks
    weight,  # (N, positions) added to; where LIST (N, references) written
    places,  # (N, references, K) int64, written where LIST: the row of `total` that a block belongs to
    factor,  # the threshold in sigmas, or the Wiener filter's factor of sigma^2
    positions,  # of one image
    references,
    K: tl.constexpr,
    LEVELS: tl.constexpr,
    WIENER: tl.constexpr,
    LIST: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Shrink `GROUPS` groups and add their blocks, weighted, to the positions they came from. Grid: (groups, N)."""
    n = tl.program_id(1)
    g = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    real = g < references
    c = tl.arange(0, 64)
    first = n.to(tl.int64) * positions
    entry = n.to(tl.int64) * references + tl.minimum(g, references - 1)

    cells = ()
    noisy = ()
    for k in tl.static_range(K):
        cells = cells + ((first + tl.load(groups + entry * K + k))[:, None] * 64 + c[None, :],)
        noisy = noisy + (tl.load(spectra + cells[k]),)
    noisy = _haar(noisy, K, LEVELS)
    level_of_noise = tl.load(sigma + n)
    mass = tl.zeros([GROUPS, 64], tl.float32)
    shrunk = ()
    if WIENER:
        basic = ()
        for k in tl.static_range(K):
            basic = basic + (tl.load(guide_spectra + cells[k]),)
        basic = _haar(basic, K, LEVELS)
        noise = factor * (level_of_noise * level_of_noise)
        for k in tl.static_range(K):
            energy = basic[k] * basic[k]
            gain = energy / (energy + noise * _power(k, K, LEVELS))
            mass += gain * gain
            shrunk = shrunk + (noisy[k] * gain * (1.0 / _power(k, K, LEVELS)),)
        share = 1 / tl.maximum(tl.sum(mass, axis=1), _TINY)
    else:
        bound = factor * level_of_noise
        for k in tl.static_range(K):
            kept = tl.abs(noisy[k]) > bound * _root(_power(k, K, LEVELS))
            mass += kept.to(tl.float32)
            shrunk = shrunk + (tl.where(kept, noisy[k] * (1.0 / _power(k, K, LEVELS)), 0.0),)
        share = 1 / tl.maximum(tl.sum(mass, axis=1), 1.0)
    blocks = _haar_back(shrunk, K, LEVELS)

    for k in tl.static_range(K):
        block = blocks[k] * share[:, None]
        if LIST:
            tl.store(total + (entry * K + k)[:, None] * 64 + c[None, :], block, mask=real[:, None])
        else:
            tl.atomic_add(total + cells[k], block, mask=real[:, None], sem="relaxed")
    each = tl.arange(0, K)[None, :]
    at = first + tl.load(groups + entry[:, None] * K + each)
    if LIST:
        tl.store(places + entry[:, None] * K + each, at, mask=real[:, None])
        tl.store(weight + entry, share, mask=real)
    else:
        share = tl.broadcast_to(share[:, None], [GROUPS, K])
        tl.atomic_add(weight + at, share, mask=tl.broadcast_to(real[:, None], [GROUPS, K]), sem="relaxed")


@triton.constexpr_function
def _power(k, K, LEVELS):
    """2^l for the k-th output of `_haar`: its square is that many times the orthonormal coefficient's."""
    level = 1
    while level < LEVELS and k >= K - (K >> level):
        level += 1
    return float(2 ** min(level, LEVELS))


@triton.constexpr_function
def _root(power):
    return power**0.5


@triton.jit
def add_up(
    blocks,  # (N, references, K, 64): weighted blocks
    shares,  # (N, references): weights of the groups
    order,  # entries of `blocks` in the order of their positions, int64
    starts,  # (N positions + 1,): where each position's entries begin in `order`
    total,  # (N, positions, 64) out
    weight,  # (N, positions) out
    K: tl.constexpr,
):
    """Add the blocks of each position in the order of their groups, so that the bits never change. Grid: positions."""
    position = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, 64)
    sums = tl.zeros([64], tl.float32)
    share = 0.0
    for i in range(tl.load(starts + position), tl.load(starts + position + 1)):
        entry = tl.load(order + i)
        sums += tl.load(blocks + entry * 64 + c)
        share += tl.load(shares + entry // K)
    tl.store(total + position * 64 + c, sums)
    tl.store(weight + position, share)


@triton.jit(do_not_specialize=["height", "width"])
def fold_columns(
    total,  # (N, positions, 64)
    weight,  # (N, positions)
    synthesis,  # (8, 8): S, row i times the Kaiser window's i-th number
    window,  # (8,): the Kaiser window
    numerator,  # (N, H - 7, W, 8) out
    denominator,  # (N, H - 7, W) out
    height,
    width,
    TILE: tl.constexpr,
):
    """Undo the transform across and add up over the blocks in a row: sum over j, v of S[j, v] T(y, x - j)[u, v].

    The synthesis, the window and the folding are linear and separable, so that no block is ever written out.
    Grid: (tiles of columns, rows of positions, N).
    """
    y, n = tl.program_id(1), tl.program_id(2)
    x = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.arange(0, 64)
    row = (n.to(tl.int64) * (height - 7) + y) * (width - 7)
    sums = tl.zeros([TILE, 64], tl.float32)
    shares = tl.zeros([TILE], tl.float32)
    for j in tl.static_range(8):
        inside = (x >= j) & (x - j < width - 7)
        values = tl.load(total + (row + x - j)[:, None] * 64 + c[None, :], mask=inside[:, None], other=0.0)
        sums += values * tl.load(synthesis + j * 8 + c % 8)[None, :]
        shares += tl.load(weight + row + x - j, mask=inside, other=0.0) * tl.load(window + j)
    place = (n.to(tl.int64) * (height - 7) + y) * width + x
    u = tl.arange(0, 8)
    tl.store(
        numerator + place[:, None] * 8 + u[None, :],
        tl.sum(tl.reshape(sums, [TILE, 8, 8]), axis=2),
        mask=(x < width)[:, None],
    )
    tl.store(denominator + place, shares, mask=x < width)


@triton.jit(do_not_specialize=["height", "width"])
def fold_rows(
    numerator,  # (N, H - 7, W, 8)
    denominator,  # (N, H - 7, W)
    synthesis,
    window,
    images,  # (N, H, W): what an image of sigma 0 stays
    sigma,  # (N,)
    result,  # (N, H, W) out
    height,
    width,
    TILE: tl.constexpr,
):
    """The same down the columns, and the quotient. Grid: (tiles of columns, rows, N)."""
    y, n = tl.program_id(1), tl.program_id(2)
    x = tl.program_id(0) * TILE + tl.arange(0, TILE)
    u = tl.arange(0, 8)
    sums = tl.zeros([TILE, 8], tl.float32)
    shares = tl.zeros([TILE], tl.float32)
    for i in tl.static_range(8):
        row = x * 0 + (y - i)
        inside = (x < width) & (row >= 0) & (row < height - 7)
        place = (n.to(tl.int64) * (height - 7) + row) * width + x
        values = tl.load(numerator + place[:, None] * 8 + u[None, :], mask=inside[:, None], other=0.0)
        sums += values * tl.load(synthesis + i * 8 + u)[None, :]
        shares += tl.load(denominator + place, mask=inside, other=0.0) * tl.load(window + i)
    place = (n.to(tl.int64) * height + y) * width + x
    mean = tl.sum(sums, axis=1) / shares
    kept = tl.load(images + place, mask=x < width)
    tl.store(result + place, tl.where(tl.load(sigma + n) == 0, kept, mean), mask=x < width)
