"""A real cell by diffraction tomography, ours by commands beside odtbrain's back-propagation, in the same run.

    python benchmarks/odt.py FOLDER                        FOLDER has series.h5 and angles.txt of the HL60 cell
    python benchmarks/odt.py FOLDER --picture docs/images/hl60.png
    python benchmarks/odt.py --kernels                     what the non-uniform FFT takes, beside finufft
    python benchmarks/odt.py --gpu                         a step's gradient at 256^3 on CUDA, beside the CPU's

Every tenth view is left out of all reconstructions and judges them: ||y - H x|| / ||y||, H being our model, which makes
the same approximation as odtbrain (Rytov, Fourier diffraction theorem). As odtbrain's volume has an offset and a scale
of its own, it is judged as it comes, without what is below the medium, and that scaled as fits the views best. Its time
is that of its function alone, ours that of the whole command, from loading the libraries to the written volume, but for
the report, which draws what odtbrain leaves to others. odtbrain has a Python of its own, build/peers, where
`build/peers/bin/pip install odtbrain==0.4.12` puts it, or that of --peer.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugstream import open_scan
from plugstream.models import ODTModel
from plugstream.models.nufft import FinufftNufft
from plugstream.models.odt_geometry import poses_of_rotation

Volume = NDArray[np.float32]

PEER = Path("build/peers/bin/python")
SIGMA, STEPS, HELD, FEW = 0.002, 40, "5::10", 35
APERTURE = 0.9  # beyond it these views hold no more than noise; the ones that judge have all
SETTINGS = ("--sigma", SIGMA, "--low", 0, "--iterations", STEPS, "--every", STEPS, "--report", "none")
CASES = {"126 views": [], f"{FEW} views": ["--count", str(FEW)]}


def cpu_seconds() -> float:
    """Of all processes that were started and have ended; other work on the machine does not change it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(*words: object) -> tuple[float, float]:
    """Run plugstream; how many seconds it took, by the clock and of the cores."""
    begin, before = time.perf_counter(), cpu_seconds()
    subprocess.run([sys.executable, "-m", "plugstream", *map(str, words)], check=True, capture_output=True)
    return time.perf_counter() - begin, cpu_seconds() - before


def contrast(index: NDArray[Any], medium: float) -> NDArray[Any]:
    """What our image is, of a refractive index."""
    return (index / medium) ** 2 - 1


class Judge:
    """How well volumes predict the views that were left out."""

    def __init__(self, held: Path) -> None:
        scan = open_scan(held)
        self.data, self.medium = scan.read(), float(getattr(scan.instrument, "medium", 1.0))
        cpu = torch.device("cpu")
        self.model = scan.instrument.build_model(scan.columns, scan.n_views, device=cpu, dtype=torch.float32)

    def residual(self, volume: NDArray[Any]) -> tuple[float, float]:
        """As it is, and times the best factor."""
        seen = self.model.forward(torch.from_numpy(np.ascontiguousarray(volume, dtype=np.float32)))
        factor = (seen.conj() * self.data).real.sum() / seen.abs().square().sum()
        size = self.data.norm()
        return float((seen - self.data).norm() / size), float((factor * seen - self.data).norm() / size)

    def turn(self, volume: NDArray[Any]) -> NDArray[Any]:
        """odtbrain's volume in our axes: which way its x and z run is chosen in its favour."""
        ways = [
            np.flip(volume.swapaxes(0, 2) if swap else volume, axis=tuple(n for n, on in ((0, a), (2, b)) if on))
            for swap, a, b in itertools.product((False, True), repeat=3)
        ]
        return min(ways, key=lambda one: self.residual(np.maximum(one, 0))[1])


