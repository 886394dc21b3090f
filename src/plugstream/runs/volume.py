"""The run of a volume that is larger than memory: block after block of slices, each a run of its own.

    RUN/blocks.json        the blocks, and what all of them have in common: views, and the L that their step goes by
    RUN/blocks/sums.npy    checksums of the rows of each view that each block reads
    RUN/blocks/0007/       the run of a block: settings, log, checkpoints while it goes on; finished.json at its end
    RUN/result.npy         the volume, in which a block's slices are once it has finished
    RUN/events.jsonl       progress over all blocks

Blocks share views, step, bounds and the draw of views, so a block's slices are what they would be in a run on the whole
volume. Whatever happens, finished blocks are not repeated, and the one that was begun goes on from its checkpoint, to
the bit.
"""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from plugstream.algorithms import State
from plugstream.base.errors import DamagedError, InputError, is_refusal
from plugstream.base.volume_file import VolumeFile, make_volume
from plugstream.images.space import ImageSpace
from plugstream.runs.agreement import Agreement, agree, recall, write_sums
from plugstream.runs.callbacks import Watcher
from plugstream.runs.commands import Command, Inbox, Requests
from plugstream.runs.event_log import EventLog, SilentLog
from plugstream.runs.events import (
    Event,
    Finishing,
    Forecast,
    Heartbeat,
    Measurement,
    Note,
    Quantities,
    Resume,
    Space,
    Steering,
    Stop as StopEvent,
)
from plugstream.runs.execution import write_reports
from plugstream.runs.folder import lock, place_of, remove_unbegun, whole_folder, write_down, write_text
from plugstream.runs.identity import log_start
from plugstream.runs.partition import Partition, write_partition
from plugstream.runs.plan import Plan
from plugstream.runs.replay import History, replay
from plugstream.runs.results import volume_snr, write_volume_results
from plugstream.runs.run import explain_failure, reconstruct
from plugstream.runs.terminal import Terminal, Viewers
from plugstream.scans.store import StoredScan
from plugstream.solver.result import Progress, Result, Stop
from plugstream.solver.verdict import Answer, Outcome, Verdict, worst_verdict

# Seconds between two looks at whether blocks of other processes have finished.
_LOOK = 0.5


@dataclass(frozen=True)
class VolumeResult:
    """How the run of a volume ended: its file, steps of each block, verdict on the worst, and seconds of all."""

    volume: VolumeFile
    image_step: int
    reason: Stop
    verdict: Verdict
    time: float
    wall: float
    history: dict[str, Any] = field(default_factory=dict)


def reconstruct_volume(
    scan: StoredScan,
    plan: Plan,
    folder: Path,
    *,
    command: str,
    source: str | Path,
    go_on: bool = False,
    terminal: Terminal | None = None,
    viewers: Viewers | None = None,
) -> VolumeResult:
    """Reconstruct a volume by the blocks of the plan's partition, into a new folder, or one that goes on.

    Arguments as of `plugstream.runs.run.reconstruct`. Of several processes all call it: rank r has the blocks r,
    r + W, ..., and rank 0 writes the log and the results.
    """
    partition, group = plan.partition, plan.parts.group
    assert partition is not None
    viewers = viewers or Viewers()
    if viewers.live_zarr is not None:
        raise InputError("a volume that is reconstructed in blocks of slices has no live image; leave --live-zarr out")
    viewers.check()
    fresh = not go_on and not folder.exists()
    if group.leads and fresh:
        with whole_folder(folder) as partly:
            write_down(partly, plan.settings, command, place_of(source, folder))
            write_partition(partly, partition)
            (partly / "blocks").mkdir()
    with contextlib.ExitStack() as stack:
        if group.leads:
            stack.enter_context(lock(folder))
            past = replay(folder / "events.jsonl") if go_on else History()
            listeners = (*(() if terminal is None else (terminal,)), *viewers.listeners(folder))
            log = EventLog(folder / "events.jsonl", listeners)
            stack.callback(log.close)
            stack.callback(viewers.close)
        else:
            past, log = History(), SilentLog(folder / "events.jsonl")
        run = _VolumeRun(scan, plan, partition, folder, log, command, source, past, terminal if group.leads else None)
        try:
            return run.run()
        except Exception as error:  # of the data, of the disk, of memory, or a mistake of ours: nothing is lost by it
            if fresh and run.step == 0 and is_refusal(error):
                if group.leads:
                    remove_unbegun(folder, "blocks", "blocks.json", "result.npy")
                raise
            explained = explain_failure(error, folder, source)
            with contextlib.suppress(InputError, MemoryError):
                why = str(error if isinstance(error, InputError) else explained or repr(error))
                log.add(StopEvent(run.step, run.step, *run.seconds(), reason=why, failed=True))
            if explained is None or explained is error:
                raise
            raise explained from error


