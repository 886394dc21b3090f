"""One X-ray problem in SCICO, deepinv and plugstream: how long each takes to the same value of the same function.

    python examples/xray_peers.py --scico SCICO_PYTHON --deepinv build/bridges [--size 128]

    min  1/2 ||A x - y||^2 + lambda TV(x),    60 views of a parallel beam about the Shepp-Logan phantom

A is SCICO's XRayTransform2D, which its side uses as it is; the others have the same numbers as sparse matrices, so that
algorithms and TV are compared, not projectors, which are timed on their own. Each side has its own TV and what its
documentation takes for such a problem: SCICO ADMM with conjugate gradients, deepinv FISTA and PGD, plugstream FISTA on
all views, and PnP-SGD on 10 of the 60 a step with steps that fall. SCICO and deepinv have several settings to be best
with (rho, steps of inner solvers). Times are seconds of one core, with compilation left out by a first run.

SCICO_PYTHON is a Python with SCICO (`python -m venv build/scico && build/scico/bin/pip install scico`), build/bridges
what `make test-peers` leaves. A side that is not given is left out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

VIEWS, NOISE, WEIGHT = 60, 0.01, 1.0
GAPS = (1e-2, 1e-3, 1e-4)
Image = np.ndarray[Any, np.dtype[np.float64]]


def total_variation(image: Image) -> float:
    """The isotropic TV, differences beyond the edge being 0."""
    down = np.diff(image, axis=0, append=image[-1:])
    right = np.diff(image, axis=1, append=image[:, -1:])
    return float(np.sqrt(down**2 + right**2).sum())


def timed(solve: Callable[[int], Any], steps: Iterator[int]) -> list[tuple[int, float, Image]]:
    """Images after so many steps, each from the start, with the seconds of one core that they took."""
    solve(2)
    found = []
    for count in steps:
        began = time.process_time()
        image = solve(count)
        found.append((count, time.process_time() - began, np.asarray(image, dtype=np.float64)))
    return found


def powers(largest: int) -> Iterator[int]:
    """5, 7, 10, 14, 20, ..., largest."""
    count = 5.0
    while count <= largest:
        yield round(count)
        count *= 2**0.5


def with_scico(folder: Path, size: int) -> None:
    """Makes the problem, then solves it; run by SCICO's own Python."""
    jnp, functional, linop, loss, xray, optimize, admm = map(
        importlib.import_module,
        (
            "jax.numpy",
            *(f"scico.{name}" for name in ("functional", "linop", "loss", "linop.xray", "optimize", "optimize.admm")),
        ),
    )
    angles = np.linspace(0, np.pi, VIEWS, endpoint=False)
    project = xray.XRayTransform2D((size, size), angles, det_count=size)
    if not (folder / "problem.npz").exists():
        places, weights = xray.XRayTransform2D._calc_weights(
            project.x0, project.dx, project.nx, project.angles, project.y0
        )
        truth = np.load(folder / "truth.npy")
        clean = np.asarray(project(jnp.asarray(truth)))
        noise = NOISE * clean.max() * np.random.default_rng(0).standard_normal(clean.shape)
        np.savez(folder / "problem.npz", places=places, weights=weights, data=(clean + noise).astype(np.float32))
        return
    data = jnp.asarray(np.load(folder / "problem.npz")["data"])
    gradient = linop.FiniteDifference(input_shape=(size, size), input_dtype=np.float32, append=0)

    def solve(rho: float, inner: int, steps: int) -> list[tuple[int, float, Image]]:
        solver = optimize.ADMM(
            f=loss.SquaredL2Loss(y=data, A=project),
            g_list=[WEIGHT * functional.L21Norm()],
            C_list=[gradient],
            rho_list=[rho],
            x0=jnp.zeros((size, size), np.float32),
            maxiter=steps,
            subproblem_solver=admm.LinearSubproblemSolver(cg_kwargs={"tol": 1e-5, "maxiter": inner}),
            itstat_options={"display": False},
        )
        found = []
        spent, began = 0.0, time.process_time()

        def watch(solver: Any) -> None:
            nonlocal spent, began
            image = np.asarray(solver.x, dtype=np.float64)
            spent += time.process_time() - began
            found.append((solver.itnum + 1, spent, image))
            began = time.process_time()

        solver.solve(callback=watch)
        return found

    image = project.adj(data)
    there = time_calls(lambda: project(image).block_until_ready())
    back = time_calls(lambda: project.adj(data).block_until_ready())
    print(f"  SCICO's projector: {1000 * there:.2f} ms for all views, its adjoint {1000 * back:.2f} ms", flush=True)
    for rho, inner in ((3.0, 10), (10.0, 10), (30.0, 10)):
        solve(rho, inner, 2)
        keep(folder, f"SCICO ADMM, rho {rho:g}, {inner} of CG", solve(rho, inner, 60))


