"""A volume cut into blocks of slices, each small enough for memory: whether that is needed, and whether it can be."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from plugstream.base.capacity import format_size, free_on_device
from plugstream.base.errors import InputError
from plugstream.runs.folder import write_text
from plugstream.runs.footprint import Footprint, memory_limit

if TYPE_CHECKING:
    from plugstream.denoisers.base import Denoiser
    from plugstream.instruments.base import Instrument
    from plugstream.runs.parts import Parts
    from plugstream.scans.scan import Scan
    from plugstream.settings import Settings

_FILE = "blocks.json"
# Of what the model, which was measured on CPUs, says, this part a run takes at least.
SURE = {"cpu": 0.75, "cuda": 0.5}


class Planned(Protocol):
    """What is asked of a plan, which has a partition itself."""

    @property
    def settings(self) -> Settings: ...
    @property
    def parts(self) -> Parts: ...
    @property
    def instrument(self) -> Instrument: ...
    @property
    def denoiser(self) -> Denoiser: ...


@dataclass(frozen=True)
class Partition:
    """The blocks of a volume, and what they must have in common, so that there are no seams between them.

    Arguments: edges, 0 < ... < D: block b has the slices from edges[b] up to edges[b + 1]; views of the scan that the
    run has, None where it has not begun; damaged ones among them; lipschitz, the L that the step of all blocks goes by,
    None where it goes by none, or it is not known yet; note, why it is cut, for a person.
    """

    edges: tuple[int, ...]
    views: int | None = None
    damaged: tuple[int, ...] = ()
    lipschitz: float | None = None
    note: str = field(default="", compare=False)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The first slice of each block, and the one after its last."""
        return list(zip(self.edges[:-1], self.edges[1:], strict=True))


def choose_partition(plan: Planned, scan: Scan) -> Partition | None:
    """The blocks by which a run goes, None where it goes at once: that depends on memory, and on what can be cut.

    A run that cannot be cut is refused where it exceeds the limit that was set, or without one, what is free.
    """
    settings, space, group = plan.settings, plan.instrument.image, plan.parts.group
    device = plan.parts.device
    if len(space.spatial) != 3 or space.channels or scan.n_views == 0:
        return None
    data = scan.n_views * math.prod(plan.instrument.data_shape) * plan.parts.dtype.itemsize
    depth, memory = space.shape[0], "memory" if device.type == "cpu" else "the GPU's memory"
    in_memory = data <= settings.scan.in_memory * 1e6
    dtype = plan.parts.dtype.to_complex() if space.is_complex else plan.parts.dtype
    volume = Footprint.of(plan.denoiser, space.shape, dtype, data / depth, in_memory=in_memory, device=device)
    limit = memory_limit(settings, group.size, device)
    if volume.bytes(depth) <= limit:
        return None
    if (obstacle := find_obstacle(plan, scan)) is not None:
        least = SURE[device.type] * volume.bytes(depth)
        if settings.compute.memory is not None or least > volume.process + free_on_device(device):
            shape = " x ".join(map(str, space.shape))
            raise InputError(
                f"a run on {shape} voxels takes about {format_size(volume.bytes(depth))} of {memory}, and "
                f"{format_size(limit)} are available; {obstacle}, or import it with larger voxels"
            )
        return None
    part = Footprint.of(plan.denoiser, space.shape, dtype, data / depth, in_memory=True, device=device)
    most = part.most(limit)
    if most < 1:
        raise InputError(
            f"a run on one slice of {space.shape[1]} x {space.shape[2]} takes about {format_size(part.bytes(1))} of "
            f"{memory}, and {format_size(limit)} are available; {_more(plan)}, or import it with larger voxels"
        )
    count = max(-(-depth // most), min(depth, group.size))
    edges = tuple(depth * number // count for number in range(count + 1))
    size = -(-depth // count)
    note = (
        f"all {depth} slices at once would take about {format_size(volume.bytes(depth))} of {memory}, and "
        f"{format_size(limit)} are available: they go in {count} blocks of up to {size}, of about "
        f"{format_size(part.bytes(size))} each"
    )
    return Partition(edges, note=note)


def find_obstacle(plan: Planned, scan: Scan) -> str | None:
    """Why a run cannot go by blocks of slices, as what to do about it; None where it can."""
    settings, depth = plan.settings, plan.instrument.image.shape[0]
    if plan.instrument.block(scan.columns, 0, depth) is None:
        return f"views of it cannot be split into slices, so {_more(plan)}"
    if plan.denoiser.reach != 0 or plan.instrument.image.is_complex:
        return "to go by blocks of slices, denoise slices by --along z"
    if settings.scan.follow:
        return "blocks of slices need all views, so wait for them and leave --follow out"
    if settings.algorithm.time_limit is not None:
        return "to go by blocks of slices, say --iterations and leave --time-limit out"
    if settings.algorithm.settled is not None:
        return "to go by blocks of slices, leave --settled out, which all slices decide together"
    if settings.algorithm.stages is not None or settings.algorithm.hop is not None:
        return "to go by blocks of slices, leave the stages of the run out"
    if settings.momentum.restart != "none":
        return "to go by blocks of slices, leave --restart out, which all slices decide together"
    return None


def _more(plan: Planned) -> str:
    """How a run gets more memory."""
    on_gpu = plan.parts.device.type == "cuda" and plan.settings.compute.memory is None
    return "use a GPU with more memory or --device cpu" if on_gpu else "allow more --memory"


def write_partition(folder: Path, partition: Partition) -> None:
    """Write down what a run that goes on must know of its blocks, at once or not at all."""
    content = {name: getattr(partition, name) for name in ("edges", "views", "damaged", "lipschitz")}
    write_text(folder / _FILE, json.dumps(content) + "\n")


def read_partition(folder: Path) -> Partition | None:
    """The blocks of the run in a folder, None where it goes at once."""
    path = folder / _FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Partition(
            tuple(map(_check_count, content["edges"])),
            None if content["views"] is None else _check_count(content["views"]),
            tuple(map(_check_count, content["damaged"])),
            None if content["lipschitz"] is None else float(content["lipschitz"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}; restore it, or start a new run") from error


def _check_count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{str(value)[:40]} is no whole number")
    return value
