"""What all blocks of a volume have in common, so that there are no seams: views, bounds of the image, and L."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import DamagedError, InputError
from plugstream.base.files import write_whole
from plugstream.base.progress import report
from plugstream.fidelity.by_loss import DataFidelity, is_least_squares, norms_of
from plugstream.instruments.base import Block
from plugstream.runs.bounds import Bounds
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Note, Views
from plugstream.runs.measuring import usable_views
from plugstream.runs.partition import Partition
from plugstream.runs.parts import goes_by_lipschitz
from plugstream.runs.plan import Plan
from plugstream.scans.blocks import block_columns, read_block, sum_rows
from plugstream.scans.chunks import first_of
from plugstream.scans.scan import MemoryScan
from plugstream.scans.store import StoredScan

_SUMS = "sums.npy"
_FEW = 8  # slices that stand for others which are alike, as many as projectors take together


@dataclass(frozen=True)
class Agreement:
    """What the blocks of a volume agree on.

    Arguments: scan; plan, of all of the volume, for a process by itself; partition, with views and L; sums (views,
    blocks), the checksums of the rows that each block reads.
    """

    scan: StoredScan
    plan: Plan
    partition: Partition
    sums: NDArray[np.uint32]

    @property
    def views(self) -> Tensor:
        """The views of the scan that can be used, by their numbers."""
        return _usable(self.partition.views or 0, self.partition.damaged)

    def block(self, number: int) -> Block:
        return self.cut(*self.partition.blocks[number])

    def cut(self, first: int, last: int) -> Block:
        """Some slices, as the scan's instrument cuts them."""
        block = self.scan.instrument.block(self.scan.columns, first, last)
        if block is None:
            raise InputError(f"views of {self.scan.path} can no longer be split into slices; start a new run")
        return block

    def open(self, number: int) -> tuple[MemoryScan, Plan]:
        """The scan of a block, in memory, and its plan."""
        first, last = self.partition.blocks[number]
        block, views = self.block(number), self.views
        plan = replace(self.plan.cut(block, first, last), lipschitz=self.partition.lipschitz)
        return read_block(self.scan, block, self.sums[views.numpy(), number], views, plan.truth), plan


def recall(scan: StoredScan, plan: Plan, partition: Partition, folder: Path) -> Agreement | None:
    """What a run that goes on had agreed on, None where it did not come that far."""
    place = folder / _SUMS
    if partition.views is None or not place.exists():
        return None
    if partition.views > scan.n_views:
        raise InputError(f"the run had {partition.views} views, but the scan {scan.path} has {scan.n_views}")
    try:
        sums = np.load(place, allow_pickle=False)
        if sums.shape != (partition.views, len(partition.blocks)) or sums.dtype != np.uint32:
            raise ValueError(f"it holds {sums.dtype} of {sums.shape}")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{place} cannot be read: {error}; restore it, or start a new run") from error
    return Agreement(scan, plan.alone(), partition, sums)


def write_sums(folder: Path, agreement: Agreement) -> None:
    """Write down the checksums of rows, for a run that goes on."""
    file = io.BytesIO()
    np.save(file, agreement.sums)
    write_whole(folder / _SUMS, [file.getvalue()])


def agree(scan: StoredScan, plan: Plan, partition: Partition, log: EventLog) -> Agreement:
    """Find out what all blocks have in common; of several processes all call it, and each reads some of the views.

    The lower bound of the image, where nobody gave it, is what the data of the block in the middle asks for.
    """
    group, n_views = plan.parts.group, plan.parts.group.share(scan.n_views)
    agreement = Agreement(scan, plan.alone(), replace(partition, views=n_views), np.zeros((0, 0), np.uint32))
    sums, damaged = _sum_shared(agreement, plan)
    if damaged:
        log.add(Note(f"warning: {len(damaged)} damaged views are left out: {first_of(damaged)}"))
    agreement = replace(agreement, sums=sums, partition=replace(agreement.partition, damaged=damaged))
    bounds = group.decide(lambda: _settle_bounds(agreement))
    agreement = replace(agreement, plan=agreement.plan.with_bounds(bounds))
    for reason in bounds.reasons:
        log.add(Note(f"{reason} (judged by the block in the middle)"))
    if goes_by_lipschitz(plan.settings):
        largest = group.decide(lambda: _bound_lipschitz(agreement))
        log.add(Note(f"L = {largest:.4g}, the largest of all blocks, bounds every view of each"))
        agreement = replace(agreement, partition=replace(agreement.partition, lipschitz=largest))
    return agreement


