"""Fourier ptychography: a real blood smear by commands beside ePIE, and simulated scans at two doses.

    python benchmarks/fpm.py bloodsmear_red.mat                      held-out residuals, ours and ePIE's, in one run
    python benchmarks/fpm.py bloodsmear_red.mat --picture docs/images/bloodsmear.png
    python benchmarks/fpm.py --simulated                             what a prior gains, and passes to 23 dB

Every tenth view is left out (5::10, 7::10 and 9::10, one after the other; --splits takes others), and judges:
|| sqrt(I) - sqrt(g |A x|^2 + b) || / || sqrt(I) ||, with gain g and
background b of each view in closed form for both. ePIE is the usual method (Maiden and Rodenburg 2009, Ou et al. 2014):
view by view, the measured amplitude replaces the predicted one, and object and pupil move by it; it begins with an
image that is made as ours is, has gains and backgrounds, too, and goes round as often. As usual its light is of plane
waves, and its field the camera's.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream import (
    TV,
    All,
    Epochs,
    Geometric,
    Identity,
    LossFidelity,
    Overlap,
    Poisson,
    ProximalGradient,
    open_scan,
    snr,
)
from plugstream.models import FPMModel
from plugstream.models.recording import fit_recording
from plugstream.scans.baselines.first_image import relative_residual

ROUNDS, SPLITS = 12, ("5::10", "7::10", "9::10")
CPU = torch.device("cpu")


def command(*words: object) -> float:
    """Run plugstream; seconds that it took."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "plugstream", *map(str, words)], check=True, capture_output=True)
    return time.perf_counter() - begin


def model_of(scan: Any) -> FPMModel:
    model: FPMModel = scan.instrument.build_model(scan.columns, scan.n_views, device=CPU, dtype=torch.float32)
    return model


