"""Views of several kinds in one model: each kind has a model of its own, and all of them are of the same image."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.models.base import Model, ModelBase, as_model
from plugstream.models.views import Views, all_views, as_views, check_shape


@dataclass(frozen=True)
class _Share:
    """One model's share of a batch: the model, the places of its views in the batch, and their numbers in the model.

    place is None for the whole batch; views are None for all of the model's views in order.
    """

    model: Model
    place: Tensor | None
    views: Tensor | None

    @property
    def rows(self) -> Tensor | slice:
        return slice(None) if self.place is None else self.place

    @property
    def numbers(self) -> Tensor:
        return torch.arange(self.model.n_views) if self.views is None else self.views


class GroupedModel(ModelBase):
    r"""One model for views of several kinds, such as those of several frequencies, each with a model of its own.

        H_i = a_i G_{g(i), r(i)},

    where g(i) is the group of view i, r(i) its number among the views of that group, G_{g, r} view r of model g, and
    a_i > 0 a gain that brings the data of all groups to a common scale: data are a_i times the measurement. Each group
    works on its part of a batch at once. Gains cost nothing, since sum_i w_i Re(J_i^H (H_i x - y_i)) is that of the
    groups with the weights a_i^2 w_i and the data y_i / a_i.

    Holds for models with the same image space and shape of data, linear or not.

    Arguments:
        models: one for each group, on one device and of one dtype.
        group: (views,), which model each view is of: 0 .. models - 1. Model g has as many views as there are g's.
        gains: (views,), a_i; ones if not given.
        names: of the groups, for `describe`.
    """

    def __init__(
        self,
        models: Sequence[Model],
        group: ArrayLike | Tensor,
        gains: ArrayLike | Tensor | None = None,
        *,
        names: Sequence[str] = (),
    ) -> None:
        if len(models) == 0:
            raise InputError("a grouped model needs at least one model")
        models = [as_model(model) for model in models]
        first = models[0]
        for name in ("image_shape", "data_shape", "device", "dtype", "data_dtype"):
            for number, model in enumerate(models):
                if getattr(model, name) != getattr(first, name):
                    values = f"{getattr(model, name)} of model {number} and {getattr(first, name)} of the first"
                    raise InputError(f"the models of a grouped model must agree in {name}, not {values}")
        self.models, self.names = tuple(models), tuple(names)
        self.group = torch.as_tensor(group, dtype=torch.int64).cpu()
        counts = [model.n_views for model in models]
        if self.group.ndim != 1 or torch.bincount(self.group, minlength=len(models)).tolist() != counts:
            raise InputError(
                f"group must say of every view which of {len(models)} models it is of, with {counts} views"
            )
        self.n_views = len(self.group)
        self.image_shape, self.data_shape = first.image_shape, first.data_shape
        self.device, self.dtype, self.data_dtype = first.device, first.dtype, first.data_dtype
        self.linear = all(model.linear for model in models)
        self.nonnegative = all(model.nonnegative for model in models)
        self.channels = first.channels
        self.estimated_views = min(model.estimated_views for model in models)
        self.gains = None if gains is None else torch.as_tensor(gains, dtype=torch.float64).cpu()
        if self.gains is not None:
            right = self.gains.shape == self.group.shape and bool(((self.gains > 0) & self.gains.isfinite()).all())
            if not right:
                raise InputError(f"gains must be {self.n_views} numbers > 0, one for each view")
        self._rank = torch.empty_like(self.group)
        for number, count in enumerate(counts):
            self._rank[self.group == number] = torch.arange(count)

    def describe(self) -> str:
        """In one line: the groups with their views, and how the last model, usually the largest, is computed."""
        count = len(self.models)
        names = [self.names[number] if number < len(self.names) else f"group {number}" for number in range(count)]
        groups = [f"{name} ({model.n_views} views)" for name, model in zip(names, self.models, strict=True)]
        groups = groups if count <= 12 else [*groups[:10], "..", groups[-1]]
        last = self.models[-1].describe()
        return f"{count} model{'s' if count > 1 else ''} of {', '.join(groups)}{last and '; of the last: '}{last}"

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """(..., *image_shape) to (..., B, *data_shape)."""
        index = as_views(views, self.n_views)
        shares = self._shares(index)
        parts = [share.model.forward(image, share.views) for share in shares]
        return self._multiply(self._join(shares, parts), index)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """(..., B, *data_shape) to (..., *image_shape): the sum over views of Re(H_i^H z_i)."""
        index = self._checked(data, views)
        z = self._multiply(data, index)
        return _sum(s.model.adjoint(self._take(z, s), s.views) for s in self._shares(index))

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The predictions at an image, and the adjoint of their derivative there."""
        index = as_views(views, self.n_views)
        shares = self._shares(index)
        pairs = [share.model.linearize(image, share.views) for share in shares]

        def pullback(data: Tensor) -> Tensor:
            z = self._multiply(data, index)
            return _sum(back(self._take(z, share)) for share, (_, back) in zip(shares, pairs, strict=True))

        return self._multiply(self._join(shares, [prediction for prediction, _ in pairs]), index), pullback

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        """J_i(x) v of each view: (..., B, *data_shape)."""
        index = as_views(views, self.n_views)
        shares = self._shares(index)
        parts = [share.model.derivative(image, direction, share.views) for share in shares]
        return self._multiply(self._join(shares, parts), index)

    def linearized(self, at: Tensor | None = None) -> Model:
        """The linear model J(at), group by group; this one where it is linear."""
        if self.linear:
            return self
        derivatives = [model.linearized(at) for model in self.models]
        return GroupedModel(derivatives, self.group, self.gains, names=self.names)

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with what the models do not predict set to zero."""
        index = self._checked(data, views)
        shares = self._shares(index)
        return self._join(shares, [s.model.restrict(self._take(data, s), s.views) for s in shares])

    def gradient(self, image: Tensor, data: Tensor, views: Views = None, weights: Tensor | None = None) -> Tensor:
        """sum_i w_i Re(J_i^H (H_i x - y_i)), each group's part in one go: (..., *image_shape) to the same."""
        index = self._checked(data, views)
        factors = self._squares(index, weights)
        fields = data if self.gains is None else self._multiply(data, index, inverse=True)
        return _sum(
            s.model.gradient(image, self._take(fields, s), s.views, _pick(factors, s)) for s in self._shares(index)
        )

    def normal(self, views: Views = None, weights: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """x -> sum_i w_i Re(H_i^H H_i x) for repeated use, with what each group can prepare done once."""
        index = as_views(views, self.n_views)
        factors = self._squares(index, weights)
        parts = [s.model.normal(s.views, _pick(factors, s)) for s in self._shares(index)]
        return lambda image: _sum(part(image) for part in parts)

    def normal_each(self, images: Tensor, views: Tensor) -> Tensor:
        """Re(H_i^H H_i x_i) with an image of its own for each view: (B, *image_shape) to the same."""
        index, out = all_views(views, self.n_views), torch.empty_like(images)
        for share in self._shares(index):
            out[share.rows] = share.model.normal_each(images[share.rows], share.numbers)
        if self.gains is None:
            return out
        squares = self.gains[index].square().to(device=images.device, dtype=self.dtype.to_real())
        return out * squares.reshape(-1, *(1,) * len(self.image_shape))

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """The largest eigenvalue of each view's Re(H_i^H H_i): (B,), double, CPU."""
        return self._each(views, lambda model, numbers: model.squared_norms(numbers, tol))

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        """Upper bounds of the same: (B,), double, CPU."""
        return self._each(views, lambda model, numbers: model.squared_norm_bounds(numbers))

    def _each(self, views: Tensor, ask: Callable[[Model, Tensor], Tensor]) -> Tensor:
        """A number for each view, of the model of its group, times its gain squared."""
        index = all_views(views, self.n_views)
        out = torch.empty(len(index), dtype=torch.float64)
        for share in self._shares(index):
            out[share.rows] = ask(share.model, share.numbers)
        return out if self.gains is None else out * self.gains[index].square()

    def _shares(self, index: Tensor | None) -> list[_Share]:
        """The shares of the models in a batch; models without views in it are left out."""
        group = self.group if index is None else self.group[index]
        rank = self._rank if index is None else self._rank[index]
        shares = []
        for number, model in enumerate(self.models):
            place = (group == number).nonzero().flatten()
            if len(place):
                views = rank[place]
                complete = len(views) == model.n_views and bool((views == torch.arange(len(views))).all())
                alone = len(place) == len(group)
                shares.append(_Share(model, None if alone else place, None if complete else views))
        return shares

    def _checked(self, data: Tensor, views: Views) -> Tensor | None:
        index = as_views(views, self.n_views)
        check_shape("data", data, (self.n_views if index is None else len(index), *self.data_shape))
        return index

    def _take(self, data: Tensor, share: _Share) -> Tensor:
        """The rows of a batch's data, (..., B, *data_shape), that belong to a group."""
        return data if share.place is None else data.index_select(self._axis(data), share.place.to(data.device))

    def _join(self, shares: Sequence[_Share], parts: Sequence[Tensor]) -> Tensor:
        """The data of a batch from those of the groups."""
        if len(parts) == 1:
            return parts[0]
        place = torch.cat([share.place for share in shares if share.place is not None])
        joined = torch.cat(list(parts), self._axis(parts[0]))
        return joined.index_select(self._axis(joined), place.argsort().to(joined.device))

    def _axis(self, data: Tensor) -> int:
        """The axis of views."""
        return data.ndim - 1 - len(self.data_shape)

    def _multiply(self, data: Tensor, index: Tensor | None, *, inverse: bool = False) -> Tensor:
        """Data times the gains of its views, or divided by them."""
        if self.gains is None:
            return data
        gains = self.gains if index is None else self.gains[index]
        return self.spread(gains.reciprocal() if inverse else gains) * data

    def _squares(self, index: Tensor | None, weights: Tensor | None) -> Tensor | None:
        """The weights of the groups' terms: a_i^2 w_i."""
        if self.gains is None:
            return weights
        squares = (self.gains if index is None else self.gains[index]).square()
        factors = squares if weights is None else squares * weights.double().cpu()
        return factors.to(device=self.device, dtype=self.dtype.to_real())


def _pick(weights: Tensor | None, share: _Share) -> Tensor | None:
    return weights if weights is None or share.place is None else weights[share.place.to(weights.device)]


def _sum(parts: Iterable[Tensor]) -> Tensor:
    return functools.reduce(Tensor.add, parts)
