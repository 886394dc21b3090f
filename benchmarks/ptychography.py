"""Ptychography: a real Siemens star beside ePIE, at 2 % of its dose with and without a prior, and simulated scans.

    python benchmarks/ptychography.py star FILE            held-out residual in 10 epochs, ours by commands and ePIE
    python benchmarks/ptychography.py dose FILE            at 2 % of the photons: none, TV and BM3D
    python benchmarks/ptychography.py dose FILE --picture docs/images/ptychography-dose.jpg
    python benchmarks/ptychography.py simulated            2,000 and 20,000 photons a frame, and passes to 23 dB

FILE is siemens-star-small.npz.bz2 of tike's tests. Every tenth view is left out of all reconstructions and judges them,
|| |A x| - sqrt(I) || / || sqrt(I) ||. At 2 % of the dose the held-out frames are those of the full dose, and one factor
of all predictions is free; the image is compared with that of the full dose, up to a phase, where beams reach it.
The beam is that of the full dose, as of an instrument whose beam is known. Without a prior the best of all epochs
counts, for both losses, with and without momentum: nobody could stop there without knowing the full dose.
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

from plugstream import BM3D, TV, Amplitude, Epochs, Identity, LossFidelity, Poisson, ProximalGradient, open_scan, snr
from plugstream.first_image import relative_residual, scan_model
from plugstream.instruments.ptychography import PtychographyOptions
from plugstream.scans.scan import Scan

EPOCHS, BATCH, MODES, PART = 10, 20, 3, 0.02
HELD = "9::10"


def command(*words: object) -> float:
    """Run plugstream; the seconds that it took."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "plugstream", *map(str, words)], check=True, capture_output=True)
    return time.perf_counter() - begin


