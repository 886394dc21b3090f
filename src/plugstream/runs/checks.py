"""What is refused before a run begins: settings that contradict each other, and views that nothing can be made of."""

from __future__ import annotations

import math

import numpy as np
import torch

from plugstream.base.errors import InputError
from plugstream.base.registry import entries
from plugstream.base.schedules import LONGEST_STEP, parse_step
from plugstream.fidelity.by_loss import DataFidelity
from plugstream.instruments.base import Columns, Instrument
from plugstream.models.views import spread_views
from plugstream.runs.devices import check_precision
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan
from plugstream.settings import AlgorithmSettings, Settings, parse_changes, parse_stages
from plugstream.settings.choices import Choice

__all__ = ["check_batch", "check_mask", "check_range", "check_settings"]

# Views of a scan that is not in memory that are looked at for the range of its values, and what sums of them may add.
_VIEWS, _ROOM = 8, 100.0


def check_settings(settings: Settings) -> None:
    """Refuse what can be known to fail whatever the scan is, before there is one; nothing is built for it."""
    a = settings.algorithm
    _check_strength(a)
    if a.settled is not None and settings.monitor.hold_out is None:
        raise InputError("--settled goes by views that are held out, and there are none; add --hold-out, such as 10")
    check_precision(settings, sigma=a.sigma, sigma_end=a.sigma_end, lam=a.lam)
    if _says(a, "prox") and not _says(settings.loss, "prox"):
        raise InputError(
            f"{a.name} needs the prox of the loss, which only {_those('loss', 'prox')} has; use --algorithm "
            f"{_those('algorithm', 'prox', False)}, or --loss {_those('loss', 'prox')}"
        )
    for change in parse_changes(a.changes):
        check_precision(settings, sigma=change.sigma)
        if isinstance(change.step_size, str) and not isinstance(a.step_size, str):
            raise InputError(
                f"the change '{change}' is to a multiple of 1/L, but the run begins with a step that is a number; "
                "write both in one way"
            )
    if a.lam is not None and (own := a.entry.facts.get("weight")) is not None:
        raise InputError(f"{a.name} weighs its prior by --{own}; give --sigma, and leave --lam out")
    if settings.monitor.watch_theory and settings.denoiser.equivariant == "random":
        raise InputError("--watch-theory compares steps of one denoiser; leave it out, or use --equivariant mean")
    if settings.denoiser.opening is not None and settings.monitor.watch_theory:
        raise InputError("--watch-theory compares steps of one denoiser; leave it or --opening out")
    _check_uses(settings)
    if a.stages is not None:
        parse_stages(a.stages)
    if settings.scan.follow:
        _check_growth(settings)


def check_batch(settings: Settings, n_views: int, interval: int | None = None) -> None:
    """Refuse a batch of more views than there are, unless more are to come.

    Arguments: interval, every how many-th view is held out while sigma is searched for.
    """
    batch, hold_out = settings.sampler.views, interval or settings.monitor.hold_out
    if not settings.scan.follow and hold_out is not None and hold_out > n_views:
        raise InputError(
            f"every {hold_out}th view is to be held out, but the scan has {n_views}; use a smaller --hold-out"
        )
    if hold_out is not None:
        n_views -= n_views // hold_out
    kept = "" if hold_out is None else " without those held out"
    if not settings.scan.follow and batch is not None and batch > n_views:
        raise InputError(
            f"a batch of {batch} views was asked for, but the scan has {n_views}{kept}; use a smaller --batch"
        )


def check_mask(instrument: Instrument, columns: Columns) -> None:
    """Refuse a scan of which no data counts; a mask that lies on a disk is not read for it."""
    mask = instrument.find_mask(columns)
    if isinstance(mask, np.ndarray) and not mask.any():
        axes = instrument.data.shape
        what = axes[0] if len(axes) == 1 and isinstance(axes[0], str) else "datum"
        raise InputError(f"every {what} of every view is masked, so there is nothing to reconstruct from")


def check_range(scan: Scan, fidelity: DataFidelity, *, by_lipschitz: bool) -> None:
    """Refuse data whose squares, or those of the image that it makes, leave the range of the precision.

    The image is about as large as ||y_i|| / ||H_i||. Of a scan that is not in memory a few views are looked at.

    Arguments: by_lipschitz, whether L is needed anyway, so that it may be asked for.
    """
    model, available = fidelity.model, fidelity.available
    some = spread_views(available, _VIEWS) if isinstance(scan, StoredScan) else None
    some = available if some is None else some
    stored = model.data_dtype.to_real() if model.intensities else model.data_dtype
    rows = scan.read(some).to(model.device, stored)
    if model.stored_shape != model.data_shape:
        rows = model.convert(rows, some)
    rows = model.restrict(rows, some)
    size = float(rows.abs().max()) * math.sqrt(math.prod(model.data_shape))
    sizes = [size]
    if by_lipschitz and fidelity.has_lipschitz and 0 < fidelity.lipschitz_max < math.inf:
        sizes.append(size / math.sqrt(fidelity.lipschitz_max))
    limits = torch.finfo(fidelity.dtype)
    if size > 0 and not all(math.sqrt(limits.tiny) < value < math.sqrt(limits.max) / _ROOM for value in sizes):
        name = str(fidelity.dtype.to_real()).removeprefix("torch.")
        wider = "use --dtype float64, or scale the data" if name == "float32" else "scale the data"
        raise InputError(
            f"the data has values of {float(rows.abs().max()):.2g}, and the image would be of about "
            f"{sizes[-1]:.2g}: their squares are outside the range of {name}, {limits.tiny:.0e} to "
            f"{limits.max:.0e}; {wider}"
        )


