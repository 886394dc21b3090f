"""How good the sigma is that a run finds by itself, and what it costs: pictures at three levels of noise.

    python benchmarks/sigma_search.py ../shared/data/paper-images --device cuda
    python benchmarks/sigma_search.py ../shared/data/images/BSD68 --count 8 --device cuda
    python benchmarks/sigma_search.py ../shared/data/paper-images --count 2 --instrument ct mri fpm
    python benchmarks/sigma_search.py ../shared/data/paper-images --count 2 --instrument ct --views 6 --judge views

Of each picture the scan of the paper (60 views, 360 receivers) is made, with noise of its own, and with --instrument
small scans of others. The best sigma is found with the truth: plain runs over a grid of sigma, and once more at the top
of the parabola through the best three. Against it, what `plugstream reconstruct scan.zarr` does: steps that search,
judged by held-out data, and as many as a fifth of them with all; and of the other instruments the sigma that they
advise without a search. Of ptychography the SNR is that where beams reach the image, unless --everywhere is said: what
is elsewhere no data tells. With --views scans have so many, and --judge says whether views judge or a tenth of each
one's data, in place of what runs do. Prints the average and the worst difference in SNR, and the denoiser calls.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.algorithms import BoundedMomentum, DenoiserRace, ProximalGradient, SigmaRace
from plugstream.algorithms.sampling import Uniform
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of, make_experiment, settings_of
from plugstream.denoisers import Denoiser
from plugstream.fidelity.least_squares import LeastSquares
from plugstream.images.pictures import load_picture
from plugstream.images.simulated import add_noise
from plugstream.models.born import BornModel
from plugstream.models.born_geometry import BornGeometry
from plugstream.models.part import PartOfData
from plugstream.runs.advice import advised_settings
from plugstream.runs.events import Views
from plugstream.runs.measuring import held_out_views, usable_views
from plugstream.runs.parts import goes_by_lipschitz
from plugstream.runs.plan import plan
from plugstream.runs.search import advised_sigma, judges_by_data, make_race, search_interval
from plugstream.scans.scan import Scan
from plugstream.scans.simulation import measure
from plugstream.solver.monitors import snr

sys.path.append(str(Path(__file__).resolve().parents[1]))  # of the checkout

from reproduction.paper import PerImage
from reproduction.runs import make_denoiser

GRID = np.geomspace(0.002, 0.35, 14)
STEPS, SEARCH, AFTER, BATCH = 100, 200, 40, 10
# A tenth of a first image's range that is a third of the image's; the paper's images reach from 0 to 1.
START = {"tv": 0.11, "bm3d": 0.03, "tnrd": 0.03}
MOMENTA: dict[str, Any] = {"bounded": BoundedMomentum(8.0), "nesterov": "nesterov"}
# Of ptychography, the part of the most light of all exposures from which on a pixel counts.
LIT = 0.1
# Of other instruments a small scan, what says how noisy it is, and three values of that.
OTHERS: dict[str, tuple[tuple[Any, ...], str, tuple[float, ...]]] = {
    "born-2d": (("--size", 64, "--width", 0.045, "--views", 60, "--receivers", 180), "--input-snr", (20, 30, 40)),
    "ct": (("--size", 64, "--views", 60), "--photons", (1e3, 1e4, 1e5)),
    "mri": (("--size", 64), "--input-snr", (10, 20, 30)),
    "fpm": (("--size", 96, "--camera", 32, "--leds", 9), "--photons", (200, 2000, 20000)),
    "ptychography": (("--frame", 32, "--across", 8), "--photons", (200, 2000, 20000)),
    "scattering-2d": (
        ("--size", 48, "--width", 0.034, "--views", 24, "--receivers", 90),
        "--input-snr",
        (10, 20, 30),
    ),
    "odt-3d": (("--size", 16, "--views", 40), "--input-snr", (10, 20, 30)),
}


def best_over(scores: Callable[[np.ndarray], list[float]], grid: np.ndarray) -> tuple[float, float]:
    """The largest score over a grid in equal ratios and at the top of the parabola through the best three; where."""
    known = dict(zip(grid.tolist(), scores(grid), strict=True))
    at = min(max(int(np.argmax([known[sigma] for sigma in grid])), 1), len(grid) - 2)
    low, top, high = (known[sigma] for sigma in grid[at - 1 : at + 2])
    bend = low - 2 * top + high
    place = 0.5 * (low - high) / bend if bend < 0 else 0.0
    last = np.array([grid[at] * math.exp(float(np.clip(place, -1, 1)) * math.log(grid[1] / grid[0]))])
    known |= dict(zip(last.tolist(), scores(last), strict=True))
    sigma = max(known, key=lambda one: known[one])
    return known[sigma], sigma


def best_with_truth(fidelity: LeastSquares, denoiser: Denoiser, truth: Tensor) -> tuple[float, float]:
    """The largest SNR of plain runs of the paper's scan, and its sigma."""

    def run(sigmas: np.ndarray) -> list[float]:
        levels = torch.as_tensor(sigmas, dtype=truth.dtype, device=truth.device)
        algorithm = ProximalGradient(
            fidelity, PerImage(denoiser, levels), sigma=1.0, sampler=Uniform(BATCH), momentum="nesterov"
        )
        state = algorithm.init(torch.zeros(len(levels), *truth.shape, dtype=truth.dtype, device=truth.device))
        for _ in range(STEPS):
            state = algorithm.step(state)
        found: list[float] = snr(state.image, truth, truth.ndim).tolist()
        return found

    return best_over(run, GRID)