@dataclass
class _VolumeRun:
    """The run of a volume in a folder that is locked."""

    scan: StoredScan
    plan: Plan
    partition: Partition
    folder: Path
    log: EventLog
    command: str
    source: str | Path
    past: History
    terminal: Terminal | None
    step: int = 0

    def __post_init__(self) -> None:
        self.group = self.plan.parts.group
        self.iterations = self.plan.settings.algorithm.iterations

    @property
    def total(self) -> int:
        """Steps of all blocks."""
        return self.iterations * len(self.partition.blocks)

    def run(self) -> VolumeResult:
        """The result, after all of it was written."""
        log_start(self.log, self.plan.settings, self.group.size, self.total)
        self.log.add(Forecast(0, self.total, self.plan.settings.algorithm.arrive is not None))
        space = ImageSpace.of(self.scan)
        if space != self.past.space:
            self.log.add(Space(space.content()))
        if self.partition.note:
            self.log.add(Note(self.partition.note))
        for text in self.plan.notes:
            self.log.add(Note(text))
        inbox = Inbox(self.folder)
        if self.group.leads:
            inbox.clear()  # what was asked of another process
        agreement = self._agree()
        if self.group.leads:
            make_volume(self.folder / "result.npy", space.shape)
        self.group.share(None)  # all of it is there before a block is begun
        volume = make_volume(self.folder / "result.npy", space.shape)
        reason = self._work(volume, agreement)
        if self.group.leads:
            inbox.clear()
        return self._end(volume, space, reason)

    def seconds(self) -> tuple[float, float]:
        """Of the steps of all blocks that have finished, and with measuring."""
        ends = self._ends().values()
        return sum(end["time"] for end in ends), sum(end["wall"] for end in ends)

    def _agree(self) -> Agreement:
        """What all blocks have in common, as it was written down, or found out now."""
        place = self.folder / "blocks"
        agreement = recall(self.scan, self.plan, self.partition, place)
        if agreement is not None:
            return agreement
        agreement = agree(self.scan, self.plan, self.partition, self.log)
        if self.group.leads:
            write_sums(place, agreement)
            write_down(self.folder, agreement.plan.settings, self.command, place_of(self.source, self.folder))
            write_partition(self.folder, agreement.partition)
        return agreement

    def _work(self, volume: VolumeFile, agreement: Agreement) -> Stop:
        """Run this process's blocks, and say why that ended."""
        count, several = len(self.partition.blocks), self.group.size > 1
        ends = self._ends()
        reason = Stop.ITERATIONS
        try:
            with Requests(several=True) if several else contextlib.nullcontext() as requests:
                for number in range(self.group.rank, count, self.group.size):
                    if number in ends:
                        continue
                    reason = self._run_block(number, volume, agreement)
                    # Callbacks and what they look at know each other, and nothing else would free them before long.
                    gc.collect()
                    if requests is not None and requests.came:
                        reason = Stop.INTERRUPTED
                    if reason in (Stop.INTERRUPTED, Stop.ASKED) or reason.failed:
                        return reason
                while several and len(self._ends()) < count:  # a process that dies takes the others along
                    if requests is not None and requests.came:
                        return Stop.INTERRUPTED
                    time.sleep(_LOOK)
        except KeyboardInterrupt:
            return Stop.INTERRUPTED
        return reason

    def _run_block(self, number: int, volume: VolumeFile, agreement: Agreement) -> Stop:
        """Run a block to its end, and put its slices into the volume."""
        first, last = self.partition.blocks[number]
        name = f"block {number + 1} of {len(self.partition.blocks)}"
        ends = self._ends()
        before, (seconds, _) = self.iterations * len(ends), self.seconds()
        self.step = before
        self.log.add(Note(f"{name}: slices {first} to {last - 1}"))
        try:
            scan, plan = agreement.open(number)
        except DamagedError as error:  # since it was looked at; blocks that have finished had all views
            again = "bring the scan back as it was and go on, or start a new run with --skip-damaged"
            raise DamagedError(f"{error}; {again}") from error
        place = self._place(number)
        declared = bool(ends or self.past.quantities)
        relay = Relay(self.log, self.terminal, name, before, seconds, self.total, declared)
        alone = self.group.size == 1
        result: Result[Any] = reconstruct(
            scan,
            plan,
            place,
            command=self.command,
            source=self.source,
            go_on=(place / "run.json").exists(),
            terminal=relay if self.group.leads else None,
            inbox=VolumeInbox(self.folder) if alone else None,
            part=True,
        )
        self.step = before + result.state.k
        if result.reason in (Stop.INTERRUPTED, Stop.ASKED):
            return result.reason
        volume.write(first, result.image.detach().cpu().numpy())
        if not result.reason.failed:
            end = {"steps": result.state.k, "time": result.time, "wall": result.wall}
            end |= {"outcome": result.verdict.outcome.name, "text": result.verdict.text}
            end["limits"] = result.verdict.explanation.word.partition("; ")[2]  # such as directions without rays
            write_text(place / "finished.json", json.dumps(end) + "\n")
            shutil.rmtree(place / "checkpoints", ignore_errors=True)
        return result.reason

    def _place(self, number: int) -> Path:
        return self.folder / "blocks" / f"{number:04d}"

    def _ends(self) -> dict[int, dict[str, Any]]:
        """How the blocks ended that have finished, whichever process ran them."""
        ends = {}
        for number in range(len(self.partition.blocks)):
            path = self._place(number) / "finished.json"
            if not path.exists():
                continue
            try:
                end = ends[number] = json.loads(path.read_text(encoding="utf-8"))
                Outcome[end["outcome"]], float(end["time"]), float(end["wall"]), int(end["steps"]), str(end["text"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} cannot be read: {error}; remove it, and the block is run again") from error
        return ends

    def _end(self, volume: VolumeFile, space: ImageSpace, reason: Stop) -> VolumeResult:
        """Write what shows the volume, and the end of the log."""
        ends = self._ends()
        count = len(self.partition.blocks)
        verdicts = {n: Verdict(Outcome[end["outcome"]], end["text"]) for n, end in ends.items()}
        verdict = worst_verdict({f"block {n + 1} of {count}": one for n, one in verdicts.items()})
        if limits := next((end["limits"] for end in ends.values() if end.get("limits")), ""):
            answer = Answer(f"not asked; {limits}", None, "the volume went by blocks")
            verdict = replace(verdict, explanation=answer)
        seconds, wall = self.seconds()
        steps = max((end["steps"] for end in ends.values()), default=0)
        result = VolumeResult(volume, steps, reason, verdict, seconds, wall)
        if self.group.leads:
            step = self.step if len(ends) < count else self.total
            self.log.add(Finishing(step))
            if len(ends) == count:
                if self.plan.truth is not None:
                    self.log.add(Note(f"SNR {volume_snr(volume, self.plan.truth):.2f} dB of all slices together"))
                write_volume_results(self.folder, volume, space)
            about: dict[str, Any] = verdict.content() if len(ends) == count or reason.failed else {}
            self.log.add(StopEvent(step, step, seconds, wall, reason.value, reason.failed, **about))
            write_reports(self.folder, self.log, self.plan.settings)
        return result


@dataclass
class Relay(Watcher):
    """Passes what the run of a block measures, what it warns of, and how far it is on to the log of the volume.

    Steps are counted over all blocks. Measurements before the first step are passed on for the first block alone.

    Arguments: log of the volume's run; terminal that shows it; name of the block, "block 3 of 16"; before, steps of
    the blocks before, and their seconds; total, of all steps; declared, whether the log says what is measured.
    """

    log: EventLog
    terminal: Terminal | None
    name: str
    before: int
    seconds: float
    total: int
    declared: bool

    def __call__(self, event: Event) -> None:
        match event:
            case Note() if event.text.startswith("warning: "):
                self.log.add(Note(f"warning: {self.name}: {event.text.removeprefix('warning: ')}"))
            case Quantities() if not self.declared:
                self.declared = True
                self.log.add(event)
            case Resume():
                self.log.add(Resume(self.before + event.step))
            case Measurement() if event.step > 0 or self.before == 0:
                self.log.add(replace(event, step=self.before + event.step, time=round(self.seconds + event.time, 4)))
            case Heartbeat():
                self.log.add(replace(event, step=self.before + event.step, planned=self.total))
            case Steering() if event.action != "change":
                self.log.add(replace(event, step=self.before + event.step))

    def after_step(self, progress: Progress[State]) -> None:
        if self.terminal is not None:
            self.terminal.tick(self.before + progress.state.k, self.seconds + progress.time, time.time())


class VolumeInbox(Inbox):
    """What people ask of a volume's run, for the run of one of its blocks: to wait or to stop."""

    def take(self) -> list[tuple[Path, Command | InputError]]:
        """Refuse a change, since another sigma for some blocks would leave seams."""
        fixed = InputError("all blocks of a volume have one sigma and one step; start a new run with others")
        return [
            (path, fixed if isinstance(command, Command) and command.action == "change" else command)
            for path, command in super().take()
        ]

    def clear(self) -> None:
        """Leave what came between two blocks for the next."""
