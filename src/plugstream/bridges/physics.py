"""deepinv's Physics as models: a view is an angle, a coil or a frame, a Physics of a list or stack, or all of one.

Nothing here imports deepinv: whoever has a Physics has imported it, and a class of one's own with `A` and `A_adjoint`
will do. What a Physics is, is told by the names of its classes.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.linalg import largest_eigenvalue
from plugstream.bridges.stack import StackedModel
from plugstream.models.views import Views, all_views

__all__ = ["Angles", "Coils", "Layout", "Part", "PhysicsModel", "Whole", "is_deepinv", "is_linear", "split_views"]

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
    def predict(self, images: Tensor, views: list[int]) -> list[Tensor]: ...
    def pull(self, data: list[Tensor], views: list[int], at: Tensor | None) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Whole:
    """One Physics as one view."""

    physics: Any
    linear: bool
    data_shapes: list[tuple[int, ...]]

    def predict(self, images: Tensor, views: list[int]) -> list[Tensor]:
        made: Tensor = self.physics.A(images)
        return [made] * len(views)

    def pull(self, data: list[Tensor], views: list[int], at: Tensor | None) -> Tensor:
        summed = torch.stack(data).sum(0) if len(data) > 1 else data[0]
        back: Tensor = self.physics.A_adjoint(summed) if self.linear else self.physics.A_vjp(at, summed)
        return back


class Coils:
    """The coils of a `MultiCoilMRI`, a view each, any of them in one call: y_n = M F s_n x."""

    linear = True

    def __init__(self, physics: Any, data_shape: tuple[int, ...]) -> None:
        self._physics = copy.deepcopy(physics)  # its maps are replaced by those of the views that are asked for
        self._maps: Tensor = physics.coil_maps  # (B, N, ...)
        self.data_shapes = [(data_shape[0], *data_shape[2:])] * self._maps.shape[1]

    def predict(self, images: Tensor, views: list[int]) -> list[Tensor]:
        made: Tensor = self._with(views).A(images)  # (N, 2, coils, ...)
        return list(made.unbind(2))

    def pull(self, data: list[Tensor], views: list[int], at: Tensor | None) -> Tensor:
        back: Tensor = self._with(views).A_adjoint(torch.stack(data, 2))
        return back

    def _with(self, views: list[int]) -> Any:
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
        self._whole_shape = tuple(y.shape[1:])
        self.data_shapes = [tuple(one.shape[1:]) for one in self.split(y)]

    def split(self, y: Tensor) -> list[Tensor]:
        """Data of all angles, (N, C, ...), as the data of each view."""
        return list(self._subsets.split_measurements(y, self.physics, self._count).x)

    def predict(self, images: Tensor, views: list[int]) -> list[Tensor]:
        if views == list(range(self._count)):
            return self.split(self.physics.A(images))
        return [self._each[view].A(images) for view in views]

    def pull(self, data: list[Tensor], views: list[int], at: Tensor | None) -> Tensor:
        if views == list(range(self._count)):
            numbers = torch.arange(len(data[0]) * math.prod(self._whole_shape), device=data[0].device)
            places = self.split(numbers.reshape(len(data[0]), *self._whole_shape))
            order = torch.cat([place.reshape(-1) for place in places]).argsort()
            whole = torch.cat([one.reshape(-1) for one in data])[order].reshape(-1, *self._whole_shape)
            back: Tensor = self.physics.A_adjoint(whole)
            return back
        total: Tensor = torch.stack([self._each[v].A_adjoint(z) for v, z in zip(views, data, strict=True)]).sum(0)
        return total


class PhysicsModel(StackedModel):
    r"""What one or several deepinv Physics measure of an image: H_i(x) = c A_i(x), through A, A_adjoint and A_vjp.

    Linear where all of them are `LinearPhysics`. For others the gradient goes through `A_vjp`, and L is not known, so
    that steps are found on the way (`ProximalGradient`).

    Arguments:
        parts: the views, in order; `split_views` makes them.
        image_shape, dtype, device: of images here. layout: how they are images of deepinv's.
        scale: c, such as counts for each unit of A x where the noise is Poisson's.
        images: how many come at once where the Physics has parameters of its own for each, masks say; 0 where any
            number may. L is then the largest of all of them.
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
            return self._pull(parts, numbers, self._theirs(images)).reshape(*lead, *self.image_shape)

        return self.forward(image, views).detach(), pullback

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        """J_i(x) v of these views: z -> J^H z is linear, so its own adjoint, by autograd again, is v -> J v."""
        if self.linear:
            return self.forward(direction, views)
        with torch.enable_grad():
            point = image.detach().requires_grad_()
            prediction = self.forward(point, views)
            data = torch.zeros_like(prediction, requires_grad=True)
            (pulled,) = torch.autograd.grad(prediction, point, data, create_graph=True)
            (out,) = torch.autograd.grad(pulled, data, direction.to(image.dtype))
        return out

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """As of any model; the largest of all images where each has an operator of its own."""
        if not self.images:
            return super().squared_norms(views, tol)
        like = torch.empty((self.images, *self.image_shape), device=self.device, dtype=self.dtype)
        tops = [
            largest_eigenvalue(self.normal(view), like, tol=tol, ndim=len(self.image_shape)).max()
            for view in views.split(1)
        ]
        return torch.stack(tops)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """As of any model; estimates where each image has an operator of its own."""
        return self.squared_norms(views, 1e-2) if self.images else super().squared_norm_bounds(views)

    def _predict(self, images: Tensor, views: list[int]) -> list[Tensor]:
        theirs, out = self._theirs(images), [images] * len(views)
        for part, places, own in self._shares(views):
            for place, number, made in zip(places, own, part.predict(theirs, own), strict=True):
                if tuple(made.shape) != (len(images), *part.data_shapes[number]):
                    raise InputError(
                        f"the Physics gives {tuple(made.shape)} for {len(images)} images, not "
                        f"{(len(images), *part.data_shapes[number])}"
                        + f"; it has parameters of its own for each of {self.images} images"
                        * bool(self.images)
                    )
                out[place] = made if self.scale == 1 else self.scale * made
        return out

    def _pull(self, data: list[Tensor], views: list[int], at: Tensor | None = None) -> Tensor:
        if at is None and not self.linear:
            zero = torch.zeros((len(data[0]), *self.image_shape), dtype=self.dtype, device=self.device)
            at = self._theirs(zero)
        sums = [part.pull([data[place] for place in places], own, at) for part, places, own in self._shares(views)]
        theirs = torch.stack(sums).sum(0) if len(sums) > 1 else sums[0]
        ours = self.from_deepinv(theirs.squeeze(1) if self.layout == "grey" else theirs)
        return ours if self.scale == 1 else self.scale * ours

    def _theirs(self, images: Tensor) -> Tensor:
        """(N, *image_shape) as (N, C, *spatial)."""
        return images.unsqueeze(1) if self.layout == "grey" else self.to_deepinv(images)

    def _shares(self, views: list[int]) -> list[tuple[Part, list[int], list[int]]]:
        """The parts that these views are of, the places of their views in the batch, and their numbers in the part."""
        shares: dict[int, tuple[Part, list[int], list[int]]] = {}
        for place, view in enumerate(views):
            part, number = self._places[view]
            share = shares.setdefault(id(part), (part, [], []))
            share[1].append(place)
            share[2].append(number)
        return list(shares.values())


