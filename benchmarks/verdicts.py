"""What runs say of themselves, beside the truth: good scans and scans that were spoilt on purpose, of all instruments.

    python benchmarks/verdicts.py [--only NAME ...] [--folder FOLDER] [--judge] [--tenfold]

Every case is a small scan, reconstructed with defaults, or with the words of the case; a spoilt scan holds correct
data and says something wrong of it. Runs of a folder that is given are kept, and judged again without running again.

"to go" is what the run says that ten times as many steps would change, in per cent; with --tenfold they are taken, and
what they really changed stands beside it.
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plugstream.cli import main as plugstream_main
from plugstream.fidelity.by_loss import make_fidelity
from plugstream.fidelity.losses import Amplitude
from plugstream.instruments.base import find_instrument
from plugstream.runs.answers import explain_result
from plugstream.runs.plan import model_options
from plugstream.runs.refined import read_refined
from plugstream.runs.replay import replay
from plugstream.scans import MemoryScan, open_scan, save_scan
from plugstream.scans.simulation import measure
from plugstream.settings import resolve
from plugstream.solver.verdict.explanation import Explanation

QUIET = ["--report", "none", "--threads", "1", "--checkpoint", "0"]
PICTURES = Path(__file__).parents[2] / "shared" / "data" / "images" / "BSD68"


@dataclass(frozen=True)
class Case:
    """A run with truth: its name, how to make its scan, words for `reconstruct`, and the cause that spoils it.

    Arguments: cause, a word that one of the first two causes named has to hold; "" of a good run, and "?" where it is
    enough that it is not called explained; "*" where this is not asked.
    """

    name: str
    make: Callable[[], MemoryScan]
    cause: str = ""
    words: tuple[str, ...] = field(default=())


def simulated(instrument: str, **options: Any) -> MemoryScan:
    """The scan that `plugstream simulate` makes with these options."""
    cls = find_instrument(instrument)
    chosen = cls.simulation(**options)
    experiment = cls.simulate_views(chosen)
    device = torch.device("cpu")
    model = experiment.instrument.build_model(
        experiment.columns, experiment.n_views, device=device, dtype=torch.float32
    )
    return measure(experiment, model, chosen)


def ct(**options: Any) -> MemoryScan:
    return simulated("ct", **{"size": 64, "views": 60, **options})


def born(**options: Any) -> MemoryScan:
    return simulated("born-2d", **{"size": 48, "wavelength": 0.0225, "views": 24, "receivers": 96, **options})


def scattering(**options: Any) -> MemoryScan:
    return simulated("scattering-2d", **{"size": 32, "views": 18, "receivers": 36, **options})


def ptychography(**options: Any) -> MemoryScan:
    return simulated("ptychography", **{"frame": 32, "across": 8, **options})


def fpm(**options: Any) -> MemoryScan:
    return simulated("fpm", **{"size": 96, "camera": 32, "leds": 9, **options})


def mri(**options: Any) -> MemoryScan:
    return simulated("mri", **{"size": 64, "coils": 4, "acceleration": 2.0, **options})


def odt(**options: Any) -> MemoryScan:
    return simulated("odt-3d", **{"size": 24, "views": 24, **options})


def with_instrument(scan: MemoryScan, **parts: Any) -> MemoryScan:
    """The same data, of which the scan says something else."""
    return replace_scan(scan, instrument=replace(scan.instrument, **parts))  # type: ignore[type-var]


def replace_scan(scan: MemoryScan, **parts: Any) -> MemoryScan:
    content: dict[str, Any] = {
        "data": scan.data,
        "instrument": scan.instrument,
        "truth": scan.truth,
        "provenance": scan.provenance,
        "columns": scan.columns,
    }
    return MemoryScan(**(content | parts))


def axis_off(pixels: float, **options: Any) -> MemoryScan:
    scan = ct(**options)
    rays = scan.instrument.rays(scan.columns).shift_detector(columns=pixels)  # type: ignore[attr-defined]
    return replace_scan(scan, columns={**scan.columns, "rays": rays.vectors})


def turned_other_way(**options: Any) -> MemoryScan:
    """A tomographic scan whose angles have the wrong sign: views are those of a mirrored object, in the wrong order."""
    scan = ct(**options)
    rays = np.array(scan.columns["rays"])
    rays[:, :, 1] *= -1
    rays[:, 2] *= -1
    return replace_scan(scan, columns={**scan.columns, "rays": rays})


def dead_view(scan: MemoryScan, count: int = 1) -> MemoryScan:
    data = scan.data.clone()
    for number in range(count):
        data[(len(data) // 3 + 7 * number) % len(data)] = 0
    return replace_scan(scan, data=data)


def longer_wave(factor: float, **options: Any) -> MemoryScan:
    scan = born(**options)
    return with_instrument(scan, wavelength=factor * scan.instrument.wavelength)  # type: ignore[attr-defined]


def conjugated(scan: MemoryScan) -> MemoryScan:
    return replace_scan(scan, data=scan.data.conj().resolve_conj())


def wrong_probe(**options: Any) -> MemoryScan:
    """Ptychography with the beam in focus, of the same light, where it was out of focus."""
    scan = ptychography(**options)
    probe = scan.instrument.probe  # type: ignore[attr-defined]
    flat = np.fft.fftshift(np.fft.ifft2(np.abs(np.fft.fft2(probe[0]))))
    wrong = (flat * np.linalg.norm(probe[0]) / np.linalg.norm(flat)).astype(np.complex64)
    return with_instrument(scan, probe=wrong[None])


def flat_probe(**options: Any) -> MemoryScan:
    """Ptychography with the right magnitude of the beam, and no phase."""
    scan = ptychography(**options)
    return with_instrument(scan, probe=np.abs(scan.instrument.probe).astype(np.complex64))  # type: ignore[attr-defined]


def mirrored_leds(**options: Any) -> MemoryScan:
    scan = fpm(**options)
    return replace_scan(scan, columns={**scan.columns, "leds": np.array(scan.columns["leds"]) * [-1, 1]})


def strong(contrast: float, **options: Any) -> MemoryScan:
    """What multiple scattering makes of a strong object, in a scan that says it is Born's."""
    scan = scattering(discs=f"0.02,0.01,0.04,{contrast:g}", **options)
    i: Any = scan.instrument
    born_2d = find_instrument("born-2d")
    return replace_scan(scan, instrument=born_2d(i.receivers, i.wavelength, i.grid, i.background))  # type: ignore[call-arg]


