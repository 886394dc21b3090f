"""Ptychography: a real Siemens star beside ePIE, at 2 % of its dose with and without a prior, and simulated scans.

    python benchmarks/ptychography.py all FILE             all of these, in ten minutes on two cores
    python benchmarks/ptychography.py star FILE            held-out residual in 10 epochs, ours by commands and ePIE
    python benchmarks/ptychography.py dose FILE            at 2 % of the photons: none and TV; --bm3d for BM3D, too
    python benchmarks/ptychography.py dose FILE --picture docs/images/ptychography-dose.png
    python benchmarks/ptychography.py simulated            2,000 and 20,000 photons a frame, and passes to 23 dB

FILE is siemens-star-small.npz.bz2 of tike's tests. Every tenth view is left out of all reconstructions and judges them,
|| |A x| - sqrt(I) || / || sqrt(I) ||. At 2 % of the dose the held-out frames are those of the full dose, and one factor
of all predictions is free; the image is compared with that of the full dose, up to a phase, where beams reach it well
and as a whole. The beam is that of the full dose, as of an instrument whose beam is known, or is found from the 2 %.
Settings were chosen with 9::10 left out, and are judged with 4::10 (--held). Without a prior the best of all epochs
counts, of steps that fall and of steps that do not: nobody could stop there without knowing the full dose. Priors are
judged at their last epoch. Simulated settings were chosen with the pictures camera and coins; moon judges them, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream import (
    BM3D,
    TV,
    Amplitude,
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
from plugstream.base.schedules import Cooling
from plugstream.instruments.ptychography import PtychographyOptions
from plugstream.scans.baselines.first_image import relative_residual, scan_model
from plugstream.scans.scan import Scan

EPOCHS, BATCH, MODES, PART = 10, 20, 3, 0.02
HELD = "9::10"
# Photons that Poisson's loss begins at, with a prior, and without, which is better there; epochs at 2 % of the dose.
FLOOR, FLOOR_NONE, LOW, LONG = 0.02, 0.05, 20, 30


def command(*words: object) -> float:
    """Run plugstream; the seconds that it took."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "plugstream", *map(str, words)], check=True, capture_output=True)
    return time.perf_counter() - begin


def recorded(file: Path, folder: Path, left_out: str = HELD) -> tuple[Path, Path]:
    """Scans of the views that are used, and of those that are held out."""
    used, held = folder / "used.zarr", folder / "held.zarr"
    command("import", "ptychography", file, used, "--omit", left_out)
    command("import", "ptychography", file, held, "--select", left_out)
    return used, held


