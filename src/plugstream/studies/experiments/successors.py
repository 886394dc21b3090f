"""The methods that followed the paper, beside the best earlier ones: diffraction tomography, CT and MRI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from plugstream.studies.experiments.beyond import Row, cells_of, limit_choices, rows
from plugstream.studies.experiments.cells import Cell, Scale, Store
from plugstream.studies.experiments.runs import Spec
from plugstream.studies.experiments.setup import Problem

# What they are compared with: the lines of `beyond` that were the best online, and the best of all.
BEFORE = ("PnP-SGD(10), shifted", "PnP-ADMM(60)", "PnP-HQS(30), shifted, falling")
# The pictures that the other instruments see.
FOUR_PICTURES = ("house", "lenna", "monarch", "parrot")
# For other instruments: how many values of sigma are tried, and the methods with two settings.
_EVALUATIONS = 7
_FEW = ("admm", "hqs", "ipa", "block-admm", "inexact-admm", "red", "snore")


def successor_rows(scale: Scale, instrument: str = "born-2d") -> list[Row]:
    """The table's lines for an instrument, earlier methods first.

    For instruments other than the paper's, sigma has a wider range, there are lines that weigh pixels or samples, and
    only the first setting of each line is tried, or the first two for methods of `_FEW`, where the step matters most.
    """
    plain = Spec(iterations=scale.calls[0])
    if instrument == "born-2d":
        return _paper_rows(scale)
    if instrument == "mri-density":
        weighted = tuple(replace(plain, step=step) for step in (4.0, 8.0)[: scale.choices])
        return [Row("PnP-SGD(10), shifted, density", weighted, 0.3, 30.0)]
    lines = []
    for line in _paper_rows(scale):
        count = 2 if line.choices[0].method in _FEW else 1
        lines.append(replace(line, choices=line.choices[:count], low=line.low / 3, high=3 * line.high))
    if instrument == "ct":
        each = replace(plain, gradient="diagonal")
        lines.append(Row("PnP-SGD(10), shifted, a step for each pixel", (each,), 0.3, 30.0, "an image"))
    return lines


def _paper_rows(scale: Scale) -> list[Row]:
    """Methods with a gradient step get `scale.calls[0]` steps, and those that invert the data `scale.calls[1]`.

    Most of ProxSkip's steps call no denoiser.
    """
    many, few = scale.calls
    plain = Spec(iterations=many)

    def skip(p: float, *momenta: str, **more: Any) -> tuple[Spec, ...]:
        base = replace(plain, method="proxskip", options=(("denoise_probability", p),), **more)
        return tuple(replace(base, momentum=momentum) for momentum in momenta)

    def red(method: str, *tau: str, **more: Any) -> tuple[Spec, ...]:
        return tuple(replace(plain, method=method, options=(("tau", value),), **more) for value in tau)

    def runs(inner: int, steps: int) -> tuple[Spec, ...]:
        base = replace(plain, method="sgd-splitting", options=(("inner_steps", inner),), iterations=steps)
        return tuple(replace(base, sigma_end=end) for end in (0.25, 0.1))

    def split(method: str, views: int, *steps: float) -> tuple[Spec, ...]:
        return tuple(Spec(method, views=views, step=step, iterations=few) for step in steps)

    def after_tv(*steps: float) -> tuple[Spec, ...]:
        return tuple(replace(one, iterations=12, opening=("tv", 8, 3.0)) for one in split("inexact-admm", 30, *steps))

    anneal = {"momentum": "bounded", "step_end": 0.3, "sigma_end": 0.2}
    lines = [
        *(line for line in rows(scale) if line.name in BEFORE),
        Row("inexact ADMM(30), shifted", split("inexact-admm", 30, 300.0, 100.0, 30.0), 3.0, 60.0, "two images"),
        Row("inexact ADMM(10), shifted", split("inexact-admm", 10, 30.0, 100.0), 3.0, 60.0, "two images"),
        Row("inexact ADMM(30), shifted, TV first", after_tv(300.0, 100.0, 30.0), 3.0, 60.0, "two images"),
        Row("ProxSkip(10), shifted, p = 0.1", skip(0.1, "bounded", "bounded:5", "bounded:8"), memory="one image"),
        Row("ProxSkip(10), shifted, p = 0.2", skip(0.2, "bounded", "bounded:8"), memory="one image"),
        Row("ProxSkip(10), shifted, p = 0.5", skip(0.5, "bounded", "nesterov"), memory="one image"),
        Row("ProxSkip(60), p = 0.1", skip(0.1, "bounded", "bounded:8", sampler="all", views=None), memory="one image"),
        Row("splitting(10), shifted, 3 runs of 27 steps", runs(27, 81), 3.0, 60.0),
        Row("splitting(10), shifted, 4 runs of 20 steps", runs(20, 80), 3.0, 60.0),
        Row("online RED(10), shifted", red("red", "0.5L", "L", "0.2L")),
        Row("SNORE(10), shifted", red("snore", "0.05L", "0.1L", momentum="bounded"), 0.3, 20.0),
        Row("SNORE(10), shifted, annealed", red("snore", "0.05L", "0.1L", **anneal), 1.0, 60.0),
        Row("PnP-SGD(10), shifted, turned at random", (replace(plain, equivariant="random"),)),
        Row("online RED(10), shifted, turned at random", red("red", "0.5L", equivariant="random")),
        Row("PnP-SGD(10), shifted, TV first", tuple(replace(plain, opening=("tv", n, 3.0)) for n in (60, 30))),
        Row("IPA(10), shifted", split("ipa", 10, 10.0, 30.0, 100.0), 1.0, 60.0, "two images"),
        Row("IPA(30), shifted", split("ipa", 30, 30.0, 100.0, 10.0), 1.0, 60.0, "two images"),
        Row("ADMM by blocks of 10", split("block-admm", 10, 100.0, 300.0), 3.0, 60.0, "13 images"),
        Row("ADMM by blocks of 30", split("block-admm", 30, 300.0, 100.0), 3.0, 60.0, "5 images"),
        # The dearest last, since time may be short.
        Row("PnP-SGD(10), shifted, mean over turns", (replace(plain, equivariant="mean"),)),
    ]
    return limit_choices(lines, scale)


def successor_cells(
    problem: Problem, store: Store, scale: Scale, names: Sequence[str] | None = None
) -> dict[str, Cell]:
    """The cells of all lines, or of those with these names; instruments other than the paper's get fewer trials."""
    lines, prefix = successor_rows(scale, problem.instrument), "successors"
    if problem.instrument != "born-2d":
        prefix = f"successors-{problem.instrument}"
        scale = replace(scale, evaluations=min(scale.evaluations, _EVALUATIONS))
    return cells_of([line for line in lines if names is None or line.name in names], problem, store, scale, prefix)