def swapped_positions(**options: Any) -> MemoryScan:
    scan = ptychography(**options)
    return replace_scan(
        scan, columns={**scan.columns, "positions": np.array(scan.columns["positions"])[:, ::-1].copy()}
    )


def swapped_maps(**options: Any) -> MemoryScan:
    scan = mri(**options)
    maps = scan.instrument.coil_maps  # type: ignore[attr-defined]
    return with_instrument(scan, coil_maps=np.roll(maps, 1, axis=0))


def conjugated_maps(**options: Any) -> MemoryScan:
    scan = mri(**options)
    return with_instrument(scan, coil_maps=scan.instrument.coil_maps.conj())  # type: ignore[attr-defined]


def metal(**options: Any) -> MemoryScan:
    """A disc into which fields do not go: permittivity -60, which no bound at 0 allows."""
    return scattering(discs="0.02,0.01,0.03,-60", **options)


def turned_spokes(degrees: float, **options: Any) -> MemoryScan:
    """Radial MRI that says of each spoke another angle than it had, by so many degrees rms."""
    scan = mri(**options)
    angles = np.deg2rad(degrees) * np.random.default_rng(5).standard_normal(scan.n_views)
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    y, x = np.moveaxis(np.array(scan.columns["trajectory"]), -1, 0)
    return replace_scan(scan, columns={**scan.columns, "trajectory": np.stack([c * y - s * x, s * y + c * x], -1)})


