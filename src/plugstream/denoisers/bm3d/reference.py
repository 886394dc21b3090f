"""BM3D in torch, written as the papers have it: the specification of the other two forms, and their test oracle.

The three forms share the matching to the bit. The distance of two blocks is the sum of 64 squared differences in single
precision, added as a tree: neighbours in a row, then pairs, then halves, and then the eight rows likewise. A
candidate's key is that number with its last 11 bits replaced by the candidate's number in the window (row by row), and
the candidates with the smallest keys form the group, the reference first, so that equal distances go by position.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from plugstream.denoisers.bm3d.profile import BLOCK, Profile
from plugstream.denoisers.bm3d.transforms import correlations, haar, kaiser_window, transform

_NEVER = torch.iinfo(torch.int32).max
_INDEX_BITS = 11
# Rounding must not leave a variance at zero or below.
_LEAST_VARIANCE = 1e-3
# Reference blocks filtered at once: the pairs of 128 groups of 32 blocks are 34 MB.
_AT_ONCE = 128


def bm3d(
    images: Tensor,
    sigma: Tensor,
    profile: Profile,
    *,
    stages: int = 2,
    channels: int = 1,
    shared: Tensor | None = None,
    offsets: Tensor | None = None,
    basic: Tensor | None = None,
) -> Tensor:
    """Remove Gaussian noise by filtering groups of similar blocks: (N, H, W) and (N,) to (N, H, W).

    Arguments: channels, how many images in a row share the groups that are found on the first of them; shared and
    offsets, of `Coloured`, for noise that is not white; basic, an estimate of the images, for stage 2 alone.
    """
    out = []
    for first in range(0, len(images), channels):
        z, levels = images[first : first + channels], sigma[first : first + channels].tolist()
        guides = None if basic is None else basic[first : first + channels]
        for stage in range(0 if basic is None else 1, stages):
            guide = z if guides is None else torch.where(sigma[first : first + channels, None, None] == 0, z, guides)
            most = profile.group1 if stage == 0 else profile.group2
            positions = match(guide[0], profile, most, None if offsets is None else offsets[stage])
            tables = [None] * channels if shared is None else shared[stage].expand(channels, *shared.shape[2:])
            done = [
                _stage(z[c], None if stage == 0 else guide[c], positions, levels[c], profile, tables[c])
                for c in range(channels)
            ]
            guides = torch.stack(done)
        assert guides is not None
        out.append(guides)
    return torch.cat(out)


def _stage(
    z: Tensor, basic: Tensor | None, positions: Tensor, sigma: float, profile: Profile, table: Tensor | None
) -> Tensor:
    """One stage: filter each group of the noisy image, by the basic estimate if there is one, and put blocks together.

    The noise of a group's coefficient has the variance v sigma^2 (see `_variances`). Stage 1 (no basic estimate) sets
    coefficients to zero unless c^2 > (threshold sigma)^2 v; stage 2 multiplies by the Wiener gain
    b^2 / (b^2 + wiener sigma^2 v), with b from the basic estimate. The mean of a group stays as it is, so that
    D(z + c) = D(z) + c. A group counts by 1 / variance of its remaining noise: 1 / sum of v over the remaining
    coefficients, and 1 / sum of gain^2 v.
    """
    if sigma == 0:
        return z.clone()
    first = basic is None
    guide = z if basic is None else basic
    name = "bior15" if first else "dct"
    analysis = torch.from_numpy(np.ascontiguousarray(transform(name))).to(z)
    spectra = _spectra(z, analysis)
    guides = spectra if first else _spectra(guide, analysis)
    along = torch.from_numpy(haar(positions.shape[1])).to(z)
    if table is None:  # white noise: the same in all four directions, and nothing beyond a distance of 8
        white = correlations(name)
        table = torch.from_numpy(np.concatenate([white[:, :0:-1], white], axis=1)).to(z)
    total = torch.zeros_like(spectra)
    weight = torch.zeros(len(spectra), dtype=z.dtype, device=z.device)
    for group in positions.split(_AT_ONCE):
        noisy = torch.einsum("gk,nkc->ngc", along, spectra[group])
        v = _variances(group, z.shape[1] - BLOCK + 1, along, table)
        if first:
            passed = (noisy / (profile.threshold * sigma)).square() > v
            passed[:, 0, 0] = True
            filtered = noisy * passed
            counts = 1 / (v * passed).sum((1, 2)).clamp_min(1)
        else:
            energy = torch.einsum("gk,nkc->ngc", along, guides[group]).square()
            gain = energy / (energy + profile.wiener * sigma**2 * v)
            gain[:, 0, 0] = 1
            filtered = noisy * gain
            counts = 1 / (gain.square() * v).sum((1, 2)).clamp_min(torch.finfo(z.dtype).tiny)
        blocks = torch.einsum("gk,ngc->nkc", along, filtered) * counts[:, None, None]
        total.index_add_(0, group.flatten(), blocks.flatten(0, 1))
        weight.index_add_(0, group.flatten(), counts.repeat_interleave(group.shape[1]))
    return _put_together(total, weight, analysis, z.shape, profile)


def _variances(group: Tensor, across: int, along: Tensor, table: Tensor) -> Tensor:
    """How much noise each coefficient of a group holds, in units of sigma^2: (n, K) positions to (n, K, 64).

    v_g = sum over i, j of h_gi h_gj rho(dy_ij, dx_ij), with h the Haar transform along the group and rho what the
    spectra of blocks i and j share: of white noise because they overlap (`correlations`), so that blocks apart share
    nothing and v = 1. `table` has rho for dy of 0 .. R and dx of -R .. R; it is even in (dy, dx), and 0 beyond.
    Reference: Makinen, Azzari and Foi, IEEE Trans. Image Process. 29, 2020.
    """
    reach = len(table) - 1
    y, x = group // across, group % across
    dy, dx = y[:, :, None] - y[:, None, :], x[:, :, None] - x[:, None, :]
    dy, dx = dy.abs(), torch.where(dy < 0, -dx, dx)
    far = (dy > reach) | (dx.abs() > reach)
    shared = table[dy.clamp_max(reach), dx.clamp(-reach, reach) + reach]  # (n, K, K, 64)
    shared = shared.masked_fill(far[..., None], 0)
    pairs = (along[:, :, None] * along[:, None, :]).flatten(1)
    return torch.einsum("gp,npc->ngc", pairs, shared.flatten(1, 2)).clamp_min(_LEAST_VARIANCE)


def reference_positions(size: int, step: int) -> list[int]:
    """Where reference blocks begin along one axis: every `step` pixels, and at the very end."""
    last = size - BLOCK
    return sorted({*range(0, last + 1, step), last})


def group_size(shape: tuple[int, int], radius: int, most: int) -> int:
    """The largest power of two up to `most` for which every window has enough candidates; corners have fewest."""
    least = math.prod(min(radius + 1, size - BLOCK + 1) for size in shape)
    return int(min(most, 2 ** int(math.log2(least))))


def match(guide: Tensor, profile: Profile, most: int, offsets: Tensor | None = None) -> Tensor:
    """The blocks most like each reference block, itself first: (references, K) of positions row * (W - 7) + column.

    References go row by row. K is `group_size`. `offsets`, a number for each candidate, are added to the distances.
    """
    height, width = guide.shape
    across = width - BLOCK + 1
    rows = torch.tensor(reference_positions(height, profile.step), device=guide.device)
    columns = torch.tensor(reference_positions(width, profile.step), device=guide.device)
    keys = _keys(guide.float(), rows, columns, profile.radius, offsets)
    k = group_size((height, width), profile.radius, most)
    numbers = torch.topk(keys, k, dim=-1, largest=False, sorted=True).values & ((1 << _INDEX_BITS) - 1)
    span = 2 * profile.radius + 1
    down = rows[:, None, None] + numbers // span - profile.radius
    over = columns[None, :, None] + numbers % span - profile.radius
    groups = (down * across + over).flatten(0, 1)
    groups[:, 0] = (rows[:, None] * across + columns[None, :]).flatten()  # the key -1 has no number
    return groups


def _keys(image: Tensor, rows: Tensor, columns: Tensor, radius: int, offsets: Tensor | None) -> Tensor:
    """The key of every candidate of every reference: int32 (rows, columns, window), `_NEVER` outside the image."""
    height, width = image.shape
    span = 2 * radius + 1
    keys = torch.full((len(rows), len(columns), span * span), _NEVER, dtype=torch.int32, device=image.device)
    for dy in range(-radius, radius + 1):
        for dx in range(-radius, radius + 1):
            # Blocks at (y, x) are compared with those at (y + dy, x + dx), for all (y, x) that have both.
            top, bottom = max(0, -dy), height - max(0, dy)
            left, right = max(0, -dx), width - max(0, dx)
            if bottom - top < BLOCK or right - left < BLOCK:
                continue
            moved = image[top + dy : bottom + dy, left + dx : right + dx]
            distance = _tree_sums((image[top:bottom, left:right] - moved).square())
            number = (dy + radius) * span + dx + radius
            if offsets is not None:
                distance = distance + offsets[number]
            key = distance.view(torch.int32) & ~((1 << _INDEX_BITS) - 1) | number
            inside_rows = (rows >= top) & (rows <= bottom - BLOCK)
            inside_columns = (columns >= left) & (columns <= right - BLOCK)
            place = torch.meshgrid(inside_rows.nonzero()[:, 0], inside_columns.nonzero()[:, 0], indexing="ij")
            chosen = key[rows[inside_rows] - top][:, columns[inside_columns] - left]
            keys[place[0], place[1], number] = -1 if dy == dx == 0 else chosen
    return keys


def _tree_sums(squares: Tensor) -> Tensor:
    """The sum over every 8 x 8 block, added as a tree along rows and then down: (H, W) to (H - 7, W - 7)."""
    for distance in (1, 2, 4):
        squares = squares[:, :-distance] + squares[:, distance:]
    for distance in (1, 2, 4):
        squares = squares[:-distance] + squares[distance:]
    return squares


def _spectra(image: Tensor, analysis: Tensor) -> Tensor:
    """The 2-D transform A b A^T of the block at every position: (positions, 64)."""
    blocks = image.unfold(0, BLOCK, 1).unfold(1, BLOCK, 1).reshape(-1, BLOCK, BLOCK)
    return (analysis @ blocks @ analysis.T).flatten(1)


def _put_together(total: Tensor, weight: Tensor, analysis: Tensor, shape: torch.Size, profile: Profile) -> Tensor:
    """Each pixel as the weighted mean of all blocks over it: sum of w k(b) b / sum of w k, k the Kaiser window.

    `total` has the sums of filtered spectra at each position, whose transform is undone here.
    """
    synthesis = torch.linalg.inv(analysis.double()).to(total)
    window = torch.from_numpy(kaiser_window(BLOCK, profile.kaiser)).to(total)
    blocks = synthesis @ total.reshape(-1, BLOCK, BLOCK) @ synthesis.T * window
    weights = weight[:, None, None] * window

    def fold(values: Tensor) -> Tensor:
        columns = values.reshape(1, -1, BLOCK * BLOCK).transpose(1, 2)
        return torch.nn.functional.fold(columns, shape, BLOCK)[0, 0]

    return fold(blocks) / fold(weights)
