"""Stages of a run: which views it uses from one step to another, and with which noise level.

    [algorithm]
    stages = "2GHz: 30, sigma=0.2; 2-4GHz: 30, sigma=0.1; all"      # views: steps, sigma; the last goes on to the end
    hop = "2,4,6,8,10GHz"                                            # or from low to high frequencies, in equal parts

A stage is a run of its own that begins with the image of the one before. A local method that cannot find a strong
object at a high frequency finds it from the image that lower frequencies gave.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.spectrum import describe_waves, find_spectrum, match_waves, parse_waves
from plugstream.settings.changes import check_sigma
from plugstream.settings.fields import MOST_COUNT
from plugstream.settings.iteration import AlgorithmSettings

_EXAMPLE = "'2GHz: 30, sigma=0.2; 2-4GHz: 30; all'"
_MOST = 1000  # stages
_AUTO = 5  # stages of --hop auto at most
_RANGE = re.compile(r"\s*([0-9.]+)\s*-\s*([0-9.]+)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Stage:
    """A stage as the settings have it.

    Arguments: views, as they are named; steps, None where it goes on to the end of the run; sigma, the denoiser's noise
    level, None for that of the settings.
    """

    views: str
    steps: int | None = None
    sigma: float | None = None

    def __str__(self) -> str:
        """As the settings have it; numbers are written so that they are read back to the bit."""
        parts = [] if self.steps is None else [str(self.steps)]
        parts += [] if self.sigma is None else [f"sigma={self.sigma!r}"]
        return f"{self.views}: {', '.join(parts)}" if parts else self.views


@dataclass(frozen=True)
class StagePlan:
    """A stage of a scan whose views are known.

    Arguments: begin, how many steps are taken before it; name, for people; views, their numbers, ascending; sigma.
    """

    begin: int
    name: str
    views: NDArray[np.int64]
    sigma: float | None = None


def parse_stages(text: str) -> tuple[Stage, ...]:
    """The stages in a setting, in order; what cannot be is refused."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not 0 < len(parts) <= _MOST:
        raise InputError(f"there must be 1 to {_MOST} stages, not {len(parts)}; write {_EXAMPLE}")
    stages = tuple(map(_parse, parts))
    for stage, part in zip(stages[:-1], parts, strict=False):
        if stage.steps is None:
            raise InputError(f"the stage {part!r} does not say how many steps it has, as all but the last must")
    return stages


def open_end(text: str) -> str:
    """The same stages, the last of which goes on to the end of the run, however long that is."""
    stages = parse_stages(text)
    return "; ".join(map(str, (*stages[:-1], replace(stages[-1], steps=None))))


def plan_stages(settings: AlgorithmSettings, wavelengths: ArrayLike | None, n_views: int) -> tuple[StagePlan, ...]:
    """The stages of a scan, none where the settings ask for none; what the scan does not have is refused.

    Arguments: settings; wavelengths of the views, (views,), None where they are all of one; n_views.
    """
    if settings.stages is not None and settings.hop is not None:
        raise InputError("stages and a hop are both asked for; leave --stages or --hop out")
    waves = None if wavelengths is None else np.asarray(wavelengths, dtype=np.float64)
    if settings.hop is not None:
        bands = _hop(settings.hop, settings.hop_keep, waves)
        each = hop_steps(settings, len(bands))
        plans = [StagePlan(number * each, name, views) for number, (name, views) in enumerate(bands)]
    elif settings.stages is None:
        return ()
    else:
        stages, plans, begin = parse_stages(settings.stages), [], 0
        for stage in stages:
            name, views = _find_views(stage.views, waves, n_views)
            plans.append(StagePlan(begin, name, views, stage.sigma))
            begin += stage.steps or 0
        if stages[-1].steps is not None and begin != settings.iterations:
            raise InputError(
                f"the stages take {begin} steps, but {settings.iterations} iterations are asked for; use --iterations "
                f"{begin}, or leave the steps of the last stage out"
            )
    if plans[-1].begin >= settings.iterations:
        raise InputError(
            f"the last stage would begin after step {plans[-1].begin}, but {settings.iterations} iterations are asked "
            "for; use more --iterations"
        )
    return tuple(plans)