def epie(model: FPMModel, data: Tensor, rounds: int) -> tuple[Tensor, FPMModel]:
    """Image and model by ePIE, in the spectrum, with gain and background of each view by what is predicted of it."""
    views = torch.arange(len(data))
    image, found = model.start_from(lambda some: data[some], views, ("gains",))
    expected = found["gains"][:, 0].clone()
    spectrum, pupil, root = model.transform(image), model.pupil.clone(), math.sqrt(model.light)
    height, width = model.box
    draw = np.random.default_rng(0)
    for _ in range(rounds):
        for view in draw.permutation(len(data)).tolist():
            one = torch.tensor([view])
            moved = model.with_parameters({"pupil": pupil}).lenses(one)[0] / root
            row, column = (model.steps[view] + [n // 2 for n in model.image_shape]).tolist()
            (top, _), (left, _) = model.microscope.box
            here = (slice(row + top, row + top + height), slice(column + left, column + left + width))
            lit = spectrum[here].clone()
            wave = model.propagate(root * moved * lit)
            light = wave.abs().square()
            gain, beside = fit_recording(light[None], data[one], expected[one])
            expected[view] = gain[0]
            target = wave * (data[view] / gain / (light + beside / gain).clamp_min(1e-20)).sqrt()
            change = model.collect(target - wave) / (math.prod(model.microscope.shape) * root)
            spectrum[here] += moved.conj() / moved.abs().square().max() * change
            step = model.gather_pupil((lit.conj() / lit.abs().square().max() * change)[None], one)
            pupil = torch.where(model.inside, pupil + step, 0)
    image = model.untransform(spectrum)
    rows = torch.stack([expected, 0 * expected, 0 * expected], -1)
    return image, model.with_parameters({"pupil": pupil, "gains": rows})


def judge(scan: Any, image: Tensor, parameters: dict[str, Tensor]) -> list[float]:
    """Residuals of bright and dark views that were left out."""
    model = model_of(scan).with_parameters(parameters)
    groups = scan.instrument.groups(scan.columns)
    return [relative_residual(scan, image, model, torch.from_numpy(views)) for views in groups.values()]


def compare(file: Path, folder: Path, split: str, picture: Path | None) -> None:
    """Print held-out residuals of a recording, and draw what was found."""
    folder.mkdir()
    seen, held, run = folder / "seen.zarr", folder / "held.zarr", folder / "run"
    command("import", "fpm", file, seen, "--omit", split)
    command("import", "fpm", file, held, "--select", split)
    took = command("reconstruct", seen, "--out", run)
    judges = open_scan(held)
    usual = [folder / f"usual-{name}.zarr" for name in ("seen", "held")]
    for path, which in zip(usual, ("--omit", "--select"), strict=True):
        command("import", "fpm", file, path, which, split, "--plane-waves", "--guard", 0)
    found = {name: torch.from_numpy(np.load(run / f"refined-{name}.npy")) for name in ("pupil", "gains", "leds")}
    image = np.load(run / "result.npy")
    scan = open_scan(seen)
    begin = time.perf_counter()
    plain = open_scan(usual[0])
    theirs, model = epie(model_of(plain), plain.read(), ROUNDS)
    took_epie = time.perf_counter() - begin
    print(
        f"held-out residual, {split:5}"
        + "  ".join(f"{name:>12.12}" for name in judges.instrument.groups(judges.columns))
    )
    for name, values, seconds in (
        ("plugstream reconstruct", judge(judges, torch.from_numpy(image), found), took),
        (
            f"ePIE, {ROUNDS} rounds",
            judge(open_scan(usual[1]), theirs, {k: model.parameters[k] for k in ("pupil", "gains")}),
            took_epie,
        ),
    ):
        print(f"{name:24}" + "  ".join(f"{value:12.4f}" for value in values) + f"   {seconds:.0f} s", flush=True)
    if picture is not None:
        draw(picture, scan, image, found["pupil"].numpy())


def draw(path: Path, scan: Any, image: Any, pupil: Any) -> None:
    """One raw picture, amplitude and phase of a part of the image, and the pupil."""
    from matplotlib.figure import Figure

    turned = image * np.exp(-1j * np.angle(image.mean()))
    raw = scan.read(torch.tensor([0]))[0].sqrt().numpy()
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    guard, first, size = scan.instrument.guard, 30, 60
    factor = image.shape[0] // (raw.shape[0] + 2 * guard)
    small = (slice(first, first + size),) * 2
    large = (slice(factor * (guard + first), factor * (guard + first + size)),) * 2
    phase = np.angle(turned * np.exp(-1j * np.angle(turned[large].mean())))[large]
    panels = (
        ("one picture of the camera", raw[small], "gray", None),
        ("amplitude", np.abs(turned)[large], "gray", None),
        ("phase", phase, "gray", (np.percentile(phase, 0.5), np.percentile(phase, 99.5))),
        ("pupil, phase", np.where(np.abs(pupil) > 0, np.angle(pupil), np.nan), "twilight_shifted", (-np.pi, np.pi)),
    )
    for axes, (title, values, colours, limits) in zip(figure.subplots(1, 4), panels, strict=True):
        low, high = limits or (None, None)
        axes.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    figure.savefig(path, dpi=110)


def simulated(folder: Path) -> None:
    """What TV gains over nothing at two doses, and how many passes 23 dB take online and with all views."""
    cells = ("--picture", "cells", "--phase-picture", "cells")
    for photons, words in ((2_000, ()), (20_000, ()), (20_000, cells)):
        scan = make_scan(folder, photons, *words)
        none = max(run_scan(scan, None, 12))
        prior = max(run_scan(scan, 0.01, 12))
        told = f"{photons:>7,} photons, {'cells' if words else 'pictures'}"
        print(f"{told}: none {none:.1f} dB, TV {prior:.1f} dB at their best, {prior - none:+.1f} dB", flush=True)
    scan = make_scan(folder, 200_000, *cells)
    passes = {}
    for name, batch in (("online", 12), ("all views", scan.n_views)):
        history = run_scan(scan, 0.045, 30, batch, until=23.0)
        passes[name] = (len(history)) * batch / scan.n_views
        print(f"cells, 200,000 photons, {name}: {history[-1]:.2f} dB after {passes[name]:.1f} passes")
    print(f"online takes {100 * passes['online'] / passes['all views']:.0f} % of the passes to 23 dB")


def make_scan(folder: Path, photons: int, *words: str) -> Any:
    path = folder / f"{photons}-{len(words)}.zarr"
    command("simulate", path, "--instrument", "fpm", "--photons", photons, *words)
    return open_scan(path)


def run_scan(scan: Any, lam: float | None, rounds: int, batch: int = 12, until: float = math.inf) -> list[float]:
    """The SNR after each step, with Poisson's loss; few views a step have a step that falls to a tenth.

    The loss begins at 0.01 photons, since most views are in dark field and have few; without a prior it is better at
    0.05, which then stands in for one.
    """
    loss = Poisson(floor=0.05 if lam is None else 0.01)
    fidelity, truth = LossFidelity(model_of(scan), scan.read(), loss), torch.from_numpy(scan.truth)
    whole = batch >= scan.n_views
    steps = rounds * math.ceil(scan.n_views / batch)
    algorithm = ProximalGradient(
        fidelity,
        Identity() if lam is None else TV(),
        lam=lam or 0.0,
        step_size=Overlap() if whole else Overlap(Geometric(1.0, 0.1, 12 * math.ceil(scan.n_views / batch))),
        sampler=All() if whole else Epochs(batch),
        momentum="nesterov" if whole else "bounded",
    )
    state, found = algorithm.init(), []
    for _ in range(steps):
        state = algorithm.step(state)
        found.append(float(snr(state.image, truth)))
        if found[-1] >= until:
            break
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--splits", nargs="+", default=SPLITS, help="views that are left out, a run each")
    parser.add_argument("--simulated", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if chosen.simulated or chosen.file is None:
            simulated(Path(place))
        else:
            for number, one in enumerate(chosen.splits):
                compare(chosen.file, Path(place) / str(number), one, chosen.picture if number == 0 else None)
