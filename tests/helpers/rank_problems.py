"""What tests of several processes compute, on one process and on many, to compare the two."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from effort import cases, effort
from plugstream import (
    ADMM,
    SVRG,
    TV,
    All,
    Amplitude,
    BornGeometry,
    BornModel,
    DamagedError,
    Distance,
    Epochs,
    FixedViews,
    FromFunction,
    FunctionModel,
    Grid,
    Group,
    Huber,
    Importance,
    InputError,
    LeastSquares,
    LossFidelity,
    MatrixModel,
    ModelBase,
    Poisson,
    ProximalGradient,
    Sharded,
    ShiftedViews,
    SoftThreshold,
    Tiles,
    Uniform,
    adapt,
    process_group,
    solve,
)

# Into how many shards batches are cut: one a rank, or as many whatever the number of ranks.
KINDS = {"plain": None, "fixed": 8}
VIEWS = 7

SAMPLERS = {
    "all": All(),
    "uniform": Uniform(4),
    "one": Uniform(1),  # fewer views than ranks
    "epochs": Epochs(3),
    "shifted": ShiftedViews(3),
    "fixed": FixedViews([5, 0, 2]),
    "importance": Importance(4, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]),
}


class Recorded:
    """Measurements that remember which views were read, and of which some may be damaged."""

    def __init__(self, data: Tensor, damaged: int | None = None) -> None:
        self.rows, self.damaged, self.n_views = data, damaged, len(data)
        self.views: list[list[int]] = []

    def read(self, views: Tensor | None = None) -> Tensor:
        numbers = list(range(self.n_views)) if views is None else views.tolist()
        self.views.append(numbers)
        if self.damaged in numbers:
            raise DamagedError("the scan", {self.damaged: "its checksum is wrong"})
        return self.rows[numbers]


def born() -> LeastSquares:
    """Linear, real, two axes."""
    geometry = BornGeometry.rings(Grid((12, 10), 0.01), 0.05, views=VIEWS, receivers=9, radius=0.3, receiver_radius=0.2)
    model = BornModel(geometry)
    generator = torch.Generator().manual_seed(1)
    truth = torch.rand(model.image_shape, generator=generator) * 0.1
    noise = torch.randn((VIEWS, 9), dtype=torch.complex64, generator=generator)
    data = model.forward(truth)
    return LeastSquares(model, data + 0.05 * data.abs().mean() * noise, prox_tol=1e-6)


def _matrices(rows: int, pixels: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn((VIEWS, rows, pixels), dtype=dtype, generator=torch.Generator().manual_seed(seed)) / pixels**0.5


def curved() -> LeastSquares:
    """Not linear, complex, three axes: each datum is a wave and a little of its square."""
    shape = (3, 4, 5)
    matrices = _matrices(6, 60, torch.complex64, 2)

    def function(image: Tensor, views: Tensor) -> Tensor:
        waves = torch.einsum("brp,...p->...br", matrices[views], image.flatten(image.ndim - 3))
        return waves + 0.1 * waves * waves

    model = FunctionModel(function, n_views=VIEWS, image_shape=shape, data_shape=(6,), dtype=torch.complex64)
    truth = torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
    return LeastSquares(model, model.forward(truth))


def waves() -> LeastSquares:
    """Linear, complex, three axes, without norms of its own."""

    class Plain(ModelBase):
        n_views, image_shape, data_shape = VIEWS, (2, 4, 3), (5,)
        device, dtype, data_dtype = torch.device("cpu"), torch.complex64, torch.complex64
        matrices = _matrices(5, 24, torch.complex64, 4)

        def forward(self, image: Tensor, views: Any = None) -> Tensor:
            some = self.matrices if views is None else self.matrices[views]
            return torch.einsum("brp,...p->...br", some, image.flatten(image.ndim - 3))

        def adjoint(self, data: Tensor, views: Any = None) -> Tensor:
            some = self.matrices if views is None else self.matrices[views]
            return torch.einsum("brp,...br->...p", some.conj(), data).unflatten(-1, self.image_shape)

    model = Plain()
    truth = torch.randn(model.image_shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(5))
    return LeastSquares(model, model.forward(truth), prox_tol=1e-6)


def counts() -> LossFidelity:
    """Poisson counts of a linear model, read as they are wanted."""
    matrices = _matrices(6, 20, torch.float32, 6).abs()
    model = MatrixModel(list(matrices), (4, 5))
    return LossFidelity(model, Recorded((20 * model.forward(torch.ones(4, 5))).round()), Poisson(background=0.5))


def intensities() -> LossFidelity:
    """Those of waves, compared by their roots."""
    whole = waves()
    return LossFidelity(whole.model, whole.data().abs().square(), Amplitude())


def outliers() -> LossFidelity:
    """A loss that is not quadratic, of the data of two images at once."""
    model = MatrixModel(list(_matrices(6, 20, torch.float32, 7)), (4, 5))
    data = torch.randn((2, VIEWS, 6), generator=torch.Generator().manual_seed(8))
    return LossFidelity(model, data, Huber(0.3))


def images(group: Group, shards: int | None, samplers: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """What every algorithm makes of these problems, with every gradient and these samplers, in a few steps."""

    def share(fidelity: Any) -> Any:
        return fidelity if group.size == 1 and shards is None else Sharded(fidelity, group, shards=shards)

    tv, soft = TV(low=0.0), SoftThreshold()
    problem = share(born())
    for name, sampler in ((name, SAMPLERS[name]) for name in samplers):
        for gradient in ("plain", "saga", SVRG(probability=0.4)):
            solver = ProximalGradient(problem, soft, sigma=1e-3, sampler=sampler, gradient=gradient)
            label = gradient if isinstance(gradient, str) else "svrg"
            yield f"born {label} {name}", solve(solver, iterations=4).image
        yield (
            f"born admm {name}",
            solve(ADMM(problem, soft, sigma=1e-3, step_size="10/L", sampler=sampler), iterations=3).image,
        )
    long = ProximalGradient(problem, soft, sigma=1e-3, sampler=Uniform(3))
    yield "born after many steps", solve(long, iterations=40).image
    momentum = ProximalGradient(problem, tv, sigma=0.02, momentum="nesterov", restart="gradient")
    result = solve(momentum, iterations=5, monitors=[Distance()], every=2)
    yield "born momentum", result.image
    yield "born distance", torch.from_numpy(result.history["distance"].value)
    yield "born splitting", solve(ADMM(problem, soft, lam=1e-4, dual=False), iterations=3).image
    yield "born backprojection", problem.backprojection()
    yield "born backprojection of a few", problem.backprojection([1, 4])
    nonlinear, start = share(curved()), torch.full((3, 4, 5), 0.1 + 0.2j)
    for name, sampler in ((name, SAMPLERS[name]) for name in samplers):
        for label, gradient in (("plain", "plain"), ("svrg", SVRG(probability=0.4))):
            # A step that is found takes most of the time.
            step: Any = "1/2L" if (name, label) == ("uniform", "plain") else 0.2
            solver = ProximalGradient(nonlinear, soft, sigma=0.05, sampler=sampler, gradient=gradient, step_size=step)
            yield f"curved {label} {name}", solve(solver, start, iterations=3).image
    for gradient, make in cases(("plain", "saga", "svrg"), (waves, counts, outliers)):
        fidelity = share(make())
        solver = ProximalGradient(fidelity, soft, sigma=0.01, sampler=Uniform(3), gradient=gradient)
        start = torch.ones(fidelity.image_shape, dtype=fidelity.dtype)
        yield f"{make.__name__} {gradient}", solve(solver, start, iterations=4).image
    noisy = torch.rand((2, 30, 26), generator=torch.Generator().manual_seed(10))
    for tile in (9, 40):  # many tiles, and one, which all but rank 0 have no part in
        tiled = Tiles(TV(tol=1e-2), tile, 4, group=group)
        clean, warm = tiled.denoise(noisy, 0.3)
        yield f"tiles of {tile}", clean
        yield f"warm tiles of {tile}", tiled.denoise(noisy, 0.3, warm)[0]
    solver = ProximalGradient(problem, Tiles(soft, 5, group=group), sigma=1e-3, sampler=Uniform(3))
    yield "born on tiles", solve(solver, iterations=3).image
    volume = torch.rand((7, 6, 5), dtype=torch.complex64, generator=torch.Generator().manual_seed(11))
    threshold = adapt(soft, (7, 6, 5), complex=True)
    yield "slabs", Tiles(threshold, 2, group=group)(volume, 0.3)
    if shards is None:  # which are others for another number of ranks, and so are the bits
        yield "a slab for each", Tiles(threshold, group=group)(volume, 0.3)
    yield "waves admm", solve(ADMM(share(waves()), soft, sigma=0.01, step_size="5/L"), iterations=3).image


def numbers(group: Group, shards: int | None) -> Iterator[tuple[str, Tensor]]:
    """What fidelities say of themselves: values, L in all its forms, predictions and what they pull back."""
    for make in (born, curved, waves, counts, intensities, outliers):
        name, whole = make.__name__, make()
        fidelity = whole if group.size == 1 and shards is None else Sharded(whole, group, shards=shards)
        x = torch.randn(fidelity.image_shape, dtype=fidelity.dtype, generator=torch.Generator().manual_seed(9))
        x = x.abs() if name == "counts" else x
        yield f"{name} value", fidelity.value(x)
        yield f"{name} value of some", fidelity.value(x, [1, 1, 6], torch.tensor([0.2, 0.3, 0.7]))
        yield f"{name} gradient", fidelity.gradient(x)
        yield f"{name} change", fidelity.gradient_change(x, 0.5 * x, torch.tensor([2, 3, 2, 0, 4]))
        if fidelity.bends:
            gradient, product = fidelity.quadratic(x, [1, 2, 5, 6])
            yield f"{name} gradient of some", gradient
            yield f"{name} product", product(x.flip(0))
        if name in effort(("curved", "counts"), name):  # it takes longer than all the others
            yield f"{name} local", torch.tensor(fidelity.local_lipschitz(x))
        prediction = fidelity.predict(x, [4, 2, 0])
        yield f"{name} prediction", prediction
        yield f"{name} slopes", fidelity.slope_change(prediction, 0.5 * prediction, [4, 2, 0])
        if fidelity.linear:
            yield f"{name} pullback", fidelity.pullback(prediction, [4, 2, 0])
            yield f"{name} L", torch.tensor(fidelity.lipschitz)
            yield f"{name} all L", fidelity.lipschitz_views
            yield f"{name} largest L", torch.tensor(fidelity.lipschitz_max)
            yield f"{name} bound", torch.tensor(fidelity.bound_lipschitz([0, 5]))


def reads(group: Group) -> dict[str, Any]:
    """Which views this rank reads in a step of six and in a pass over all."""
    source = Recorded(born().data())
    fidelity = Sharded(LeastSquares(born().model, source), group)
    batch = torch.tensor([6, 1, 3, 3, 0, 5])
    fidelity.gradient(torch.zeros(12, 10), batch)
    step = [view for views in source.views for view in views]
    told = [view for part in fidelity.own_parts(batch) for view in part.tolist()]
    source.views.clear()
    fidelity.value(torch.zeros(12, 10))
    return {"step": step, "told": told, "pass": [view for views in source.views for view in views]}


def failure(group: Group) -> str:
    """What this rank says of a view that one of them cannot read."""
    fidelity = Sharded(LeastSquares(born().model, Recorded(born().data(), damaged=6)), group)
    try:
        fidelity.gradient(torch.zeros(12, 10), torch.tensor([0, 1, 2, 3, 4, 6]))
    except DamagedError as error:
        return f"{error} {error.views}"
    return "no error"


def failing_tile(group: Group) -> str:
    """What this rank says of a tile that the last of them cannot denoise."""

    def function(z: Tensor) -> Tensor:
        if group.rank == group.size - 1:
            raise InputError("this tile cannot be denoised")
        return z

    try:
        Tiles(FromFunction(function), 2, 0, group=group)(torch.zeros(8, 8), 0.1)
    except InputError as error:
        return str(error)
    return "no error"


def interrupt(group: Group) -> list[Any]:
    """How a run ends when the last rank is interrupted in its third step: the reason and the steps taken."""

    def callback(progress: Any) -> None:
        if progress.state.k == 2 and group.rank == group.size - 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # until Python has heard it

    solver = ProximalGradient(Sharded(born(), group), TV(), sigma=0.01, step_size=0.1)
    result = solve(solver, iterations=1000, callbacks=[callback], monitors=[Distance()])
    return [result.reason.name, result.state.k]


def compute(group: Group, shards: int | None, samplers: Sequence[str]) -> dict[str, Tensor]:
    """All images and numbers by name; of samplers the last is usually enough for a second kind of shards."""
    samplers = samplers if shards is None else effort(samplers[-1:], samplers)
    return {**dict(images(group, shards, samplers)), **dict(numbers(group, shards))}


def main(folder: Path, samplers: Sequence[str], kinds: Sequence[str]) -> None:
    """Be one of several ranks, as the environment says, and leave what it computed in a folder."""
    torch.set_num_threads(1)
    with process_group(timeout=120) as group:
        tensors = {}
        for kind in kinds:
            tensors |= {f"{kind} {name}": value for name, value in compute(group, KINDS[kind], samplers).items()}
        said = {
            "reads": reads(group),
            "failure": failure(group),
            "tile": failing_tile(group),
            "interrupt": interrupt(group),
        }
        said["shared"] = group.share({"rank": group.rank})
    np.savez(folder / f"rank{group.rank}.npz", **{name: value.numpy() for name, value in tensors.items()})
    (folder / f"rank{group.rank}.json").write_text(json.dumps(said))


def run_on_gpu(group: Group, shards: int | None = None) -> dict[str, Tensor]:
    """Images of a Born problem on a GPU: with soft thresholds, and with TV on tiles."""
    geometry = BornGeometry.rings(Grid((48, 40), 0.01), 0.06, views=9, receivers=30, radius=0.9)
    model = BornModel(geometry, device="cuda")
    truth = torch.rand(model.image_shape, generator=torch.Generator().manual_seed(1)).cuda() * 0.1
    fidelity = Sharded(LeastSquares(model, model.forward(truth)), group, shards=shards)
    plain = ProximalGradient(fidelity, SoftThreshold(), sigma=1e-4, sampler=Uniform(4))
    tiled = ProximalGradient(fidelity, Tiles(TV(tol=1e-5), 16, 8, group=group), sigma=1e-3, sampler=Uniform(4))
    return {name: solve(each, iterations=20).image.cpu() for name, each in (("plain", plain), ("tiled", tiled))}


def gpu_main(folder: Path) -> None:
    """Be one of the ranks, which share a GPU."""
    with process_group(timeout=60) as group:
        images = {**run_on_gpu(group), "backend": torch.tensor(list(torch.distributed.get_backend().encode()))}
        np.savez(folder / f"rank{group.rank}.npz", **{name: value.numpy() for name, value in images.items()})


if __name__ == "__main__":
    if len(sys.argv) == 2:
        gpu_main(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(","))