def split_views(physics: Any, y: Any, views: int | None) -> tuple[list[Part], list[Tensor]]:
    """The views that a Physics, or a list or stack of them, consists of, and the data of each: (B, *data_shape).

    | of                                  | a view is          |
    | ----------------------------------- | ------------------ |
    | a list, tuple or `StackedPhysics`   | each of them       |
    | `Tomography`, with ASTRA too, `PET` | an angle           |
    | `MultiCoilMRI`                      | a coil             |
    | `SequentialMRI`                     | a frame            |
    | any other                           | all of it          |

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
        return [_whole(one, z) for one, z in zip(physics, data, strict=True)], data
    if not isinstance(y, Tensor) and hasattr(y, "__len__") and hasattr(y, "__getitem__") and not hasattr(y, "ndim"):
        if len(y) != 1:
            raise InputError(f"there is one Physics, but the data of {len(y)}")
        y = y[0]
    data = [_tensor(y)]
    if views == 1:
        return [_whole(physics, data[0])], data
    if is_deepinv(physics, "Tomography", "TomographyWithAstra", "PET"):
        return _angles(physics, data[0], views)
    if is_deepinv(physics, "MultiCoilMRI") and not is_deepinv(physics, "NonCartesianMRI"):
        coils = Coils(physics, tuple(data[0].shape[1:]))
        return _counted([coils], list(data[0].unbind(2)), "coils", views)
    if is_deepinv(physics, "SequentialMRI"):
        frames = list(data[0].unbind(2))
        masks: Tensor = physics.mask.expand(*physics.mask.shape[:2], len(frames), *physics.mask.shape[3:])
        single = importlib.import_module("deepinv.physics").MRI
        each = [single(mask=masks[:, :, t], device=physics.mask.device) for t in range(len(frames))]
        return _counted([_whole(one, z) for one, z in zip(each, frames, strict=True)], frames, "frames", views)
    if views is not None:
        raise InputError(f"{type(physics).__name__} is one view and cannot be split; give a list of Physics instead")
    return [_whole(physics, data[0])], data


def _angles(physics: Any, y: Tensor, views: int | None) -> tuple[list[Part], list[Tensor]]:
    angles = getattr(physics, "views", None) if is_deepinv(physics, "PET") else getattr(physics, "angles", None)
    if angles is None:
        angles = physics.geometry_vectors
    count = len(angles) if views is None else views
    if count < 1 or len(angles) % count:
        raise InputError(f"{len(angles)} angles cannot be split into {count} views of as many each")
    part = Angles(physics, y, count)
    return [part], part.split(y)


def _counted(
    parts: Sequence[Part], data: list[Tensor], what: str, views: int | None
) -> tuple[list[Part], list[Tensor]]:
    if views not in (None, len(data)):
        raise InputError(f"a view is one of the {len(data)} {what}; give {len(data)} views, or 1 for all together")
    return list(parts), data


def _whole(physics: Any, y: Tensor) -> Whole:
    if not callable(getattr(physics, "A", None)):
        raise InputError(f"{type(physics).__name__} is no Physics: it has no A")
    return Whole(physics, is_linear(physics), [tuple(y.shape[1:])])


def _tensor(y: Any) -> Tensor:
    if not isinstance(y, Tensor) or y.ndim < 2:
        raise InputError("the data of a Physics is a tensor whose first axis is of images, (B, ...)")
    return y


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
