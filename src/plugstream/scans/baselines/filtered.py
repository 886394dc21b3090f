"""Filtered back-projection of parallel, fan and cone beams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from plugstream.base.capacity import free_memory, free_on_device
from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.base.transfers import Target
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.models.ct_plausible import outlook
from plugstream.scans.baselines.gather_cuda import find_kernels
from plugstream.scans.baselines.slabs import Rows, Slabs, form_slabs, plan_slabs, remember_views
from plugstream.scans.baselines.voxel_views import VoxelViews

Filter = Literal["ram-lak", "shepp-logan", "cosine", "hamming", "hann"]
"""Windows by how much they damp the highest frequencies, from not at all to entirely."""

Angles = NDArray[np.float64]

# Bytes of measurements that are filtered at once, and the part of a GPU's free memory that is used; images that are in
# memory at once, at most, where not all slices have to be.
_BLOCK_BYTES, _SHARE, _COPIES = 64 << 20, 0.8, 8
# A gap of more than so many usual ones is an unmeasured part of the circle.
_GAP = 3.0
# Radians over which a short scan fades in and out, at most.
_FADE = np.deg2rad(10.0)
# Rays may tilt out of the plane of rotation by so many radians, and a source climb by this part of its distance; beyond
# that a scan is laminography or a helix, which need other formulas.
_TILT, _CLIMB = 0.02, 0.01


def filtered_back_projection(
    data: Tensor | Callable[[Tensor], Tensor],
    rays: Rays,
    voxels: Voxels,
    *,
    filter: Filter = "ram-lak",
    cutoff: float = 1.0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    memory: float | None = None,
    target: Target | None = None,
) -> Tensor:
    r"""The image by filtered back-projection, and of a cone beam by the method of Feldkamp, Davis and Kress.

        x(r) = sum_i dt_i / U_i(r)^2 q_i(s_i(r)),        q_i = h * (w c p_i)

    where s_i(r) is the place on the detector at which view i sees r, h the ramp filter along the detector's rows, c the
    cosine of a ray's angle to the middle one, w the share of a ray among all that run along the same line, dt_i the
    angle that view i stands for, and U_i(r) the distance of r from the source along the middle ray, in distances of the
    axis. Of parallel beams c = U = 1. The result is exact in the limit of many views and fine pixels, for parallel and
    fan beams over half a turn (and the fan's angle) or more, and in the middle plane of a cone beam.

    Holds for rays that turn about the z axis in a plane across it, or in a cone about that plane; helices and
    laminography are refused. Over shorter arcs, and of objects larger than the detector, the image has artefacts; arcs
    are not scaled up to what is missing.

    Arguments: data, line integrals (..., views, *detector), or a function that gives those of some views; rays; voxels;
    filter; cutoff, the highest frequency that passes, as a part of the detector's; device and dtype to compute with;
    memory, bytes of a GPU's that may be used, by default four fifths of what is free. What needs more goes by slabs of
    slices (`plugstream.scans.baselines.slabs`), and its image is in the memory of the CPU, not on the GPU; target,
    where slices of one volume go as they are finished, such as a file. Nothing, (0,), is returned then.
    References: Kak and Slaney, Principles of computerized tomographic imaging, 1988; Feldkamp, Davis and Kress, J. Opt.
    Soc. Am. A 1(6), 1984.
    """
    if filter not in get_args(Filter):
        raise InputError(f"there is no filter {filter!r}; there are {', '.join(get_args(Filter))}")
    if not 0 < cutoff <= 1:
        raise InputError(f"the cutoff of a filter is a part of the highest frequency, from 0 to 1, not {cutoff}")
    if len(voxels.shape) != rays.ndim:
        raise InputError(f"a detector of {rays.detector} sees {rays.ndim} axes, but voxels are {voxels.shape}")
    axis = data.ndim - 1 - len(rays.detector) if isinstance(data, Tensor) else 0
    if isinstance(data, Tensor) and (axis < 0 or tuple(data.shape[axis:]) != (len(rays), *rays.detector)):
        raise InputError(f"data has shape {tuple(data.shape)}, but must end in {(len(rays), *rays.detector)}")
    beam = _check_beam(rays, voxels)
    rays, fill = _fill_shorter_side(rays, beam)
    if fill is not None:
        beam, given = _check_beam(rays, voxels), data
        data = fill(given) if isinstance(given, Tensor) else lambda views: fill(given(views))
    where: dict[str, Any] = {"device": torch.device(device), "dtype": dtype}
    voxel_views = VoxelViews(rays, voxels, **where)
    length, pixel = 1 << math.ceil(math.log2(3 * rays.detector[-1])), float(np.median(beam.step))
    kernel = (equiangular_kernel if math.isfinite(rays.curvature) else ramp_kernel)(length, pixel)
    response = torch.as_tensor(np.fft.rfft(kernel).real * window(filter, length // 2 + 1, cutoff) * pixel, **where)
    angular = angular_weights(beam.angles, math.pi if rays.parallel else 2 * math.pi)
    # The kernel is that of the median pixel; one of another size scales it by the inverse.
    scales = torch.as_tensor(angular, **where) / torch.as_tensor(beam.step / pixel, **where)
    kernels = None if math.isfinite(rays.curvature) else find_kernels(where["device"], dtype)
    if kernels is not None:
        lead = data.shape[:axis] if isinstance(data, Tensor) else ()
        gather = voxel_views.prepare_cuda(beam.distance, kernels, 1 if rays.ndim == 3 else math.prod(lead))
        filter_rows = _prepare_filter(rays, beam, response, length)
        limit = _SHARE * free_on_device(where["device"]) if memory is None else memory
        slabs = plan_slabs(gather, len(rays), length, limit, stays=target is None)
        images = [
            form_slabs(gather, read, filter_rows, scales.contiguous(), slabs, target)
            for read in _split_rows(data, rays, slabs)
        ]
        if target is not None:
            return images[0]
        return (torch.stack(images) if len(images) > 1 else images[0]).reshape(*lead, *voxels.shape)
    if target is not None:
        step = max(1, int(free_memory() / _COPIES / (4 * math.prod(voxels.shape[1:]))))
        for first, last in itertools.pairwise([*range(0, voxels.shape[0], step), voxels.shape[0]]):
            part = voxels.slices(first, last)
            image = filtered_back_projection(data, rays, part, filter=filter, cutoff=cutoff, device=device, dtype=dtype)
            target.write(first, image.cpu().numpy())
        return torch.empty(0)
    total = torch.zeros((), **where)
    size = dtype.itemsize * math.prod(rays.detector[:-1]) * length
    for views in torch.arange(len(rays)).split(max(1, _BLOCK_BYTES // size)):
        report("back-projecting", int(views[0]), len(rays))
        rows = (data.index_select(axis, views) if isinstance(data, Tensor) else data(views)).to(**where)
        weights = torch.as_tensor(_ray_weights(rays, beam, views.numpy()), **where)
        scale = scales[views].reshape(-1, *(1,) * len(rays.detector))
        filtered = _convolve(rows * weights, response, length)[..., : rows.shape[-1]] * scale
        total = total + voxel_views.gather(filtered, views, beam.distance[views.numpy()])
    return total


@dataclass(frozen=True)
class _Beam:
    """The geometry of the formula, (views,) each."""

    angles: Angles
    step: Angles  # of the detector at the axis: metres, or radians of a curved one
    distance: Angles  # of the source from the axis, along the middle ray


def _ray_weights(rays: Rays, beam: _Beam, views: NDArray[Any]) -> NDArray[np.float64]:
    """Cosines and shares of the rays of some views, which broadcast to (B, *detector)."""
    rays, shape = rays.select(views), (len(views), *(1,) * len(rays.detector))
    if rays.parallel:
        return np.ones(shape)
    angles = beam.angles[views].reshape(shape)
    to_pixel = rays.pixels() - rays.vectors[:, 0].reshape(*shape, 3)
    ahead = np.stack([-np.sin(angles), np.cos(angles), np.zeros(shape)], axis=-1)
    across = np.stack([-np.cos(angles), -np.sin(angles), np.zeros(shape)], axis=-1)
    forward = (to_pixel * ahead).sum(-1)
    cosine = forward / np.linalg.norm(to_pixel, axis=-1)
    if math.isfinite(rays.curvature):
        cosine = cosine * beam.distance[views].reshape(shape)
    fan = np.arctan2((to_pixel * across).sum(-1), forward)  # from the middle ray to the pixel's, counterclockwise
    return np.asarray(cosine * redundancy_weights(beam.angles, angles, fan))


def _fill_shorter_side(rays: Rays, beam: _Beam) -> tuple[Rays, Callable[[Tensor], Tensor] | None]:
    """A detector as wide on both sides of the axis, and the rows it would have, where a whole turn saw more on one.

    Lines within the shorter side b are seen twice, at s and at -s, and those beyond once. Their weights, for which
    w(s) + w(-s) = 2, go from 0 at the nearer edge, and beyond, to 2 at b on the other side, and are 1 where they can.

    Reference: Wang, Med. Phys. 29(7), 2002.
    """
    columns = np.arange(rays.detector[-1])
    across = np.stack([np.cos(beam.angles), np.sin(beam.angles)], axis=1)
    middle, step = (float(np.median((rays.vectors[:, n, :2] * across).sum(1))) for n in (1, 2))
    place = middle / step + columns - columns.mean()  # from the axis, along the detector
    near, far = sorted((float(place.max()), -float(place.min())))
    if find_arc(beam.angles) is not None or (missing := int(far - near)) < 1:
        return rays, None
    near, side = max(near, 0.0), 1 if place.sum() > 0 else -1
    rise = np.clip((np.abs(place) - near) / max(min(near, far - near), 1e-9) + 1, 0, 1)
    weights = torch.from_numpy(1 + side * np.sign(place) * np.sin(np.pi / 2 * rise) ** 2)
    ends = (missing, 0) if side > 0 else (0, missing)
    wider = replace(rays.shift_detector(-side * missing / 2), detector=(*rays.detector[:-1], len(columns) + missing))
    return wider, lambda rows: torch.nn.functional.pad(rows * weights.to(rows), ends)


def _convolve(rows: Tensor, response: Tensor, length: int) -> Tensor:
    """Convolve along the rows, whose values fade to zero beyond the detector's ends, on a circle of this length.

    Returns all of the circle, of which the first values are those of the rows.
    """
    columns = rows.shape[-1]
    right, left = (length - columns) // 2, (length - columns + 1) // 2
    fade = torch.linspace(0, math.pi / 2, columns + 1, device=rows.device, dtype=rows.dtype).cos()[1:]
    fade = torch.nn.functional.pad(fade, (0, max(0, left - columns)))
    after = rows[..., -1:] * fade[:right]
    before = rows[..., :1] * fade[:left].flip(0)
    circle = torch.cat([rows, after, before], dim=-1)
    filtered: Tensor = torch.fft.irfft(torch.fft.rfft(circle) * response, n=length)
    return filtered


def _split_rows(data: Tensor | Callable[[Tensor], Tensor], rays: Rays, slabs: Slabs) -> list[Rows]:
    """How to read rows of views, (B, R, C), of each volume; images are the rows of a detector."""
    if not isinstance(data, Tensor):
        read = data if len(slabs.edges) == 2 else remember_views(data, (len(rays), *rays.detector))
        if rays.ndim == 2:
            return [lambda views, _: read(views)[:, None]]
        return [lambda views, rows: read(views)[:, rows]]
    stack = data.detach().reshape(-1, len(rays), *rays.detector)
    volumes = stack if rays.ndim == 3 else [stack.movedim(0, 1)]
    # Views are asked for in order, so that they are a part of the data, and not a copy.
    return [
        lambda views, rows, volume=volume: volume[int(views[0]) : int(views[-1]) + 1, rows]  # type: ignore[misc]
        for volume in volumes
    ]


def _prepare_filter(rays: Rays, beam: _Beam, response: Tensor, length: int) -> Callable[[Tensor, slice, int], Tensor]:
    """What filters rows (B, R, C) of these views, from a row on: (B, R, length)."""
    if rays.parallel:
        return lambda rows, views, first: _convolve(rows, response, length)
    source, center, u, v = np.moveaxis(rays.vectors, 1, 0)
    steps = np.stack([center - source, u, v if rays.ndim == 3 else np.zeros_like(u)], axis=1)  # to pixels
    nothing, sine, cosine = np.zeros(len(rays)), np.sin(beam.angles), np.cos(beam.angles)
    axes = np.stack([[-sine, cosine, nothing], [-cosine, -sine, nothing], [nothing, nothing, nothing + 1]])
    parts = np.einsum("apv,vnp->avn", axes, steps)  # forward, across and up, of the centre and of steps
    here = torch.from_numpy(parts).to(response)
    middle = [(size - 1) / 2 for size in (1, *rays.detector)[-2:]]
    columns = torch.arange(rays.detector[-1], device=response.device) - middle[1]
    arc = find_arc(beam.angles)

    def find_part(axis: int, views: slice, first: int, count: int) -> Tensor:
        """(B, R, C), or 1 for one of them where all are the same."""
        along, down = (bool((parts[axis, :, n] != 0).any()) for n in (1, 2))
        rows = torch.arange(first, first + (count if down else 1), device=response.device) - middle[0]
        start, column, row = (here[axis, views, n, None, None] for n in range(3))
        return start + column * (columns if along else columns[:1]) + row * rows[:, None]

    def weigh(rows: Tensor, views: slice, first: int) -> Tensor:
        forward, across, up = (find_part(axis, views, first, rows.shape[1]) for axis in range(3))
        share: Tensor | float = 0.5
        if arc is not None:
            fan = torch.atan2(across, forward).double().cpu().numpy()
            shares = redundancy_weights(beam.angles, beam.angles[views, None, None], fan)
            share = torch.from_numpy(shares).to(response)
        weights = share * forward * torch.rsqrt(forward**2 + across**2 + up**2)
        return _convolve(rows * weights, response, length)

    return weigh


def is_circular(rays: Rays, voxels: Voxels) -> bool:
    """Whether filtered back-projection holds for these rays."""
    try:
        _check_beam(rays, voxels)
    except InputError:
        return False
    return True


def _check_beam(rays: Rays, voxels: Voxels) -> _Beam:
    """The views of a circular scan; others are refused."""
    tilt = float(np.abs(outlook(rays, voxels).tilt).max())
    if tilt > _TILT and (rays.parallel or len(rays.detector) == 1):
        raise InputError(
            f"rays are tilted by {np.rad2deg(tilt):.3g} degrees: filtered back-projection is for "
            "rays in the plane of rotation; use sirt"
        )
    first, center, u, _ = np.moveaxis(rays.vectors, 1, 0)
    if rays.parallel:
        angles = np.arctan2(-first[:, 0], first[:, 1])
        across = np.stack([np.cos(angles), np.sin(angles), np.zeros(len(rays))], axis=1)
        return _Beam(angles, np.abs((u * across).sum(1)), np.ones(len(rays)))
    if np.ptp(first[:, 2]) > _CLIMB * float(np.hypot(first[:, 0], first[:, 1]).mean()):
        raise InputError("the source climbs, as in a helix: filtered back-projection is for circular scans; use sirt")
    # The middle ray is the one through the rotation axis, which is where angles and distances are measured from.
    distance = np.hypot(first[:, 0], first[:, 1])
    angles = np.arctan2(first[:, 0], -first[:, 1])
    ahead = np.stack([-np.sin(angles), np.cos(angles)], axis=1)
    across = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if math.isfinite(rays.curvature):
        return _Beam(angles, np.linalg.norm(u, axis=1) / rays.curvature, distance)
    to_detector = ((center - first)[:, :2] * ahead).sum(1)
    return _Beam(angles, np.abs((u[:, :2] * across).sum(1)) * distance / to_detector, distance)


def ramp_kernel(length: int, step: float) -> NDArray[np.float64]:
    """The ramp |f| up to the highest frequency 1/(2 step), as a convolution kernel, times `step`.

        h(0) = 1/(4 step^2),    h(n) = -1/(pi n step)^2 for odd n,    0 for even n

    Its transform is also right at f = 0, where |f| sampled in frequency would remove the mean.

    Arguments: length, even, of the kernel, with the negative n at its end; step of the samples.
    Reference: Ramachandran and Lakshminarayanan, Proc. Natl. Acad. Sci. 68(9), 1971.
    """
    n = np.fft.fftfreq(length, 1 / length)
    kernel = np.zeros(length)
    kernel[0] = 1 / (4 * step**2)
    odd = n % 2 == 1
    kernel[odd] = -1 / (np.pi * n[odd] * step) ** 2
    return kernel


def equiangular_kernel(length: int, step: float) -> NDArray[np.float64]:
    """The ramp for samples at equal angles of a fan, (g / sin g)^2 h(g): a curved detector's.

    Beyond a quarter turn, which no fan has, it is 0.

    Arguments: as of `ramp_kernel`, step in radians.
    Reference: Kak and Slaney, Principles of computerized tomographic imaging, 1988, section 3.4.1.
    """
    angle = np.abs(np.fft.fftfreq(length, 1 / length)) * step
    with np.errstate(divide="ignore", invalid="ignore"):
        stretch = np.where(angle > 0, angle / np.sin(angle), 1.0) ** 2
    return np.where(angle < np.pi / 2, stretch, 0.0) * ramp_kernel(length, step)


def window(name: Filter, count: int, cutoff: float = 1.0) -> NDArray[np.float64]:
    """The factor of the ramp at `count` frequencies from 0 to the highest; 0 above `cutoff` of it.

    With t = f / f_max / cutoff: ram-lak 1, shepp-logan sin(pi t/2) / (pi t/2), cosine cos(pi t/2), hamming
    0.54 + 0.46 cos(pi t), hann (1 + cos(pi t))/2.
    """
    t = np.linspace(0, 1, count) / cutoff
    shapes: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
        "ram-lak": lambda t: np.ones_like(t),
        "shepp-logan": lambda t: np.sinc(t / 2),
        "cosine": lambda t: np.cos(np.pi * t / 2),
        "hamming": lambda t: 0.54 + 0.46 * np.cos(np.pi * t),
        "hann": lambda t: 0.5 + 0.5 * np.cos(np.pi * t),
    }
    return np.asarray(np.where(t <= 1 + 1e-12, shapes[name](t), 0.0))


def angular_weights(angles: ArrayLike, period: float) -> Angles:
    """The angle that each view stands for: half the way to its neighbours on either side, on a circle.

    Views at the same place share it. A gap of more than three times the usual one was not measured and counts as a
    usual one, so that a limited arc is not stretched over it.

    Arguments: angles (views,), in any order; period, the circle, pi where opposite views show the same lines.
    """
    turned = np.asarray(angles, dtype=np.float64) % period
    order = np.argsort(turned, kind="stable")
    places = turned[order]
    gaps = np.diff(np.append(places, places[0] + period))
    distinct = gaps[gaps > 1e-9 * period]
    usual = float(np.median(distinct)) if len(distinct) else period
    if len(angles) > 1:  # type: ignore[arg-type]
        gaps = np.where(gaps > _GAP * usual, usual, gaps)
    weights = np.empty_like(turned)
    weights[order] = 0.5 * (gaps + np.roll(gaps, 1))
    return weights


def find_arc(scan: ArrayLike) -> tuple[float, float, float] | None:
    """Where the measured arc of a fan's views begins, how long it is, and the usual gap; None for a full turn.

    Arguments: scan (views,), the angles of all views.
    """
    turned = np.sort(np.asarray(scan, dtype=np.float64) % (2 * np.pi))
    gaps = np.diff(np.append(turned, turned[0] + 2 * np.pi))
    usual, widest = float(np.median(gaps)), int(gaps.argmax())
    if gaps[widest] <= max(_GAP * usual, 1e-9) or len(turned) < 2:
        return None
    return float(turned[(widest + 1) % len(turned)]), 2 * np.pi - float(gaps[widest]), usual


def redundancy_weights(scan: ArrayLike, angles: ArrayLike, fan: ArrayLike) -> Angles:
    """The share of a fan's ray among those along its line: c(t) / (c(t) + c(t'))

    The line of the ray at angle g of the view at t is that of the ray at -g of the view at t' = t + pi + 2 g. c is 1
    within the measured arc, falls to 0 towards its ends, and is 1 everywhere for a full turn, whose shares are 1/2. A
    ray without a measured opposite has the share 1; shares of a line always add up to 1, and are continuous.

    Arguments: scan (views,), the angles of all views; angles and fan, of the rays, counterclockwise, which broadcast.
    References: Parker, Med. Phys. 9(2), 1982; Noo et al., Phys. Med. Biol. 47, 2002, whose c this is.
    """
    t, g = np.asarray(angles, dtype=np.float64), np.asarray(fan, dtype=np.float64)
    measured = find_arc(scan)
    if measured is None:
        return np.broadcast_to(0.5 + 0 * g, np.broadcast_shapes(t.shape, g.shape)).copy()
    start, arc, usual = measured
    fade = min(_FADE, arc / 2)

    def c(angle: Angles) -> Angles:
        inside = (angle - start + usual / 2) % (2 * np.pi)
        edge = np.minimum(inside, arc + usual - inside) / (fade + usual)
        return np.asarray(np.where(edge > 0, np.sin(np.pi / 2 * np.clip(edge, 0, 1)) ** 2, 0.0))

    share, opposite = c(t + 0 * g), c(t + np.pi + 2 * g)
    return np.asarray(np.where(opposite > 0, share / np.maximum(share + opposite, 1e-12), 1.0))