def changed_sample(pixels: int, **options: Any) -> MemoryScan:
    """CT of a sample of which a part moves half-way through half a turn."""
    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for move in (0, pixels):
            body = 0.5 * (y**2 + x**2 < 0.7) + 0.3 * ((y - 0.2) ** 2 + (x - 0.3 + move / 32) ** 2 < 0.05)
            np.save(f"{folder}/{move}.npy", body - 0.3 * ((y + 0.3) ** 2 / 2 + (x + 0.2) ** 2 < 0.02))
            parts.append(ct(**options, picture=f"{folder}/{move}.npy"))
    data = parts[0].data.clone()
    data[len(data) // 2 :] = parts[1].data[len(data) // 2 :]
    return replace_scan(parts[0], data=data)


def wrong_dark(dark: float, photons: float = 500.0, true: float = 50.0, **options: Any) -> MemoryScan:
    """CT of a sample that lets a tenth through, whose counts had another dark field than was subtracted."""
    scan = ct(photons=1e9, **options)
    times = math.log(10) / float(scan.data.max())
    clean = times * scan.data.double().numpy()
    counts = np.random.default_rng(7).poisson(photons * np.exp(-clean)) + true
    line = -np.log(np.maximum(counts - dark, 0.5) / (photons + true - dark))
    truth = None if scan.truth is None else times * scan.truth
    return replace_scan(scan, data=torch.from_numpy(line.astype(np.float32)), truth=truth)


def pictures(count: int) -> list[str]:
    return [str(PICTURES / f"test{number:03d}.png") for number in range(1, count + 1)]


def cases() -> list[Case]:
    """All cases: those that are good first, of every instrument, then those of the issue's table and their kin."""
    p = pictures(12)
    good = [
        Case("ct", ct),
        Case("ct 1e3 photons", lambda: ct(photons=1e3, picture=p[0])),
        Case("ct 1e4 fan", lambda: ct(photons=1e4, beam="fan", picture=p[1])),
        Case("ct 20 views", lambda: ct(views=20)),
        Case("ct 90 degrees", lambda: ct(arc=90.0, views=45)),
        Case("ct 1e6", lambda: ct(photons=1e6, picture=p[2])),
        Case("born 40 dB", born),
        Case("born 30 dB", lambda: born(snr=30.0, picture=p[3])),
        Case("born 20 dB", lambda: born(snr=20.0, picture=p[4])),
        Case("born 25 dB arc", lambda: born(snr=25.0, picture=p[5], arc=180.0)),
        Case("scattering 40 dB", scattering),
        Case("scattering 25 dB", lambda: scattering(snr=25.0)),
        Case("scattering 3 frequencies", lambda: scattering(frequencies="2,4,6GHz", views=12, snr=30.0)),
        Case("ptychography", ptychography),
        Case("ptychography few", lambda: ptychography(photons=2e3, picture=p[6])),
        Case("ptychography many", lambda: ptychography(photons=1e6, picture=p[7], phase_picture=p[8])),
        Case("fpm", fpm),
        Case("fpm many", lambda: fpm(photons=1e6, picture=p[9])),
        Case("mri", mri),
        Case("mri 20 dB", lambda: mri(snr=20.0, picture=p[10])),
        Case("mri cartesian", lambda: mri(trajectory="cartesian", picture=p[11], snr=25.0)),
        Case("mri spiral", lambda: mri(trajectory="spiral", snr=40.0)),
        Case("odt", odt),
        Case("odt light", lambda: odt(scanning="light", snr=20.0)),
    ]
    spoilt = [
        Case("ct axis 3 px", lambda: axis_off(3.0), "axis"),
        Case("ct axis 1 px", lambda: axis_off(1.0), "axis"),
        Case("ct axis 2 px fan", lambda: axis_off(2.0, beam="fan", photons=1e4, picture=p[1]), "axis"),
        Case("ct other way", lambda: turned_other_way(beam="fan"), "turn"),
        Case("ct dead view", lambda: dead_view(ct()), "view"),
        Case("born wave x 1.05", lambda: longer_wave(1.05), "wavelength"),
        Case("born wave x .97", lambda: longer_wave(0.97, snr=30.0, picture=p[3]), "wavelength"),
        Case("born conjugate", lambda: conjugated(born()), "conjugate"),
        Case("born sigma .5", born, "denoiser", ("--sigma", "0.5")),
        Case("born dead view", lambda: dead_view(born()), "view"),
        Case("scattering metal", metal, "contrast"),
        Case("ptychography wrong probe", wrong_probe, "probe"),
        Case("ptychography flat probe", flat_probe, "probe"),
        Case("born strong object", lambda: strong(3.0), "contrast"),
        Case("ptychography swapped", swapped_positions, "position"),
        Case("mri maps swapped", swapped_maps, "coil"),
        Case("mri maps conjugate", conjugated_maps, "coil"),
        Case("fpm LEDs mirrored", lambda: mirrored_leds(photons=1e6), "LED"),
        Case("odt conjugate", lambda: conjugated(odt()), "conjugate"),
        Case("mri spokes 3 degrees", lambda: turned_spokes(3.0, snr=35.0), "?"),
        Case("mri spokes 3 degrees 20 dB", lambda: turned_spokes(3.0, snr=20.0), "?"),
        Case("ct changed half-way", lambda: changed_sample(4), "?"),
        Case("ct dark 0 for 50", lambda: wrong_dark(0.0), "?"),
        Case("ct dark 80 for 50", lambda: wrong_dark(80.0), "?"),
    ]
    return good + spoilt


def other_cases() -> list[Case]:
    """Cases by which no threshold was chosen: other pictures, sizes, seeds and faults."""
    p = pictures(40)[20:]
    good = [
        Case("other ct", lambda: ct(size=80, views=90, photons=3e4, picture=p[0], seed=1)),
        Case("other ct low dose", lambda: ct(size=48, views=40, photons=300.0, picture=p[1], seed=2)),
        Case("other ct curved", lambda: ct(beam="curved-fan", photons=1e5, picture=p[2], seed=3)),
        Case("other ct 360", lambda: ct(arc=360.0, views=120, photons=1e4, seed=4)),
        Case("other ct 50 degrees", lambda: ct(arc=50.0, views=50, photons=1e5, picture=p[3], seed=5)),
        Case("other born", lambda: born(size=64, snr=35.0, picture=p[4], seed=1)),
        Case("other born low", lambda: born(snr=15.0, picture=p[5], seed=2)),
        Case(
            "other born fine", lambda: born(size=64, wavelength=0.0169, views=36, receivers=144, picture=p[6], seed=3)
        ),
        Case("other born weak", lambda: born(contrast=0.01, snr=22.0, picture=p[7], seed=4)),
        Case("other scattering", lambda: scattering(snr=30.0, discs="0.01,0,0.03,0.6;-0.03,0.03,0.01,1.5", seed=1)),
        Case("other scattering 20 dB", lambda: scattering(snr=20.0, wavelength=0.1, seed=2)),
        Case("other ptychography", lambda: ptychography(photons=1e4, picture=p[8], phase_picture=p[9], seed=1)),
        Case("other ptychography dim", lambda: ptychography(photons=500.0, picture=p[10], seed=2)),
        Case("other ptychography wide", lambda: ptychography(frame=48, across=7, overlap=0.6, picture=p[11], seed=3)),
        Case("other fpm", lambda: fpm(photons=1e5, picture=p[12], phase_picture=p[13], seed=1)),
        Case("other fpm defocus", lambda: fpm(photons=3e4, picture=p[14], defocus=2e-5, seed=2)),
        Case("other mri", lambda: mri(coils=6, acceleration=3.0, snr=35.0, picture=p[15], seed=1)),
        Case("other mri cartesian", lambda: mri(trajectory="cartesian", coils=8, acceleration=2.5, snr=30.0, seed=2)),
        Case("other mri spiral", lambda: mri(trajectory="spiral", snr=20.0, picture=p[16], seed=3)),
        Case("other odt", lambda: odt(snr=25.0, views=36, seed=1)),
        Case("other odt light", lambda: odt(scanning="light", snr=35.0, aperture=0.9, seed=2)),
    ]
    spoilt = [
        Case("other ct axis 1.5 px", lambda: axis_off(1.5, size=80, views=90, photons=3e4, picture=p[0]), "axis"),
        Case("other ct axis 360", lambda: axis_off(-2.0, arc=360.0, views=120, photons=1e4), "axis"),
        Case("other ct other way", lambda: turned_other_way(beam="curved-fan", picture=p[2]), "turn"),
        Case("other ct two dead", lambda: dead_view(ct(photons=1e4, picture=p[3]), 2), "view"),
        Case("other born wave x .94", lambda: longer_wave(0.94, size=64, snr=35.0, picture=p[4]), "wavelength"),
        Case("other born wave x 1.02", lambda: longer_wave(1.02, snr=25.0, picture=p[5]), "wavelength"),
        Case("other born conjugate", lambda: conjugated(born(snr=20.0, picture=p[6])), "conjugate"),
        Case("other born sigma .5", lambda: born(picture=p[7]), "denoiser", ("--sigma", "0.5")),
        Case("other scattering metal", lambda: metal(snr=30.0, wavelength=0.1), "metal"),
        Case("other ptychography probe", lambda: flat_probe(photons=1e4, picture=p[8]), "probe"),
        Case("other ptychography swapped", lambda: swapped_positions(photons=1e5, picture=p[9], seed=1), "position"),
        Case("other mri maps swapped", lambda: swapped_maps(trajectory="cartesian", coils=8, picture=p[15]), "coil"),
        Case("other mri maps conjugate", lambda: conjugated_maps(snr=20.0, coils=6), "coil"),
        Case("other fpm mirrored", lambda: mirrored_leds(photons=3e5, picture=p[12]), "LED"),
    ]
    return good + spoilt


def falling_cases() -> list[Case]:
    """Runs in which sigma and the step fall together, on pictures of their own, by which nothing was chosen."""
    p = pictures(68)[40:]
    good: list[Case] = []
    words = {name: ("--denoiser", name) for name in ("bm3d", "tnrd", "unet")}
    for number, snr in enumerate((15.0, 20.0, 25.0, 30.0, 35.0, 40.0)):
        options: dict[str, Any] = {"size": 64, "views": 60, "snr": snr, "picture": p[number], "seed": number}
        good.append(Case(f"fall born {snr:g} dB", partial(born, **options)))
    for number, snr in enumerate((10.0, 15.0, 20.0, 25.0, 30.0, 40.0)):
        options = {"snr": snr, "picture": p[6 + number], "seed": number}
        good.append(Case(f"fall mri {snr:g} dB", partial(mri, **options)))
    for number, photons in enumerate((1e3, 1e4, 1e5, 1e6)):
        options = {"photons": photons, "picture": p[12 + number], "seed": number}
        good += [Case(f"fall ct {photons:g} {n}", partial(ct, **options), words=w) for n, w in words.items()]
    for number, name in enumerate(("bm3d", "unet")):
        options = {"size": 64, "views": 60, "snr": 30.0, "picture": p[16 + number], "seed": number}
        good.append(Case(f"fall born {name}", partial(born, **options), words=words[name]))
    b: dict[str, Any] = {"size": 64, "views": 60, "snr": 30.0, "picture": p[18]}
    spoilt = [
        Case("fall born wave x 1.04", lambda: longer_wave(1.04, **b), "wavelength"),
        Case("fall born conjugate", lambda: conjugated(born(**b)), "conjugate"),
        Case("fall born dead view", lambda: dead_view(born(**b)), "view"),
        Case("fall mri maps swapped", lambda: swapped_maps(picture=p[19], snr=25.0), "coil"),
        Case("fall mri maps conjugate", lambda: conjugated_maps(picture=p[20], snr=20.0), "coil"),
        Case("fall ct axis 2 px", lambda: axis_off(2.0, picture=p[21], photons=1e5), "axis", words["tnrd"]),
    ]
    return good + spoilt


def sigma_cases() -> list[Case]:
    """One good scan with a typed sigma over two decades, to be read beside the answer on its strength."""
    strengths = (0.01, 0.03, 0.05, 0.1, 0.2, 0.4, 1.0)
    words = {f"sigma {s:g}{' 200 steps' * short}": (s, short) for s in strengths for short in (False, True)}
    return [
        Case(
            name,
            partial(ct, photons=1e4),
            "*",
            ("--sigma", str(s), "--hold-out", "6", *["--iterations", "200"] * short),
        )
        for name, (s, short) in words.items()
    ]


def run_case(case: Case, folder: Path) -> Path:
    """The folder of the case's run, which is made where it is not there yet."""
    scan, run = folder / "scan.zarr", folder / "run"
    if not (run / "result.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if not scan.exists():
            save_scan(case.make(), scan)
        plugstream_main(["reconstruct", str(scan), "--out", str(run), *QUIET, *case.words])
    return run


def snr_of(image: torch.Tensor, truth: torch.Tensor) -> float:
    """In dB; of complex images after the phase that suits best."""
    phase = torch.vdot(image.flatten(), truth.flatten().to(image.dtype)) if image.is_complex() else torch.ones(())
    error = (image * phase / phase.abs() - truth).abs().square().sum()
    return float(10 * torch.log10(truth.abs().square().sum() / error))


def judge_run(folder: Path) -> tuple[float, Explanation]:
    """SNR in dB, NaN where there is no truth, and whether the model explains the data."""
    scan, run = open_scan(folder / "scan.zarr"), folder / "run"
    settings = resolve(run / "settings.toml")
    image = torch.from_numpy(np.load(run / "result.npy"))
    instrument = scan.instrument
    options = model_options(settings, instrument)
    device = torch.device("cpu")
    model: Any = instrument.build_model(scan.columns, scan.n_views, options, device=device, dtype=torch.float32)
    refined = read_refined(run)
    model = model.with_parameters(refined) if refined else model
    fidelity = make_fidelity(model, scan, Amplitude() if model.intensities else None)
    low, high = settings.denoiser.low, settings.denoiser.high
    low = low if isinstance(low, float | int) else None
    high = high if isinstance(high, float | int) else None
    found = explain_result(
        fidelity, image.to(model.dtype), instrument, scan.columns, options, low=low, high=high, refined=tuple(refined)
    )
    quality = float("nan") if scan.truth is None else snr_of(image, torch.from_numpy(scan.truth))
    return quality, found


def answers_of(run: Path) -> list[dict[str, Any]]:
    """The three answers that the run gave at its end: arrived, explained, chosen by the data."""
    stop = replay(run / "events.jsonl").stop
    return [] if stop is None or stop.answers is None else list(stop.answers.values())


def change_tenfold(run: Path) -> float:
    """What ten times as many steps really change of the image of a run, in per cent of it; NaN where it took none."""
    stop, longer = replay(run / "events.jsonl").stop, run.parent / "tenfold"
    if stop is None or stop.step == 0:
        return float("nan")
    if not longer.exists():
        shutil.copytree(run, longer)
        plugstream_main(["resume", str(longer), "--iterations", str(10 * stop.step)])
    before, after = (torch.from_numpy(np.load(folder / "result.npy")) for folder in (run, longer))
    if before.is_complex():
        phase = torch.vdot(after.flatten(), before.flatten())
        after = after * (phase / phase.abs())
    return 100 * float((after - before).norm() / before.norm())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument(
        "--judge", action="store_true", help="judge the runs that are there, real ones too, and run none"
    )
    parser.add_argument("--tenfold", action="store_true", help="take ten times as many steps, to see what they change")
    parsed = parser.parse_args()
    known = {case.name.replace(" ", "-"): case for case in [*cases(), *other_cases(), *falling_cases(), *sigma_cases()]}
    with tempfile.TemporaryDirectory() as own:
        folder = parsed.folder or Path(own)
        names = list(known) + [p.name for p in sorted(folder.glob("real-*"))]
        head = f"{'run':26} {'SNR':>5} {'arrived':>13} {'to go':>6} {'really':>6} {'strength':>21}"
        print(f"{head} {'misfit':>8} {'noise':>8} {'x':>7}  flagged  causes")
        for name in names:
            if parsed.only and not any(word in name for word in parsed.only):
                continue
            if parsed.judge and not (folder / name / "run" / "result.npy").exists():
                continue
            case = known.get(name)
            if case is not None:
                run_case(case, folder / name)
            began = time.perf_counter()
            quality, found = judge_run(folder / name)
            spent = time.perf_counter() - began
            want = "" if case is None else case.cause
            named = any(want in cause.name for cause in found.causes[:2])
            flag = "but" if found.beyond else "no " if found.explained else "YES"
            bad = found.beyond or not found.explained
            right = want == "*" or bad if want in ("*", "?") else not bad if not want else not found.explained and named
            noise = float("nan") if found.noise is None else found.noise.fraction
            causes = "; ".join(f"{cause.name.split(',')[0]} {cause.evidence:.3g}" for cause in found.causes[:3])
            told = answers_of(folder / name / "run") or [{"word": "", "number": None}] * 3
            to_go = told[0]["number"]
            really = change_tenfold(folder / name / "run") if parsed.tenfold else float("nan")
            print(
                f"{name:26} {quality:5.1f} {told[0]['word']:>13.13} {float('nan') if to_go is None else to_go:6.2f} "
                f"{really:6.2f} {told[2]['word']:>21.21} {found.misfit:8.1e} {noise:8.1e} "
                f"{found.factor or float('nan'):7.2f}  "
                f"{flag} {'' if right else 'WRONG'} {spent:.1f}s {causes}",
                flush=True,
            )


if __name__ == "__main__":
    main()
