"""Projectors of X-ray tomography against peers, in the same run: nanoseconds a voxel and view, and ratios.

    python benchmarks/ct.py                  this machine's CPU; peers where `make bench-peers` installed them
    python benchmarks/ct.py --threads 1
    python benchmarks/ct.py --gpu            512^3 and 256^3 on CUDA, beside ASTRA's kernels if it can be imported

Peers have a Python of their own, build/peers: ASTRA (one thread), scikit-image, grid_sample of torch and diffct's CPU
path. Times are medians. What is promised has a line of its own, with pass or fail, and the exit status is 1 where one
fails.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from plugstream import TV, All, LeastSquares, ProximalGradient, Uniform
from plugstream.models import CTModel
from plugstream.models.ct_beams import cone_beam, fan_beam, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans.baselines.filtered import filtered_back_projection
from plugstream.scans.baselines.voxel_views import VoxelViews

SIZE, COLUMNS, VIEWS = 512, 640, 181
CONE, CONE_VIEWS = 128, 10
PEERS = Path("build/peers/bin/python")
# What is promised: the peer, how many times faster, and on how many threads of ours, None for as many as are asked for.
BARS = {
    "parallel forward": ("ASTRA", 30.0, 2),
    "parallel adjoint": ("ASTRA", 20.0, 2),
    "fan forward": ("ASTRA", 15.0, 1),
    "fan adjoint": ("ASTRA", 8.0, 1),
    "cone forward": ("diffct", 100.0, None),
    "cone adjoint": ("diffct", 100.0, None),
}
STEP_BAR = 4.0  # how many times cheaper a step with ten views is than one with all
GPU_BARS = {
    "parallel 512^3, 180 views forward": 2.5,
    "parallel 512^3, 180 views adjoint": 3.5,
    "cone 512^3, 180 views forward": 1.2,
    "cone 512^3, 180 views adjoint": 1.2,
    "parallel 512^3, 180 views filtered": 1.0,
    "cone 512^3, 180 views filtered": 1.0,
    "rolled cone 512^3, 180 views forward": 1.2,
    "rolled cone 512^3, 180 views adjoint": 1.2,
}


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """The median time of a call, after one that does not count; a GPU is waited for."""
    times = []
    for turn in range(repeats + 1):
        begin = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if turn:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def cases() -> dict[str, tuple[Rays, Voxels]]:
    """The beams that are compared; the first cone has the views of a step."""
    turn = np.linspace(0, np.pi, VIEWS, endpoint=False)
    flat = Voxels((SIZE, SIZE), 1.0)
    solid = Voxels((CONE,) * 3, 1.0)
    return {
        "parallel": (parallel_beam(turn, COLUMNS, 1.0), flat),
        "fan": (fan_beam(2 * turn, COLUMNS, 2.0, source=3 * SIZE, detector=3 * SIZE), flat),
        "curved fan": (fan_beam(2 * turn, COLUMNS, 2.0, source=3 * SIZE, detector=3 * SIZE, curved=True), flat),
        "cone": (cone_beam(_circle(CONE_VIEWS), (CONE, CONE), 2.0, source=4 * CONE, detector=4 * CONE), solid),
        "cone, 60 views": (cone_beam(_circle(60), (CONE, CONE), 2.0, source=4 * CONE, detector=4 * CONE), solid),
        "stack, 60 views": (parallel_beam(_circle(60) / 2, (CONE, 180), 1.0), solid),
    }


def measure(rays: Rays, voxels: Voxels, device: str = "cpu") -> dict[str, float]:
    """Seconds of forward and adjoint of all views."""
    model = CTModel(rays, voxels, device=device)
    image = torch.rand(voxels.shape, device=device)
    data = torch.rand((len(rays), *rays.detector), device=device)
    return {"forward": seconds(lambda: model.forward(image)), "adjoint": seconds(lambda: model.adjoint(data))}


def compare_gather() -> None:
    """Back-projection by voxels, of which filtered back-projection is made: the native kernel beside grid_sample."""
    beams = cases()
    for name in ("parallel", "fan", "cone"):
        rays, voxels = beams[name]
        rays = rays.select(slice(0, CONE_VIEWS))
        views, far = torch.arange(len(rays)), np.hypot(*rays.vectors[:, 0, :2].T)
        data, took = torch.rand(len(rays), *rays.detector), {}
        for native in (True, False):
            plan = VoxelViews(rays, voxels, torch.device("cpu"), torch.float32)
            if not native:
                plan.is_native = lambda data: False  # type: ignore[method-assign]
            elif not plan.is_native(data):
                print("  no native kernel was built for back-projection by voxels")
                return
            took[native] = seconds(functools.partial(plan.gather, data, views, far), 3)
        each = 1e9 * took[True] / len(rays) / np.prod(voxels.shape)
        print(f"  {name + ' by voxels':<26}{each:>22.3f} ns a voxel and view, {took[False] / took[True]:.1f} x torch")


def compare_step(threads: int) -> bool:
    """A step of PnP-SGD with TV by ten views beside one by all; whether it is as much cheaper as promised."""
    rays, voxels = cases()["parallel"]
    model = CTModel(rays, voxels)
    disc = np.hypot(*np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]) < 0.8
    stripes = np.sign(np.sin(np.arange(SIZE) / 25))
    truth = torch.from_numpy((disc * (0.02 + 0.005 * stripes)).astype(np.float32))
    clean = model.forward(truth)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    fidelity = LeastSquares(model, clean + 0.01 * clean.max() * noise)
    took = {}
    for name, sampler, steps in (("all", All(), 20), ("ten", Uniform(10), 60)):
        algorithm = ProximalGradient(fidelity, TV(low=0.0), sigma=0.002, sampler=sampler)
        state, times = algorithm.init(), []
        for _ in range(steps):
            begin = time.perf_counter()
            state = algorithm.step(state)
            times.append(time.perf_counter() - begin)
        took[name] = statistics.median(times[steps // 4 :])
    ratio = took["all"] / took["ten"]
    ten, whole = (f"{1e3 * took[name]:.1f} ms" for name in ("ten", "all"))
    print(
        f"  {'pass' if ratio >= STEP_BAR else 'FAIL'}: a step with ten of {VIEWS} views takes {ten}, with all {whole}: "
        f"{ratio:.1f} x on {threads} thread{'s' * (threads > 1)}, promised {STEP_BAR:g} x"
    )
    return ratio >= STEP_BAR


def ask_peers(threads: int, python: Path) -> dict[str, dict[str, float]]:
    """What the peers take, {peer: {"beam direction": seconds}}; empty where there are none."""
    if not python.exists():
        print(f"no peers: {python} is not there; `make bench-peers` makes it")
        return {}
    sizes = map(str, (threads, SIZE, COLUMNS, VIEWS, CONE, CONE_VIEWS))
    done = subprocess.run(
        [str(python), str(Path(__file__).parent / "peers" / "ct_projectors.py"), *sizes],
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, dict[str, float]] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    if done.returncode:
        print("peers:", done.stderr.strip().splitlines()[-1])
    return found


def compare_cpu(threads: int, python: Path) -> bool:
    """Print all times, and the bars; whether every bar that could be looked at is met."""
    torch.set_num_threads(threads)
    own: dict[str, float] = {}
    print(
        f"CPU, {threads} thread{'s' * (threads > 1)}; {SIZE} x {SIZE}, {COLUMNS} columns, {VIEWS} views; cone {CONE}^3"
    )
    for name, (rays, voxels) in cases().items():
        for way, took in measure(rays, voxels).items():
            own[f"{name} {way}"] = took
            each = 1e9 * took / len(rays) / np.prod(voxels.shape)
            print(f"  {name + ' ' + way:<26}{1e3 * took:>10.2f} ms{each:>9.3f} ns a voxel and view")
    compare_gather()
    good = compare_step(threads)
    found = ask_peers(threads, python)
    for peer, times in found.items():
        for what, took in times.items():
            print(f"  {peer:>14} {what:<20}{1e3 * took:>10.1f} ms{took / own[what]:>9.1f} x ours")
    alone = {name for name, (_, _, count) in BARS.items() if count == 1}
    torch.set_num_threads(1)
    single = {f"fan {way}": took for way, took in measure(*cases()["fan"]).items()} if alone and found else {}
    for what, (peer, least, count) in BARS.items():
        if what not in found.get(peer, {}):
            print(f"  not looked at: {what}, since {peer} is not there")
            continue
        if count not in (None, 1, threads):
            continue
        ratio = found[peer][what] / (single if count == 1 else own)[what]
        good &= ratio >= least
        on = f"{count or threads} thread{'s' * ((count or threads) > 1)}"
        print(f"  {'pass' if ratio >= least else 'FAIL'}: {what} on {on} {ratio:.1f} x {peer}, promised {least:g} x")
    return good


def gpu_cases() -> dict[str, tuple[str, int, int, Rays]]:
    """Name: the kind of beam, voxels along a side, views, rays."""
    found = {}
    for size, views in ((512, 180), (256, 60), (512, 10)):
        stack = parallel_beam(_circle(views) / 2, (size, size), 1.0)
        cone = cone_beam(_circle(views), (size, size), 2.0, source=4 * size, detector=4 * size)
        for kind, rays in (("parallel", stack), ("cone", cone), ("rolled cone", cone.roll_detector(0.01))):
            found[f"{kind} {size}^3, {views} views"] = (kind, size, views, rays)
    return found


def compare_gpu() -> bool:
    """Forward and adjoint on the GPU beside ASTRA's kernels; whether every bar is met that could be looked at."""
    peer: Callable[[str, int, int], tuple[float, float]] | None = None
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    try:
        from astra_gpu import astra_seconds as peer
    except ImportError as error:
        print(f"  ASTRA is not here: {error}")
    good, card = True, torch.cuda.get_device_name()
    for name, (kind, size, views, rays) in gpu_cases().items():
        model = CTModel(rays, Voxels((size,) * 3, 1.0), device="cuda")
        image, data = torch.rand((size,) * 3, device="cuda"), torch.rand((views, size, size), device="cuda")
        one, two = model.forward(image).double(), model.adjoint(data).double()
        there = float((one * data).sum())
        apart = abs(there - float((image * two).sum())) / there
        good &= apart <= 1e-5
        del one, two
        own = seconds(functools.partial(model.forward, image)), seconds(functools.partial(model.adjoint, data))
        rates = " / ".join(
            f"{1e3 * took:.2f} ms ({size**3 * views / took / 1e9:.0f} G voxel-views a second)" for took in own
        )
        print(f"{card}, {name}: forward / adjoint {rates}; <A x, y> = <x, A' y> to {apart:.0e}")
        if peer is None:
            continue
        forward, back = peer(kind, size, views)
        rows = [("forward", own[0], forward), ("adjoint", own[1], back)]
        if kind != "rolled cone":  # the filter with it, beside ASTRA's back-projection alone
            form = functools.partial(filtered_back_projection, data, rays, Voxels((size,) * 3, 1.0), device="cuda")
            rows.append(("filtered", seconds(form), back))
        for way, mine, theirs in rows:
            least = GPU_BARS.get(f"{name} {way}")
            met = "" if least is None else f", promised {least:g} x: {'pass' if theirs / mine >= least else 'FAIL'}"
            good &= least is None or theirs / mine >= least
            print(f"  {way} {1e3 * mine:.2f} ms, {theirs / mine:.2f} x ASTRA ({1e3 * theirs:.2f} ms){met}")
    return good


def _circle(views: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.linspace(0, 2 * np.pi, views, endpoint=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the Python that has them")
    chosen = parser.parse_args()
    if chosen.gpu:
        sys.exit(0 if compare_gpu() else 1)
    elif not compare_cpu(chosen.threads, chosen.peers):
        sys.exit(1)