def recorded(file: Path, folder: Path, *, thin: float | None = None) -> tuple[Path, Path]:
    """Scans of the views that are used, and of those that are held out, which are never thinned."""
    used, held = folder / "used.zarr", folder / "held.zarr"
    command("import", "ptychography", file, used, "--omit", HELD, *(() if thin is None else ("--thin", thin)))
    if not held.exists():
        command("import", "ptychography", file, held, "--select", HELD)
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
        quiet = ["--report-format", "none", "--preview", 0, "--every", steps]
        seconds = command("reconstruct", used, "--out", folder / "run", *words, *quiet)
        image = torch.from_numpy(np.load(folder / "run" / "result.npy"))
        probe = torch.from_numpy(np.load(folder / "run" / "refined-probe.npy"))
        model = scan_model(other).with_parameters({"probe": probe})  # type: ignore[attr-defined]
        ours = relative_residual(other, image, model)
        begin = time.perf_counter()
        image, probe = epie(scan, EPOCHS)
        theirs_seconds = time.perf_counter() - begin
        options = PtychographyOptions(whole_pixels=True)
        model = scan_model(other, options).with_parameters({"probe": probe[None]})  # type: ignore[attr-defined]
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
    fidelity: LossFidelity,
    denoiser: Any,
    sigma: float,
    epochs: int,
    truth: torch.Tensor,
    where: torch.Tensor,
    **more: Any,
) -> list[tuple[float, Any]]:
    """The SNR where beams reach the object after each epoch, with the state then."""
    batch = more.pop("batch", BATCH)
    settings: dict[str, Any] = {"step_size": "overlap", "momentum": "bounded", "sampler": Epochs(batch)} | more
    algorithm = ProximalGradient(fidelity, denoiser, sigma=sigma, **settings)
    state, found = algorithm.init(), []
    for _ in range(epochs):
        for _ in range(-(-len(fidelity.available) // batch)):
            state = algorithm.step(state)
        found.append((float(snr(state.image[where][None], truth[where][None])), state))
    return found


def dose(file: Path, picture: Path | None, sigmas: dict[str, float]) -> None:
    """2 % of the photons, the beam known from the full dose: none at its best epoch, and priors at the last."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        used, held = recorded(file, folder)
        full, other = open_scan(used).load(), open_scan(held).load()
        whole = fidelity(full, Amplitude(), MODES)
        where = lit(whole)
        nothing = torch.ones(whole.image_shape, dtype=torch.complex64)
        state = follow(whole, Identity(), 0.0, EPOCHS + 4, nothing, where, refine=("probe",))[-1][1]
        truth = state.image
        np.save(folder / "probe.npy", state.parameters["probe"].numpy())
        used.rename(folder / "full.zarr")
        words = ("--thin", PART, "--probe", folder / "probe.npy")
        command("import", "ptychography", file, used, "--omit", HELD, *words)
        scan = open_scan(used).load()
        model = scan_model(scan)
        print(f"{float(scan.read().double().sum((1, 2)).mean()):.0f} photons a frame", flush=True)

        def judge(state: Any) -> float:
            known = scan_model(other).with_parameters(model.parameters)  # type: ignore[attr-defined]
            return relative_residual(other, state.image, known, fit_scale=True)

        best: tuple[float, Any] = (-np.inf, None)
        for loss, momentum in ((Poisson(floor=0.05), "none"), (Poisson(floor=0.05), "bounded"), (Amplitude(), "none")):
            runs = follow(fidelity(scan, loss), Identity(), 0.0, EPOCHS + 4, truth, where, momentum=momentum)
            epoch = max(range(len(runs)), key=lambda n: runs[n][0])
            told = f"none, {type(loss).__name__}, momentum {momentum}: {runs[epoch][0]:.2f} dB at epoch {epoch + 1}"
            print(f"{told}, held-out {judge(runs[epoch][1]):.4f}", flush=True)
            best = max(best, runs[epoch], key=lambda one: one[0])
        shown = [("full dose", truth), (f"2 %, no prior: {best[0]:.1f} dB", best[1].image)]
        for label, denoiser in (("TV", TV()), ("BM3D", BM3D())):
            runs = follow(fidelity(scan, Poisson(floor=0.05)), denoiser, sigmas[label], EPOCHS, truth, where)
            value, state = runs[-1]
            told = f"{label}, sigma {sigmas[label]:g}: {value:.2f} dB, {value - best[0]:+.2f} above the best without"
            print(f"{told}, held-out {judge(state):.4f}", flush=True)
            shown.append((f"2 %, {label}: {value:.1f} dB", state.image))
            if picture is not None:
                draw(picture, shown)


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
    for photons, sigma in ((2_000, 0.03), (20_000, 0.03)):
        with tempfile.TemporaryDirectory() as name:
            place = Path(name) / "scan.zarr"
            command("simulate", "--instrument", "ptychography", "--photons", photons, place)
            scan = open_scan(place).load()
        assert scan.truth is not None
        truth = torch.from_numpy(scan.truth)
        fidelity = LossFidelity(scan_model(scan), scan.read().float(), Poisson(floor=0.05))
        everywhere = torch.ones(truth.shape, dtype=torch.bool)
        arguments = (truth, everywhere)
        none = max(value for value, _ in follow(fidelity, Identity(), 0.0, 15, *arguments, batch=12))
        values = {
            label: follow(fidelity, denoiser, sigma, 15, *arguments, batch=12)
            for label, denoiser in (("TV", TV()), ("BM3D", BM3D()))
        }
        told = ", ".join(f"{label} {v[-1][0]:.2f} ({v[-1][0] - none:+.2f})" for label, v in values.items())
        print(f"{photons} photons a frame: none at its best {none:.2f} dB; {told}", flush=True)
        if photons == 20_000:
            few = next((n + 1 for n, (value, _) in enumerate(values["TV"]) if value >= 23), None)
            whole = follow(fidelity, TV(), sigma, 60, *arguments, batch=len(fidelity.available), momentum="nesterov")
            many = next((n + 1 for n, (value, _) in enumerate(whole) if value >= 23), None)
            ratio = "" if few is None or many is None else f", ratio {few / many:.2f}"
            print(f"    passes to 23 dB: batches of 12 {few}, all views with nesterov {many}{ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("star", "dose", "simulated"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--tv", type=float, default=0.06, help="sigma of TV at 2 %% of the dose")
    parser.add_argument("--bm3d", type=float, default=0.05, help="sigma of BM3D at 2 %% of the dose")
    parsed = parser.parse_args()
    if parsed.what == "simulated":
        simulated()
        return
    if parsed.file is None:
        parser.error("give the recording, siemens-star-small.npz.bz2")
    if parsed.what == "star":
        star(parsed.file)
    else:
        dose(parsed.file, parsed.picture, {"TV": parsed.tv, "BM3D": parsed.bm3d})


if __name__ == "__main__":
    main()