def hop_steps(settings: AlgorithmSettings, stages: int) -> int:
    """Steps of each stage of a hop but the last, which goes on to the end of the run."""
    return settings.hop_steps or max(1, settings.iterations // stages)


def _hop(text: str, keep: bool, waves: NDArray[np.float64] | None) -> list[tuple[str, NDArray[np.int64]]]:
    """Name and views of each stage of a hop, from low to high frequencies.

    Arguments: text, the frequencies, or "auto" for all of the scan in at most five parts; keep, whether a stage has
    the frequencies of the stages before it, too; waves, of the views.
    """
    if waves is None or len(np.unique(waves)) < 2:
        raise InputError("the scan is of one frequency, so there is nothing to hop to; leave --hop out")
    lengths = sorted(find_spectrum(waves).wavelengths, reverse=True)
    if text.strip().lower() == "auto":
        bands = [part.tolist() for part in np.array_split(np.array(lengths), min(_AUTO, len(lengths)))]
    else:
        bands = [[lengths[number]] for number in match_waves(parse_waves(text), lengths, "the scan")]
        if sorted(bands, reverse=True) != bands:
            raise InputError(f"a hop goes from low to high frequencies, and {text!r} does not; --stages goes any way")
    stages: list[tuple[str, NDArray[np.int64]]] = []
    chosen: list[float] = []
    for band in bands:
        chosen = [*chosen, *band] if keep else band
        stages.append((describe_waves(chosen), np.flatnonzero(np.isin(waves, chosen))))
    return stages


def _find_views(text: str, waves: NDArray[np.float64] | None, n_views: int) -> tuple[str, NDArray[np.int64]]:
    """Name and numbers of the views that a stage names: all, frequencies, or numbers of views."""
    if text.lower() == "all":
        return "all views", np.arange(n_views)
    if not re.search("[A-Za-z]", text):
        return f"views {text}", _numbers(text, n_views)
    if waves is None:
        raise InputError(f"the scan is of one frequency, so that {text!r} names no views of it; write their numbers")
    lengths = list(find_spectrum(waves).wavelengths)
    chosen: list[float] = []
    unit = ""
    for word in reversed([word.strip() for word in text.split(",") if word.strip()]):
        unit = match[0] if (match := re.search("[A-Za-z]+$", word)) else unit  # one without has that of the next
        span = _RANGE.fullmatch(word)
        if span is None:
            single = parse_waves(word if word.endswith(unit) else word + unit)
            chosen += [lengths[number] for number in match_waves(single, lengths, "the scan")]
            continue
        low, high = sorted(parse_waves(f"{end}{unit}")[0] for end in (span[1], span[2]))
        between = [wave for wave in lengths if low * 0.999 <= wave <= high * 1.001]
        if not between:
            raise InputError(f"the scan has no frequencies in {word!r}; it has {describe_waves(lengths)}")
        chosen += between
    return describe_waves(sorted(set(chosen))), np.flatnonzero(np.isin(waves, chosen))


def _numbers(text: str, n_views: int) -> NDArray[np.int64]:
    """The views of a list of numbers and ranges, such as 0-35,40, ascending."""
    ranges: list[NDArray[np.int64]] = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,12})\s*(?:-\s*([0-9]{1,12})\s*)?", word)
        if match is None:
            raise InputError(f"cannot read the views {text!r} of a stage; write 'all', 2,4GHz, 2-4GHz, or 0-35,40")
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high or high >= n_views:
            raise InputError(f"the views {word.strip()!r} of a stage do not exist: there are views 0 to {n_views - 1}")
        ranges.append(np.arange(low, high + 1))
    return np.unique(np.concatenate(ranges))


def _parse(text: str) -> Stage:
    """One stage, such as `2-4GHz: 30, sigma=0.1`."""
    views, colon, rest = (part.strip() for part in text.partition(":"))
    words = [word.strip() for word in rest.split(",") if word.strip()]
    steps, sigma = None, None
    for word in words:
        name, equals, value = (part.strip() for part in word.partition("="))
        count = word.removesuffix("steps").strip()
        if equals and name == "sigma" and sigma is None:
            try:
                number = float(value)
            except ValueError:
                raise InputError(f"sigma of the stage {text!r} must be a number, not {value!r}") from None
            sigma = check_sigma(number)
        elif steps is None and count.isdecimal() and count.isascii() and 0 < int(count[:13]) <= MOST_COUNT:
            steps = int(count[:13])
        else:
            raise InputError(f"cannot read {word!r} of the stage {text!r}; write {_EXAMPLE}")
    if not views or (colon and not words):
        raise InputError(f"cannot read the stage {text!r}; write {_EXAMPLE}")
    return Stage(views, steps, sigma)
