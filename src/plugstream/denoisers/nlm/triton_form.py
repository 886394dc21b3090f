"""Non-local means on CUDA: which kernels of `triton_kernels.py` run, on which grid; `reference.py` specifies it.

Grids come from shapes alone and nothing is read back, so that a call can be captured in a CUDA graph, after one call
outside it that compiles the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugstream.denoisers import forms
from plugstream.denoisers.nlm.reference import Matrix, rates, reflect_indices

_FORM = {"BLOCK": 256, "num_warps": 4}
_MULTIPLY = {"BLOCK": 64, "num_warps": 2}  # few pixels a program, so that one image fills the device
_MOST = 1 << 31  # bytes of affinities; larger batches are done in parts


def serves(images: Tensor) -> bool:
    """Whether the kernels take these images, without gradients."""
    return forms.triton_serves(images) and not forms.differentiated(images)


@torch.no_grad()
def nlm(images: Tensor, width: Tensor, search: int, patch: int, balance: int) -> Tensor:
    """What `reference.nlm` does, in float32; the widths are never read by the host.

    One launch for the affinities and one for each step, with sums in a fixed order: the same bits every time.
    """
    images = images.contiguous()
    count, height, across = images.shape
    each = 4 * _halves(search) * height * across
    at_once = max(1, min(count, _MOST // max(each, 1)))
    parts = [
        torch.where(h[:, None, None] > 0, _form(z, h, search, patch, balance, z)[1], z)
        for z, h in zip(images.split(at_once), width.split(at_once), strict=True)
    ]
    return torch.cat(parts) if count > 0 else images.clone()


@torch.no_grad()
def form(guide: Tensor, width: float, search: int, patch: int, balance: int) -> Matrix:
    """The matrix of a guide, (H, W), for `apply`; its affinities are (1, halves, H, W)."""
    h = torch.full((1,), width, dtype=torch.float64, device=guide.device)
    return _form(guide[None].contiguous(), h, search, patch, balance, None)[0]


@torch.no_grad()
def apply(matrix: Matrix, images: Tensor) -> Tensor:
    """The product of one guide's matrix and images, (N, H, W)."""
    out = [_multiply(3, matrix.affinity, matrix.scale, z, matrix.rest, matrix.search) for z in images.split(1)]
    return torch.cat(out) if out else images.clone()


def _form(
    guides: Tensor, width: Tensor, search: int, patch: int, balance: int, images: Tensor | None
) -> tuple[Matrix, Tensor]:
    """The matrices of guides, and their products with images where there are some."""
    from plugstream.denoisers.nlm.triton_kernels import affinities

    count, height, across = guides.shape
    rows, columns = (reflect_indices(size, patch, guides.device) for size in (height, across))
    padded = guides[:, rows][:, :, columns].contiguous()
    halves = _halves(search)
    affinity = torch.empty((count, halves, height, across), device=guides.device)
    affinities[forms.cover(height * across, _FORM["BLOCK"]), halves, count](
        padded, rates(width, patch, torch.float32), affinity, height, across, halves,
        SEARCH=search, AROUND=2 * patch + 1, **_FORM,
    )  # fmt: skip
    d = torch.ones_like(guides)
    for _ in range(balance):
        d = _multiply(0, affinity, d, None, None, search)
    product = torch.empty_like(d)
    rho = _multiply(1 if images is None else 2, affinity, d, images, None, search, product)
    most = rho.amax((-2, -1), keepdim=True)
    scale, rest = d * most.rsqrt(), (1 - rho / most).clamp_min(0)
    if images is not None:
        product = torch.addcmul(rest * images, scale * most.rsqrt(), product)
    return Matrix(affinity, scale, rest, search), product


def _multiply(
    mode: int,
    affinity: Tensor,
    v: Tensor,
    z: Tensor | None,
    rest: Tensor | None,
    search: int,
    out_two: Tensor | None = None,
) -> Tensor:
    from plugstream.denoisers.nlm.triton_kernels import multiply

    v, out = v.contiguous(), torch.empty_like(v)
    count, height, width = v.shape
    multiply[forms.cover(height * width, _MULTIPLY["BLOCK"]), count](
        affinity, v, v if z is None else z.contiguous(), v if rest is None else rest, out,
        out if out_two is None else out_two, height, width, affinity.shape[1],
        MODE=mode, SEARCH=search, **_MULTIPLY,
    )  # fmt: skip
    return out


def _halves(search: int) -> int:
    """How many distances half the plane has."""
    return 2 * search * (search + 1)
