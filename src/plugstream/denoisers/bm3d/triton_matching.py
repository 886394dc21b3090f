"""The Triton kernels of BM3D's matching, which is that of `reference.py` to the bit: distances, then selection.

Loops over `tl.static_range` are unrolled, so that a tuple of tensors is a register file.
"""

# Inside kernels this is Triton's language, whose tuples grow and whose arguments have no types.
# mypy: ignore-errors
# ruff: noqa: RUF005, SIM108 - Triton's language has neither unpacking nor a choice between tuples.

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["measure", "select"]

# Sizes are not specialised on (`do_not_specialize`): a kernel is compiled once for a profile, not for every image.
# The kernels read module constants only as `tl.constexpr`.
_NEVER = tl.constexpr(0x7FFFFFFF)
_NUMBER = tl.constexpr(0x7FF)


@triton.jit
def _row_distance(a, b):
    """Sum of eight squared differences, added as the tree that `reference.py` prescribes."""
    d0 = a[0] - b[0]
    d1 = a[1] - b[1]
    d2 = a[2] - b[2]
    d3 = a[3] - b[3]
    d4 = a[4] - b[4]
    d5 = a[5] - b[5]
    d6 = a[6] - b[6]
    d7 = a[7] - b[7]
    return ((d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)) + ((d4 * d4 + d5 * d5) + (d6 * d6 + d7 * d7))


@triton.jit
def _eight(at):
    return (
        tl.load(at),
        tl.load(at + 1),
        tl.load(at + 2),
        tl.load(at + 3),
        tl.load(at + 4),
        tl.load(at + 5),
        tl.load(at + 6),
        tl.load(at + 7),
    )


@triton.jit(do_not_specialize=["height", "width", "reference_rows", "reference_columns", "regular_groups"])
def measure(
    images,  # (N, H, W) float32
    keys,  # (N, references, DOWN, LANES) int32 out
    height,
    width,
    reference_rows,
    reference_columns,
    regular_groups,  # programs along the second axis whose rows are `STEP` apart; one more may follow for the last row
    RADIUS: tl.constexpr,
    STEP: tl.constexpr,
    REFS: tl.constexpr,
    DOWN: tl.constexpr,
    LANES: tl.constexpr,
):
    """The keys of all candidates of `REFS` references below each other. Grid: (columns, groups of rows, N).

    A lane has `DOWN` candidates below each other for each reference. Pixel row s of its strip meets pixel row s - e of
    the references' strip for candidate e, and that row sum serves every reference whose block has the row: with
    REFS = 4, STEP = 3, DOWN = 3, 19 rows are read and 51 sums of eight made for 12 distances of eight rows.

    Compile without fused multiply-add: the distances are those of `reference.py` to the bit.
    """
    SPAN: tl.constexpr = 2 * RADIUS + 1
    ROWS: tl.constexpr = STEP * (REFS - 1) + 8
    column, group, n = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    image = images + n.to(tl.int64) * height * width
    left = tl.minimum(column * STEP, width - 8)
    regular = group < regular_groups
    top = tl.where(regular, group * (STEP * REFS), height - 8)
    first = n.to(tl.int64) * reference_rows + tl.where(regular, group * REFS, reference_rows - 1)

    lane = tl.arange(0, LANES)
    strip = (lane // SPAN) * DOWN - RADIUS
    across = lane % SPAN - RADIUS
    inside = (left + across >= 0) & (left + across <= width - 8)
    # Addresses are clamped rather than masked; what lies outside gets the key that is never chosen.
    start = image + tl.minimum(tl.maximum(left + across, 0), width - 8)

    references = ()
    sums = ()
    for s in tl.static_range(ROWS + DOWN - 1):
        if s < ROWS:
            references = references + (_eight(image + tl.minimum(top + s, height - 1) * width + left),)
        candidates = _eight(start + tl.minimum(tl.maximum(top + strip + s, 0), height - 1) * width)
        for e in tl.static_range(DOWN):
            # Row s - e of the references; what is not needed is a 0 in the tuple, so that places in it are plain.
            if s >= e and s - e < ROWS:
                sums = sums + (_row_distance(references[s - e], candidates),)
            else:
                sums = sums + (0,)
            if s - e >= 7 and s - e < ROWS and (s - e - 7) % STEP == 0:
                # The rows s - e - 7 ... s - e: candidate e of reference (s - e - 7) / STEP is complete.
                distance = _column_sum(sums, (s - 7) * DOWN + e, DOWN)
                down = strip + e
                row = top + (s - e - 7) + down
                number = (down + RADIUS) * SPAN + across + RADIUS
                key = (distance.to(tl.int32, bitcast=True) & ~_NUMBER) | number
                valid = inside & (row >= 0) & (row <= height - 8) & (down <= RADIUS) & ((down != 0) | (across != 0))
                place = (first + (s - e - 7) // STEP) * reference_columns + column
                # Below the last row of references there are none.
                real = lane * 0 + (top + (s - e - 7)) <= height - 8
                tl.store(keys + (place * DOWN + e) * LANES + lane, tl.where(valid, key, _NEVER), mask=real)


@triton.jit(do_not_specialize=["width", "references", "reference_columns", "last_row"])
def select(
    keys,  # (N, references, DOWN, LANES) int32
    groups,  # (N, references, K) int32 out: block positions, the reference itself first
    width,
    references,
    reference_columns,
    last_row,
    RADIUS: tl.constexpr,
    STEP: tl.constexpr,
    K: tl.constexpr,
    DOWN: tl.constexpr,
    LANES: tl.constexpr,
):
    """The blocks of the K - 1 smallest keys, ascending, after the reference. Grid: (references, N); one warp.

    Each round takes the least key above the last one. As unsigned numbers the keys already taken, less the last and 1,
    wrap around to the far end, so that nothing needs to be struck out; keys are distinct.
    """
    SPAN: tl.constexpr = 2 * RADIUS + 1
    reference = tl.program_id(0)
    entry = tl.program_id(1).to(tl.int64) * references + reference
    lane = tl.arange(0, LANES)
    left = ()
    for e in tl.static_range(DOWN):
        left = left + (tl.load(keys + (entry * DOWN + e) * LANES + lane).to(tl.uint32, bitcast=True),)
    each = tl.arange(0, K)
    numbers = tl.zeros([K], tl.int32)
    above = tl.zeros([1], tl.uint32)
    for k in range(1, K):
        least = left[0] - above
        for e in tl.static_range(1, DOWN):
            least = tl.minimum(least, left[e] - above)
        above += tl.min(least, axis=0)
        numbers = tl.where(each == k, (above & _NUMBER).to(tl.int32), numbers)
        above += 1
    y = tl.minimum((reference // reference_columns) * STEP, last_row)
    x = tl.minimum((reference % reference_columns) * STEP, width - 8)
    down = tl.where(each == 0, 0, numbers // SPAN - RADIUS)
    over = tl.where(each == 0, 0, numbers % SPAN - RADIUS)
    tl.store(groups + entry * K + each, (y + down) * (width - 7) + x + over)


@triton.jit
def _column_sum(sums, at: tl.constexpr, by: tl.constexpr):
    """Eight row sums, `by` apart in the tuple, added as the same tree."""
    upper = (sums[at] + sums[at + by]) + (sums[at + 2 * by] + sums[at + 3 * by])
    lower = (sums[at + 4 * by] + sums[at + 5 * by]) + (sums[at + 6 * by] + sums[at + 7 * by])
    return upper + lower
