"""2D scalar diffraction tomography with all of the scattering: the Lippmann-Schwinger equation, solved by GMRES."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.errors import InputError, PlugstreamWarning
from plugstream.gmres import gmres
from plugstream.linalg import broadcast_axes
from plugstream.models.base import Model, ModelBase, Views, all_views, check_shape
from plugstream.models.born import BornModel
from plugstream.models.born_geometry import BornGeometry
from plugstream.models.green_fft import GreenFFT
from plugstream.models.linearization import Linearization
from plugstream.models.scattering_antennas import Box, antennas_of

__all__ = ["TOLERANCE", "ScatteringModel", "check_tolerance"]

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
_LEAST = {torch.float32: 1e-5, torch.float64: 1e-13}
_RESTART = 40
# The bases of GMRES may take so many bytes, so that views are solved some at a time.
_BASIS_BYTES = {"cpu": 512 << 20, "cuda": 8 << 30}
_EVERYWHERE = slice(None), slice(None)


class ScatteringModel(ModelBase):
    r"""The field scattered by an object of any strength, at the receivers of each illumination.

    With x the permittivity contrast eps - eps_b, the field inside and the data of view i are

        u_i = u_i^in + G (x u_i),        y_i = S (x u_i),

    where G is convolution with k_0^2 (i/4) H_0^(1)(k |r|) (`GreenFFT`), and u_i^in and S are those of `BornModel`,
    which keeps the first term of the series u = u^in + G x u^in + ... This model keeps all of it: it solves
    (I - G X) u_i = u_i^in to a relative residual of `tolerance`. The unknowns are the field in the smallest box that
    holds all of the object, since the field elsewhere follows from that by one product.

    The derivative is J_i v = S (I - X G)^{-1} (u_i v), and with G symmetric its adjoint is

        Re(J_i^H z) = Re(u_i p_i),    p_i = (I - G X)^{-1} S^T conj(z),

    a field of the same equation, lit from the receivers: a gradient takes two solutions, and none of what the solver
    did is differentiated. At x = 0 it is the Born model, which is what `linearized()` returns.

    Holds for scalar waves in 2D (TM polarisation) with pixels well below the wavelength in the object: 1 % at 11 of
    them a wavelength, falling with the square of their size where pixels hold averages of the contrast. GMRES needs
    more products the larger and the stronger the object, as 5 for a weak one and 30 for two wavelengths of contrast 2.

    Arguments:
        geometry: as for `BornModel`; all of its geometries are taken.
        tolerance: 1e-3 in single and 1e-9 in double precision if not given.
        max_iterations: products for a solution; one that has not converged by then is told by a warning with its view.
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
        thing, index = self._object(image), all_views(views, self.n_views)
        parts = [self._predict(thing, some, self._inside(thing, some)) for some in self._blocks(thing, index)]
        return _joined(parts, image)

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The prediction at an image, and z -> Re(J^H z), of which the fields of all these views are kept."""
        thing, index = self._object(image), all_views(views, self.n_views)
        blocks = self._blocks(thing, index)
        inside = [self._inside(thing, some) for some in blocks]
        pairs = list(zip(blocks, inside, strict=True))
        prediction = _joined([self._predict(thing, some, field) for some, field in pairs], image)

        def pullback(data: Tensor) -> Tensor:
            check_shape("data", data, tuple(prediction.shape[image.ndim - 2 :]))
            z = self.restrict(data.to(self.data_dtype), index).reshape(len(thing.images), len(index), -1)
            out, start = torch.zeros_like(thing.images), 0
            for some, field in pairs:
                out += self._pulled(thing, some, field, z[:, start : start + len(some)])
                start += len(some)
            return out.reshape(image.shape)

        return prediction, pullback

    def gradient(self, image: Tensor, data: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """sum_i w_i Re(J_i^H (H_i(x) - y_i)), some views at a time: (..., H, W) to (..., H, W)."""
        index = all_views(views, self.n_views)
        lead = broadcast_axes(image.shape[:-2], data.shape[:-2])
        image = image.expand(*lead, *self.image_shape)
        out = torch.zeros(image.shape, device=self.device, dtype=self.dtype)
        start = 0
        for some in self._blocks(self._object(image), index):
            rows = slice(start, start + len(some))
            part = None if weights is None else weights[rows]
            out += super().gradient(image, data[..., rows, :], some, part)
            start += len(some)
        return out

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """The adjoint of the derivative at zero, which is the Born model's."""
        return self.born.adjoint(data, views)

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        """J_i(x) v = S (I - X G)^{-1} (u_i v): (..., H, W) twice to (..., B, receivers)."""
        check_shape("direction", direction, self.image_shape)
        lead = broadcast_axes(image.shape[:-2], direction.shape[:-2])
        image = image.expand(*lead, *self.image_shape)
        thing, index = self._object(image), all_views(views, self.n_views)
        directions = self._flat(direction.expand(*lead, *self.image_shape))
        return _joined([self._pushed(thing, directions, some) for some in self._blocks(thing, index)], image)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with receivers that the geometry masks out set to zero, whatever they hold (NaN too)."""
        return self.born.restrict(data, views)

    def linearized(self, at: Tensor | None = None) -> Model:
        """The Born model at zero, and the derivative at any other image."""
        if at is None or not bool(at.any()):
            return self.born
        return Linearization(self, at)

    def _predict(self, thing: _Object, views: Tensor, inside: Tensor | None) -> Tensor:
        """S (x u): (n, B, receivers)."""
        if inside is None or thing.box is None:
            shape = (len(thing.images), len(views), *self.data_shape)
            return torch.zeros(shape, device=self.device, dtype=self.data_dtype)
        return self._received(thing.contrast * inside, thing.box, views)

    def _pulled(self, thing: _Object, views: Tensor, inside: Tensor | None, z: Tensor) -> Tensor:
        """The sum over views of Re(u_i p_i): (n, H, W)."""
        lit = self.antennas.radiate(z.conj().resolve_conj().flatten(0, 1)).unflatten(0, z.shape[:2])
        field = self.antennas.incident(views.tolist())
        if inside is not None:
            answer = self._solve(thing, thing.cut(lit), views)
            lit = lit + self._spread_out(thing, thing.contrast * answer)
            field = field + self._spread_out(thing, thing.contrast * inside)
        gradients: Tensor = (field * lit).real.sum(1)
        return gradients

    def _pushed(self, thing: _Object, directions: Tensor, views: Tensor) -> Tensor:
        """S (u v + x (I - G X)^{-1} G (u v)): (n, B, receivers)."""
        field, inside = self.antennas.incident(views.tolist()), self._inside(thing, views)
        if inside is not None:
            field = field + self._spread_out(thing, thing.contrast * inside)
        currents = directions[:, None] * field
        if inside is not None:
            change = self._solve(thing, thing.cut(self.green.apply(currents)), views)
            thing.cut(currents).add_(thing.contrast * change)
        return self._received(currents, _EVERYWHERE, views)

    def _received(self, currents: Tensor, box: Box, views: Tensor) -> Tensor:
        """S w, with masked receivers at zero: (n, B, h, w) to (n, B, receivers)."""
        data = self.antennas.receive(currents.flatten(0, 1), box)
        return self.restrict(data.unflatten(0, currents.shape[:2]), views)

    def _inside(self, thing: _Object, views: Tensor) -> Tensor | None:
        """The total field in the object's box, (n, B, h, w); None where there is no object."""
        if thing.box is None:
            return None
        incident = thing.cut(self.antennas.incident(views.tolist()))
        return self._solve(thing, incident.expand(len(thing.images), *incident.shape), views)

    def _solve(self, thing: _Object, b: Tensor, views: Tensor) -> Tensor:
        """(I - G X)^{-1} b in the object's box: (n, B, h, w) to the same."""
        shape = b.shape

        def apply(fields: Tensor) -> Tensor:
            f = fields.reshape(shape)
            return (f - self.green.apply(thing.contrast * f)).reshape(fields.shape)

        found = gmres(
            apply,
            b.reshape(shape[0] * shape[1], -1),
            tol=self.tolerance,
            max_iterations=self.max_iterations,
            restart=_RESTART,
        )
        self._warn_of(found.residuals.reshape(shape[:2]), views)
        return found.values.reshape(shape)

    def _warn_of(self, residuals: NDArray[np.float64], views: Tensor) -> None:
        worst = residuals.max(0)
        bad = np.flatnonzero(~(worst <= self.tolerance * 1.01))
        if len(bad):
            more = "" if len(bad) == 1 else f", and those of {len(bad) - 1} others of these {len(worst)}"
            warnings.warn(
                f"the field of view {int(views[bad[0]])} has a relative residual of {worst[bad[0]]:.1e} after "
                f"{self.max_iterations} iterations, short of {self.tolerance:.1e}{more}; allow more iterations, a "
                "larger tolerance, or a weaker image (a smaller step, or a bound on its values)",
                PlugstreamWarning,
                stacklevel=2,
            )

    def _spread_out(self, thing: _Object, currents: Tensor) -> Tensor:
        """G of currents in the object's box, on the whole grid: (n, B, h, w) to (n, B, H, W)."""
        full = currents.new_zeros((*currents.shape[:2], *self.image_shape))
        thing.cut(full).copy_(currents)
        return self.green.apply(full)

    def _blocks(self, thing: _Object, index: Tensor) -> tuple[Tensor, ...]:
        """Views in blocks whose bases fit into memory."""
        limit = _BASIS_BYTES.get(self.device.type, _BASIS_BYTES["cpu"])
        each = thing.images.numel() * self.data_dtype.itemsize * (_RESTART + 1)
        blocks: tuple[Tensor, ...] = index.split(max(1, limit // each))
        return blocks

    def _object(self, image: Tensor) -> _Object:
        check_shape("image", image, self.image_shape)
        return _Object(self._flat(image))

    def _flat(self, image: Tensor) -> Tensor:
        return image.to(device=self.device, dtype=self.dtype).reshape(-1, *self.image_shape)


def check_tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    """The tolerance that a `ScatteringModel` takes, its own if None; what rounding cannot reach is refused."""
    chosen = TOLERANCE[dtype] if tolerance is None else tolerance
    if not _LEAST[dtype] <= chosen <= 0.1:
        name = str(dtype).removeprefix("torch.")
        raise InputError(f"tolerance must be from {_LEAST[dtype]:g} to 0.1 in {name}, not {chosen:g}")
    return chosen


class _Object:
    """Images (n, H, W), and the box that holds all that is not zero in them, None where everything is."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self.box: Box | None = None
        somewhere = (images != 0).any(0)
        rows, columns = (somewhere.any(axis).nonzero()[:, 0].tolist() for axis in (1, 0))
        if rows:
            self.box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)

    @property
    def contrast(self) -> Tensor:
        """x in the box: (n, 1, h, w)."""
        return self.cut(self.images)[:, None]

    def cut(self, fields: Tensor) -> Tensor:
        """The box of fields: (..., H, W) to (..., h, w), in the same memory."""
        assert self.box is not None
        return fields[(..., *self.box)]


def _joined(parts: list[Tensor], image: Tensor) -> Tensor:
    """Predictions (n, B, receivers) of blocks of views as one, with the leading axes of the image."""
    out = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
    return out.reshape(*image.shape[:-2], *out.shape[1:])
