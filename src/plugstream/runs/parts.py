"""What settings alone determine of a run, each part built once: before there is a scan, and whatever it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from plugstream.algorithms import Algorithm, State
from plugstream.algorithms.abilities import as_algorithm
from plugstream.algorithms.sampling import Sampler
from plugstream.base.errors import InputError
from plugstream.base.processes import Group
from plugstream.base.schedules import Cooling, Geometric, OverL, Overlap, parse_step, value_at
from plugstream.denoisers import Denoiser, Opening
from plugstream.denoisers.by_name import Prior
from plugstream.denoisers.tiles import Tiles
from plugstream.fidelity import by_loss
from plugstream.fidelity.base import Measurements
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.fidelity.least_squares import Fidelity
from plugstream.fidelity.losses import Loss
from plugstream.fidelity.sharded import Sharded
from plugstream.models.base import Model
from plugstream.models.views import Views
from plugstream.runs.checks import prepare_device
from plugstream.runs.footprint import Worker
from plugstream.settings import AlgorithmSettings, ComputeSettings, DenoiserSettings, Settings, parse_changes
from plugstream.settings.checks import check_settings

# Into how many parts a step is cut with --deterministic, whatever the number of processes.
_SHARDS = 8


@dataclass(frozen=True)
class Parts:
    """The parts of a run that need no scan.

    Attributes: settings; device and dtype to compute in, the dtype being the real precision; prior, the denoiser before
    its bounds; loss; momentum and gradient, None where the algorithm uses none; opening, the denoiser of the first
    steps, if it is another; group, the processes that share the work; worker, the GPU that works on slabs of a volume,
    which is then on the CPU, and so is `device`.
    """

    settings: Settings
    device: torch.device
    dtype: torch.dtype
    prior: Prior
    loss: Loss
    momentum: Any
    gradient: Any
    opening: Prior | None = None
    group: Group = field(default_factory=Group)
    worker: Worker | None = None

    def denoiser(self) -> Denoiser:
        """The denoiser within the bounds of the settings, damped if they say so."""
        d = self.settings.denoiser
        denoiser = self.prior.within(*_bounds(d), d.damping, d.equivariant, self.settings.sampler.seed)
        if self.opening is None:
            return denoiser
        return Opening(denoiser, self.opening.within(*_bounds(d)), d.opening_steps, d.opening_factor)

    def fidelity(
        self, model: Model, data: Tensor | Measurements, *, available: Views = None, weights: Any = None
    ) -> DataFidelity:
        """How far an image is from the data, by the loss of the settings; several processes share its views.

        Arguments: weights (views,), what views count, up to 1; all alike for None.
        """
        fidelity = by_loss.make_fidelity(model, data, self.loss, available=available)
        if weights is not None:
            fidelity = fidelity.weigh(weights[:])
        shards = _SHARDS if self.settings.compute.deterministic else None
        if self.group.size == 1 and shards is None:
            return fidelity
        return cast(DataFidelity, Sharded(fidelity, self.group, shards=shards))

    def share(self, group: Group) -> Parts:
        """The same for several processes; what they cannot share is refused."""
        if group.size > 1 and self.device.index is not None:
            raise InputError(
                f"{group.size} processes cannot share {self.device}; use --device cuda, so that each has its own"
            )
        if self.settings.compute.deterministic and group.size > _SHARDS:
            raise InputError(
                f"--deterministic shares a step among {_SHARDS} processes at most, and there are {group.size}; leave "
                "it out, or start fewer"
            )
        return replace(self, group=group)

    def lend(self, worker: Worker) -> Parts:
        """The same with images on the CPU and a GPU that works on slabs of them."""
        return replace(self, device=torch.device("cpu"), worker=worker)

    def sampler(self, fidelity: Fidelity) -> Sampler:
        """The sampler of this fidelity's views."""
        sampler: Sampler = self.settings.sampler.build(fidelity)
        return sampler

    def algorithm(
        self, fidelity: Fidelity, denoiser: Denoiser | None = None, sampler: Sampler | None = None
    ) -> Algorithm[Any]:
        """The algorithm with its step and noise level; denoiser and sampler are of the settings if not given."""
        a = self.settings.algorithm
        steps = a.sigma_steps or a.iterations
        falling = None if a.sigma is None or a.sigma_end is None else Geometric(a.sigma, a.sigma_end, steps)
        return build_algorithm(
            a,
            fidelity,
            self.denoiser() if denoiser is None else denoiser,
            momentum=self.momentum,
            restart=self.settings.momentum.restart,
            gradient=self.gradient,
            sigma=a.sigma if falling is None else falling,
            lam=a.lam,
            step_size=_falling_step(a.step_size, a.step_size_end, steps),
            sampler=self.sampler(fidelity) if sampler is None else sampler,
            refine=a.refined,
            refine_steps=a.refine_steps,
            refine_tolerance=a.refine_tolerance,
            refine_pace=1.0 if a.refine_end is None else Cooling(a.refine_end, a.refine_steps or a.iterations),
            seed=self.settings.sampler.seed,
        )