def _check_uses(settings: Settings) -> None:
    """Refuse a gradient or restarts that the algorithm does nothing with; of momentum nobody knows who chose it.

    What an algorithm of somebody's own does is for them to know.
    """
    a = settings.algorithm
    if ":" in a.name:
        return
    uses = a.entry.facts.get("uses", ())
    if a.refined and not _says(a, "refines"):
        raise InputError(
            f"{a.name} cannot refine anything beside the image; say --refine none, or use --algorithm "
            f"{_those('algorithm', 'refines')}"
        )
    if a.refine_steps is not None and not a.refined:
        raise InputError("--refine-steps says how long something is refined, and nothing is; add --refine")
    if a.refine_tolerance is not None and (a.refine_steps is None or a.refine_end is not None):
        raise InputError(
            "--refine-tolerance ends what --refine-steps limits, by how its steps shrink; give --refine-steps, and no "
            "--refine-end, which makes them shorter"
        )
    if a.refine_end is not None and not a.refined:
        raise InputError("--refine-end says how something is refined at last, and nothing is; add --refine")
    if a.refined and not _says(settings.gradient, "plain"):
        raise InputError(
            f"--gradient {settings.gradient.name} remembers gradients of the model as it was; leave it or --refine out"
        )
    for section, what, plain in (
        ("gradient", f"--gradient {settings.gradient.name}", _says(settings.gradient, "plain")),
        ("momentum", f"--restart {settings.momentum.restart}", settings.momentum.restart == "none"),
    ):
        if section not in uses and not plain:
            able = [e.name for e in entries("algorithm").values() if section in e.facts.get("uses", ())]
            raise InputError(f"{a.name} does nothing with {what}; leave it out, or use --algorithm {' or '.join(able)}")


def _check_growth(settings: Settings) -> None:
    """Refuse to follow a scan with what needs all of its views from the beginning."""
    a = settings.algorithm
    if a.settled is not None:
        raise InputError("a scan that is followed has other views to judge by as it grows; leave --settled out")
    for choice, what in ((a, "algorithm"), (settings.sampler, "sampler")):
        if not _says(choice, "grows"):
            raise InputError(
                f"the {what} {choice.name} cannot take views that are still to come; follow with "
                f"{_those(what, 'grows')}"
            )
    if "gradient" in a.entry.facts.get("uses", ()) and not _says(settings.gradient, "grows"):
        raise InputError(
            f"{settings.gradient.name} remembers the gradients of all views, so it cannot follow a scan that "
            f"grows; follow with --gradient {_those('gradient', 'grows')}"
        )


def _check_strength(settings: AlgorithmSettings) -> None:
    """Refuse a noise level that is not given, or twice, and steps that are none."""
    if settings.sigma is None and settings.lam is None:
        raise InputError(
            "how strongly to denoise is not given; use --sigma (for TV and values from 0 to 1, 0.01 to 0.03 is a "
            "good start), --lam, or --search 250, which finds sigma"
        )
    if settings.sigma is not None and settings.lam is not None:
        raise InputError("both sigma and lam are given; leave one out")
    if settings.sigma_end is not None and not settings.sigma:
        raise InputError("sigma_end needs a sigma > 0 to start from")
    for name, step in (("step_size", settings.step_size), ("step_size_end", settings.step_size_end)):
        if isinstance(step, str):
            parse_step(step)
        elif step is not None and not 0 < step <= LONGEST_STEP:
            raise InputError(f"{name} must be more than 0 and finite, not {step:g}; write a number, or 0.5/L")
    if settings.step_size_end is not None and _step_kind(settings.step_size) != _step_kind(settings.step_size_end):
        raise InputError(
            f"step_size {settings.step_size} and step_size_end {settings.step_size_end} must both be numbers or "
            "multiples of 1/L, or both follow the overlap"
        )


def _step_kind(step: float | str) -> type:
    """What a step is: a number, a multiple of 1/L, or one that follows the overlap."""
    return type(parse_step(step)) if isinstance(step, str) else float


def _says(choice: Choice, fact: str) -> bool:
    """Whether the chosen entry says this of itself."""
    return bool(choice.entry.facts.get(fact, False))


def _those(kind: str, fact: str, value: bool = True) -> str:
    """The entries of a kind that say this of themselves, or that do not, in words."""
    names = [e.name for e in entries(kind).values() if bool(e.facts.get(fact, False)) == value and ":" not in e.name]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)
