"""Changes of sigma and the step during a run: planned in its settings, or asked for and then written there.

    [algorithm]
    changes = "40: sigma=0.05; 80: step=0.5/L; 120: stop"

A change holds from the iteration after that step on. So the settings of a run that somebody steered repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from plugstream.base.errors import InputError
from plugstream.base.schedules import LONGEST_STEP, parse_step
from plugstream.settings.fields import LARGE, MOST_COUNT, SMALL
from plugstream.settings.sections import Settings

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
    """The changes in a setting, in the order of steps; what cannot be is refused."""
    changes = [_parse(part.strip()) for part in (text or "").split(";") if part.strip()]
    return tuple(sorted(changes, key=lambda change: change.step))


def with_changes(settings: Settings, changes: Iterable[Change]) -> Settings:
    """The settings with these changes in place of theirs."""
    text = "; ".join(map(str, changes)) or None
    return settings.model_copy(update={"algorithm": settings.algorithm.model_copy(update={"changes": text})})


def check_sigma(value: float) -> float:
    """A noise level; anything else is refused."""
    if value != 0 and not SMALL <= value <= LARGE:
        raise InputError(f"sigma must be a number >= 0, and at most {LARGE:g}, not {_short(value)}")
    return float(value)


def check_step(value: float | str) -> float | str:
    """A step: a number, a multiple of 1/L or one that follows the overlap; anything else is refused."""
    if isinstance(value, str) and ("L" in value or "overlap" in value):
        parse_step(value)
        return re.sub(r"\s+", "", value)
    value = _number(value, "the step") if isinstance(value, str) else value
    if not 0 < value <= LONGEST_STEP:
        raise InputError(f"the step must be more than 0 and finite, not {_short(value)}; write a number, or 0.5/L")
    return float(value)


def _short(value: float) -> str:
    """A number in words; an integer of hundreds of digits is no float, and nobody reads it."""
    return f"{value:g}" if -LARGE <= value <= LARGE or isinstance(value, float) else "one of so many digits"


def _parse(text: str) -> Change:
    """One change, such as `40: sigma=0.05, step=0.5/L`."""
    match = re.fullmatch(r"([0-9]{1,13})\s*:(.*)", text, re.DOTALL)
    if match is None or int(match[1]) > MOST_COUNT:
        raise InputError(f"cannot read the change {text!r}; write {_EXAMPLE}")
    step, values = int(match[1]), dict[str, str]()
    for word in map(str.strip, match[2].split(",")):
        name, _, value = (part.strip() for part in word.partition("="))
        if name in values or ((name not in ("sigma", "step") or not value) and word != "stop"):
            raise InputError(f"cannot read {word!r} of the change {text!r}; write {_EXAMPLE}")
        values[name] = value
    if "stop" in values and step == 0:
        raise InputError(f"a run cannot stop before its first step, as the change {text!r} says")
    sigma = check_sigma(_number(values["sigma"], "sigma")) if "sigma" in values else None
    return Change(step, sigma, check_step(values["step"]) if "step" in values else None, "stop" in values)


def _number(text: str, quantity: str) -> float:
    above, _, below = text.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{quantity} must be a number, not {text!r}") from None