def epie(scan: Scan, epochs: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The extended ptychographic iterative engine, one view after another in random order, on whole pixels.

    Reference: Maiden and Rodenburg, Ultramicroscopy 109, 2009, with both of its constants 1.
    """
    positions = np.rint(scan.columns["positions"][:]).astype(int)
    probe = torch.from_numpy(scan.instrument.probe[0]).clone()  # type: ignore[attr-defined]
    image, (h, w) = torch.ones(scan.instrument.image.shape, dtype=torch.complex64), probe.shape
    roots, draw = scan.read().float().sqrt(), np.random.default_rng(seed)
    for _ in range(epochs):
        for view in draw.permutation(len(positions)):
            r, c = positions[view]
            patch = image[r : r + h, c : c + w].clone()
            wave = torch.fft.fft2(probe * patch, norm="ortho")
            change = torch.fft.ifft2(wave * (roots[view] / wave.abs().clamp_min(1e-9) - 1), norm="ortho")
            image[r : r + h, c : c + w] += probe.conj() * change / probe.abs().square().max()
            probe = probe + patch.conj() * change / patch.abs().square().max()
    return image, probe


def star(file: Path) -> None:
    """Full dose: ours by commands and ePIE, in as many epochs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        used, held = recorded(file, folder)
        scan, other = open_scan(used).load(), open_scan(held).load()
        steps = EPOCHS * -(-scan.n_views // BATCH)
        words = ["--batch", BATCH, "--iterations", steps, "--sigma", 0, "--refine", "probe", "--probe-modes", MODES]
        quiet = ["--report", "none", "--preview", 0, "--every", steps]
        seconds = command("reconstruct", used, "--out", folder / "run", *words, *quiet)
        image = torch.from_numpy(np.load(folder / "run" / "result.npy"))
        probe = torch.from_numpy(np.load(folder / "run" / "refined-probe.npy"))
        model = scan_model(other).with_parameters({"probe": probe})
        ours = relative_residual(other, image, model)
        begin = time.perf_counter()
        image, probe = epie(scan, EPOCHS)
        theirs_seconds = time.perf_counter() - begin
        options = PtychographyOptions(whole_pixels=True)
        model = scan_model(other, options).with_parameters({"probe": probe[None]})
        theirs = relative_residual(other, image, model)
    print(
        f"held-out residual after {EPOCHS} epochs: ours {ours:.4f} ({MODES} modes, batches of {BATCH}, {seconds:.0f} s)"
    )
    print(f"    ePIE {theirs:.4f} ({theirs_seconds:.0f} s); ratio ours / ePIE {ours / theirs:.3f}")


def lit(fidelity: LossFidelity) -> torch.Tensor:
    """Where beams reach the object well."""
    light = fidelity.overlap()
    assert light is not None
    return light > 0.1 * light.max()


def follow(
    fidelity: LossFidelity, denoiser: Any, epochs: int, truth: torch.Tensor, where: torch.Tensor, **more: Any
) -> list[tuple[float, Any]]:
    """The SNR where beams reach the object after each epoch, with the state then."""
    batch = more.pop("batch", BATCH)
    settings: dict[str, Any] = {"sigma": 0.0, "step_size": "overlap", "momentum": "bounded", "sampler": Epochs(batch)}
    algorithm = ProximalGradient(fidelity, denoiser, **(settings | more))
    state, found = algorithm.init(), []
    for _ in range(epochs):
        for _ in range(-(-len(fidelity.available) // batch)):
            state = algorithm.step(state)
        found.append((float(snr(state.image[where][None], truth[where][None])), state))
    return found


def falling(sigma: float, epochs: int, n_views: int) -> dict[str, Any]:
    """Steps that follow the overlap and fall to a tenth, with a sigma that keeps the prior's weight beside them."""
    steps = epochs * -(-n_views // BATCH)
    level = Geometric(sigma, sigma * 0.1**0.5, steps) if sigma else 0.0
    return {"sigma": level, "step_size": Overlap(Geometric(1.0, 0.1, steps))}


def dose(file: Path, picture: Path | None, left_out: str, bm3d: bool) -> None:
    """2 % of the photons, the beam known from the full dose or found: none at its best epoch, priors at the last."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        used, held = recorded(file, folder, left_out)
        full, other = open_scan(used).load(), open_scan(held).load()
        whole = fidelity(full, Amplitude(), MODES)
        where = lit(whole)
        nothing = torch.ones(whole.image_shape, dtype=torch.complex64)
        state = follow(whole, Identity(), EPOCHS + 4, nothing, where, refine=("probe",))[-1][1]
        truth, beam = state.image, folder / "probe.npy"
        np.save(beam, state.parameters["probe"].numpy())
        low, known = folder / "low.zarr", folder / "known.zarr"
        command("import", "ptychography", file, low, "--omit", left_out, "--thin", PART)
        command("import", "ptychography", file, known, "--omit", left_out, "--thin", PART, "--probe", beam)
        n = full.n_views
        print(f"{float(open_scan(low).read().double().sum((1, 2)).mean()):.0f} photons a frame", flush=True)

        def tell(label: str, value: float, state: Any, model: Any, beside: float | None = None) -> None:
            parameters = state.parameters or model.parameters
            judge = scan_model(other).with_parameters(parameters)
            left = relative_residual(other, state.image, judge, fit_scale=True)
            gained = "" if beside is None else f", {value - beside:+.2f} above the best without"
            all_of_it = float(snr(state.image, truth))
            print(
                f"{label}: {value:.2f} dB where lit, {all_of_it:.2f} dB of all, held-out {left:.4f}{gained}", flush=True
            )

        def best_of(label: str, made: LossFidelity, **more: Any) -> tuple[float, Any]:
            choices = {
                "steps fall": {"momentum": "bounded"} | falling(0.0, LOW, n),
                "steps stay": {"momentum": "none"},
            }
            best: tuple[float, Any] = (-np.inf, None)
            for how, settings in choices.items():
                runs = follow(made, Identity(), LOW, truth, where, **(settings | more))
                epoch = max(range(len(runs)), key=lambda number: runs[number][0])
                tell(f"{label}, none, {how}, best epoch {epoch + 1} of {LOW}", *runs[epoch], made.model)
                best = max(best, runs[epoch], key=lambda one: one[0])
            return best

        made = fidelity(open_scan(known).load(), Poisson(floor=FLOOR))
        value, state = best_of("beam known", fidelity(open_scan(known).load(), Poisson(floor=FLOOR_NONE)))
        shown = [("full dose", truth), (f"2 %, no prior: {value:.1f} dB", state.image)]
        priors: list[tuple[str, Any, float, int]] = [("TV", TV(), 0.05, LOW)]
        for label, denoiser, sigma, epochs in priors + ([("BM3D", BM3D(), 0.05, EPOCHS)] if bm3d else []):
            reached, state = follow(made, denoiser, epochs, truth, where, **falling(sigma, epochs, n))[-1]
            tell(f"beam known, {label}, {epochs} epochs", reached, state, made.model, value)
            shown.append((f"2 %, {label}: {reached:.1f} dB", state.image))
            if picture is not None:
                draw(picture, shown)
        made = fidelity(open_scan(low).load(), Poisson(floor=FLOOR), MODES)
        cooling = {"refine": ("probe",), "refine_pace": Cooling(0.03, LOW * -(-n // BATCH))}
        value, _ = best_of("beam found", fidelity(open_scan(low).load(), Poisson(floor=FLOOR_NONE), MODES), **cooling)
        cooling["refine_pace"] = Cooling(0.02, LONG * -(-n // BATCH))
        reached, state = follow(made, TV(), LONG, truth, where, **(falling(0.05, LONG, n) | cooling))[-1]
        tell(f"beam found, TV, {LONG} epochs", reached, state, made.model, value)


def fidelity(scan: Scan, loss: Any, modes: int | None = None) -> LossFidelity:
    """Of all views of a scan."""
    return LossFidelity(scan_model(scan, PtychographyOptions(probe_modes=modes)), scan.read().float(), loss)


def draw(path: Path, shown: list[tuple[str, torch.Tensor]]) -> None:
    """Phases of images side by side, a part of each from its middle, aligned to the first."""
    from matplotlib.figure import Figure

    from plugstream import align_phase

    first = shown[0][1]
    figure = Figure(figsize=(3.0 * len(shown), 3.4), layout="constrained")
    for axes, (title, image) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown, strict=True):
        turned = align_phase(image, first) * (first.mean().conj() / first.mean().abs())
        h, w = turned.shape
        part: NDArray[Any] = turned[h // 6 : -(h // 6), w // 6 : -(w // 6)].angle().numpy()
        axes.imshow(part, cmap="gray", vmin=-1.1, vmax=0.4)
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def simulated() -> None:
    """SNR with and without a prior, and passes over all views until 23 dB, by batches of 12 and by all views."""
    for photons in (2_000, 20_000):
        for picture in ("camera", "coins", "moon"):
            with tempfile.TemporaryDirectory() as name:
                place = Path(name) / "scan.zarr"
                words = ("--picture", picture, "--phase-picture", picture, "--photons", photons)
                command("simulate", "--instrument", "ptychography", *words, place)
                scan = open_scan(place).load()
            assert scan.truth is not None
            truth = torch.from_numpy(scan.truth)
            around = (truth, torch.ones(truth.shape, dtype=torch.bool))
            steps = LOW * -(-scan.n_views // 12)
            none = -np.inf
            for floor, fall in ((FLOOR_NONE, 0.3), (FLOOR_NONE, 0.1), (FLOOR, 1.0)):
                made = fidelity(scan, Poisson(floor=floor))
                step = Overlap(Geometric(1.0, fall, steps))
                none = max(none, *(v for v, _ in follow(made, Identity(), LOW, *around, batch=12, step_size=step)))
            made = fidelity(scan, Poisson(floor=FLOOR))
            falls: dict[str, Any] = {
                "sigma": Geometric(0.03, 0.03 * 0.3**0.5, steps),
                "step_size": Overlap(Geometric(1.0, 0.3, steps)),
            }
            values = [value for value, _ in follow(made, TV(), LOW, *around, batch=12, **falls)]
            print(
                f"{photons} photons a frame, {picture}: none at its best {none:.2f} dB, TV after {LOW} passes "
                f"{values[-1]:.2f} ({values[-1] - none:+.2f})",
                flush=True,
            )
            few = next((number + 1 for number, value in enumerate(values) if value >= 23), None)
            if few is None:
                continue
            most = 64
            whole = follow(made, TV(), most, *around, batch=scan.n_views, sigma=0.03, momentum="nesterov")
            many = next((number + 1 for number, (value, _) in enumerate(whole) if value >= 23), None)
            told = f"more than {most}" if many is None else f"{many}, ratio {few / many:.2f}"
            print(f"    passes to 23 dB: batches of 12 {few}, all views with nesterov {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("all", "star", "dose", "simulated"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--bm3d", action="store_true", help="BM3D at 2 %% of the dose, which takes minutes more")
    parser.add_argument("--held", default="4::10", help="views that judge at 2 %% of the dose")
    parsed = parser.parse_args()
    if parsed.file is None and parsed.what != "simulated":
        parser.error("give the recording, siemens-star-small.npz.bz2")
    if parsed.what in ("all", "star"):
        star(parsed.file)
    if parsed.what in ("all", "dose"):
        dose(parsed.file, parsed.picture, parsed.held, parsed.bm3d)
    if parsed.what in ("all", "simulated"):
        simulated()


if __name__ == "__main__":
    main()
