"""deepinv's Physics as models: a view is an angle, a coil or a frame, a Physics of a list or stack, or all of one.

Nothing here imports deepinv: whoever has a Physics has imported it, and a class of one's own with `A` and `A_adjoint`
will do. A Physics is recognised by the names of its classes.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import largest_eigenvalue
from plugstream.bridges.stack import StackedModel
from plugstream.models.function import FunctionModel
from plugstream.models.views import Views, all_views

Layout = Literal["channels", "grey", "complex"]
"""How an image of ours is one of deepinv's, (N, C, *spatial): "channels", (C, *spatial) as it is; "grey", (*spatial)
with C = 1, which is an axis of independent images here; "complex", (*spatial) of complex numbers, whose real and
imaginary parts are the two channels there, as deepinv's MRI has them."""


class Part(Protocol):
    """Some views that are computed together, from images in deepinv's layout."""

    @property
    def linear(self) -> bool: ...
    @property
    def data_shapes(self) -> list[tuple[int, ...]]: ...
    def predict(self, images: Tensor, views: list[int]) -> Sequence[Tensor]: ...
    def pull(self, data: list[Tensor], views: list[int], point: Tensor | None) -> Tensor: ...


class SingleView:
    """One Physics as one view."""

    def __init__(self, physics: Any, y: Tensor) -> None:
        if not callable(getattr(physics, "A", None)):
            raise InputError(f"{type(physics).__name__} is not a Physics: it has no A")
        self.physics, self.linear = physics, is_linear(physics)
        self.data_shapes = [tuple(y.shape[1:])]

    def predict(self, images: Tensor, views: list[int]) -> Sequence[Tensor]:
        return [self.physics.A(images)] * len(views)

    def pull(self, data: list[Tensor], views: list[int], point: Tensor | None) -> Tensor:
        summed = torch.stack(data).sum(0) if len(data) > 1 else data[0]
        back: Tensor = self.physics.A_adjoint(summed) if self.linear else self.physics.A_vjp(point, summed)
        return back


class Coils:
    """The coils of a `MultiCoilMRI`, a view each, any of them in one call: y_n = M F s_n x."""

    linear = True

    def __init__(self, physics: Any, data_shape: tuple[int, ...]) -> None:
        self._physics = copy.deepcopy(physics)  # its maps are replaced by those of the views that are asked for
        self._maps: Tensor = physics.coil_maps  # (B, N, ...)
        self.data_shapes = [(data_shape[0], *data_shape[2:])] * self._maps.shape[1]

    def predict(self, images: Tensor, views: list[int]) -> Sequence[Tensor]:
        data: Tensor = self._select(views).A(images)  # (N, 2, coils, ...)
        return data.unbind(2)

    def pull(self, data: list[Tensor], views: list[int], point: Tensor | None) -> Tensor:
        back: Tensor = self._select(views).A_adjoint(torch.stack(data, 2))
        return back

    def _select(self, views: list[int]) -> Any:
        self._physics.coil_maps = self._maps[:, views]
        return self._physics


class Angles:
    """The angles of a tomography, one or some to a view: all together by the Physics itself, others one by one.

    View i of I has the angles i, i + I, i + 2 I, ..., as deepinv's own subsets have them.
    """

    linear = True

    def __init__(self, physics: Any, y: Tensor, count: int) -> None:
        self._subsets = importlib.import_module("deepinv.physics.functional.tomography_subsets")
        self.physics, self._count = physics, count
        self._each = self._subsets.split_physics(physics, count, y.device)
        self._full_shape = tuple(y.shape[1:])
        self.data_shapes = [tuple(data.shape[1:]) for data in self.split(y)]

    def split(self, y: Tensor) -> list[Tensor]:
        """Data of all angles, (N, C, ...), as the data of each view."""
        return list(self._subsets.split_measurements(y, self.physics, self._count).x)

    def predict(self, images: Tensor, views: list[int]) -> Sequence[Tensor]:
        if views == list(range(self._count)):
            return self.split(self.physics.A(images))
        return [self._each[view].A(images) for view in views]

    def pull(self, data: list[Tensor], views: list[int], point: Tensor | None) -> Tensor:
        if views != list(range(self._count)):
            return torch.stack([self._each[v].A_adjoint(z) for v, z in zip(views, data, strict=True)]).sum(0)
        numbers = torch.arange(len(data[0]) * math.prod(self._full_shape), device=data[0].device)
        places = self.split(numbers.reshape(len(data[0]), *self._full_shape))
        order = torch.cat([place.reshape(-1) for place in places]).argsort()
        joined = torch.cat([one.reshape(-1) for one in data])[order].reshape(-1, *self._full_shape)
        back: Tensor = self.physics.A_adjoint(joined)
        return back


