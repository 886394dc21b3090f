"""2D scalar diffraction tomography with all of the scattering: the Lippmann-Schwinger equation, solved by GMRES."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.linalg import broadcast_axes
from plugstream.models.base import Model, ModelBase
from plugstream.models.born import BornModel
from plugstream.models.born_dense import FIELD_BYTES, fits
from plugstream.models.born_geometry import BornGeometry
from plugstream.models.field_equation import Scatterer
from plugstream.models.green_fft import GreenFFT
from plugstream.models.scattering_antennas import antennas_of
from plugstream.models.views import Views, all_views, check_shape

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
_LEAST = {torch.float32: 1e-5, torch.float64: 1e-13}
# So many views are solved for at once.
_VIEWS = 16
_EVERYWHERE = slice(None), slice(None)


class ScatteringModel(ModelBase):
    r"""The field scattered by an object of any strength, at the receivers of each illumination.

    With x the permittivity contrast eps - eps_b, the field inside and the data of view i are

        u_i = u_i^in + G (x u_i),        y_i = S (x u_i),

    where G is convolution with k_0^2 (i/4) H_0^(1)(k |r|) (`GreenFFT`), and u_i^in and S are those of `BornModel`,
    which takes the first term of the series u = u^in + G x u^in + ... This model takes all of it: it solves
    (I - G X) u_i = u_i^in to a relative residual of `tolerance`, for all views of a batch together (`Scatterer`).

    The derivative is J_i v = S (I - X G)^{-1} (u_i v), and with G symmetric its adjoint is

        Re(J_i^H z) = Re(u_i p_i),    p_i = (I - G X)^{-1} S^T conj(z),

    a field of the same equation, lit from the receivers. So a gradient takes two solutions, the second of which starts
    from the first, and the solver is not differentiated. At x = 0 it is the Born model, which `linearized()` returns.

    Holds for scalar waves in 2D (TM polarisation) with pixels well below the wavelength in the object. The error for
    discs of 0.4 to 2 wavelengths across, averaged over pixels, with 11 pixels a wavelength inside, is 0.7 % in the
    median and 1.7 % at most up to a permittivity of 3, 1.6 % and 3.5 % from 3 to 6, and 1.0 % and 6.5 % from 6 to 12.
    It falls about with the square of the pixel up to 3; for stronger discs, which resonate, by 1.7 to 13 for half the
    pixel. GMRES needs more products for larger and stronger objects: 3 and 2 for discs of half a wavelength, and 17 and
    4 for one of contrast 2 and two wavelengths. If coarser grids resolve the waves of a large box, one or two products
    of the fine grid are enough (`FieldEquation`).

    Arguments:
        geometry: as for `BornModel`; all of its geometries are taken.
        tolerance: 1e-3 in single and 1e-9 in double precision if not given.
        max_iterations: most products for a solution; a warning names a view that has not converged.
        method, eps, device, dtype, nufft: as for `BornModel`; method and eps are of u^in and S.

    Reference: Colton and Kress, Inverse Acoustic and Electromagnetic Scattering Theory, ch. 8; for the gradient,
    Soubies, Pham and Unser, Optics Express 25(18), 2017; Liu et al., IEEE Trans. Comput. Imaging 4(1), 2018.
    """

    linear = False

    def __init__(
        self,
        geometry: BornGeometry,
        *,
        tolerance: float | None = None,
        max_iterations: int = 200,
        method: str = "auto",
        eps: float | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        nufft: str = "auto",
    ) -> None:
        self.born = BornModel(geometry, method=method, eps=eps, device=device, dtype=dtype, nufft=nufft)
        self.tolerance = check_tolerance(tolerance, dtype)
        if max_iterations < 1:
            raise InputError(f"max_iterations must be at least 1, not {max_iterations}")
        self.max_iterations = max_iterations
        self.device, self.dtype, self.data_dtype = self.born.device, dtype, self.born.data_dtype
        self.image_shape, self.data_shape = self.born.image_shape, self.born.data_shape
        k0 = 2 * np.pi / geometry.wavelength
        self.green = GreenFFT(
            geometry.grid.shape, geometry.grid.pixel, geometry.wavenumber, k0**2, device=self.device, dtype=dtype
        )
        self._place_views(geometry)

    def _place_views(self, geometry: BornGeometry) -> None:
        self.geometry, self.n_views = geometry, geometry.n_views
        self.antennas = antennas_of(self.born.engine, geometry)
        self._last: _Prediction | None = None

    def with_geometry(self, geometry: BornGeometry) -> ScatteringModel:
        """The model of a scan to which views were added, as `BornModel.with_geometry`."""
        model = copy.copy(self)
        model.born = self.born.with_geometry(geometry)
        model._place_views(geometry)
        return model

    @property
    def method(self) -> str:
        """How u^in and S are computed: "dense" or "fast"."""
        return self.born.method

    @property
    def held(self) -> int:
        """Bytes that the model keeps beside its geometry."""
        return self.born.held + self.green.held + self.antennas.held

    def describe(self) -> str:
        """In one line: how fields are solved for, and how antennas are reached."""
        return f"multiple scattering to {self.tolerance:g} by GMRES; antennas as of the {self.born.describe()}"

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., H, W) real to (..., B, receivers) complex."""
        images, index = self._flat(image), all_views(views, self.n_views)
        if self._last is not None and self._last.is_of(images, index):
            return self._last.prediction.clone().reshape(*image.shape[:-2], len(index), *self.data_shape)
        out = self._zeros(len(images), len(index))
        for place, scatterer in enumerate(map(self.scatterer, images)):
            for rows, part in view_blocks(index):
                out[place, rows] = self._predict(scatterer, part, self._inside(scatterer, part))
        self._last = _Prediction(images.clone(), index.clone(), out.clone())
        return out.reshape(*image.shape[:-2], *out.shape[1:])

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The prediction at an image, and z -> Re(J^H z), which holds the fields of all these views."""
        images, index = self._flat(image), all_views(views, self.n_views)
        solved = []
        for place, scatterer in enumerate(map(self.scatterer, images)):
            fields = [self._inside(scatterer, part) for _, part in view_blocks(index)]
            for (rows, part), field in zip(view_blocks(index), fields, strict=True):
                solved.append((place, rows, part, scatterer, field))
        out = self._zeros(len(images), len(index))
        for place, rows, part, scatterer, field in solved:
            out[place, rows] = self._predict(scatterer, part, field)
        self._last = _Prediction(images.clone(), index.clone(), out.clone())
        prediction = out.reshape(*image.shape[:-2], *out.shape[1:])

        def pullback(data: Tensor) -> Tensor:
            check_shape("data", data, tuple(prediction.shape[image.ndim - 2 :]))
            z = self.restrict(data.to(self.data_dtype), index).reshape(len(images), len(index), -1)
            back = torch.zeros_like(images)
            for place, rows, part, scatterer, field in solved:
                total = self.total_field(scatterer, part, field)
                back[place] += self.pull(scatterer, total, z[place, rows], part).sum(0)
            return back.reshape(image.shape)

        return prediction, pullback

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """The adjoint of the derivative at zero, which is the Born model's."""
        return self.born.adjoint(data, views)

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        """J_i(x) v = S (I - X G)^{-1} (u_i v): (..., H, W) twice to (..., B, receivers)."""
        check_shape("direction", direction, self.image_shape)
        lead = broadcast_axes(image.shape[:-2], direction.shape[:-2])
        images, directions = (self._flat(one.expand(*lead, *self.image_shape)) for one in (image, direction))
        index = all_views(views, self.n_views)
        out = self._zeros(len(images), len(index))
        for place, scatterer in enumerate(map(self.scatterer, images)):
            for rows, part in view_blocks(index):
                field = self.total_field(scatterer, part)
                out[place, rows] = self.push(scatterer, field, directions[place], part)
        return out.reshape(*lead, *out.shape[1:])

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with receivers that the geometry masks out set to zero, whatever they hold (NaN too)."""
        return self.born.restrict(data, views)

    def linearized(self, at: Tensor | None = None) -> Model:
        """The Born model at zero, and the derivative at any other image."""
        if at is None or not bool(at.any()):
            return self.born
        return ScatteringDerivative(self, at)

    def _inside(self, scatterer: Scatterer, views: Tensor) -> Tensor:
        """The total field in the object's box: (B, h, w)."""
        return self._solve(scatterer, scatterer.cut(self.antennas.incident(views.tolist())), views)

    def _predict(self, scatterer: Scatterer, views: Tensor, inside: Tensor) -> Tensor:
        """S (x u): (B, receivers)."""
        if scatterer.empty:
            return self._zeros(len(views))
        return self.restrict(self.antennas.receive(scatterer.contrast * inside, scatterer.box), views)

    def total_field(self, scatterer: Scatterer, views: Tensor, inside: Tensor | None = None) -> Tensor:
        """u_i on the whole grid, (B, H, W), from u_i inside the object's box if that is known."""
        inside = self._inside(scatterer, views) if inside is None else inside
        return scatterer.extend(self.antennas.incident(views.tolist()), inside)

    def push(self, scatterer: Scatterer, field: Tensor, direction: Tensor, views: Tensor) -> Tensor:
        """J_i v = S (u_i v + x (I - G X)^{-1} G (u_i v)), with one v for all views or one for each: (B, receivers)."""
        currents = direction * field
        if not scatterer.empty:
            change = self._solve(scatterer, scatterer.cut(self.green.apply(currents)), views)
            scatterer.cut(currents).add_(scatterer.contrast * change)
        return self.restrict(self.antennas.receive(currents, _EVERYWHERE), views)

    def pull(self, scatterer: Scatterer, field: Tensor, z: Tensor, views: Tensor) -> Tensor:
        """Re(J_i^H z_i) = Re(u_i p_i) of each view: (B, receivers) to (B, H, W)."""
        lit = self.antennas.radiate(z.conj().resolve_conj())
        answer = scatterer.extend(lit, self._solve(scatterer, scatterer.cut(lit), views))
        gradients: Tensor = field.real * answer.real - field.imag * answer.imag
        return gradients

    def _solve(self, scatterer: Scatterer, inside: Tensor, views: Tensor) -> Tensor:
        """The field in the object's box; warn of views whose residual is above the tolerance."""
        field, residuals = scatterer.solve(inside)
        bad = np.flatnonzero(~(residuals <= self.tolerance))
        if len(bad):
            more = "" if len(bad) == 1 else f", and those of {len(bad) - 1} others of these {len(residuals)}"
            warnings.warn(
                f"the field of view {int(views[bad[0]])} has a relative residual of {residuals[bad[0]]:.1e} after "
                f"{self.max_iterations} iterations, short of {self.tolerance:.1e}{more}; allow more iterations, a "
                "larger tolerance, or a weaker image (a smaller step, or a bound on its values)",
                PlugstreamWarning,
                stacklevel=2,
            )
        return field

    def scatterer(self, image: Tensor) -> Scatterer:
        """The object with this image (H, W)."""
        return Scatterer(image, self.green, tolerance=self.tolerance, max_iterations=self.max_iterations)

    def _zeros(self, *counts: int) -> Tensor:
        return torch.zeros((*counts, *self.data_shape), device=self.device, dtype=self.data_dtype)

    def _flat(self, image: Tensor) -> Tensor:
        check_shape("image", image, self.image_shape)
        return image.to(device=self.device, dtype=self.dtype).reshape(-1, *self.image_shape)


