"""PnP-ADMM a few views a step: IPA, with one dual for all views, and block ADMM, with one for each block of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plugstream.algorithms.admm import ADMM, SplitState
from plugstream.algorithms.base import PlugAndPlay
from plugstream.algorithms.sampling import Batch
from plugstream.base.arrays import Array
from plugstream.base.errors import InputError

__all__ = ["BlockADMM", "BlockState", "IncrementalADMM"]


@dataclass(frozen=True, eq=False)
class IncrementalADMM(ADMM):
    r"""Reconstruct an image by alternating the proximal operators of a few views with a denoiser: IPA.

    For k = 1, 2, ..., with the drawn views in n parts as equal as can be, d_j the mean over part j, p_j its
    share of the views:

        z^k = sum_j p_j prox_{gamma d_j}(x^{k-1} - s^{k-1})
        x^k = D_sigma(z^k + s^{k-1})
        s^k = s^{k-1} + z^k - x^k

    With one part, z^k is the prox of the mean over all views of the step, as `ADMM` takes it with a sampler. More parts
    are the paper's minibatch: their proxes are of fewer views each, and independent of one another, but their mean
    is no prox of the batch, and moves less.

    Condition: for convex d_j with bounded subgradients, which need not be smooth, and a D whose residual I - D is
    firmly nonexpansive, such as a prox, and views drawn at random, the mean over t steps of the expected squared
    residual of PnP-ADMM, zero at the fixed points of P = D(I - gamma grad d), is O(1/t) above a floor of O(gamma): the
    drawn views pull the one dual their way. A long step converges fast and stops far off, a short one the other way
    round; `BlockADMM` has no floor.

    Arguments: those of `ADMM`, with the sampler's views as the batch, and
        parts: n; 1 for one prox of the views of a step, or as many as there are views for one of each.
    Reference: Sun, Wu, Xu, Wohlberg and Kamilov, IEEE Trans. Comput. Imaging 7, 2021.
    """

    parts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts < 1:
            raise InputError(f"the views of a step have at least one part, not {self.parts}")

    @torch.no_grad()
    def step(self, state: SplitState) -> SplitState:
        """One iteration."""
        gamma, sigma = self.parameters(state.k + 1)
        batch = self.sampler.draw(state.k, self.fidelity.available)
        terms = [
            share * self.fidelity.prox(state.image - state.s, gamma, part.views, part.weights, start=state.z)
            for share, part in self._split(batch)
        ]
        z = torch.stack(terms).sum(0)
        x, warm = self.denoiser.draw(state.k).denoise(z + state.s, sigma, state.warm)
        return SplitState(k=state.k + 1, image=x, z=z, s=state.s + z - x if self.dual else state.s, warm=warm)

    def _split(self, batch: Batch) -> list[tuple[float, Batch]]:
        """The parts of a batch, each with its share of the views and the weights of a whole one."""
        if self.parts == 1:
            return [(1.0, batch)]
        views = self.fidelity.available if batch.views is None else batch.views
        places = torch.arange(len(views)).tensor_split(min(self.parts, len(views)))
        shares = [len(place) / len(views) for place in places]
        given = batch.weights
        return [
            (share, Batch(views[place], None if given is None else given[place] / share))
            for share, place in zip(shares, places, strict=True)
        ]


@dataclass(frozen=True)
class BlockState:
    """k steps taken, the image, and of every block of views its image z_j and scaled dual s_j.

    z and s are (..., blocks, *image_shape); `used` counts how often each block was, (blocks,).
    """

    k: int
    image: Tensor
    z: Tensor
    s: Tensor
    used: Tensor
    warm: Tensor | None = None


@dataclass(frozen=True, eq=False)
class BlockADMM(PlugAndPlay):
    r"""Reconstruct an image by the prox of one block of views a step, remembering what every block said last.

    The views are in b blocks, of which block j has every b-th view from j on, so that each sees the object from all
    sides. With d = 1/b sum_j d_j, where d_j has the weights of its views in d times b, a step draws a block j:

        z_j <- prox_{gamma d_j}(x - s_j),    s_j <- s_j + z_j - x,    x <- D_sigma(mean over blocks of z_i + s_i)

    and leaves all others as they are; blocks that were not drawn yet are left out of the mean. At a fixed point
    z_j = x and s_j = -gamma grad d_j(x), so that x = D(x - gamma grad d(x)): the fixed points are those of P and of
    `ADMM` with all views, for the same gamma and sigma, and there is no floor as IPA has one. It is to IPA what SAGA is
    to PnP-SGD. With one block it is ADMM with the denoiser first.

    Condition: for convex d_j and a prox as D it converges for every gamma > 0 where all blocks are drawn in turn
    (consensus ADMM by blocks); for other denoisers nothing is proved. About 100/L is good on diffraction tomography.

    Arguments: those of `PlugAndPlay`. The sampler's batch B makes b = ceil(views / B) blocks, and the first view that
    it draws says which of them is next: ShiftedViews takes them in turn, Uniform at random, All() has one.
    Memory: 2 b images, and each step makes a copy of them since states are frozen.
    References: Hong, Luo and Razaviyayn, SIAM J. Optim. 26(1), 2016, for blocks that are updated one at a time; Boyd et
    al., Found. Trends Mach. Learn. 3(1), 2011, section 7, for consensus.
    """

    def init(self, image: Array | None = None) -> BlockState:
        """The state before the first step, from an image (..., *image_shape), or from zero."""
        x = self._start_image(image)
        lead, blocks = x.ndim - self._ndim, self._blocks()
        z = x.unsqueeze(lead).repeat(*(1,) * lead, blocks, *(1,) * self._ndim)
        return BlockState(k=0, image=x, z=z, s=torch.zeros_like(z), used=torch.zeros(blocks, dtype=torch.int64))

    @torch.no_grad()
    def step(self, state: BlockState) -> BlockState:
        """One iteration."""
        gamma, sigma = self.parameters(state.k + 1)
        x, blocks, axis = state.image, len(state.used), state.image.ndim - self._ndim
        number = self.block_of(state.k, blocks)
        available = self.fidelity.available
        views = available[number::blocks]
        weights = torch.full((len(views),), blocks / len(available), dtype=torch.float64)
        z, s = state.z.select(axis, number), state.s.select(axis, number)
        z = self.fidelity.prox(x - s, gamma, views, weights, start=z)
        place = torch.tensor([number], device=x.device)
        zs = state.z.index_copy(axis, place, z.unsqueeze(axis))
        ss = state.s.index_copy(axis, place, (s + z - x).unsqueeze(axis))
        used = state.used.clone()
        used[number] += 1
        seen = torch.nonzero(used).flatten().to(x.device)
        both = zs + ss if len(seen) == blocks else (zs + ss).index_select(axis, seen)
        image, warm = self.denoiser.draw(state.k).denoise(both.mean(axis), sigma, state.warm)
        return BlockState(k=state.k + 1, image=image, z=zs, s=ss, used=used, warm=warm)

    def block_of(self, step: int, blocks: int) -> int:
        """The block of a step: that of the first view which the sampler draws."""
        drawn = self.sampler.draw(step, self.fidelity.available).views
        if drawn is None:
            return 0
        return int(torch.searchsorted(self.fidelity.available, drawn[0])) % blocks

    def _blocks(self) -> int:
        views = self.sampler.draw(0, self.fidelity.available).views
        return 1 if views is None else -(-len(self.fidelity.available) // len(views))
