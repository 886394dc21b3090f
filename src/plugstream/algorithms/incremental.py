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


@dataclass(frozen=True, eq=False)
class IncrementalADMM(ADMM):
    r"""Reconstruct an image by alternating the proximal operators of a few views with a denoiser: IPA.

    For k = 1, 2, ..., with the drawn views in n nearly equal parts, d_j the mean over part j, p_j its share of the
    views:

        z^k = sum_j p_j prox_{gamma d_j}(x^{k-1} - s^{k-1})
        x^k = D_sigma(z^k + s^{k-1})
        s^k = s^{k-1} + z^k - x^k

    With one part, z^k is the prox of the mean over all views of the step, as in `ADMM` with a sampler. More parts are
    the paper's minibatch: independent proxes of fewer views, whose mean moves less than a prox of the batch.

    Condition: for convex d_j with bounded subgradients, which need not be smooth, a D whose residual I - D is firmly
    nonexpansive, such as a prox, and random views, the mean over t steps of the expected squared residual of PnP-ADMM,
    zero at the fixed points of P = D(I - gamma grad d), is O(1/t) above a floor of O(gamma). A long step converges fast
    and stops far off, a short one the other way round; `BlockADMM` has no floor.

    Arguments: those of `ADMM`, with the sampler's views as the batch, and
        parts: n; 1 for one prox of the views of a step, or the number of views for one of each.
    Reference: Sun, Wu, Xu, Wohlberg and Kamilov, IEEE Trans. Comput. Imaging 7, 2021.
    """

    parts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts < 1:
            raise InputError(f"the views of a step have at least one part, not {self.parts}")

    def _data_image(self, state: SplitState, gamma: float, batch: Batch) -> Tensor:
        if self.parts == 1:
            return super()._data_image(state, gamma, batch)
        views = self.fidelity.available if batch.views is None else batch.views
        terms = []
        for rows in torch.arange(len(views)).tensor_split(min(self.parts, len(views))):
            share = len(rows) / len(views)
            part = Batch(views[rows], None if batch.weights is None else batch.weights[rows] / share)
            terms.append(share * super()._data_image(state, gamma, part))
        return torch.stack(terms).sum(0)


@dataclass(frozen=True)
class BlockState:
    """k steps taken, the image, and of every block of views its image z_j and scaled dual s_j.

    z and s are (..., blocks, *image_shape); `used` counts the steps of each block, (blocks,).
    """

    k: int
    image: Tensor
    z: Tensor
    s: Tensor
    used: Tensor
    warm: Tensor | None = None


@dataclass(frozen=True, eq=False)
class BlockADMM(PlugAndPlay):
    r"""Reconstruct an image by the prox of one block of views a step, and a memory of all other blocks.

    The views are in b blocks; block j has every b-th view from j on, and so sees the object from all sides. With
    d = 1/b sum_j d_j, where d_j has the weights of its views in d times b, a step draws a block j:

        z_j <- prox_{gamma d_j}(x - s_j),    s_j <- s_j + z_j - x,    x <- D_sigma(mean over blocks of z_i + s_i)

    Blocks that were not drawn yet are left out of the mean. At a fixed point z_j = x and s_j = -gamma grad d_j(x), so
    x = D(x - gamma grad d(x)): the fixed points are those of P and of `ADMM` with all views, for the same gamma and
    sigma, without the floor of IPA. It is to IPA what SAGA is to PnP-SGD. With one block it is ADMM with the denoiser
    first.

    Condition: for convex d_j and a prox as D it converges for every gamma > 0 if all blocks are drawn in turn
    (consensus ADMM by blocks); for other denoisers nothing is proved. About 100/L is good on diffraction tomography.

    Arguments: those of `PlugAndPlay`. The sampler's batch B makes b = ceil(views / B) blocks, and the first view drawn
    says which of them is next: ShiftedViews takes them in turn, Uniform at random, All() has one.
    Memory: 2 b images; each step copies them since states are frozen.
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
        begun = torch.nonzero(used).flatten().to(x.device)
        both = zs + ss if len(begun) == blocks else (zs + ss).index_select(axis, begun)
        image, warm = self.denoiser.draw(state.k).denoise(both.mean(axis), sigma, state.warm)
        return BlockState(k=state.k + 1, image=image, z=zs, s=ss, used=used, warm=warm)

    def block_of(self, step: int, blocks: int) -> int:
        """The block of a step: that of the first view drawn."""
        views = self.sampler.draw(step, self.fidelity.available).views
        return 0 if views is None else int(torch.searchsorted(self.fidelity.available, views[0])) % blocks

    def _blocks(self) -> int:
        views = self.sampler.draw(0, self.fidelity.available).views
        return 1 if views is None else -(-len(self.fidelity.available) // len(views))