def prepare(settings: Settings, previous: Parts | None = None) -> Parts:
    """Build what settings alone determine, and refuse what fails for any scan; parts of `previous` are used again."""
    check_settings(settings)
    device, dtype = prepare_device(settings.compute)
    uses = settings.algorithm.entry.facts.get("uses", ())

    def build(section: str, *arguments: Any) -> Any:
        if section in ("momentum", "gradient") and section not in uses:
            return None
        unchanged = previous is not None and _builds_same(previous.settings, settings, section)
        part = getattr(previous, section) if unchanged else None
        return getattr(settings, section).build(*arguments) if part is None else part

    same_prior = previous is not None and _same_prior(previous.settings, settings)
    parts = Parts(
        settings,
        device,
        dtype,
        prior=previous.prior if previous is not None and same_prior else _prior(settings.denoiser),
        loss=build("loss"),
        momentum=build("momentum"),
        gradient=build("gradient", settings.sampler.seed),
        opening=_opening(settings.denoiser),
        group=Group() if previous is None else previous.group,
    )
    if previous is not None and previous.worker is not None:
        parts = parts.lend(previous.worker)
    parts.denoiser()  # which refuses a damping or bounds that cannot be
    return parts


def build_algorithm(
    algorithm: AlgorithmSettings,
    fidelity: Fidelity,
    denoiser: Denoiser | Any,
    *,
    momentum: Any,
    restart: str,
    gradient: Any,
    **common: Any,
) -> Algorithm[Any]:
    """The algorithm of the settings, with what its entry uses of momentum, restart and gradient.

    Arguments: common, by keyword: sigma or lam, step_size, sampler, and for some refine with its options, and seed.
    """
    uses = algorithm.entry.facts.get("uses", ())
    if not algorithm.entry.facts.get("seeded", False):
        common.pop("seed", None)
    if not common.get("refine"):
        common = {name: value for name, value in common.items() if not name.startswith("refine")}
    if "momentum" in uses:
        common |= {"momentum": momentum, "restart": restart}
    if "gradient" in uses:
        common["gradient"] = gradient
    built: Algorithm[Any] = algorithm.build(fidelity, denoiser, **common)
    return built


def build_denoiser(settings: DenoiserSettings) -> Denoiser:
    """The denoiser of settings for pictures, within its bounds, damped if asked for."""
    check_for_pictures(settings)
    return _prior(settings).within(*_bounds(settings), settings.damping, settings.equivariant)


def in_tiles(
    denoiser: Denoiser, compute: ComputeSettings, group: Group | None = None, worker: Worker | None = None
) -> Denoiser:
    """The denoiser on the tiles that are asked for, or that a GPU needs, if any."""
    if worker is not None:
        tile = worker.tile if compute.tile is None else min(compute.tile, worker.tile)
        return Tiles(denoiser, tile, compute.halo, group=group, device=worker.device)
    if compute.tile is None and compute.halo is not None:
        raise InputError("a halo was asked for, but no tiles; add --tile")
    return denoiser if compute.tile is None else Tiles(denoiser, compute.tile, compute.halo, group=group)


def check_for_pictures(settings: DenoiserSettings) -> None:
    """Refuse what only a reconstruction has, where pictures are denoised one by one."""
    if settings.opening is not None:
        raise InputError("an opening is for the first steps of a reconstruction; leave --opening out here")
    if settings.rivals is not None:
        raise InputError("rivals are for the search of a reconstruction; leave --rivals out here")
    if settings.equivariant == "random":
        raise InputError("a random turn is drawn in each step of a reconstruction; use --equivariant mean here")
    if settings.support not in ("auto", "none"):
        raise InputError("a support is for an image that is reconstructed; leave --support out here")
    if settings.along is not None:
        raise InputError("--along is for the slices of a volume that is reconstructed; leave it out here")


def complex_parts(settings: DenoiserSettings, *, waves: bool, free: bool = True) -> dict[str, Any]:
    """The arguments of `plugstream.denoisers.adapt` that say how a complex image is denoised.

    Where nobody says, and the data leave the global phase free, the mean phase is taken out before: real and imaginary
    part are then the same whatever it is, and most of an image of nearly constant phase is in one of them.

    Arguments: settings; waves, whether images are complex; free, whether their global phase is (`ImageSpace.phase`).
    """
    parts = settings.parts
    if not waves:
        if parts is not None:
            raise InputError("--parts is for complex images, and this one is real; leave it out")
        return {"complex": False}
    kind = "magnitude-phase" if parts == "magnitude-phase" else None if parts is None else "real-imaginary"
    turned = parts == "mean-phase" or (parts is None and free)
    return {"complex": True, "parts": kind, "phase": "mean" if turned else "keep"}