def core_and_shell(index: NDArray[Any], medium: float) -> tuple[float, float, float]:
    """Medians of the index in the nucleus and around it, and the mean of the cell, each by its place in it.

    The cell is what is more than half as far above the medium as its median inside; the nucleus lies within 0.35 of its
    radius around its centre, the cytoplasm between 0.65 and 0.85.
    """
    cell = index > medium + 0.5 * (np.median(index[index > medium + 0.005]) - medium)
    places = np.argwhere(cell)
    radius = (3 * len(places) / (4 * np.pi)) ** (1 / 3)
    far = np.linalg.norm(np.indices(index.shape) - places.mean(0)[:, None, None, None], axis=0) / radius
    core, shell = index[far < 0.35], index[(far > 0.65) & (far < 0.85)]
    return float(np.median(core)), float(np.median(shell)), float(index[cell].mean())


def compare(folder: Path, peer: Path, place: Path, picture: Path | None) -> None:
    command("import", "odt", folder, place / "held.zarr", "--select", HELD)
    judge = Judge(place / "held.zarr")
    medium, shown = judge.medium, {}
    told = f"sigma {SIGMA}, {STEPS} steps, aperture {APERTURE}; views {HELD} judge"
    print(f"{torch.get_num_threads()} threads; {told}", flush=True)
    for case, words in CASES.items():
        scan, run = place / f"{case[:3].strip()}.zarr", place / f"run{case[:3].strip()}"
        command("import", "odt", folder, scan, "--omit", HELD, "--aperture", APERTURE, *words)
        took, cpu = command("reconstruct", scan, *SETTINGS, "--out", run)
        ours = np.load(run / "result.npy")
        index = medium * np.sqrt(1 + ours)
        core, shell, mean = core_and_shell(index, medium)
        print(f"{case}: ours {took:.1f} s ({cpu:.1f} s of the cores), held-out residual {judge.residual(ours)[0]:.4f};")
        print(f"    index {mean:.4f} in the cell, {core:.4f} in the nucleus, {shell:.4f} in the cytoplasm", flush=True)
        shown[f"ours, {case}"] = index
        before = cpu_seconds()
        other = ask_peer(scan, peer, place)
        spent = cpu_seconds() - before
        if other is None:
            continue
        theirs, seconds = judge.turn(contrast(other[0], medium).real), other[1]
        plain, clipped = judge.residual(theirs)[0], judge.residual(np.maximum(theirs, 0))
        their_index = medium * np.sqrt(1 + theirs)
        core, shell, mean = core_and_shell(their_index, medium)
        ratios = f"{seconds / took:.1f} x ours ({spent:.1f} s of the cores, {spent / cpu:.1f} x)"
        print(f"    odtbrain {seconds:.1f} s, {ratios};")
        print(f"    residual {plain:.4f} as it comes,")
        print(f"    {clipped[0]:.4f} without what is below the medium, {clipped[1]:.4f} that and scaled; index")
        print(f"    {mean:.4f} in the cell, {core:.4f} in the nucleus, {shell:.4f} in the cytoplasm", flush=True)
        shown[f"odtbrain, {case}"] = their_index
    if picture is not None:
        draw(shown, picture, float(getattr(open_scan(place / "held.zarr").instrument, "pixel", 1.0)))


