"""2D scalar diffraction tomography in the first Born approximation, by the Green's matrix or through plane waves."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.models.base import ModelBase
from plugstream.models.born_dense import FIELD_BYTES, DenseBorn, fits, green_matrix, incident_fields, peak_intensities
from plugstream.models.born_expansion import Expansion, plan_expansion, source_distance
from plugstream.models.born_fast import TABLE_BYTES, FastBorn
from plugstream.models.born_geometry import BornGeometry
from plugstream.models.nufft_grid import choose_kernel, table_bytes
from plugstream.models.views import Views, all_views, as_views, check_shape

__all__ = ["BornModel", "choose_method", "green_matrix", "incident_fields"]

_METHODS = ("auto", "dense", "fast")
_EPS_DEFAULT = {torch.float32: 1e-5, torch.float64: 1e-9}
_EPS_LEAST = {torch.float32: 1e-6, torch.float64: 1e-12}
_EPS_MOST = 1e-3
_MASK_BYTES = 1 << 30  # of the largest mask that is held on a GPU
_VIEWS = 4096  # views of a pass over all of them that are taken at once


class BornModel(ModelBase):
    r"""The field scattered once by a weak object, at the receivers of each illumination.

    y_i = S (u_i * x), where x is the permittivity contrast eps - eps_b on the grid, u_i the incident field of
    view i, and S the background's Green's function from pixels to receivers,

        S[m, n] = k_0^2 (i/4) H_0^(1)(k |r_m - r_n|) dA,    u_i[n] = (i/4) H_0^(1)(k |t_i - r_n|),

    with k = k_0 sqrt(eps_b), dA the pixel's area and time going as exp(-i w t). Plane waves and the far field are in
    `BornGeometry`. The image is real, so the adjoint is Re(conj(u_i) * S^H z_i), summed over views.

    Holds where the object scatters weakly: the phase it adds stays well below pi across its diameter.

    Two methods give the same data. "dense" holds S, (receivers, pixels), and the fields, (views, pixels), for any
    geometry. "fast" writes sources outside the image as sums of plane waves, so that one non-uniform FFT serves all
    views, in much less time and memory except for small images; it agrees with "dense" to a relative `eps` of the
    scattered field, and needs transmitters and receivers a little farther away than the image's corners
    (`plan_expansion` says how far), or plane waves and far fields. With either, forward and adjoint are transposes to
    rounding, whatever `eps`. "auto" takes the cheaper one by estimated cost: `method` is its name, and `describe()`
    gives the reason. Above a limit (`FIELD_BYTES`, `TABLE_BYTES`), data of each view are computed or read when needed,
    with the same bits.

    Arguments:
        geometry: positions, wavelength, background and pixel grid (H, W).
        method: "auto", "dense" or "fast".
        eps: accuracy of "fast", 1e-3 to 1e-12, not below 1e-6 in single precision; 1e-5 or 1e-9 (double) if not given.
        device, dtype: where and in which real precision to compute.
        nufft: form of the non-uniform FFT: "auto", "grid", "finufft" or "cufinufft".

    Reference: E. Wolf, Optics Communications 1(4), 1969; Kak and Slaney, ch. 6, 1988; for "fast", docs/born.md.
    """

    estimated_views = 1000

    def __init__(
        self,
        geometry: BornGeometry,
        *,
        method: str = "auto",
        eps: float | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        nufft: str = "auto",
    ) -> None:
        self.device = torch.device(device)
        choice = choose_method(geometry, method=method, eps=eps, device=self.device, dtype=dtype)
        self.geometry = geometry
        self.n_views = geometry.n_views
        self.image_shape = geometry.grid.shape
        self.data_shape = (geometry.n_receivers,)
        self.dtype = dtype
        self.data_dtype = dtype.to_complex()
        self.eps = choice.eps
        self._mask = self._mask_in_memory()
        self._nearest = source_distance(geometry)
        self._reason = choice.reason
        self._options = {"method": method, "nufft": nufft}
        self._bound: float | None = None
        if choice.expansion is None:
            self.engine: DenseBorn | FastBorn = DenseBorn(geometry, device=self.device, dtype=dtype)
        else:
            self.engine = FastBorn(geometry, choice.expansion, device=self.device, dtype=dtype, nufft=nufft)

    @property
    def method(self) -> str:
        """ "dense" or "fast", whichever is used."""
        return self.engine.name

    @property
    def held(self) -> int:
        """Bytes that the model keeps beside its geometry."""
        mask = 0 if self._mask is None or self.device.type == "cpu" else self._mask.nbytes
        return self.engine.held + mask

    def describe(self) -> str:
        """In one line: the method, why it was taken, and the memory it holds."""
        name = f"{self.method} Born model"
        if isinstance(self.engine, FastBorn):
            name += f" (eps {self.eps:g}, {self.engine.waves} plane waves, {self.engine.nufft.name})"
        return f"{name}, {self.held / 1e6:.3g} MB: {self._reason}"

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., H, W) real to (..., B, receivers) complex."""
        check_shape("image", image, self.image_shape)
        index = as_views(views, self.n_views)
        out = self.engine.forward(self._flat(image), index)
        return self._restrict(out, index).reshape(*image.shape[:-2], *out.shape[1:])

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, receivers) complex to (..., H, W) real: the sum over views of Re(H_i^H z_i)."""
        index = as_views(views, self.n_views)
        check_shape("data", data, (self._count(index), *self.data_shape))
        z = self._restrict(data.to(self.data_dtype), index).reshape(-1, *data.shape[-2:])
        return self.engine.adjoint(z, index).reshape(*data.shape[:-2], *self.image_shape)

    def gradient(self, image: Tensor, data: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """sum_i w_i Re(H_i^H (H_i x - y_i)), residual and adjoint in one go: (..., H, W) to (..., H, W)."""
        check_shape("image", image, self.image_shape)
        index = as_views(views, self.n_views)
        check_shape("data", data, (self._count(index), *self.data_shape))
        batch = np.broadcast_shapes(image.shape[:-2], data.shape[:-2])
        images = self._flat(image.expand(*batch, *self.image_shape))
        z = data.to(self.data_dtype)
        z = z.reshape(1, *data.shape[-2:]) if data.ndim == 2 else z.expand(*batch, -1, -1).flatten(0, -3)
        w = None if weights is None else weights.to(device=self.device, dtype=self.dtype)
        return self.engine.gradient(images, z, index, w, self._mask_rows(index)).reshape(*batch, *self.image_shape)

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i Re(H_i^H H_i x) for repeated use, with what the fast method can prepare done once."""
        index, w = as_views(views, self.n_views), None
        if weights is not None:
            w = weights.to(device=self.device, dtype=self.dtype)
        if self.geometry.mask is not None or isinstance(self.engine, DenseBorn):
            return lambda image: self._normal(image, index, w)
        apply = self.engine.normal(index, w)
        return lambda image: apply(self._flat(image)).reshape(image.shape)

    def _normal(self, image: Tensor, index: Tensor | None, weights: Tensor | None) -> Tensor:
        """The gradient for zero data, some views at a time, since their masks may be on disk."""
        zeros = torch.zeros((1, 1), dtype=self.data_dtype, device=self.device)
        count = self._count(index)
        parts = [index] if count <= _VIEWS else all_views(index, self.n_views).split(_VIEWS)
        shares = [None] * len(parts) if weights is None else weights.split(_VIEWS)
        sums = (
            self.gradient(image, zeros.expand(self._count(part), *self.data_shape), part, share)
            for part, share in zip(parts, shares, strict=True)
        )
        return functools.reduce(Tensor.add_, sums)

    def normal_each(self, images: Tensor, views: Tensor) -> Tensor:
        """Re(H_i^H H_i x_i), an image for each view: (B, H, W) to (B, H, W)."""
        index = all_views(views, self.n_views)
        return self.engine.normal_each(self._flat(images), index, self._mask_rows(index))

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """The largest eigenvalue of each view's Re(H_i^H H_i): (B,), in double precision on the CPU."""
        index = all_views(views, self.n_views)
        if isinstance(self.engine, DenseBorn):
            return super().squared_norms(index, tol)
        return self.engine.squared_norms(index, self._mask_rows(index), tol)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        r"""Upper bounds of each view's Re(H_i^H H_i), for any number of views: (B,), double, CPU.

        ||H_i x||^2 = ||S (u_i * x)||^2 <= ||S||^2 max_n |u_i[n]|^2 ||x||^2, with one largest eigenvalue for all views;
        10 % above the largest L_i at the paper's setting, and more for sources near the image. Masked receivers only
        make H_i smaller.
        """
        index = all_views(views, self.n_views)
        if self._bound is None:
            self._bound = self.engine.green_squared_norm()
        return torch.from_numpy(peak_intensities(self.geometry, index.numpy())).mul_(self._bound)

    def with_geometry(self, geometry: BornGeometry) -> BornModel:
        """The model of a scan that has grown: the same setup, with the views of this model first.

        Everything except the new illuminations is shared with this model. If one of them is nearer than the fast method
        was planned for, the model is rebuilt.
        """
        nearest = source_distance(geometry, self.n_views)
        if isinstance(self.engine, FastBorn) and nearest < self._nearest:
            return BornModel(geometry, eps=self.eps, device=self.device, dtype=self.dtype, **self._options)
        model = copy.copy(self)
        model.geometry, model.n_views, model.engine = geometry, geometry.n_views, self.engine.with_geometry(geometry)
        model._mask, model._nearest = model._mask_in_memory(), min(nearest, self._nearest)
        return model

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with receivers that the geometry masks out set to zero, whatever they hold (NaN too)."""
        return self._restrict(data, as_views(views, self.n_views))

    def _restrict(self, data: Tensor, index: Tensor | None) -> Tensor:
        mask = self._mask_rows(index)
        return data if mask is None else torch.where(mask, data, torch.zeros((), dtype=data.dtype, device=data.device))

    def _mask_rows(self, index: Tensor | None) -> Tensor | None:
        if self.geometry.mask is None:
            return None
        if self._mask is not None:
            return self._mask if index is None else self._mask.index_select(0, index.to(self.device))
        rows = self.geometry.mask[slice(None) if index is None else index.numpy()]
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self.device)

    def _mask_in_memory(self) -> Tensor | None:
        """A mask in memory, on the device unless it is too large for it; None for one on disk."""
        mask = self.geometry.mask
        if not isinstance(mask, np.ndarray) or (self.device.type != "cpu" and mask.nbytes > _MASK_BYTES):
            return None
        return torch.from_numpy(mask).to(self.device)

    def _flat(self, image: Tensor) -> Tensor:
        return image.to(self.dtype).reshape(-1, *self.image_shape)

    def _count(self, index: Tensor | None) -> int:
        return self.n_views if index is None else len(index)


@dataclass(frozen=True)
class Choice:
    """The expansion of the fast method or None for the dense one, its accuracy, the reason, and the bytes it needs."""

    expansion: Expansion | None
    eps: float
    reason: str
    held: int


@dataclass(frozen=True)
class _Machine:
    """What arithmetic costs, in seconds: measured on two CPU cores with AVX-512 and on an H200, to a factor of two."""

    flop: float  # of a matrix product in single precision
    byte: float  # read from memory
    tap: float  # of the interpolation
    cell: float  # of the FFT's grid
    dense: float  # of one call, whatever its size
    fast: float


# Seconds of one core for a field value or coefficient that is not kept, and computed again on the CPU in every call.
_FIELD, _COEFFICIENT = 8e-8, 4e-8

_CPU = _Machine(flop=1 / 1.0e11, byte=1 / 1.2e10, tap=1.2e-9, cell=4e-9, dense=5e-5, fast=5e-4)
_CUDA = _Machine(flop=1 / 3.0e13, byte=1 / 2.5e12, tap=5e-12, cell=1e-11, dense=6e-5, fast=1.2e-4)


def choose_method(
    geometry: BornGeometry, *, method: str = "auto", eps: float | None = None, device: torch.device, dtype: torch.dtype
) -> Choice:
    """The method of a `BornModel` with these arguments; whatever it would refuse is refused here.

    "auto" compares the seconds that forward takes for all views: the dense product's 8 x pixels x receivers x views
    operations and the reading of its matrix, against the fast method's FFT, P^2/4 interpolations and products.
    """
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"the image's dtype must be float32 or float64, not {dtype}")
    if method not in _METHODS:
        raise InputError(f"there is no method {method!r} for the Born model; choose auto, dense or fast")
    eps = _EPS_DEFAULT[dtype] if eps is None else eps
    if not _EPS_LEAST[dtype] <= eps <= _EPS_MOST:
        name = str(dtype).removeprefix("torch.")
        raise InputError(f"eps must be from {_EPS_LEAST[dtype]:g} to {_EPS_MOST:g} in {name}, not {eps:g}")
    views, receivers = geometry.n_views, geometry.n_receivers
    pixels, wide = geometry.grid.shape[0] * geometry.grid.shape[1], 1 if dtype == torch.float32 else 2
    fields_kept = fits(FIELD_BYTES, pixels * views, device, dtype)
    dense_bytes = 8 * wide * pixels * (receivers + (views if fields_kept else 0))
    if method == "dense":
        return Choice(None, eps, "asked for", dense_bytes)
    single = dtype == torch.float32
    try:
        expansion = plan_expansion(geometry, eps, single=single)
    except InputError as error:
        if method == "fast":
            raise
        reason = str(error).replace("; use method='dense'", "").split(", a larger eps")[0]
        return Choice(None, eps, reason, dense_bytes)
    machine, waves = _CPU if device.type == "cpu" else _CUDA, expansion.directions.count
    points, table_kept = waves**2 // 4, fits(TABLE_BYTES, waves * views, device, dtype)
    fast_bytes = table_bytes(geometry.grid.shape, points, expansion.nufft_eps, dtype)
    fast_bytes += 8 * wide * waves * (receivers + (views if table_kept else 0))
    fast_least = 16 * wide * waves * (waves + receivers)  # products of waves, whichever form the transform has
    if method == "fast":
        return Choice(expansion, eps, "asked for", fast_least)
    kernel = choose_kernel(expansion.nufft_eps, pixels, points)
    dense = machine.dense + wide * machine.flop * 8 * pixels * receivers * views + machine.byte * dense_bytes
    dense += 0.0 if fields_kept else _FIELD * pixels * views
    few, many = sorted((views, receivers))
    products = machine.flop * (4 * few * waves**2 + 8 * few * many * waves)
    transform = machine.tap * points * kernel.width**2 + machine.cell * pixels * kernel.oversampling**2
    fast = machine.fast + wide * (products + transform)
    fast += 0.0 if table_kept else _COEFFICIENT * waves * views
    reason = (
        f"all views are expected to take {1e3 * fast:.3g} ms and {fast_bytes / 1e6:.3g} MB with the fast method, "
        f"{1e3 * dense:.3g} ms and {dense_bytes / 1e6:.3g} MB with the dense one"
    )
    return Choice(expansion, eps, reason, fast_least) if fast < dense else Choice(None, eps, reason, dense_bytes)