class PhysicsModel(StackedModel):
    r"""What one or several deepinv Physics measure of an image: H_i(x) = c A_i(x), through A, A_adjoint and A_vjp.

    Linear if all of them are `LinearPhysics`. For others the gradient goes through `A_vjp`, and L is not known, so that
    steps are found on the way (`ProximalGradient`).

    Arguments:
        parts: the views, in order; `split_views` makes them.
        image_shape, dtype, device: of images here. layout: how they are images of deepinv's.
        scale: c, such as counts for each unit of A x with Poisson noise.
        images: how many come at once if the Physics has parameters of its own for each, masks say, and L is then the
            largest of all; 0 if any number may.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        image_shape: tuple[int, ...],
        *,
        layout: Layout,
        dtype: torch.dtype,
        data_dtype: torch.dtype,
        device: torch.device,
        scale: float = 1.0,
        images: int = 0,
    ) -> None:
        self.layout, self.scale, self.images = layout, scale, images
        self._parts = list(parts)
        self._places = [(part, number) for part in self._parts for number in range(len(part.data_shapes))]
        self.linear = all(part.linear for part in self._parts)
        super().__init__(
            image_shape,
            [part.data_shapes[number] for part, number in self._places],
            dtype=dtype,
            data_dtype=data_dtype,
            device=device,
            channels=layout == "channels",
        )

    def to_deepinv(self, image: Tensor) -> Tensor:
        """Images of ours as deepinv has them: (..., *image_shape) to (..., C, *spatial); grey, C is the last of (...).

        Of grey images the leading axes are (..., 1) already where they come from deepinv's data.
        """
        if self.layout == "complex":
            return torch.view_as_real(image).movedim(-1, -1 - len(self.image_shape))
        return image

    def from_deepinv(self, image: Tensor) -> Tensor:
        """deepinv's images as ours, the inverse of `to_deepinv`."""
        if self.layout == "complex":
            pair = image.movedim(-1 - len(self.image_shape), -1).contiguous()
            return torch.view_as_complex(pair).to(self.dtype)
        return image.to(self.dtype)

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The prediction at an image, and the adjoint of the derivative there: A_adjoint, or A_vjp."""
        if self.linear:
            return super().linearize(image, views)
        images, lead = self._several(image)
        numbers = all_views(views, self.n_views).tolist()

        def pullback(data: Tensor) -> Tensor:
            parts, _ = self._split(data, numbers)
            return self._pull(parts, numbers, self.stack_for_deepinv(images)).reshape(*lead, *self.image_shape)

        return self.forward(image, views).detach(), pullback

    derivative = FunctionModel.derivative  # by autograd, as for any function

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """As of any model; the largest of all images where each has an operator of its own."""
        if not self.images:
            return super().squared_norms(views, tol)
        like = torch.empty((self.images, *self.image_shape), device=self.device, dtype=self.dtype)
        ndim = len(self.image_shape)
        return torch.stack(
            [largest_eigenvalue(self.normal(view), like, tol=tol, ndim=ndim).max() for view in views.split(1)]
        )

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """As of any model; estimates where each image has an operator of its own."""
        return self.squared_norms(views, 1e-2) if self.images else super().squared_norm_bounds(views)

    def _predict(self, images: Tensor, views: list[int]) -> list[Tensor]:
        theirs, out = self.stack_for_deepinv(images), [images] * len(views)
        for part, places, numbers in self._shares(views):
            for place, number, data in zip(places, numbers, part.predict(theirs, numbers), strict=True):
                expected = (len(images), *part.data_shapes[number])
                if tuple(data.shape) != expected:
                    hint = f"; it has parameters of its own for each of {self.images} images" if self.images else ""
                    raise InputError(
                        f"the Physics gives {tuple(data.shape)} for {len(images)} images, not {expected}{hint}"
                    )
                out[place] = data if self.scale == 1 else self.scale * data
        return out

    def _pull(self, data: list[Tensor], views: list[int], point: Tensor | None = None) -> Tensor:
        if point is None and not self.linear:
            zero = torch.zeros((len(data[0]), *self.image_shape), dtype=self.dtype, device=self.device)
            point = self.stack_for_deepinv(zero)
        shares = self._shares(views)
        sums = [part.pull([data[place] for place in places], numbers, point) for part, places, numbers in shares]
        theirs = torch.stack(sums).sum(0) if len(sums) > 1 else sums[0]
        ours = self.stack_from_deepinv(theirs)
        return ours if self.scale == 1 else self.scale * ours

    def stack_for_deepinv(self, images: Tensor) -> Tensor:
        """(N, *image_shape) as (N, C, *spatial)."""
        return images.unsqueeze(1) if self.layout == "grey" else self.to_deepinv(images)

    def stack_from_deepinv(self, images: Tensor) -> Tensor:
        """(N, C, *spatial) as (N, *image_shape)."""
        return self.from_deepinv(images.squeeze(1) if self.layout == "grey" else images)

    def _shares(self, views: list[int]) -> list[tuple[Part, list[int], list[int]]]:
        """The parts that have these views, the places of their views in the batch, and their numbers in the part."""
        shares: dict[int, tuple[Part, list[int], list[int]]] = {}
        for place, view in enumerate(views):
            part, number = self._places[view]
            _, places, numbers = shares.setdefault(id(part), (part, [], []))
            places.append(place)
            numbers.append(number)
        return list(shares.values())


def split_views(physics: Any, y: Any, views: int | None) -> tuple[list[Part], list[Tensor]]:
    """The views that a Physics, or a list or stack of them, consists of, and the data of each: (B, *data_shape).

    The table of `from_deepinv` says what a view is.

    Arguments: physics; y, a tensor, or a list or TensorList for several; views, how many to make of one Physics: 1 for
    all of it, or for tomography a number that divides that of the angles.
    """
    if is_deepinv(physics, "StackedPhysics"):
        physics = physics.physics_list
    if isinstance(physics, list | tuple):
        if isinstance(y, Tensor) or len(y) != len(physics):
            raise InputError(f"a list of {len(physics)} Physics needs a list of the data of each")
        if views not in (None, len(physics)):
            raise InputError(f"a list of {len(physics)} Physics has as many views, not {views}")
        data = [_tensor(y[number]) for number in range(len(physics))]
        return [SingleView(one, z) for one, z in zip(physics, data, strict=True)], data
    if not isinstance(y, Tensor) and hasattr(y, "__len__") and hasattr(y, "__getitem__") and not hasattr(y, "ndim"):
        if len(y) != 1:
            raise InputError(f"there is one Physics, but the data of {len(y)}")
        y = y[0]
    y = _tensor(y)
    if views != 1:
        if is_deepinv(physics, "Tomography", "TomographyWithAstra", "PET"):
            return _split_angles(physics, y, views)
        if is_deepinv(physics, "MultiCoilMRI") and not is_deepinv(physics, "NonCartesianMRI"):
            coils = list(y.unbind(2))
            _check_count(len(coils), "coils", views)
            return [Coils(physics, tuple(y.shape[1:]))], coils
        if is_deepinv(physics, "SequentialMRI"):
            frames = list(y.unbind(2))
            _check_count(len(frames), "frames", views)
            masks: Tensor = physics.mask.expand(*physics.mask.shape[:2], len(frames), *physics.mask.shape[3:])
            mri = importlib.import_module("deepinv.physics").MRI
            each = [mri(mask=mask, device=physics.mask.device) for mask in masks.unbind(2)]
            return [SingleView(one, z) for one, z in zip(each, frames, strict=True)], frames
        if views is not None:
            name = type(physics).__name__
            raise InputError(f"{name} is one view and cannot be split; give a list of Physics instead")
    return [SingleView(physics, y)], [y]


def _split_angles(physics: Any, y: Tensor, views: int | None) -> tuple[list[Part], list[Tensor]]:
    angles = getattr(physics, "views" if is_deepinv(physics, "PET") else "angles", None)
    if angles is None:
        angles = physics.geometry_vectors
    count = len(angles) if views is None else views
    if count < 1 or len(angles) % count:
        raise InputError(f"{len(angles)} angles cannot be split into {count} views of as many each")
    part = Angles(physics, y, count)
    return [part], part.split(y)


def _check_count(count: int, name: str, views: int | None) -> None:
    if views not in (None, count):
        raise InputError(f"a view is one of the {count} {name}; give {count} views, or 1 for all together")


def _tensor(y: Any) -> Tensor:
    if not isinstance(y, Tensor) or y.ndim < 2:
        raise InputError("the data of a Physics is a tensor whose first axis is of images, (B, ...)")
    return y


def list_physics(physics: Any) -> Sequence[Any]:
    """The Physics of a list or of a `StackedPhysics`; one alone is a list of one."""
    return physics if isinstance(physics, list | tuple) else getattr(physics, "physics_list", [physics])


def is_linear(physics: Any) -> bool:
    """Whether a Physics is linear: a `LinearPhysics`, or a class of one's own that has an `A_adjoint`."""
    if is_deepinv(physics, "Physics"):
        return is_deepinv(physics, "LinearPhysics")
    return callable(getattr(physics, "A_adjoint", None))


def is_deepinv(thing: Any, *names: str) -> bool:
    """Whether something is of one of deepinv's classes, by their names, so that deepinv need not be imported."""
    return any(
        kind.__name__ in names and kind.__module__.partition(".")[0] == "deepinv" for kind in type(thing).__mro__
    )