def ask_peer(scan: Path, peer: Path, place: Path) -> tuple[NDArray[Any], float] | None:
    """The refractive index by odtbrain, and its seconds; None where it is not there."""
    if not peer.exists():
        print(f"    no odtbrain: {peer} is not there")
        return None
    opened = open_scan(scan)
    instrument: Any = opened.instrument
    light = opened.columns["poses"][:][:, 3]
    np.savez(
        place / "sinogram.npz",
        data=opened.read().numpy(),
        angles=np.unwrap(np.arctan2(light[:, 0], light[:, 2])),
        res=instrument.wavelength / instrument.pixel,
        medium=instrument.medium,
    )
    script = Path(__file__).parent / "peers" / "odtbrain_volume.py"
    done = subprocess.run(
        [str(peer), str(script), str(place / "sinogram.npz"), str(place / "index.npy")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print("    odtbrain:", done.stderr.strip().splitlines()[-1])
        return None
    return np.load(place / "index.npy"), float(done.stdout.split()[-1])


def draw(volumes: dict[str, NDArray[Any]], path: Path, pixel: float) -> None:
    """Slices through the middle, across the axis of rotation and along it, with one scale for all."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(volumes), figsize=(3.1 * len(volumes), 5.8), squeeze=False, layout="constrained")
    for column, (name, index) in zip(axes.T, volumes.items(), strict=True):
        half = 0.5e6 * pixel * index.shape[-1]
        middle = index.shape[1] // 2
        for axis, part, labels in ((column[0], index[middle], "xy"), (column[1], index[:, middle], "xz")):
            drawn = axis.imshow(part, origin="lower", extent=(-half, half, -half, half), vmin=1.33, vmax=1.368)
            axis.set_xlabel(f"{labels[0]} (µm)")
            axis.set_ylabel(f"{labels[1]} (µm)")
        column[0].set_title(name)
    figure.colorbar(drawn, ax=axes, shrink=0.7, label="refractive index")
    figure.savefig(path, dpi=110)


def time_kernels(size: int = 96, views: int = 10) -> None:
    """A transform of a volume at the points of ten views, each way, beside finufft's plans for the same points."""
    from plugstream.models.ct_geometry import Voxels
    from plugstream.models.odt_geometry import Optics

    optics = Optics((size, size), 1.39e-7, 6.47e-7, 1.335, 1.13)
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.standard_normal((views, 3, 3)))[0]
    kinds = {
        "about an axis": poses_of_rotation(rng.uniform(0, 6, views)),
        "anywhere": np.concatenate([turned, turned[:, 2:]], 1),
    }
    for name, poses in kinds.items():
        model = ODTModel(poses, optics, Voxels((size,) * 3, 1.39e-7))
        index = torch.arange(views)
        points, _, _ = model._look(index)
        waves = np.concatenate([(model._cap(n).vectors @ poses[n, :3])[:, ::-1] for n in range(views)])
        plan = FinufftNufft((size,) * 3, -1.39e-7 * waves, 1e-4, device=torch.device("cpu"), dtype=torch.float32)
        volume = torch.rand(1, size, size, size)
        values = model.nufft.sample(volume, points)
        for what, mine, theirs in (
            ("sample", least(model.nufft.sample, volume, points), least(plan.sample, volume)),
            ("adjoint", least(model.nufft.adjoint, values, points), least(plan.adjoint, values)),
        ):
            print(f"{size}^3, {len(points)} points {name}: {what} {1e3 * mine:.1f} ms, finufft {theirs / mine:.1f} x")


def time_gradients(size: int = 256, views: int = 10) -> None:
    """The gradient of ten views of a volume, on CUDA and on the CPU."""
    from plugstream.models.ct_geometry import Voxels
    from plugstream.models.odt_geometry import Optics

    optics, voxels = Optics((size, size), 1.39e-7, 6.47e-7, 1.335, 1.13), Voxels((size,) * 3, 1.39e-7)
    poses = poses_of_rotation(np.linspace(0, 6, views))
    took = {}
    for device in ("cuda", "cpu"):
        model = ODTModel(poses, optics, voxels, device=device)
        volume = torch.rand(model.image_shape, device=device)
        data = torch.zeros((views, size, size), dtype=torch.complex64, device=device)

        def step(model: ODTModel = model, volume: torch.Tensor = volume, data: torch.Tensor = data) -> None:
            model.gradient(volume, data)
            if volume.is_cuda:
                torch.cuda.synchronize()

        took[device] = least(step)
    name = torch.cuda.get_device_name()
    ratio = took["cpu"] / took["cuda"]
    print(
        f"{size}^3, {views} views of {size} x {size}: gradient {1e3 * took['cuda']:.1f} ms on {name}, CPU {ratio:.0f} x"
    )


def least(function: Any, *arguments: Any, repeats: int = 5) -> float:
    """The least time of a call, after one that does not count."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--peer", type=Path, default=PEER)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    chosen = parser.parse_args()
    if chosen.gpu:
        time_gradients()
    elif chosen.kernels or chosen.folder is None:
        time_kernels()
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(chosen.folder, chosen.peer, Path(folder), chosen.picture)
