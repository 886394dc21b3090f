"""The Born model against the bare matrix product it cannot do without, at the paper's size.

The bare product is torch's `fields @ S.T` (forward) and `conj(z) @ S` (adjoint) on arrays that lie ready; the ratio is
what the model adds: forming u * x, the conjugates, the sum over views, the reading of fields. The naive adjoint
`(conj(u) * (z @ conj(S))).real.sum(0)` is timed beside it.

    python benchmarks/born.py [--device cuda] [--views 60 10 1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from plugstream import BornGeometry, BornModel


def milliseconds(*functions: Callable[[], object], repeats: int = 15) -> list[float]:
    """Median times, the functions taking turns so that a busy machine slows all of them alike."""
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(repeats + 2):
        for function, row in zip(functions, times, strict=True):
            _wait()
            begin = time.perf_counter()
            function()
            _wait()
            if turn >= 2:  # the first two turns warm caches and the library
                row.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(row) for row in times]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--views", type=int, nargs="+", default=[60, 10, 1])
    options = parser.parse_args()
    begin = time.perf_counter()
    model = BornModel(BornGeometry.paper(), device=options.device)
    where = torch.cuda.get_device_name() if options.device != "cpu" else f"CPU, {torch.get_num_threads()} threads"
    held = sum(t.numel() * t.element_size() for t in (model.green, model.fields))
    print(f"256 x 256, 60 views, 360 receivers on {where}; built in {time.perf_counter() - begin:.2f} s; ", end="")
    print(f"{held / 1e6:.0f} MB held")
    print(f"{'':22}{'bare product':>14}{'model':>10}{'ratio':>8}{'naive':>10}{'ratio':>8}   (ms, medians)")
    image, green = torch.rand(256, 256, device=options.device), model.green
    for count in options.views:
        views = None if count == 60 else torch.arange(count) * 60 // count
        fields = model.fields if views is None else model.fields[views.to(options.device)]
        induced, data = fields * image.flatten(), model.forward(image, views)
        turned = data.conj().resolve_conj()

        def bare(induced: torch.Tensor = induced) -> torch.Tensor:
            return induced @ green.T

        def bare_adjoint(turned: torch.Tensor = turned) -> torch.Tensor:
            return turned @ green

        def naive(fields: torch.Tensor = fields) -> torch.Tensor:
            return (fields * image.flatten()) @ green.T

        def naive_adjoint(fields: torch.Tensor = fields, data: torch.Tensor = data) -> torch.Tensor:
            return (fields.conj() * (data @ green.conj())).real.sum(0)

        def forward(views: torch.Tensor | None = views) -> torch.Tensor:
            return model.forward(image, views)

        def adjoint(views: torch.Tensor | None = views, data: torch.Tensor = data) -> torch.Tensor:
            return model.adjoint(data, views)

        rows: tuple[tuple[str, tuple[Callable[[], torch.Tensor], ...]], ...] = (
            ("forward", (bare, forward, naive)),
            ("adjoint", (bare_adjoint, adjoint, naive_adjoint)),
        )
        for name, functions in rows:
            a, b, c = milliseconds(*functions)
            print(f"{name}, {count:3d} views    {'':3}{a:14.2f}{b:10.2f}{b / a:8.2f}{c:10.2f}{c / a:8.2f}")


if __name__ == "__main__":
    main()