def find_image(fidelity: LeastSquares, name: str, momentum: str = "bounded") -> tuple[Any, Any, float]:
    """The algorithm and its last state of a run of the paper's scan that searches for sigma, and what it found."""
    views = torch.arange(fidelity.n_views)
    out = views % 10 == 9
    fewer = fidelity.with_views(fidelity.model, views[~out], lipschitz_max=fidelity.lipschitz_max)
    algorithm = ProximalGradient(
        fewer, make_denoiser(name), sigma=START[name], sampler=Uniform(BATCH), momentum=MOMENTA[momentum]
    )
    race = SigmaRace(algorithm, views[out], SEARCH, patient=False)
    return go_on(race, AFTER, replace(algorithm, fidelity=fidelity))


def go_on(race: SigmaRace, after: int, whole: Any) -> tuple[Any, Any, float]:
    """A race and the steps after it: the algorithm that goes on, its last state, and the sigma that was found."""
    state = race.init()
    while not state.ended:
        state = race.step(state)
    if isinstance(race, DenoiserRace):
        whole = replace(whole, denoiser=race.finish(state)[0].denoiser)
    going, last = race.finish(state, whole)
    for _ in range(after):
        last = going.step(last)
    return going, last, state.sigma


class Problem:
    """A scan of any instrument, with the settings that the command advises.

    Arguments: scan; words that are typed besides; everywhere, that of ptychography pixels count which hardly any light
    reaches, too.
    """

    def __init__(self, scan: Scan, words: tuple[str, ...] = (), *, everywhere: bool = False) -> None:
        typed = ["scan.zarr", "--instrument", scan.instrument.name, *words]
        parsed = command_parser("reconstruct", typed).parse_args(typed)
        settings, _ = advised_settings(draft_of(parsed), scan)
        self.scan, self.planned = scan, plan(settings, scan)
        model = self.planned.model(scan.columns, scan.n_views)
        self.whole = self.planned.parts.fidelity(model, scan.read())
        self.planned = self.planned.with_bounds(self.planned.settle_bounds(self.whole, scan.columns))
        self.settings = self.planned.settings
        assert scan.truth is not None
        self.truth = torch.from_numpy(scan.truth).to(model.device)
        self.where: Tensor | None = None
        self.chosen = self.settings.denoiser.name
        if scan.instrument.name == "ptychography" and not everywhere:
            light = self.whole.overlap()
            assert light is not None
            self.where = light > LIT * light.max()

    @classmethod
    def of_search(cls, scan: Scan, words: tuple[str, ...], *, everywhere: bool = False) -> tuple[Problem, int]:
        """The problem with a search, also where none is advised, and the steps of a plain run."""
        made = cls(scan, words, everywhere=everywhere)
        a = made.settings.algorithm
        if a.search is None:
            search = ("--search", f"{a.iterations * 5 // 2}")
            return cls(scan, (*words, *search), everywhere=everywhere), a.iterations
        advised = advised_sigma(made.settings, scan.instrument, scan.columns, scan.n_views)
        return made, a.iterations * 5 // 12 if advised is None else a.iterations // 3

    def snr(self, image: Tensor) -> float:
        """Of an image, in dB; of ptychography where beams reach it, since no data tells what is elsewhere."""
        truth = self.truth
        if self.where is not None:
            image, truth = (torch.where(self.where, one, 0) for one in (image, truth))
        return float(snr(image, truth, truth.ndim, phase=self.scan.instrument.image.phase))

    def run(self, sigma: float, steps: int) -> float:
        """The SNR of a plain run."""
        algorithm: Any = replace(self.planned.algorithm(self.whole), sigma=sigma)  # type: ignore[type-var]
        state = algorithm.init()
        for _ in range(steps):
            state = algorithm.step(state)
        return self.snr(state.image)

    def run_all(self, steps: int, sigmas: np.ndarray) -> list[float]:
        """The SNR of a plain run with each sigma."""
        return [self.run(sigma, steps) for sigma in sigmas.tolist()]

    def find(self, by: str | None = None) -> tuple[float, float, int]:
        """The SNR of a run that searches for sigma, that sigma, and its denoiser calls.

        Arguments: by, what judges, "views" or "data"; what runs go by if not given.
        """
        a, n_views, model = self.settings.algorithm, self.scan.n_views, self.whole.model
        assert a.search is not None
        record = Views(0, n_views, (), None, True)
        known = self.whole.has_lipschitz and goes_by_lipschitz(self.settings)
        bound = self.whole.lipschitz_max if known else None
        judge = None
        if judges_by_data(self.settings, n_views) if by is None else by == "data":
            judges = torch.arange(n_views)
            fewer = self.whole.with_views(PartOfData(model), lipschitz_max=bound)
            judge = self.whole.with_views(PartOfData(model, judge=True))
        else:
            every = search_interval(self.settings, n_views) or min(10, n_views // 2)
            judges = held_out_views(record, every)
            fewer = self.whole.with_views(model, usable_views(record, every), lipschitz_max=bound)
        advised = advised_sigma(self.settings, self.scan.instrument, self.scan.columns, n_views)
        names = self.settings.denoiser.rival_names
        rivals = [self.planned.with_denoiser(name).denoiser for name in names]
        race = make_race(self.settings, self.planned.algorithm(fewer), judges, advised, judge, rivals)
        going, state, sigma = go_on(race, a.iterations - a.search, self.planned.algorithm(self.whole))
        self.chosen = (self.settings.denoiser.name, *names)[[race.denoiser, *rivals].index(going.denoiser)]
        return self.snr(state.image), sigma, state.k


def simulate(name: str, picture: Path, level: float, views: int | None = None, size: int | None = None) -> Scan:
    """A small scan of a picture, of so many views and pixels a side; as many as usual if not given."""
    words, flag, _ = OTHERS[name]
    said = dict(zip(words[::2], words[1::2], strict=True))
    if size is not None:
        if "--width" in said:
            said["--width"] *= size / said["--size"]
        said["--size"] = size
    if views is not None:
        full = math.pi / 2 * said.get("--size", 0)  # spokes
        said |= {"--acceleration": full / views} if name == "mri" else {"--views": views}
    words = tuple(f"{word:.9g}" if isinstance(word, float) else f"{word}" for pair in said.items() for word in pair)
    shown = () if name == "odt-3d" else ("--picture", str(picture))  # which has an object of its own
    typed = ["scan.zarr", "--instrument", name, *words, *shown, flag, f"{level:g}"]
    settings = settings_of(command_parser("simulate", typed).parse_args(typed))
    made = make_experiment(settings)
    model = made.instrument.build_model(
        made.columns,
        made.n_views,
        settings.instrument.options,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    assert settings.simulate is not None
    return measure(made, model, settings.simulate.options)


def compare_instrument(name: str, pictures: list[Path], denoiser: str, asked: argparse.Namespace) -> None:
    """Print the rows of an instrument: the best sigma, the one that it advises, and the one that is found."""
    words = ("--denoiser", denoiser, "--device", asked.device, *(("--loss", asked.loss) if asked.loss else ()))
    for level in asked.levels or OTHERS[name][2]:
        rows = []
        for path in pictures:
            scan = simulate(name, path, level, asked.views, asked.size)
            searched, steps = Problem.of_search(scan, words, everywhere=asked.everywhere)
            begin = searched.settings.algorithm.sigma
            assert begin is not None
            once = ("--search", "none", "--sigma", f"{begin:.9g}", "--iterations", f"{steps}")
            plain = Problem(scan, (*words, *once), everywhere=asked.everywhere)
            grid = begin * np.geomspace(1 / asked.span, asked.span, 13)
            best, sigma = best_over(partial(plain.run_all, steps), grid)
            found, value, calls = searched.find(asked.judge)
            rows.append((best, plain.run(begin, steps) - best, found - best, value / sigma, calls))
        best, advised, found, ratio, calls = np.array(rows).T
        spread = f"{np.exp(np.log(ratio).mean()):.2f} ({ratio.min():.2f} to {ratio.max():.2f})"
        figures = (
            f"{best.mean():8.2f}{advised.mean():+9.2f}{advised.min():+8.2f}{found.mean():+8.2f}{found.min():+8.2f}"
        )
        seen = f"{name}, {scan.n_views}"
        print(f"{seen:18}{denoiser:6}{level:7g}{figures}{spread:>21}{calls.max():7.0f} of {steps}", flush=True)


def compare(
    pictures: list[Path], size: int, device: str, denoisers: list[str], momentum: str, levels: list[float] | None
) -> None:
    """Print the table of the paper's scan."""
    model = BornModel(BornGeometry.paper(size), device=device)
    print(f"{len(pictures)} pictures of {size} x {size}: {', '.join(path.stem for path in pictures)}")
    print(f"{'denoiser':9}{'input':>7}{'best':>8}{'found':>8}{'mean':>8}{'worst':>8}{'sigma / best':>20}{'calls':>7}")
    for name in denoisers:
        for level in levels or (20.0, 30.0, 40.0):
            rows = []
            for seed, path in enumerate(pictures):
                truth = load_picture(path, size).to(device=model.device, dtype=model.dtype)
                data = add_noise(model.forward(truth).cpu(), level, seed=seed)
                fidelity = LeastSquares(model, data)
                best, sigma = best_with_truth(fidelity, make_denoiser(name), truth)
                _, state, found = find_image(fidelity, name, momentum)
                rows.append((best, float(snr(state.image, truth, truth.ndim)), found / sigma, state.k))
            bests, scores, ratios, counts = np.array(rows).T
            behind = scores - bests
            spread = f"{np.exp(np.log(ratios).mean()):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
            means = f"{bests.mean():8.2f}{scores.mean():8.2f}{behind.mean():+8.2f}{behind.min():+8.2f}"
            print(f"{name:9}{level:4.0f} dB{means}{spread:>20}{counts.max():7.0f}", flush=True)


def picture_arguments(text: str | None) -> argparse.ArgumentParser:
    """The arguments of benchmarks that go through a folder of pictures."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="a folder of pictures")
    parser.add_argument("--count", type=int, default=100, help="of them at most so many, evenly spaced")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--denoisers", nargs="+", default=["tv", "bm3d", "tnrd"])
    return parser


def chosen_pictures(asked: argparse.Namespace) -> list[Path]:
    """The pictures that the arguments name."""
    found = sorted(asked.pictures.glob("*.png"))
    places = np.linspace(0, len(found) - 1, min(asked.count, len(found))).round().astype(int)
    return [found[place] for place in places]


def main() -> None:
    """Read the arguments and compare."""
    parser = picture_arguments(__doc__)
    parser.set_defaults(size=None)  # 256, and of small scans their own
    parser.add_argument("--momentum", choices=sorted(MOMENTA), default="bounded", help="of runs that search")
    parser.add_argument("--instrument", nargs="+", choices=sorted(OTHERS), help="small scans of these instead")
    parser.add_argument("--views", type=int, help="of the scans of --instrument, of those that have a choice of it")
    parser.add_argument(
        "--judge", choices=["views", "data"], help="what judges with --instrument; as runs do if not given"
    )
    parser.add_argument(
        "--span", type=float, default=16.0, help="the best sigma is at most by this factor off where a search begins"
    )
    parser.add_argument(
        "--levels", type=float, nargs="+", help="input SNRs of the scans, or doses of those of --instrument"
    )
    parser.add_argument("--loss", help="another loss than the instrument advises")
    parser.add_argument("--everywhere", action="store_true", help="of ptychography, also where no light is")
    asked = parser.parse_args()
    pictures = chosen_pictures(asked)
    if asked.instrument is None:
        compare(pictures, asked.size or 256, asked.device, asked.denoisers, asked.momentum, asked.levels)
        return
    warnings.simplefilter("ignore")
    print(f"{len(pictures)} pictures: {', '.join(path.stem for path in pictures)}; dB below the best, mean and worst")
    print(f"{'':31}{'best':>8}{'advised':>9}{'worst':>8}{'found':>8}{'worst':>8}{'sigma / best':>21}  calls")
    for denoiser in asked.denoisers:
        for name in asked.instrument:
            compare_instrument(name, pictures, denoiser, asked)


if __name__ == "__main__":
    main()
