"""Go on with a run that was stopped, from its last checkpoint, as if it had not been."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.cli.common import TRUST_HELP, join_processes, reconstruct_scan, scan_place
from plugstream.cli.serve import RunPage, add_viewers, open_page, viewers_of
from plugstream.cli.values import whole_number

if TYPE_CHECKING:
    from plugstream.base.processes import Group
    from plugstream.runs.folder import RunRecord
    from plugstream.runs.plan import Plan
    from plugstream.runs.terminal import Viewers
    from plugstream.scans import Scan
    from plugstream.settings import AlgorithmSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of a run")
    parser.add_argument(
        "--iterations", type=whole_number(10**12), help="steps in all, if there are to be more than were planned"
    )
    parser.add_argument("--scan", type=scan_place, help="where the scan lies, if it was moved")
    parser.add_argument("--skip-damaged", action="store_true", help="from now on leave damaged views out")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    add_viewers(parser)


def run(parsed: argparse.Namespace) -> int:
    from plugstream.runs.folder import open_run

    open_run(parsed.folder)
    changes = {"iterations": parsed.iterations, "skip_damaged": parsed.skip_damaged}
    options = {"moved": parsed.scan, "trust": parsed.trust, "viewers": viewers_of(parsed)}
    with join_processes() as group:
        return resume(parsed.folder, **changes, **options, group=group, page=open_page(parsed, group))


def resume(folder: Path, *, viewers: Viewers | None = None, page: RunPage | None = None, **how: Any) -> int:
    """Go on with the run in a folder.

    Arguments: viewers, what else shows it; page, of its own; how, as of `reopen_run`.
    """
    scan, planned, record, source = reopen_run(folder, **how)
    if page is not None:
        page.start(folder)
    return reconstruct_scan(scan, planned, folder, record.command, source, go_on=True, viewers=viewers)


def reopen_run(
    folder: Path,
    *,
    iterations: int | None = None,
    skip_damaged: bool = False,
    moved: str | Path | None = None,
    group: Group | None = None,
    trust: bool = False,
) -> tuple[Scan, Plan, RunRecord, str | Path]:
    """The scan of the run in a folder, its plan, its record and where the scan lies; nothing is written.

    Arguments: iterations in all, None for as many as were planned; skip_damaged, whether damaged views are left out
    from now on; moved, where its scan lies by now; group, the processes that share the work; trust, whether what its
    files name may be run and fetched.
    """
    from plugstream.runs.folder import open_run
    from plugstream.runs.identity import absolute
    from plugstream.runs.library import load_small
    from plugstream.runs.partition import read_partition
    from plugstream.runs.parts import prepare
    from plugstream.runs.plan import plan
    from plugstream.scans.store import open_scan
    from plugstream.settings import Draft, Settings, SettingsFile
    from plugstream.settings.consent import check_address

    record = open_run(folder)
    source = moved or record.source
    used = None if record.simulated else Settings.model_fields.keys() - {"simulate"}
    draft = Draft.of(SettingsFile(folder / "settings.toml"), trust=trust, used=used)
    changes = [] if iterations is None else _with_iterations(draft.settings.algorithm, iterations, folder)
    changes += [("scan", "skip_damaged", True)] if skip_damaged else []
    settings = draft.add(changes).for_range(None)
    if isinstance(source, str) and moved is None:
        check_address(source, folder / "run.json", trust=trust)
    if isinstance(source, Path) and not source.exists():
        raise InputError(f"there is no scan at {source}; if it was moved, say where it is with --scan")
    stored = open_scan(source)
    parts = prepare(absolute(settings))
    partition = read_partition(folder)
    if partition is not None and iterations is not None:
        raise InputError(
            f"blocks of {folder} that have finished keep no state, so they cannot take more steps; start a new run "
            "with more --iterations"
        )
    planned = plan(parts if group is None else parts.share(group), stored, partition=partition)
    scan = stored if partition is not None else load_small(stored, settings, group)
    return scan, planned, record, source


def _with_iterations(planned: AlgorithmSettings, iterations: int, folder: Path) -> list[tuple[str, str, Any]]:
    """The changes of settings that give a run so many steps, the first of which stay as they were planned."""
    from plugstream.runs.replay import replay
    from plugstream.settings import hop_steps, open_end
    from plugstream.solver.result import Stop

    changes: dict[str, Any] = {"iterations": iterations, "arrive": None}
    limits = {Stop.TIME: "time_limit", Stop.DISTANCE: "distance_limit", Stop.SETTLED: "settled"}
    history = replay(folder / "events.jsonl")
    if history.stop is not None:  # by the limit that ended it, it would take no step more
        changes |= {key: None for reason, key in limits.items() if reason.value == history.stop.reason}
    falls = planned.sigma_end is not None or planned.step_size_end is not None
    if falls and planned.sigma_steps is None:  # over all iterations that were planned
        changes["sigma_steps"] = planned.iterations
    if planned.stages is not None:
        changes["stages"] = open_end(planned.stages)
    if planned.hop is not None and planned.hop_steps is None:
        changes |= {"hop_steps": hop_steps(planned, history.stages[0].count)} if history.stages else {}
    return [("algorithm", key, value) for key, value in changes.items()]
