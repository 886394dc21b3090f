"""How much of an experiment to run: all of it, as the documentation shows it, or a quick look on two cores."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Scale"]


@dataclass(frozen=True)
class Scale:
    """Sizes of the experiments.

    name: of the folder of cells. images: which of the pictures, all if None. steps: iterations of FISTA and PnP-SGD.
    splits: of PnP-ADMM. grid, evaluations: of the search for sigma; without evaluations, what a full search found is
    taken (`known_settings`). choices: how many settings of each method are tried. distance_steps, distance_every:
    iterations of Table 1 at the step 1/L, and between two distances. calls: denoiser calls of the methods of `beyond`,
    and of those that invert the data in every step.
    """

    name: str
    images: tuple[str, ...] | None
    steps: int
    splits: int
    grid: int
    evaluations: int
    choices: int
    distance_steps: int
    distance_every: int
    calls: tuple[int, int]


FULL = Scale(
    name="cells",
    images=None,
    steps=150,
    splits=40,
    grid=5,
    evaluations=10,
    choices=3,
    distance_steps=500,
    distance_every=5,
    calls=(100, 25),
)
QUICK = Scale(
    name="cells-quick",
    images=("monarch", "parrot"),
    steps=100,
    splits=20,
    grid=3,
    evaluations=0,
    choices=1,
    distance_steps=40,
    distance_every=4,
    calls=(60, 25),
)
