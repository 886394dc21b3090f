"""PnP-SGD as a `Reconstructor` of deepinv's, in the place of its PGD."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plugstream.algorithms import ProximalGradient
from plugstream.algorithms.sampling import All, Epochs, Sampler, as_sampler
from plugstream.base.errors import InputError
from plugstream.base.schedules import Number, OverL, Overlap
from plugstream.bridges.deepinv import from_deepinv
from plugstream.bridges.likelihoods import Likelihood, read_fidelity, read_likelihood
from plugstream.bridges.physics import PhysicsModel
from plugstream.bridges.priors import read_prior
from plugstream.fidelity.losses import Loss
from plugstream.solver.loop import solve
from plugstream.solver.monitors import Monitor
from plugstream.solver.result import Progress, Result

# Of so many views a step takes one in eight; of fewer, all.
_FEW_VIEWS, _SHARE = 8, 8

try:
    _Base: Any = importlib.import_module("deepinv.models").Reconstructor
except (ImportError, RuntimeError):  # not installed, or with a torchvision of another torch
    _Base = nn.Module

Start = Tensor | Callable[[Any, Any], Any] | None
"""A first image (B, C, H, W), or a function of y and physics that makes one."""


class PnPSGD(_Base):  # type: ignore[misc]
    r"""Reconstruct as `deepinv.optim.PGD` does, a few angles, coils or frames at a time: PnPSGD(...)(y, physics).

        z^k = s^{k-1} - gamma g^k,  g^k the gradient on the views of step k,    x^k = D_sigma(z^k),    and momentum

    (`ProximalGradient`), on the fidelity of `from_deepinv`. It takes PGD's arguments by PGD's names, so that a script
    changes by a line,

        model = dinv.optim.PGD(prior=prior, data_fidelity=L2(), stepsize=0.5, sigma_denoiser=0.02, max_iter=100)
        model = ps.PnPSGD(prior=prior, data_fidelity=L2(), stepsize=0.5, sigma_denoiser=0.02, max_iter=100)

    and by ours: PnPSGD(ps.BM3D(), 0.02, batch=6, iterations=100), with the step "1/L" found. With one view, or with
    batch=None and few views, it is PnP-FISTA. With a prior that is a convex function g it minimises f(x) + lambda g(x),
    deepinv's f, the sum over all data.

    Not for training through: it computes no gradients with respect to its parameters; unfolding is deepinv's.

    Arguments:
        denoiser: one of ours, a function, a network or a deepinv denoiser; `prior` is deepinv's name for it, where
            `PnP(denoiser)` is the denoiser and `TVPrior` our exact TV.
        sigma: its noise level, a number, a schedule, or a list with a value for each iteration; `sigma_denoiser` or
            `g_param` there. lam: lambda instead, for a denoiser that is a prox; `lambda_reg` there.
        step_size: "1/L" or another multiple, L bounding every view; or a number, for d, the mean over views.
            stepsize: deepinv's instead, for f.
        batch: how many views a step takes, each once an epoch; an eighth of them, or all of fewer than eight, if not
            given. sampler: another way to draw them.
        momentum, gradient, restart: as for `ProximalGradient`; "bounded" suits small batches, "nesterov" all views.
        iterations: how many steps; `max_iter` there.
        loss: ours; data_fidelity: deepinv's L2, PoissonLikelihood or LogPoissonLikelihood. By the physics' noise model
            if neither is given. views: how many to make of the physics, as for `from_deepinv`.
        monitors: what to measure on the way, such as [ps.Distance()], every ten steps; nothing if not given, since
            that takes gradients of all views.
        early_stop, thres_conv: stop once ||x^k - x^{k-1}|| <= thres_conv ||x^k||.
        custom_init: a function of y and physics that gives the first image; A_adjoint(y), scaled to fit best, if not
            given. verbose: show progress.
        params_algo: stepsize, g_param and lambda in a dictionary, as deepinv also has them.
    After a call `result` is that of the run, with its times and state (`plugstream.Result`). Its verdict is "not
    measured" unless `monitors` measure what one goes by, such as `Distance`.
    Reference: Sun, Wohlberg and Kamilov, Algorithm 3; deepinv, https://deepinv.github.io.
    """

    def __init__(
        self,
        denoiser: Any = None,
        sigma: Any = None,
        *,
        lam: Number | None = None,
        step_size: Number | OverL | Overlap | str = "1/L",
        batch: int | None = None,
        sampler: Sampler | None = None,
        momentum: Any = "bounded",
        gradient: Any = "plain",
        restart: str = "none",
        iterations: int = 100,
        loss: Loss | None = None,
        views: int | None = None,
        prior: Any = None,
        data_fidelity: Any = None,
        stepsize: Any = None,
        sigma_denoiser: Any = None,
        g_param: Any = None,
        lambda_reg: float | None = None,
        max_iter: int | None = None,
        monitors: Sequence[Monitor] = (),
        early_stop: bool = False,
        thres_conv: float = 1e-5,
        custom_init: Start = None,
        verbose: bool = False,
        params_algo: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        super().__init__()
        unknown = [name for name, value in others.items() if value not in (None, False, "residual")]
        if unknown:
            raise InputError(
                f"PnPSGD has no {unknown[0]}; unfolding, line searches and the like are deepinv's own PGD's"
            )
        params = params_algo or {}
        if denoiser is not None and prior is not None:
            raise InputError("give a denoiser or a prior, not both")
        if batch is not None and sampler is not None:
            raise InputError("give a batch or a sampler, not both")
        if loss is not None and data_fidelity is not None:
            raise InputError("give a loss or deepinv's data_fidelity, not both")
        self.prior = prior if denoiser is None else denoiser
        levels = (sigma, sigma_denoiser, g_param, params.get("g_param"), params.get("sigma_denoiser"))
        self.sigma = _schedule(_first(*levels))
        self.lam, self.lambda_reg = lam, _first(lambda_reg, params.get("lambda"), params.get("lambda_reg"))
        self.step_size, self.stepsize = step_size, _schedule(_first(stepsize, params.get("stepsize")))
        self.batch, self.sampler = batch, sampler
        self.momentum, self.gradient, self.restart = momentum, gradient, restart
        self.iterations = iterations if max_iter is None else max_iter
        self.loss, self.data_fidelity, self.views = loss, data_fidelity, views
        self.monitors = tuple(monitors)
        self.early_stop, self.thres_conv = early_stop, thres_conv
        self.custom_init, self.verbose = custom_init, verbose
        self.result: Result[Any] | None = None

    @torch.no_grad()
    def forward(
        self,
        y: Any,
        physics: Any,
        init: Start = None,
        x_gt: Tensor | None = None,
        compute_metrics: bool = False,
        **others: Any,
    ) -> Any:
        """The image of data, (B, C, H, W); with compute_metrics also deepinv's dictionary of "psnr" and "residual".

        Arguments: y and physics, deepinv's; init, a first image or a function of both; x_gt, the truth, for the PSNR.
        """
        loss = self.loss if self.data_fidelity is None else read_fidelity(self.data_fidelity)
        likelihood = read_likelihood(physics, loss)
        fidelity = from_deepinv(physics, y, loss=likelihood, views=self.views)
        model: Any = fidelity.model
        algorithm = self._algorithm(fidelity, likelihood)
        watch = _Watch(model, x_gt, self.thres_conv if self.early_stop else None, compute_metrics)
        start = self._start(_first(init, self.custom_init), y, physics, fidelity)
        self.result = solve(
            algorithm,
            start,
            iterations=self.iterations,
            monitors=self.monitors,
            callbacks=[watch],
            progress=True if self.verbose else None,
        )
        image = model.to_deepinv(self.result.image)
        return (image, watch.metrics) if compute_metrics else image

    def _algorithm(self, fidelity: Any, likelihood: Likelihood) -> ProximalGradient:
        """The algorithm for this data. With I views and the factor c of deepinv's f, f = c I d: its step gamma is
        c I gamma here, and its lambda is lambda / (c I), so that sigma^2 = gamma lambda stays what it is there."""
        denoiser, is_prox = read_prior(self.prior, fidelity.model)
        times = likelihood.factor * fidelity.n_views
        step, theirs = self.step_size, self.stepsize
        if theirs is not None:
            step = (lambda k: times * theirs(k)) if callable(theirs) else times * theirs
        lam = self.lam if self.lambda_reg is None else self.lambda_reg / times
        if self.sigma is not None:
            lam = None  # deepinv's PnP has a lambda of 1 that nothing goes by
        elif lam is None and is_prox:
            lam = 1.0 / times
        if self.sigma is None and lam is None:
            raise InputError("give sigma, the denoiser's noise level (sigma_denoiser there)")
        return ProximalGradient(
            fidelity,
            denoiser,
            sigma=self.sigma,
            lam=lam,
            step_size=step,
            sampler=self._sampler(fidelity.n_views),
            momentum=self.momentum,
            gradient=self.gradient,
            restart=self.restart,
        )

    def _sampler(self, n_views: int) -> Sampler:
        if self.sampler is not None:
            return as_sampler(self.sampler)
        if self.batch is None and n_views < _FEW_VIEWS:
            return All()
        batch = n_views // _SHARE if self.batch is None else self.batch
        return All() if batch >= n_views else Epochs(batch)

    def _start(self, start: Start, y: Any, physics: Any, fidelity: Any) -> Tensor:
        model: PhysicsModel = fidelity.model
        image: Any = start(y, physics) if callable(start) else start
        if isinstance(image, dict):
            image = image["est"]
        if isinstance(image, list | tuple):
            image = image[0]
        if image is None and model.linear:
            backprojection: Tensor = fidelity.backprojection()
            return backprojection
        return model.from_deepinv(physics.A_adjoint(y) if image is None else image)


class _Watch:
    """Records what deepinv's algorithms measure, for each image, and ends the run once it has come to rest."""

    def __init__(self, model: PhysicsModel, truth: Tensor | None, limit: float | None, measure: bool) -> None:
        self.model, self.truth, self.limit, self.measure = model, truth, limit, measure
        self.metrics: dict[str, list[list[float]]] = {"psnr": [], "residual": []}
        self._last: Tensor | None = None

    def __call__(self, progress: Progress[Any]) -> bool:
        image, last = progress.state.image, self._last
        if last is not None and image is last:
            return False
        self._last = image
        residual = None
        if last is not None:  # ||x^k - x^{k-1}|| / ||x^k|| of each image of a batch, (B, ...) to (B,)
            change, size = (torch.linalg.vector_norm(x.flatten(1), dim=1) for x in (image - last, image))
            residual = change / size.clamp_min(1e-12)
        if self.measure:
            if residual is not None:
                self._add("residual", residual)
            if self.truth is not None:
                error = self.model.to_deepinv(image) - self.truth.to(image.device)
                self._add("psnr", -10 * error.square().flatten(1).mean(1).log10())
        return self.limit is not None and residual is not None and bool((residual <= self.limit).all())

    def _add(self, name: str, values: Tensor) -> None:
        rows = self.metrics[name]
        rows.extend([] for _ in range(len(values) - len(rows)))
        for row, value in zip(rows, values.tolist(), strict=True):
            row.append(value)


def _first(*values: Any) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)


def _schedule(value: Any) -> Any:
    """A number or schedule as it is, and a list with a value for each iteration as a schedule."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = [float(one) for one in value]
        return numbers[0] if len(numbers) == 1 else lambda k: numbers[min(k, len(numbers)) - 1]
    return value
