"""What may be wrong in a scan, and the models that its views would then have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from plugstream.models.base import Model


@dataclass(frozen=True)
class Trial:
    """One way in which views may differ from the scan: a model of just these views, in the same order.

    Arguments: label, in words, such as "1 pixel"; build, which makes the model; turn, a function of the data.
    """

    label: str
    build: Callable[[], Model]
    turn: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Suspect:
    """Something that may be wrong in a scan: its name, what to do about it, and what to try.

    Arguments: any_phase, whether trials leave the common phase of all data open; refine, a parameter that the model can
    refine along with the image, instead of trials.
    """

    name: str
    advice: str
    trials: tuple[Trial, ...] = ()
    any_phase: bool = False
    refine: str = ""
