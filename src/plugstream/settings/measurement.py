"""The settings of what is measured while a run goes on, and the monitors that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from plugstream.base.errors import InputError
from plugstream.base.registry import find
from plugstream.settings.choices import Selection, selected_names
from plugstream.settings.fields import MOST_COUNT, SWITCH

__all__ = ["MonitorSettings"]


class MonitorSettings(Selection):
    """What is measured while it runs; the time for it is not counted as the algorithm's."""

    kind = "monitor"
    names: tuple[str, ...] = Field(
        ("distance", "snr"),
        description="measure this too, one that is listed by 'plugstream monitors' or FILE.py:NAME",
        json_schema_extra={"flag": "monitor", "adds": True},
    )
    every: int = Field(10, ge=1, le=MOST_COUNT, description="steps between two measurements")
    measured_views: int | None = Field(
        None,
        ge=1,
        le=MOST_COUNT,
        description="views to measure distance and cost on, evenly spaced; if not given all of a scan in memory or "
        "with --watch-theory, and up to 1000 of a larger one",
    )
    hold_out: int | None = Field(
        None,
        ge=2,
        le=MOST_COUNT,
        description="use every so many-th view in no step, and measure the misfit on those: 10 holds out a tenth",
    )
    watch_theory: bool = Field(
        False,
        description="compare with the bound of Proposition 5, and warn where a step contradicts the theory",
        json_schema_extra=SWITCH,
    )

    def check(self, shape: Sequence[int], *, truth: bool) -> None:
        """Refuse to measure what a scan does not allow.

        Arguments: shape of the image, with its channels; truth, whether it is known.
        """
        for name in self.names:
            facts, flag = find(self.kind, name).facts, f"--monitor {name}" if ":" in name else f"--{name}"
            if facts.get("truth", False) and not truth and name not in _USUAL:
                raise InputError(f"{flag} compares with the truth, which this scan does not have; leave it out")
            if facts.get("axes", len(shape)) != len(shape):
                raise InputError(
                    f"{flag} is for images of {facts['axes']} axes, and these have {len(shape)}; leave it out"
                )
            least = facts.get("least", 1)
            if min(shape[-2:]) < least:
                raise InputError(f"{flag} needs an image of at least {least} x {least} pixels; leave it out")

    def assemble(self, truth: Any, views: Any, *, also: Sequence[str] = ()) -> list[Any]:
        """The monitors, those of `also` among them; without a truth those that need none.

        Arguments: truth, None where it is not known; views, from a fidelity to those of its views to measure on.
        """
        names = selected_names(type(self), {"names": [*self.names, *also]})
        possible = [n for n in names if truth is not None or not find(self.kind, n).facts.get("truth", False)]
        return [self.build(name, truth, views) for name in possible]


_USUAL: tuple[str, ...] = MonitorSettings.model_fields["names"].default
