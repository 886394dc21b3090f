"""What monitors measure: each quantity's name, its unit, if smaller is better, and if a run may stop on it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # lists of names read this file, and do not wait for NumPy
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Quantity:
    """A number that a monitor measures now and then for each image, and what it says about the image.

    Arguments:
        name: in histories, events and history.csv. title: in words; the name if not given. short: instead of title and
        unit where space is short. unit: "" if it has none. form: Python's format of the number, such as ".2f".
        curve: the title of its curve; title and unit if not given. logarithmic: whether the curve's scale is.
        smaller_is_better: None if the value does not say how good the image is. needs_truth: whether it compares with
        the truth. stops: whether a run may stop once the value is good enough. detail: whether it appears only in
        tables and files, not in lines or curves.
    """

    name: str
    title: str = ""
    short: str = ""
    unit: str = ""
    form: str = ".4g"
    curve: str = ""
    logarithmic: bool = False
    smaller_is_better: bool | None = None
    needs_truth: bool = False
    stops: bool = False
    detail: bool = False

    @property
    def label(self) -> str:
        """What stands above a curve."""
        title = self.title or self.name
        return self.curve or (f"{title} ({self.unit})" if self.unit else title)

    def text(self, value: float, *, short: bool = False) -> str:
        """A value in words, such as "SNR 21.30 dB"."""
        title, unit = self.title or self.name, self.unit
        if short and self.short:
            title, unit = self.short, ""
        return f"{title} {value:{self.form}} {unit}".rstrip()

    def score(self, value: float) -> float | None:
        """The value with a sign such that larger is better; None if it does not say."""
        return None if self.smaller_is_better is None else -value if self.smaller_is_better else value

    def reaches(self, value: float, limit: float) -> bool:
        """Whether a run with this limit may stop."""
        return value >= limit if self.smaller_is_better is False else value <= limit

    def content(self) -> dict[str, Any]:
        """The quantity as an event stores it; `read_quantity` reads it."""
        return asdict(self)


TO_GO = Quantity(
    "to_go",
    "still to go",
    unit="%",
    form=".2g",
    curve="what ten times as many steps would change (%)",
    logarithmic=True,
)
"""What `solve` itself reports besides the monitors: how far the image still has to go, in per cent."""
HELD_OUT = "held_out"
"""The name of the misfit on data that no step uses, which is not measured any more once a search has ended."""


@dataclass(frozen=True)
class Series:
    """A quantity over the steps of a run: the steps, the algorithm's time in seconds, and the values.

    `value` has a row for each measurement, with the leading axes of the image.
    """

    step: NDArray[np.int64]
    time: NDArray[np.float64]
    value: NDArray[np.float64]
    quantity: Quantity


def read_quantity(content: dict[str, Any]) -> Quantity:
    """A quantity from an event; fields that this version does not know are ignored."""
    fields = Quantity.__dataclass_fields__
    return Quantity(**{name: value for name, value in content.items() if name in fields})


def sort_quantities(
    quantities: Iterable[Quantity], measured: Container[str], *, stop_first: bool = False
) -> list[Quantity]:
    """The measured quantities to show, the most important first: those that compare with the truth, then the others.

    With `stop_first`, quantities that a run may stop on come before these. Details are left out.
    """
    visible = [quantity for quantity in quantities if quantity.name in measured and not quantity.detail]
    return sorted(visible, key=lambda quantity: (stop_first and not quantity.stops, not quantity.needs_truth))
