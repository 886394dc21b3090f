"""Steps and noise levels that change with the iteration, as plain functions of its number k = 1, 2, ..."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plugstream.base.errors import InputError

Schedule = Callable[[int], float]
Number = float | Schedule
"""A constant, or a function of the iteration k = 1, 2, ..."""


@dataclass(frozen=True)
class OverL:
    """A step given as a multiple of 1/L, which may itself be a schedule: gamma_k = multiple(k) / L."""

    multiple: Number = 1.0


@dataclass(frozen=True)
class Overlap:
    """A step that follows how much the B views of a batch overlap: gamma_k = multiple(k) B / max(overlap).

    The overlap is the diagonal of sum_i H_i^H H_i (`Model.overlap`), times the curvature of the loss at a fit. It is
    1/L of the batch, whereas 1 / max_i L_i holds for any batch, even of one view B times. With SAGA and SVRG, whose
    noise dies out, the step is the same for all batches, by the overlap that they are expected to have.
    """

    multiple: Number = 1.0


@dataclass(frozen=True)
class Geometric:
    """From `start` to `stop` by equal factors over `steps` iterations, and `stop` from then on.

    >>> import plugstream as ps
    >>> sigma = ps.Geometric(0.08, 0.02, 3)
    >>> [round(sigma(k), 3) for k in (1, 2, 3, 4)]
    [0.08, 0.04, 0.02, 0.02]
    """

    start: float
    stop: float
    steps: int

    def __post_init__(self) -> None:
        if self.start <= 0 or self.stop <= 0 or self.steps < 1:
            raise InputError("a geometric schedule needs start > 0, stop > 0 and steps >= 1")

    def __call__(self, k: int) -> float:
        fraction = min(1.0, (k - 1) / max(1, self.steps - 1))
        return float(self.start * (self.stop / self.start) ** fraction)


@dataclass(frozen=True)
class Power:
    """start / k^exponent: with exponent 1/2 the decreasing step of stochastic approximation."""

    start: float
    exponent: float = 0.5

    def __call__(self, k: int) -> float:
        return float(self.start / k**self.exponent)


@dataclass(frozen=True)
class Cooling:
    """1 in the first third of `steps` iterations, then to `stop` by equal factors, and `stop` from then on.

    For parameters found by noisy steps: long ones until they are close, then shorter ones, which average the noise.
    """

    stop: float
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.stop <= 1 or self.steps < 1:
            raise InputError("cooling needs stop above 0 and up to 1, and steps >= 1")

    def __call__(self, k: int) -> float:
        third = self.steps // 3
        return float(self.stop ** min(1.0, max(0, k - third) / max(1, self.steps - third)))


def value_at(value: Number, k: int) -> float:
    """The value of a number or schedule at iteration k."""
    found: Any = value(k) if callable(value) else value
    try:
        return float(found) if not isinstance(found, str) else float("")
    except (TypeError, ValueError):
        raise InputError(
            f"sigma, lam and steps are numbers or functions of the iteration, not {found!r}; only the command line "
            "reads shares such as '1%'"
        ) from None


LONGEST_STEP = 1e100
"""Beyond this, a step or a multiple of 1/L is a mistake, and products overflow."""

_STEP = re.compile(r"\s*(?P<a>[\d.eE+-]+)?\s*/\s*\(?\s*(?P<b>[\d.]+)?\s*\*?\s*L\s*\)?\s*")
_OVERLAP = re.compile(r"\s*(?:(?P<a>[\d.eE+-]+)\s*\*?\s*)?overlap\s*")


def parse_step(text: str) -> OverL | Overlap:
    """Read a step as people write it: "1/L", "0.5/L", "1/(4L)", "1/16L" (which is 1/(16 L), as in the paper), and
    "overlap" or "0.5 overlap"."""
    match, follows = _STEP.fullmatch(text), _OVERLAP.fullmatch(text)
    try:
        if match is None and follows is None:
            raise ValueError
        multiple = float(match["a"] or 1) / float(match["b"] or 1) if match else float(follows["a"] or 1)  # type: ignore[index]
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"cannot read the step {text!r}; write a number, a multiple of 1/L such as 0.5/L, or overlap"
        ) from None
    if not 0 < multiple <= LONGEST_STEP:
        raise InputError(f"a step must be more than 0 and finite, not {text!r}; write a multiple of 1/L such as 0.5/L")
    return OverL(multiple) if match else Overlap(multiple)
