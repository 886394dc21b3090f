"""BM4D in torch, written as the paper has it: the specification of the other two forms, and their test oracle.

The three forms share the matching to the bit. The distance of two cubes is the sum over the channels of 64 squared
differences in single precision: the squares of a voxel are added over the channels, then those along a row as a tree
(neighbours, then pairs), then the rows and then the planes likewise. Distances below `alike` times what sigma^2 would
add up to are set to that, as noise decides there. A candidate's key is that number with its last 12 bits replaced by
the candidate's rank in `candidate_order`, and the candidates with the smallest keys form the group, so that equals go
by rank; the reference has rank 0 and comes first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.denoisers.bm3d.transforms import correlations, haar
from plugstream.denoisers.bm4d.profile import BLOCK, Profile, candidate_order, fixed_matrices

_NEVER = torch.iinfo(torch.int32).max
INDEX_BITS = 12
_LEAST_VARIANCE = 1e-3  # rounding must not leave a variance at zero or below
LEAST_LEVEL = 2.0**-12  # of a group's noise variance, over the square of the largest sigma's power of two
_AT_ONCE = 128  # groups filtered at once: the pairs of 128 groups of 32 cubes are 34 MB


def bm4d(volumes: Tensor, sigma: Tensor, profile: Profile, *, stages: int = 2) -> Tensor:
    """Remove white Gaussian noise by filtering groups of similar cubes.

    Channels are matched together and filtered each on its own.

    Arguments: volumes (N, C, D, H, W); sigma, the noise's standard deviation, (N, 1, 1, 1) or (N, D, H, W).
    """
    return torch.stack([_one(z, s, profile, stages) for z, s in zip(volumes, sigma, strict=True)])


def _one(z: Tensor, sigma: Tensor, profile: Profile, stages: int) -> Tensor:
    if not bool((sigma > 0).any()):
        return z.clone()
    out = _stage(z, None, sigma, profile)
    out = out if stages == 1 else _stage(z, out, sigma, profile)
    return torch.where(sigma == 0, z, out)


def _stage(z: Tensor, basic: Tensor | None, sigma: Tensor, profile: Profile) -> Tensor:
    """One stage: match on the noisy volume or on the basic estimate, filter each group, put the cubes together.

    A group's noise s^2 is the mean of sigma^2 over its cubes. The noise of its coefficient has the variance v s^2 (see
    `_variances`). Stage 1 (no basic estimate) sets coefficients to zero unless c^2 > (threshold s)^2 v; stage 2
    multiplies by the Wiener gain b^2 / (b^2 + wiener s^2 v), with b from the basic estimate. The mean of a group stays
    as it is, so that D(z + c) = D(z) + c. A group counts by 1 / variance of its remaining noise: 1 / (s^2 sum of v)
    over the remaining coefficients, and 1 / (s^2 sum of gain^2 v).
    """
    first = basic is None
    guide = z if basic is None else basic
    positions = match(guide, sigma, profile, stage=1 if first else 2)
    index, name = (0, "bior15") if first else (1, "dct")
    analysis = torch.from_numpy(fixed_matrices(profile.kaiser)["analysis"][index]).to(z)
    table = torch.from_numpy(correlations(name, BLOCK, 3)).to(z)
    along = torch.from_numpy(haar(positions.shape[1])).to(z)
    top, levels = relative_levels(sigma, z.shape[1:])
    estimates = []
    for channel, its_guide in zip(z, guide, strict=True):
        spectra = _spectra(channel, analysis)
        guides = spectra if first else _spectra(its_guide, analysis)
        total = torch.zeros_like(spectra)
        weight = torch.zeros(len(spectra), dtype=z.dtype, device=z.device)
        for group in positions.split(_AT_ONCE):
            noisy = torch.einsum("gk,nkc->ngc", along, spectra[group])
            v = _variances(group, tuple(z.shape[1:]), along, table)
            level = _tree_mean(levels[group]).clamp_min(LEAST_LEVEL)[:, None, None]  # (s / top)^2
            if first:
                passed = (noisy / (profile.threshold * level.sqrt() * top)).square() > v
                passed[:, 0, 0] = True
                filtered = noisy * passed
                left = (v * passed).sum((1, 2)).clamp_min(1)
            else:
                energy = torch.einsum("gk,nkc->ngc", along, guides[group]).square()
                gain = energy / (energy + profile.wiener * (level * top**2) * v)
                gain[:, 0, 0] = 1
                filtered = noisy * gain
                left = (gain.square() * v).sum((1, 2))
            counts = 1 / (left * level[:, 0, 0])
            cubes = torch.einsum("gk,ngc->nkc", along, filtered) * counts[:, None, None]
            total.index_add_(0, group.flatten(), cubes.flatten(0, 1))
            weight.index_add_(0, group.flatten(), counts.repeat_interleave(group.shape[1]))
        estimates.append(_put_together(total, weight, index, channel.shape, profile))
    return torch.stack(estimates)


def relative_levels(sigma: Tensor, shape: torch.Size) -> tuple[float, Tensor]:
    """The power of two at or below the largest sigma, and over its square the mean of sigma^2 over every cube.

    Arguments: sigma, (1, 1, 1) or (D, H, W). Returns a number and (positions,).
    """
    most = float(sigma.max())
    top = 2.0 ** (math.frexp(most)[1] - 1) if most > 0 else 1.0
    squares = (sigma / top).square().expand(shape)
    return top, (sum_cubes(squares) / BLOCK**3).flatten()


def _tree_mean(values: Tensor) -> Tensor:
    """The mean over the last axis, whose length is a power of two: exact where all are equal."""
    count = values.shape[-1]
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0] / count


def _variances(group: Tensor, shape: tuple[int, ...], along: Tensor, table: Tensor) -> Tensor:
    """How much noise each coefficient of a group holds, in units of s^2: (n, K) positions to (n, K, 64).

    As in `bm3d.reference`: v_g = sum over i, j of h_gi h_gj rho(|dz|, |dy|, |dx|), with h the Haar transform along the
    group and rho, from `correlations`, what the spectra of cubes i and j share because they overlap.
    """
    rows, columns = shape[1] - BLOCK + 1, shape[2] - BLOCK + 1
    z, y, x = group // (rows * columns), group // columns % rows, group % columns
    dz, dy, dx = ((a[:, :, None] - a[:, None, :]).abs().clamp_max(BLOCK) for a in (z, y, x))
    pairs = (along[:, :, None] * along[:, None, :]).flatten(1)
    return torch.einsum("gp,npc->ngc", pairs, table[dz, dy, dx].flatten(1, 2)).clamp_min(_LEAST_VARIANCE)


def reference_positions(size: int, step: int) -> list[int]:
    """Where reference cubes begin along one axis: every `step` voxels, and at the very end."""
    last = size - BLOCK
    return sorted({*range(0, last + 1, step), last})


def group_size(shape: tuple[int, ...], radius: int, most: int) -> int:
    """The largest power of two up to `most` for which every window has enough candidates; corners have fewest."""
    least = math.prod(min(radius + 1, size - BLOCK + 1) for size in shape)
    return int(min(most, 2 ** int(math.log2(least))))


def match(guide: Tensor, sigma: Tensor, profile: Profile, stage: int) -> Tensor:
    """The cubes most like each reference cube, itself first: (C, D, H, W) to (references, K) of positions.

    Positions count the cubes plane by plane and row by row, as the references do. K is `group_size`.
    """
    shape = tuple(guide.shape[1:])
    step, most = (profile.step1, profile.group1) if stage == 1 else (profile.step2, profile.group2)
    places = [torch.tensor(reference_positions(size, step), device=guide.device) for size in shape]
    corners = torch.meshgrid(*places, indexing="ij")
    top, levels = relative_levels(sigma, guide.shape[1:])
    alike = profile.alike1 if stage == 1 else profile.alike2
    factor = np.float32(alike * BLOCK**3 * len(guide) * top**2)
    floors = levels.reshape([size - BLOCK + 1 for size in shape])[corners] * float(factor)
    keys = _keys(guide.float(), floors.float(), places, profile.radius)
    k = group_size(shape, profile.radius, most)
    ranks = torch.topk(keys, k, dim=-1, largest=False, sorted=True).values & ((1 << INDEX_BITS) - 1)
    numbers = torch.from_numpy(candidate_order(profile.radius)).to(guide.device)[ranks.long()].long()
    span = 2 * profile.radius + 1
    groups = torch.zeros_like(numbers)
    moves = (numbers // span**2, numbers // span % span, numbers % span)
    for size, corner, move in zip(shape, corners, moves, strict=True):
        groups = groups * (size - BLOCK + 1) + corner[..., None] + move - profile.radius
    return groups.flatten(0, 2)


def _keys(guide: Tensor, floors: Tensor, places: list[Tensor], radius: int) -> Tensor:
    """The key of every candidate of every reference: int32 (planes, rows, columns, window), `_NEVER` outside."""
    span = 2 * radius + 1
    keys = torch.full((*floors.shape, span**3), _NEVER, dtype=torch.int32, device=guide.device)
    shape = guide.shape[1:]
    for rank, number in enumerate(candidate_order(radius).tolist()):
        moves = [number // span**2 - radius, number // span % span - radius, number % span - radius]
        # Cubes are compared with those that lie `moves` further, for all that have both.
        firsts = [max(0, -m) for m in moves]
        lasts = [size - max(0, m) for size, m in zip(shape, moves, strict=True)]
        if any(last - first < BLOCK for first, last in zip(firsts, lasts, strict=True)):
            continue
        here = tuple(slice(f, e) for f, e in zip(firsts, lasts, strict=True))
        there = tuple(slice(f + m, e + m) for f, e, m in zip(firsts, lasts, moves, strict=True))
        squares = [(channel[here] - channel[there]).square() for channel in guide]
        distance = sum_cubes(sum(squares[1:], start=squares[0]))
        inside = [(p >= f) & (p <= e - BLOCK) for p, f, e in zip(places, firsts, lasts, strict=True)]
        of = torch.meshgrid(*(p[i] - f for p, i, f in zip(places, inside, firsts, strict=True)), indexing="ij")
        at = torch.meshgrid(*(i.nonzero()[:, 0] for i in inside), indexing="ij")
        blurred = torch.maximum(distance[of], floors[at])
        index: tuple[Any, ...] = (*at, rank)
        keys[index] = blurred.view(torch.int32) & ~((1 << INDEX_BITS) - 1) | rank
    return keys


def sum_cubes(values: Tensor) -> Tensor:
    """The sum over every cube, added as a tree along rows, then down, then over the planes: (D, H, W) to positions."""
    for axis in (2, 1, 0):
        for distance in (1, 2):
            length = values.shape[axis] - distance
            values = values.narrow(axis, 0, length) + values.narrow(axis, distance, length)
    return values


def _spectra(volume: Tensor, analysis: Tensor) -> Tensor:
    """The transform along the three axes of the cube at every position: (positions, 64)."""
    cubes = volume.unfold(0, BLOCK, 1).unfold(1, BLOCK, 1).unfold(2, BLOCK, 1).reshape(-1, BLOCK, BLOCK, BLOCK)
    return torch.einsum("ai,bj,ck,nijk->nabc", analysis, analysis, analysis, cubes).flatten(1)


def _put_together(total: Tensor, weight: Tensor, index: int, shape: torch.Size, profile: Profile) -> Tensor:
    """Each voxel as the weighted mean of all cubes over it: sum of w k(c) c / sum of w k, k the Kaiser window.

    `total` has the sums of filtered spectra at each position, whose transform is undone here.
    """
    matrices = fixed_matrices(profile.kaiser)
    synthesis, kaiser = (torch.from_numpy(m).to(total) for m in (matrices["synthesis"][index], matrices["kaiser"]))
    inverse = kaiser[:, None] * synthesis  # the window is a product of one for each axis
    cubes = torch.einsum("ia,jb,kc,nabc->nijk", inverse, inverse, inverse, total.reshape(-1, BLOCK, BLOCK, BLOCK))
    numerator, denominator = total.new_zeros(shape), total.new_zeros(shape)
    counts = [size - BLOCK + 1 for size in shape]
    parts = cubes.reshape(*counts, BLOCK, BLOCK, BLOCK)
    for i, j, k in np.ndindex(BLOCK, BLOCK, BLOCK):
        where = tuple(slice(o, o + count) for o, count in zip((i, j, k), counts, strict=True))
        numerator[where] += parts[..., i, j, k]
        denominator[where] += kaiser[i] * kaiser[j] * kaiser[k] * weight.reshape(counts)
    return numerator / denominator