def _usable(views: int, damaged: tuple[int, ...], hold_out: int | None = None) -> Tensor:
    return usable_views(Views(0, views, damaged, None, True), hold_out)


def _sum_shared(agreement: Agreement, plan: Plan) -> tuple[NDArray[np.uint32], tuple[int, ...]]:
    """The checksums of all blocks' rows, (views, blocks), and the damaged views; each process reads some views."""
    group, n_views = plan.parts.group, agreement.partition.views or 0
    rows = [agreement.block(number).rows for number in range(len(agreement.partition.blocks))]
    each = -(-n_views // group.size)
    first = min(n_views, group.rank * each)
    views = torch.arange(first, min(n_views, first + each))
    table = torch.zeros((each, len(rows) + 1), dtype=torch.int64)
    failure: BaseException | None = None
    try:
        sums, bad = sum_rows(agreement.scan, rows, views)
        if bad and not plan.settings.scan.skip_damaged:
            damage = DamagedError(agreement.scan.path, bad)
            raise DamagedError(f"{damage}; to go on without damaged views, use --skip-damaged")
        table[: len(views), :-1] = torch.from_numpy(sums.astype(np.int64))
        table[[view - first for view in bad], -1] = 1
    except Exception as error:  # which all processes get with the sums
        failure = error
    gathered = group.gather(table, failure).reshape(-1, len(rows) + 1)[:n_views].numpy()
    damaged = tuple(int(view) for view in np.flatnonzero(gathered[:, -1]))
    if len(damaged) == n_views:
        raise DamagedError(f"all {n_views} views of the scan {agreement.scan.path} are damaged")
    return gathered[:, :-1].astype(np.uint32), damaged


def _settle_bounds(agreement: Agreement) -> Bounds:
    """The bounds that the block in the middle asks for, where nobody gave them."""
    d = agreement.plan.settings.denoiser
    if d.low != "auto" and d.support not in ("disc", "hull"):  # of volumes nothing else is asked
        return Bounds(d.low, d.upper, "none" if d.support == "auto" else d.support)
    scan, plan = agreement.open(len(agreement.partition.blocks) // 2)
    return plan.settle_bounds(_fidelity(scan, plan), scan.columns)


def _fidelity(scan: MemoryScan, plan: Plan) -> DataFidelity:
    """That of a block, on the views that steps draw from."""
    model = plan.model(scan.columns, scan.n_views)
    fidelity, views = plan.parts.fidelity(model, scan.data), _views_drawn(plan, scan.n_views)
    return fidelity if views is None else fidelity.with_views(model, views)


def _views_drawn(plan: Plan, views: int) -> Tensor | None:
    """The views of a block that steps draw from, None for all."""
    hold_out = plan.settings.monitor.hold_out
    return None if hold_out is None else _usable(views, (), hold_out)


def _bound_lipschitz(agreement: Agreement) -> float:
    """A bound of the L_i of all views and blocks: the largest curvature of the loss times the largest norm.

    That is what it would be of all of the volume. The norms of slices that are alike are those of a few of them; a loss
    other than least squares is asked for its curvature with the data of every block.
    """
    blocks = agreement.partition.blocks
    few = [(0, min(_FEW, agreement.partition.edges[-1]))] if agreement.block(0).alike else blocks
    norms = []
    for number, (first, last) in enumerate(few):
        if len(few) > 1:
            report("bounding L of every block", number, len(few))
        block = agreement.cut(first, last)
        plan, views = agreement.plan.cut(block, first, last), agreement.views
        model = plan.model(block_columns(agreement.scan, block, views), len(views))
        norms.append(norms_of(model, _views_drawn(plan, len(views))).lipschitz_max)
    curvature = 1.0
    if not is_least_squares(agreement.plan.parts.loss):
        opened = (agreement.open(number) for number in range(len(blocks)))
        curvature = max(_fidelity(scan, plan).curvature for scan, plan in opened)
        if not math.isfinite(curvature):
            raise InputError(
                "no L is known for this loss, so each block of slices would find a step of its own; give --step as "
                "a number"
            )
    return curvature * max(norms)