@dataclass(frozen=True)
class _Prediction:
    """The last prediction: a step that is judged asks for the value there next, and steps of Gauss and Newton again.

    A new computation would give the same bits, so nothing depends on this cache.
    """

    images: Tensor
    views: Tensor
    prediction: Tensor

    def is_of(self, images: Tensor, views: Tensor) -> bool:
        return torch.equal(self.views, views) and torch.equal(self.images, images)


def check_tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    """The tolerance of a `ScatteringModel`, by default if None; refuse one below rounding."""
    chosen = TOLERANCE[dtype] if tolerance is None else tolerance
    if not _LEAST[dtype] <= chosen <= 0.1:
        name = str(dtype).removeprefix("torch.")
        raise InputError(f"tolerance must be from {_LEAST[dtype]:g} to 0.1 in {name}, not {chosen:g}")
    return chosen


def view_blocks(index: Tensor) -> list[tuple[slice, Tensor]]:
    """Views in blocks, with their places; solutions of earlier blocks help with later ones."""
    starts = range(0, len(index), _VIEWS)
    return [(slice(start, start + _VIEWS), index[start : start + _VIEWS]) for start in starts]


class ScatteringDerivative(ModelBase):
    r"""v -> J_i(x) v = S (I - X G)^{-1} (u_i v), the derivative of a `ScatteringModel` at an image x.

    By reciprocity, with p_r = (I - G X)^{-1} S^T e_r the field that receiver r would send,

        (J_i v)_r = sum over pixels of u_i v p_r,

    so once the fields of all views and receivers are known, a product, of the many that L or conjugate gradients need,
    solves nothing: it is one of matrices. Where they do not fit into memory, each product solves for the fields.

    Holds to the tolerance of the model's own `derivative`; where fields are kept J and its adjoint agree to rounding.

    Arguments: model; at, the image x (H, W).
    """

    def __init__(self, model: ScatteringModel, at: Tensor) -> None:
        check_shape("image", at, model.image_shape)
        self.model = model
        self.n_views, self.image_shape, self.data_shape = model.n_views, model.image_shape, model.data_shape
        self.device, self.dtype, self.data_dtype = model.device, model.dtype, model.data_dtype
        self._scatterer = model.scatterer(at.to(device=model.device, dtype=model.dtype).reshape(model.image_shape))
        values = (self.n_views + self.data_shape[0]) * self.image_shape[0] * self.image_shape[1]
        self._keeps = fits(FIELD_BYTES, values, self.device, self.dtype)
        self._fields: dict[int, Tensor] = {}

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., H, W) real to (..., B, receivers) complex."""
        check_shape("image", image, self.image_shape)
        index, images = all_views(views, self.n_views), image.to(self.dtype).reshape(-1, *self.image_shape)
        shape = (len(images), len(index), *self.data_shape)
        out = torch.empty(shape, device=self.device, dtype=self.data_dtype)
        for rows, part in view_blocks(index):
            field = self._field(part)
            for place, direction in enumerate(images):
                out[place, rows] = self._push(field, direction, part)
        return out.reshape(*image.shape[:-2], *shape[1:])

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, receivers) complex to (..., H, W) real."""
        index = all_views(views, self.n_views)
        check_shape("data", data, (len(index), *self.data_shape))
        z = self.restrict(data.to(self.data_dtype), index).reshape(-1, *data.shape[-2:])
        out = torch.zeros((len(z), *self.image_shape), device=self.device, dtype=self.dtype)
        for rows, part in view_blocks(index):
            field = self._field(part)
            for place in range(len(z)):
                out[place] += self._pull(field, z[place, rows], part).sum(0)
        return out.reshape(*data.shape[:-2], *self.image_shape)

    def normal_each(self, images: Tensor, views: Tensor) -> Tensor:
        """Re(J_i^H J_i v_i), an image for each view: (B, H, W) to the same."""
        index, out = all_views(views, self.n_views), torch.empty_like(images)
        for rows, part in view_blocks(index):
            field = self._field(part)
            out[rows] = self._pull(field, self._push(field, images[rows], part), part)
        return out

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        return self.model.restrict(data, views)

    def _push(self, field: Tensor, direction: Tensor, views: Tensor) -> Tensor:
        """J_i v, with one v for all views or one for each: (B, receivers)."""
        if not self._keeps:
            return self.model.push(self._scatterer, field, direction, views)
        return self.restrict((direction * field).flatten(1) @ self._answers.T, views)

    def _pull(self, field: Tensor, z: Tensor, views: Tensor) -> Tensor:
        """Re(J_i^H z_i) of each view: (B, receivers) to (B, H, W)."""
        if not self._keeps:
            return self.model.pull(self._scatterer, field, z, views)
        answer = (z.conj() @ self._answers).reshape(field.shape)
        gradients: Tensor = field.real * answer.real - field.imag * answer.imag
        return gradients

    @cached_property
    def _answers(self) -> Tensor:
        """p_r on the grid: (receivers, H W)."""
        ones, near = torch.eye(*self.data_shape * 2, dtype=self.data_dtype, device=self.device), self._scatterer
        fields = []
        for part in ones.split(_VIEWS):
            lit = self.model.antennas.radiate(part)
            fields.append(near.extend(lit, near.solve(near.cut(lit))[0]).flatten(1))
        return torch.cat(fields)

    def _field(self, views: Tensor) -> Tensor:
        """u_i on the grid: (B, H, W)."""
        if not self._keeps:
            return self.model.total_field(self._scatterer, views)
        new = torch.tensor([view for view in dict.fromkeys(views.tolist()) if view not in self._fields])
        if len(new):
            fields = self.model.total_field(self._scatterer, new)
            self._fields |= {int(view): field for view, field in zip(new, fields, strict=True)}
        return torch.stack([self._fields[view] for view in views.tolist()])