def time_calls(call: Callable[[], object]) -> float:
    """Seconds of one core of a call, the mean of twenty after one that does not count."""
    call()
    began = time.process_time()
    for _ in range(20):
        call()
    return (time.process_time() - began) / 20


def read_problem(folder: Path) -> tuple[list[Any], Image]:
    """The matrices of the views, (columns, pixels) each, and the data, (views, columns)."""
    from scipy import sparse

    kept = np.load(folder / "problem.npz")
    places, weights, data = kept["places"].reshape(VIEWS, -1), kept["weights"].reshape(VIEWS, -1), kept["data"]
    columns, pixels = data.shape[1], places.shape[1]
    matrices = []
    for place, weight in zip(places, weights, strict=True):
        rows, values = np.concatenate([place, place + 1]), np.concatenate([weight, 1 - weight])
        inside = (rows >= 0) & (rows < columns)
        numbers = np.tile(np.arange(pixels), 2)[inside]
        matrices.append(sparse.csr_array((values[inside], (rows[inside], numbers)), shape=(columns, pixels)))
    return matrices, data


def with_deepinv(folder: Path, size: int) -> None:
    import torch
    from scipy import sparse

    dinv: Any = importlib.import_module("deepinv")

    warnings.filterwarnings("ignore", message="Sparse")  # torch says that its matrices are new
    torch.set_num_threads(1)
    matrices, data = read_problem(folder)
    whole = sparse.csr_array(sparse.vstack(matrices))

    def as_torch(matrix: Any) -> Any:
        rows, columns, values = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data.astype(np.float32)))
        return torch.sparse_csr_tensor(rows, columns, values, size=tuple(matrix.shape))

    forward, back = as_torch(whole), as_torch(sparse.csr_array(whole.T))
    physics = dinv.physics.LinearPhysics(
        A=lambda x, **_: (forward @ x.reshape(-1, 1)).reshape(1, 1, VIEWS, -1),
        A_adjoint=lambda y, **_: (back @ y.reshape(-1, 1)).reshape(1, 1, size, size),
        img_size=(1, size, size),
    )
    y = torch.from_numpy(data)[None, None]
    norm = float(sparse.linalg.svds(whole, k=1, return_singular_vectors=False)[0]) ** 2

    start = torch.zeros(1, 1, size, size)

    def solver(method: str, inner: int) -> Callable[[int], Any]:
        def solve(steps: int) -> Any:
            model = getattr(dinv.optim, method)(
                prior=dinv.optim.prior.TVPrior(n_it_max=inner),
                data_fidelity=dinv.optim.data_fidelity.L2(),
                lambda_reg=WEIGHT,
                stepsize=1 / norm,
                max_iter=steps,
                custom_init=lambda y, physics: (start, start.clone()),
            )
            with torch.no_grad():
                return model(y, physics)[0, 0].numpy()

        return solve

    for method, inner in (("FISTA", 20), ("FISTA", 100), ("PGD", 20)):
        keep(folder, f"deepinv {method}, {inner} of TV", timed(solver(method, inner), powers(700)))


def with_plugstream(folder: Path, size: int) -> None:
    import torch

    import plugstream as ps
    from plugstream.models.ct import CTModel
    from plugstream.models.ct_beams import parallel_beam
    from plugstream.models.ct_geometry import Voxels

    torch.set_num_threads(1)
    matrices, data = read_problem(folder)
    model = ps.MatrixModel([matrix.astype(np.float32) for matrix in matrices], image_shape=(size, size))
    fidelity = ps.LeastSquares(model, torch.from_numpy(data))
    limit, tv = float(fidelity.lipschitz), ps.TV(tol=1e-4)

    def solve_all(steps: int) -> Any:
        # The fidelity is the mean over views: lambda is divided by their number.
        sigma = (WEIGHT / VIEWS / limit) ** 0.5
        algorithm = ps.ProximalGradient(fidelity, tv, sigma=sigma, step_size=1 / limit, momentum="nesterov")
        return ps.solve(algorithm, iterations=steps).image

    def solve_few(steps: int) -> Any:
        # TV's weight is sigma squared, and falls with the step.
        step = ps.Geometric(1 / limit, 0.3 / limit, steps)
        sigma = ps.Geometric((WEIGHT / VIEWS / limit) ** 0.5, (0.3 * WEIGHT / VIEWS / limit) ** 0.5, steps)
        algorithm = ps.ProximalGradient(
            fidelity, tv, sigma=sigma, step_size=step, sampler=ps.ShiftedViews(10), momentum="nesterov"
        )
        return ps.solve(algorithm, iterations=steps).image

    beam = parallel_beam(np.linspace(0, np.pi, VIEWS, endpoint=False), size, 2**0.5)
    projector, image = CTModel(beam, Voxels((size, size), 1.0)), torch.rand(size, size)
    there = time_calls(lambda: projector.forward(image))
    back = time_calls(lambda: projector.adjoint(torch.from_numpy(data)))
    print(
        f"  plugstream's projector: {1000 * there:.2f} ms for all views, its adjoint {1000 * back:.2f} ms", flush=True
    )

    keep(folder, "plugstream FISTA, all views", timed(solve_all, powers(700)))
    keep(folder, "plugstream PnP-SGD, 10 of 60 views", timed(solve_few, powers(700)))