@dataclass(frozen=True)
class StepChoice:
    """The step of the next iteration.

    Arguments: size, gamma; sigma; asked, the step in the settings; origin, where it comes from, in words; lipschitz,
    the L that it needs, if any.
    """

    size: float
    sigma: float
    asked: str
    origin: str
    lipschitz: float | None = None

    def content(self) -> dict[str, Any]:
        """For run.json."""
        return {"size": self.size, "asked": self.asked, "origin": self.origin, "lipschitz": self.lipschitz}

    def __str__(self) -> str:
        """For the log."""
        bound = "" if self.lipschitz is None else f"L = {self.lipschitz:.4g}, "
        return f"{bound}step {self.size:.6g}, sigma {self.sigma:.4g}; the step is {self.asked}, {self.origin}"


def goes_by_lipschitz(settings: Settings) -> bool:
    """Whether the step is a multiple of 1/L, so that L is needed."""
    step = settings.algorithm.step_size
    return isinstance(step, str) and isinstance(parse_step(step), OverL)


def find_lipschitz(settings: Settings, fidelity: DataFidelity) -> float | None:
    """L where the step goes by it, at zero where the step of a nonlinear model falls; None if it is not needed."""
    if not fidelity.linear and settings.algorithm.fall is not None:
        zero = torch.zeros(fidelity.image_shape, device=fidelity.device, dtype=fidelity.dtype)
        return fidelity.local_lipschitz(zero)
    return fidelity.lipschitz_max if fidelity.has_lipschitz and goes_by_lipschitz(settings) else None


def describe_step(settings: Settings, algorithm: Algorithm[Any], state: State) -> StepChoice:
    """The step of the iteration after this state, and why; L, which may take long, is found only if it needs it."""
    size, sigma = algorithm.parameters(state.k + 1, state)
    changes = [c.step_size for c in parse_changes(settings.algorithm.changes) if c.step < state.k]
    step = [settings.algorithm.step_size, *(change for change in changes if change is not None)][-1]
    bound: float | None = None
    if not isinstance(step, str):
        origin = "as the settings say"
    elif isinstance(parse_step(step), Overlap):
        which = "first" if state.k == 0 else "next"
        origin = f"by the largest overlap of the views of each step, which this one is of the {which}"
        if getattr(as_algorithm(algorithm).gradient, "reduces_variance", False):
            origin = "by the overlap that so many views are expected to have"
    elif algorithm.fidelity.has_lipschitz:
        origin, bound = "where L bounds every view", algorithm.fidelity.lipschitz_max
    else:
        doubled = "which is doubled where the views of a step contradict it"
        origin = f"from the L of the Jacobian at the first image, {doubled}"
        bound = getattr(state, "lipschitz", None)
    return StepChoice(size, sigma, str(step), origin, bound)


def _opening(settings: DenoiserSettings) -> Prior | None:
    """The denoiser of the first steps, if there is one; one's own code is for the denoiser that follows it."""
    if settings.opening is None:
        return None
    if ":" in settings.opening:
        raise InputError(f"--opening takes a denoiser by its name, such as tv, not {settings.opening!r}")
    return Prior(settings.opening, {}, *_bounds(settings))


def _prior(settings: DenoiserSettings) -> Prior:
    return Prior(settings.name, dict(settings.options), *_bounds(settings))


def _bounds(settings: DenoiserSettings) -> tuple[float, float]:
    low, high = settings.least, settings.upper
    return -math.inf if low is None else low, math.inf if high is None else high


def _builds_same(one: Settings, other: Settings, section: str) -> bool:
    """Whether two settings build the same of this section; a gradient draws by the sampler's seed, too."""
    seeds = section != "gradient" or one.sampler.seed == other.sampler.seed
    return seeds and bool(getattr(one, section) == getattr(other, section))


def _same_prior(one: Settings, other: Settings) -> bool:
    """Whether two denoisers differ in what is put around them at most."""
    around = {"low", "high", "support", "damping", "equivariant", "opening", "opening_steps", "opening_factor"}
    first, second = (settings.denoiser.model_dump(exclude=around) for settings in (one, other))
    return first == second


def _falling_step(start: float | str, end: float | str | None, steps: int) -> float | str | Geometric | OverL | Overlap:
    if end is None:
        return start
    if isinstance(start, str) and isinstance(end, str):
        first, last = parse_step(start), parse_step(end)
        return type(first)(Geometric(value_at(first.multiple, 1), value_at(last.multiple, 1), steps))
    return Geometric(float(start), float(end), steps)
