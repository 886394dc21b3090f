"""How much faster several processes are than one, where gradients are the work.

python benchmarks/distributed.py [--size 128] [--views 64] [--steps 40] [--ranks 2] [--only coded]

Gradients of a batch of views, one process of one thread against several of one thread each, which share it (`Sharded`)
and add up their images over loopback. Both are measured in turn in the same run, by the fastest of the steps, since
other work on the machine comes and goes. Three models: "coded", diffraction behind a mask of its own for each view, one
FFT a view, of which at least 1.7 is expected with two processes on two cores that are free; "dense", the Born model of
which every process reads the whole matrix; "fast", whose one non-uniform FFT serves all views and has to be done by
every process. Prints the ratios, what goes over the network, how long its all-reduce takes, and what the model of
docs/scale.md makes of it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time

import torch
from torch import Tensor

from plugstream import BornGeometry, BornModel, Grid, LeastSquares, Model, ModelBase, Sharded, process_group
from plugstream.models.views import Views

KINDS = ("coded", "dense", "fast")


class Coded(ModelBase):
    """Diffraction of an image behind masks: y_i = F (m_i x), F the unitary Fourier transform.

    View by view, so that what one works on stays in the processor's cache however many there are: otherwise a process
    with half of the views would gain by that, too.
    """

    def __init__(self, size: int, views: int) -> None:
        self.n_views, self.image_shape, self.data_shape = views, (size, size), (size, size)
        self.device, self.dtype, self.data_dtype = torch.device("cpu"), torch.complex64, torch.complex64
        generator = torch.Generator().manual_seed(2)
        self.masks = torch.exp(2j * torch.pi * torch.rand((views, size, size), generator=generator))

    def forward(self, image: Tensor, views: Views = None) -> Tensor:
        chosen = self._indices(views)
        waves = image.new_empty((*image.shape[:-2], len(chosen), *self.data_shape))
        for n, view in enumerate(chosen):
            waves[..., n, :, :] = torch.fft.fft2(self.masks[view] * image, norm="ortho")
        return waves

    def adjoint(self, data: Tensor, views: Views = None) -> Tensor:
        image = data.new_zeros((*data.shape[:-3], *self.image_shape))
        for n, view in enumerate(self._indices(views)):
            image += self.masks[view].conj() * torch.fft.ifft2(data[..., n, :, :], norm="ortho")
        return image

    def _indices(self, views: Views) -> list[int]:
        return list(range(self.n_views)) if views is None else torch.as_tensor(views).tolist()


def problem(size: int, views: int, kind: str) -> LeastSquares:
    """Data of noise, which takes as long as any."""
    if kind == "coded":
        model: Model = Coded(size, views)
    else:  # the paper's geometry
        grid = Grid((size, size), 0.18 / size)
        model = BornModel(BornGeometry.rings(grid, 0.0084, views=views, receivers=360, radius=0.96), method=kind)
    generator = torch.Generator().manual_seed(0)
    return LeastSquares(model, torch.randn((views, *model.data_shape), dtype=torch.complex64, generator=generator))


def measure(given: argparse.Namespace) -> None:
    """Be one of the ranks: time gradients, values of nothing but the all-reduce, and what it takes for one view."""
    torch.set_num_threads(1)
    with process_group(timeout=120) as group:
        fidelity = problem(given.size, given.views, given.only)
        shared = Sharded(fidelity, group)
        image = torch.rand(fidelity.image_shape, dtype=fidelity.dtype)
        batch = torch.randperm(given.views, generator=torch.Generator().manual_seed(3))  # as a sampler draws them
        shared.gradient(image, batch)
        steps = [_time(lambda: shared.gradient(image, batch)) for _ in range(given.steps)]
        sums = [_time(lambda: group.sum(image)) for _ in range(given.steps)]
        if group.leads:
            print(json.dumps({"step": steps, "sum": sums, "bytes": [image.nbytes]}))


def _time(work) -> float:  # type: ignore[no-untyped-def]
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def run(given: argparse.Namespace, ranks: int, kind: str) -> dict[str, list[float]]:
    """What rank 0 of so many processes measured."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--size", str(given.size), "--views", str(given.views), "--steps", str(given.steps)]
    words += ["--only", kind, "--rank"]
    started = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen([sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE, text=True)
        )
    try:
        said = [process.communicate(timeout=600)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    measured: dict[str, list[float]] = json.loads(said[0])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", choices=KINDS, help="only one of the models")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        measure(given)
        return
    print(f"gradient of {given.views} views, {given.size} x {given.size} pixels, one thread a process")
    for kind in (given.only,) if given.only else KINDS:
        ones, several = [], []
        for _ in range(given.repeats):
            ones.append(run(given, 1, kind))
            several.append(run(given, given.ranks, kind))
        one = min(min(each["step"]) for each in ones)
        many = min(min(each["step"]) for each in several)
        reduce = min(min(each["sum"]) for each in several)
        print(
            f"{kind}: 1 process {1e3 * one:.1f} ms, {given.ranks} processes {1e3 * many:.1f} ms, of which the "
            f"all-reduce of {several[0]['bytes'][0] / 1e6:.2f} MB {1e3 * reduce:.2f} ms (model: "
            f"{1e3 * (one / given.ranks + reduce):.1f} ms); ratio {one / many:.2f}"
        )


if __name__ == "__main__":
    main()