def keep(folder: Path, name: str, found: list[tuple[int, float, Image]]) -> None:
    """Leave what a side found."""
    steps, seconds, images = zip(*found, strict=True)
    np.savez(folder / f"{name}.npz", steps=steps, seconds=seconds, images=np.stack(images))
    print(f"  {name}: {seconds[-1]:.1f} s for {steps[-1]} steps", flush=True)


def report(folder: Path) -> None:
    """The seconds of every side to values near the least that any of them found."""
    from scipy import sparse

    matrices, data = read_problem(folder)
    whole, truth = sparse.csr_array(sparse.vstack(matrices)), np.load(folder / "truth.npy")
    sides = {path.stem: dict(np.load(path)) for path in sorted(folder.glob("*.npz")) if path.stem != "problem"}
    for side in sides.values():
        misfits = [((whole @ image.ravel() - data.ravel()) ** 2).sum() / 2 for image in side["images"]]
        tvs = [total_variation(image) for image in side["images"]]
        side["values"] = np.array(misfits) + WEIGHT * np.array(tvs)
        errors = ((side["images"] - truth) ** 2).sum((1, 2))
        side["snr"] = 10 * np.log10((truth**2).sum() / errors)
    least = min(side["values"].min() for side in sides.values())
    print(f"\nseconds of one core to within ... of the least value found, {least:.4f}")
    print(f"{'':36}" + "".join(f"{gap:>10.0e}" for gap in GAPS) + "   steps     SNR   value / least")
    times = {}
    for name, side in sides.items():
        near = [side["seconds"][side["values"] <= (1 + gap) * least] for gap in GAPS]
        times[name] = [float(reached[0]) if len(reached) else np.inf for reached in near]
        cells = "".join(f"{time:10.2f}" if time < np.inf else f"{'-':>10}" for time in times[name])
        last = side["values"][-1] / least
        print(f"{name:36}{cells}{side['steps'][-1]:8d}{side['snr'][-1]:8.2f}   {last:.6f}")
    libraries = {name.split()[0] for name in sides}
    best = {one: np.min([those for name, those in times.items() if name.startswith(one)], axis=0) for one in libraries}
    for name in sorted(libraries - {"plugstream"}):
        pairs = zip(GAPS, best[name], best["plugstream"], strict=True)
        ratios = ", ".join(f"{theirs / ours:.1f} to {gap:.0e}" for gap, theirs, ours in pairs if theirs < np.inf)
        print(f"the best of {name} takes as many times as long as plugstream's: {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scico", type=Path, help="a Python that has SCICO")
    parser.add_argument("--deepinv", type=Path, help="a folder that has deepinv, for PYTHONPATH")
    parser.add_argument("--size", type=int, default=128, help="pixels a side (128)")
    parser.add_argument("--side", choices=("scico", "deepinv", "plugstream"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where to leave problem and images; nowhere if not given")
    chosen = parser.parse_args()
    if chosen.side:
        sides = {"scico": with_scico, "deepinv": with_deepinv, "plugstream": with_plugstream}
        sides[chosen.side](chosen.folder, chosen.size)
        return
    if chosen.scico is None:
        sys.exit("the problem is SCICO's: give the Python that has it with --scico")
    from plugstream.images.simulated import shepp_logan

    with tempfile.TemporaryDirectory() as place:
        folder = chosen.folder or Path(place)
        folder.mkdir(exist_ok=True)
        np.save(folder / "truth.npy", shepp_logan((chosen.size, chosen.size)).astype(np.float32))
        same: dict[str, str] = {}
        runs = [("scico", chosen.scico, same)] * 2 + [("plugstream", Path(sys.executable), same)]
        if chosen.deepinv is not None:
            runs.append(("deepinv", Path(sys.executable), {"PYTHONPATH": str(chosen.deepinv)}))
        single = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}
        for side, python, more in runs:
            words = [python, __file__, "--side", side, "--folder", folder, "--size", str(chosen.size)]
            subprocess.run(list(map(str, words)), env={**os.environ, **single, **more}, check=True)
        report(folder)


if __name__ == "__main__":
    main()
