"""Folders of runs whose images are of every kind: what no scan of ours gives within a second."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plugstream.base.quantities import Quantity
from plugstream.images.space import ImageSpace
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Machine, Measurement, Note, Quantities, Space, Start, Stop, Views
from plugstream.runs.folder import write_down, write_text
from plugstream.settings import Settings

PROCESS = {"pid": 2**22 + 1, "started": 34, "machine": "elsewhere boot pid"}
DISTANCE = Quantity("distance", "distance", unit="of its start", logarithmic=True, smaller_is_better=True, stops=True)
QUALITY = Quantity("snr", "SNR", unit="dB", form=".2f", smaller_is_better=False, needs_truth=True)


def ball(shape: tuple[int, ...], radius: float = 0.7) -> NDArray[np.float32]:
    """A ball with a smaller and brighter one in it, off its middle."""
    axes = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    distance = np.sqrt(sum(a**2 for a in axes))
    inner = np.sqrt(sum((a - 0.3) ** 2 for a in axes))
    return (0.6 * (distance < radius) + 0.4 * (inner < 0.25)).astype(np.float32)


def write_run(
    folder: Path,
    space: ImageSpace,
    result: NDArray[np.generic],
    truth: NDArray[np.generic] | None = None,
    *,
    steps: int = 50,
    stopped: bool = True,
) -> Path:
    """The folder of a run as `reconstruct` leaves it, but for its checkpoints; without its end where it was killed."""
    folder.mkdir(parents=True)
    write_down(folder, Settings(), "plugstream reconstruct scan.zarr --settings run/settings.toml", "scan.zarr")
    log = EventLog(folder / "events.jsonl")
    log.add(Start(steps, Settings().model_dump(mode="json"), {}, "0.1", "2.9", "3.12", **PROCESS))
    log.add(Machine("bench", "Linux 6", "a processor", 2, 2**34, "cpu", 2, 1))
    log.add(Space(space.content()))
    log.add(Note("building the model of 12 views on cpu"))
    log.add(Note("warning: <b>bold</b> & </script><script>alert(1)</script>"))
    log.add(Views(0, 8, (), 1.0, False))
    log.add(Quantities((DISTANCE.content(), QUALITY.content())))
    for step in range(0, steps + 1, 5):
        if step == 20:
            log.add(Views(step, 12, (3,), 1.0, True))
        values = {"distance": 10.0 ** (-step / 12), "snr": 24 * (1 - math.exp(-step / 10))}
        log.add(Measurement(step, 0.02 * step, values))
    if stopped:
        log.add(Stop(steps, steps, 1.0, 1.2, "all iterations were done", False, "converged", True, "it fell"))
    log.close()
    np.save(folder / "result.npy", result)
    np.save(folder / "start.npy", np.zeros_like(result))
    if truth is not None:
        np.save(folder / "truth.npy", truth)
    write_text(folder / "history.csv", "quantity,step,time,value\n")
    return folder


def noisy(truth: NDArray[np.float32]) -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    return (truth + 0.05 * rng.standard_normal(truth.shape)).astype(np.float32)


def write_volume(folder: Path, shape: tuple[int, int, int] = (30, 24, 36)) -> Path:
    space = ImageSpace(
        shape, spacing=(2e-4, 1e-4, 1e-4), origin=(0.0, -0.0012, -0.0018), quantity="attenuation", value_unit="1/mm"
    )
    return write_run(folder, space, noisy(ball(shape)), ball(shape))


def write_wave(folder: Path, size: int = 64) -> Path:
    """A complex image: a disc whose phase is a ramp; the result is turned by a global phase, and has a square more."""
    space = ImageSpace((size, size), is_complex=True, spacing=(1e-8, 1e-8), origin=(0.0, 0.0), quantity="transmission")
    phase = np.linspace(-3, 3, size)[None, :] * np.ones((size, 1))
    truth = (ball((size, size)) * np.exp(1j * phase)).astype(np.complex64)
    result = (truth * np.exp(2.1j)).astype(np.complex64)
    result[: size // 6, : size // 6] = 2 * np.exp(3.6j)  # by which its mean has another phase
    return write_run(folder, space, result, truth)


def write_channels(folder: Path) -> Path:
    space = ImageSpace((3, 20, 30), channels=True, upwards=False)
    truth = np.stack([n * ball((20, 30)) for n in (1, 2, 3)]).astype(np.float32)
    return write_run(folder, space, noisy(truth), truth)
