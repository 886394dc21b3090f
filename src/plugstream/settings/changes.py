"""Changes of sigma and the step while a run goes on: planned in its settings, or asked for and then written there.

    [algorithm]
    changes = "40: sigma=0.05; 80: step=0.5/L; 120: stop"

A change counts from the iteration after that step on. So the settings of a run that somebody steered repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from plugstream.base.errors import InputError
from plugstream.base.schedules import LONGEST_STEP, parse_step
from plugstream.settings.fields import LARGE, SMALL
from plugstream.settings.sections import Settings

__all__ = ["Change", "check_sigma", "check_step", "parse_changes", "with_changes"]

_MOST_STEPS = 10**12
_EXAMPLE = "'40: sigma=0.05; 80: step=0.5/L; 120: stop'"


@dataclass(frozen=True)
class Change:
    """What is different once so many steps have been taken; what is None stays as it is.

    Arguments: step; sigma, the denoiser's noise level; step_size, a number or a multiple of 1/L; stop, whether the run
    ends there.
    """

    step: int
    sigma: float | None = None
    step_size: float | str | None = None
    stop: bool = False

    def __str__(self) -> str:
        """As the settings have it; numbers are written so that they are read back to the bit."""
        parts = [] if self.sigma is None else [f"sigma={self.sigma!r}"]
        if self.step_size is not None:
            parts.append(f"step={self.step_size if isinstance(self.step_size, str) else repr(self.step_size)}")
        return f"{self.step}: {', '.join([*parts, *(['stop'] if self.stop else [])])}"


def parse_changes(text: str | None) -> tuple[Change, ...]:
    """The changes that a setting says, in the order of steps; what cannot be is refused."""
    changes = [_parse(part) for part in (text or "").split(";") if part.strip()]
    return tuple(sorted(changes, key=lambda change: change.step))


def with_changes(settings: Settings, changes: Iterable[Change]) -> Settings:
    """The settings with these changes in place of theirs."""
    text = "; ".join(map(str, changes)) or None
    return settings.model_copy(update={"algorithm": settings.algorithm.model_copy(update={"changes": text})})


def check_sigma(value: float) -> float:
    """A noise level; what is none is refused."""
    if value != 0 and not SMALL <= value <= LARGE:
        raise InputError(f"sigma must be a number >= 0, and at most {LARGE:g}, not {_short(value)}")
    return float(value)


def check_step(value: float | str) -> float | str:
    """A step, a number, a multiple of 1/L or one that follows the overlap; what is none is refused."""
    if isinstance(value, str) and ("L" in value or "overlap" in value):
        parse_step(value)
        return re.sub(r"\s+", "", value)
    value = _number(value, "the step") if isinstance(value, str) else value
    if not 0 < value <= LONGEST_STEP:
        raise InputError(f"the step must be more than 0 and finite, not {_short(value)}; write a number, or 0.5/L")
    return float(value)


def _short(value: float) -> str:
    """A number in words; one of hundreds of digits is no float, and nobody reads it."""
    return f"{value:g}" if -LARGE <= value <= LARGE or isinstance(value, float) else "one of so many digits"


def _parse(text: str) -> Change:
    """One change, such as `40: sigma=0.05, step=0.5/L`."""
    before, colon, after = text.partition(":")
    step, words = before.strip(), [word.strip() for word in after.split(",")]
    if not colon or not (step.isdecimal() and step.isascii()) or len(step) > 13 or int(step) > _MOST_STEPS:
        raise InputError(f"cannot read the change {text.strip()!r}; write {_EXAMPLE}")
    values: dict[str, str] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.partition("="))
        if name in values or ((name not in ("sigma", "step") or not value) and word != "stop"):
            raise InputError(f"cannot read {word!r} of the change {text.strip()!r}; write {_EXAMPLE}")
        values[name] = value
    if "stop" in values and int(step) == 0:
        raise InputError(f"a run cannot stop before its first step, as the change {text.strip()!r} says")
    sigma, size = values.get("sigma"), values.get("step")
    return Change(
        int(step),
        None if sigma is None else check_sigma(_number(sigma, "sigma")),
        None if size is None else check_step(size),
        "stop" in values,
    )


def _number(text: str, what: str) -> float:
    above, _, below = text.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{what} must be a number, not {text!r}") from None
