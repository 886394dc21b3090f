"""The Triton kernels of BM3D's matching, which is that of `reference.py` to the bit: distances, then selection.

Loops over `tl.static_range` are unrolled, so that a tuple of tensors is a register file.
"""

# Inside kernels this is Triton's language, whose tuples grow and whose arguments have no types.
# mypy: ignore-errors
# ruff: noqa: RUF005 - Triton's language has neither unpacking nor a choice between tuples.

from __future__ import annotations

import triton
import triton.language as tl

# Sizes are not specialised on (`do_not_specialize`): a kernel is compiled once for a profile, not for every image.
# The kernels read module constants only as `tl.constexpr`.
_NEVER = tl.constexpr(0x7FFFFFFF)
_NUMBER = tl.constexpr(0x7FF)


@triton.constexpr_function
def _reads(COUNT):
    """PTX that reads so many numbers from an address on."""
    return "\n".join(f"ld.global.nc.f32 ${j}, [${COUNT}+{4 * j}];" for j in range(COUNT))


@triton.constexpr_function
def _read_constraints(COUNT):
    return ",".join(["=f"] * COUNT + ["l"])


@triton.constexpr_function
def _floats(COUNT):
    return (tl.float32,) * COUNT


@triton.jit
def _pixels(at, COUNT: tl.constexpr, PTX: tl.constexpr):
    """The `COUNT` pixels from here on.

    As one piece of PTX, since Triton looks at all of a kernel for each load that it lays out: a minute of compiling.
    Its interpreter knows no PTX.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            _reads(COUNT), _read_constraints(COUNT), [at.to(tl.int64)], dtype=_floats(COUNT), is_pure=True, pack=1
        )
    pixels = ()
    for j in tl.static_range(COUNT):
        pixels = pixels + (tl.load(at + j),)
    return pixels


@triton.jit
def _row_distances(a, b, COUNT: tl.constexpr, STEP: tl.constexpr):
    """Sums of eight squared differences, `STEP` apart, added as the tree that `reference.py` prescribes.

    What neighbours share of their trees is written twice here and computed once: the compiler sees that it is the same.
    """
    squares = ()
    for j in tl.static_range(STEP * (COUNT - 1) + 8):
        d = a[j] - b[j]
        squares = squares + (d * d,)
    sums = ()
    for c in tl.static_range(COUNT):
        sums = sums + (_tree(squares, STEP * c, 1),)
    return sums


@triton.jit(
    do_not_specialize=["height", "width", "reference_rows", "reference_columns", "groups_down", "groups_across"]
)
def measure(
    images,  # (N, H, W) float32, with as many numbers as a window is wide before and after them
    keys,  # (N, references, DOWN, LANES) int32 out
    height,
    width,
    reference_rows,
    reference_columns,
    groups_down,  # programs along an axis whose references are `STEP` apart; one more may follow for the last one
    groups_across,
    RADIUS: tl.constexpr,
    STEP: tl.constexpr,
    REFS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DOWN: tl.constexpr,
    LANES: tl.constexpr,
    PTX: tl.constexpr,
):
    """The keys of all candidates of `REFS` x `COLUMNS` references. Grid: (groups of columns, groups of rows, N).

    A lane has `DOWN` candidates below each other for each reference. Pixel row s of its strip meets pixel row s - e of
    the references' strip for candidate e. The sums of that row serve every reference whose block has the row, and the
    references beside each other share squares and parts of their sums: with REFS = 4, STEP = 3, DOWN = 3, COLUMNS = 2,
    19 rows of 11 pixels are read and 51 rows of 11 differences squared for 24 distances of 64.

    Candidates beside the image are read from where their address falls, and get the key that is never chosen.
    Compile without fused multiply-add: the distances are those of `reference.py` to the bit.
    """
    SPAN: tl.constexpr = 2 * RADIUS + 1
    ROWS: tl.constexpr = STEP * (REFS - 1) + 8
    WIDE: tl.constexpr = STEP * (COLUMNS - 1) + 8
    across_group, group, n = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    image = images + n.to(tl.int64) * height * width
    regular = group < groups_down
    top = tl.where(regular, group * (STEP * REFS), height - 8)
    first = n.to(tl.int64) * reference_rows + tl.where(regular, group * REFS, reference_rows - 1)
    regular_across = across_group < groups_across
    left = tl.where(regular_across, across_group * (STEP * COLUMNS), width - 8)
    column = tl.where(regular_across, across_group * COLUMNS, reference_columns - 1)

    lane = tl.arange(0, LANES)
    strip = (lane // SPAN) * DOWN - RADIUS
    across = lane % SPAN - RADIUS

    references = ()
    sums = ()
    for s in tl.static_range(ROWS + DOWN - 1):
        if s < ROWS:
            references = references + (_pixels(image + (tl.minimum(top + s, height - 1) * width + left), WIDE, False),)
        row = tl.minimum(tl.maximum(top + strip + s, 0), height - 1)
        candidates = _pixels(image + (row * width + left + across), WIDE, PTX)
        for e in tl.static_range(DOWN):
            # Row s - e of the references; what is not needed is a 0 in the tuple, so that places in it are plain.
            if s >= e and s - e < ROWS:
                sums = sums + _row_distances(references[s - e], candidates, COLUMNS, STEP)
            else:
                for _ in tl.static_range(COLUMNS):
                    sums = sums + (0,)
            if s - e >= 7 and s - e < ROWS and (s - e - 7) % STEP == 0:
                # The rows s - e - 7 ... s - e: candidate e of a row of references is complete.
                down = strip + e
                y = top + (s - e - 7) + down
                valid = (y >= 0) & (y <= height - 8) & (down <= RADIUS) & ((down != 0) | (across != 0))
                number = tl.where(valid, (down + RADIUS) * SPAN + across + RADIUS, _NEVER)
                place = (first + (s - e - 7) // STEP) * reference_columns + column
                for c in tl.static_range(COLUMNS):
                    distance = _tree(sums, ((s - 7) * DOWN + e) * COLUMNS + c, DOWN * COLUMNS)
                    key = (distance.to(tl.int32, bitcast=True) & ~_NUMBER) | number
                    x = left + STEP * c + across
                    # Beyond the last row and column of references there are none.
                    real = (lane * 0 + (top + (s - e - 7)) <= height - 8) & (lane * 0 + (left + STEP * c) <= width - 8)
                    to = keys + ((place + c) * DOWN + e) * LANES + lane
                    tl.store(to, tl.where((x >= 0) & (x <= width - 8), key, _NEVER), mask=real)


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
    KEEP: tl.constexpr,
    DOWN: tl.constexpr,
    LANES: tl.constexpr,
):
    """The blocks of the K - 1 smallest keys, ascending, after the reference. Grid: (references, N); one warp.

    Each thread first sorts out the `KEEP` smallest of its share of the keys, and each round takes the least of what the
    threads have on top. If a thread runs out of those, it may have had others: then all keys are gone through again.
    """
    SPAN: tl.constexpr = 2 * RADIUS + 1
    reference = tl.program_id(0)
    entry = tl.program_id(1).to(tl.int64) * references + reference
    keys += entry * (DOWN * LANES)
    thread = tl.arange(0, 32)
    kept = ()
    for _ in tl.static_range(KEEP):
        kept = kept + (tl.zeros([32], tl.int32) + _NEVER,)
    for e in tl.static_range(DOWN):
        for part in tl.static_range(LANES // 32):
            # Candidates below each other are often alike: no thread is to have all of them.
            key = tl.load(keys + (e * LANES + part * 32) + ((thread + 11 * e) & 31))
            longer = ()
            for m in tl.static_range(KEEP):
                longer = longer + (tl.minimum(kept[m], key),)
                key = tl.maximum(kept[m], key)
            kept = longer
    each = tl.arange(0, K)
    numbers = tl.zeros([K], tl.int32)
    for k in range(1, K):
        least = tl.min(kept[0], axis=0)
        numbers = tl.where(each == k, least & _NUMBER, numbers)
        taken = kept[0] == least
        shorter = ()
        for m in tl.static_range(KEEP - 1):
            shorter = shorter + (tl.where(taken, kept[m + 1], kept[m]),)
        kept = shorter + (tl.where(taken, _NEVER, kept[KEEP - 1]),)
    if tl.max(kept[0], axis=0) == _NEVER:
        numbers = _smallest(keys, K, DOWN, LANES)
    y = tl.minimum((reference // reference_columns) * STEP, last_row)
    x = tl.minimum((reference % reference_columns) * STEP, width - 8)
    down = tl.where(each == 0, 0, numbers // SPAN - RADIUS)
    over = tl.where(each == 0, 0, numbers % SPAN - RADIUS)
    tl.store(groups + entry * K + each, (y + down) * (width - 7) + x + over)


@triton.jit
def _smallest(keys, K: tl.constexpr, DOWN: tl.constexpr, LANES: tl.constexpr):
    """The numbers of the K - 1 smallest of all keys, from place 1 on.

    Each round takes the least key above the last one. As unsigned numbers the keys already taken, less the last and 1,
    wrap around to the far end, so that nothing needs to be struck out; keys are distinct.
    """
    lane = tl.arange(0, LANES)
    left = ()
    for e in tl.static_range(DOWN):
        left = left + (tl.load(keys + e * LANES + lane).to(tl.uint32, bitcast=True),)
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
    return numbers


@triton.jit
def _tree(sums, at: tl.constexpr, by: tl.constexpr):
    """Eight numbers, `by` apart in the tuple, added as that tree."""
    upper = (sums[at] + sums[at + by]) + (sums[at + 2 * by] + sums[at + 3 * by])
    lower = (sums[at + 4 * by] + sums[at + 5 * by]) + (sums[at + 6 * by] + sums[at + 7 * by])
    return upper + lower
