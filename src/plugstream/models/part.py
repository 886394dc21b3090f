"""A model of a part of each view's data: the part that steps use, or the part that judges them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from plugstream.base.draws import Stream, draw_words
from plugstream.base.errors import InputError
from plugstream.models.base import Linearization, Model, WrappedModel
from plugstream.models.views import Views, all_views

SHARE = 0.1
"""The part of each view's data that judges by default."""

_CACHED_ENTRIES = 1 << 26  # of all views; masks of larger scans are drawn again each time
_WORD, _ENTRIES_A_WORD = 1 << 16, 4  # a number of 16 bits decides whether an entry judges


def judged_entries(seed: int, view: int, shape: tuple[int, ...], share: float = SHARE) -> Tensor:
    """Which entries of a view's data judge: bool, of this shape, each by itself with probability `share`.

    A pure function of its arguments, whatever the machine, the other views of a batch or the number of processes.
    """
    count = math.prod(shape)
    words = draw_words(seed, view, -(-count // _ENTRIES_A_WORD), Stream.JUDGES)
    numbers = words.astype("<u8").view("<u2")[:count]
    return torch.from_numpy(numbers < round(share * _WORD)).reshape(shape)


class PartOfData(WrappedModel):
    r"""M_i H_i: a model without a part of each view's data, as if its detector were masked there.

    M_i keeps an entry or sets it to zero. The entries to leave out are drawn once, independently for each view
    (`judged_entries`); with `judge`, only those are kept. So

        ||H_i x - y_i||^2 = ||M_i (H_i x - y_i)||^2 + ||(1 - M_i) (H_i x - y_i)||^2,

    the first for steps and the second to judge them. The same holds for any loss that is a sum over entries. Its
    fidelity is `whole.with_views(PartOfData(whole.model))`, whose data is zero where nothing counts.

    Entries are left out of predictions, of the data of the adjoint and every pullback, and of all that follows from
    these: gradients, normal products, back-projections. A model's faster forms of those are not used, since they ignore
    M_i. Norms and overlaps are those of H_i, which bound those of M_i H_i.

    Condition: the noise of an entry is independent of the other entries of its view. If neighbours share it (a
    scintillator's blur, resampled or filtered data) or entries occur twice (symmetric k-space), steps see the noise of
    what judges, and sigma comes out too small; hold out whole views instead.

    Arguments: model, which fits nothing to each view's data; seed; judge, whether to keep what steps leave out; share,
    the part of entries that judges.
    Reference: Wold, Technometrics 20(4), 1978 (entries left out of a matrix rather than rows).
    """

    def __init__(self, model: Model, seed: int = 0, *, judge: bool = False, share: float = SHARE) -> None:
        super().__init__(model)
        recording = self.recording
        if recording is not None and recording.known is not None and not bool(recording.known.all()):
            raise InputError("gains that are fitted to all data of a view leave none to judge by; hold views out")
        self.seed, self.judge, self.share = seed, judge, share
        # Waves that do not interfere are of one entry of the data.
        sizes = list(self.data_shape)
        if self.incoherent is not None:
            sizes[self.incoherent] = 1
        self._entries = tuple(sizes)
        self._masks: dict[int, Tensor] = {}

    def restrict(self, data: Tensor, views: Views = None) -> Tensor:
        """The data with entries that the model does not predict, or that are left out here, set to zero."""
        return self._cut(self.whole.restrict(data, views), views)

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        """M_i H_i x: (..., *image_shape) to (..., B, *data_shape)."""
        return self._cut(self.whole.forward(image, views), views)

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        """The sum over views of Re(H_i^H M_i z_i): (..., B, *data_shape) to (..., *image_shape)."""
        return self.whole.adjoint(self._cut(data, views), views)

    def linearize(self, image: Tensor, views: Views = None) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        prediction, pullback = self.whole.linearize(image, views)
        return self._cut(prediction, views), lambda data: pullback(self._cut(data, views))

    def derivative(self, image: Tensor, direction: Tensor, views: Views = None) -> Tensor:
        return self._cut(self.whole.derivative(image, direction, views), views)

    def linearized(self, at: Tensor | None = None) -> Model:
        """M_i J_i(at), with the model's own form of J."""
        if self.linear:
            return self
        derivative = self.whole.linearized(at)
        if isinstance(derivative, Linearization):
            return Linearization(self, derivative.at)
        return PartOfData(derivative, self.seed, judge=self.judge, share=self.share)

    def start_from(
        self, read: Callable[[Tensor], Tensor], available: Tensor, names: Sequence[str]
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        return self.whole.start_from(read, available, names)

    def squared_norms(self, views: Tensor, tol: float) -> Tensor:
        """Bounds: those of all data."""
        return self.whole.squared_norms(views, tol)

    def squared_norm_bounds(self, views: Tensor) -> Tensor:
        return self.whole.squared_norm_bounds(views)

    def rough_norm_bounds(self, views: Tensor) -> Tensor | None:
        return self.whole.rough_norm_bounds(views)

    def _cut(self, data: Tensor, views: Views) -> Tensor:
        """M_i z_i of these views: (..., B, *data_shape), or with one value along an axis of waves."""
        index = all_views(views, self.n_views)
        masks = torch.stack([self._mask(view) for view in index.tolist()])
        return torch.where(masks, data, torch.zeros((), dtype=data.dtype, device=data.device))

    def _mask(self, view: int) -> Tensor:
        """Which entries of a view count here."""
        mask = self._masks.get(view)
        if mask is None:
            judged = judged_entries(self.seed, view, self._entries, self.share)
            mask = (judged if self.judge else ~judged).to(self.device)
            if self.n_views * mask.numel() <= _CACHED_ENTRIES:
                self._masks[view] = mask
        return mask
