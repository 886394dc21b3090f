"""Go on with a run that was stopped, from its last checkpoint, as if it had not been."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.cli.common import TRUST_HELP, join_processes, load_small, reconstruct_scan, scan_place
from plugstream.cli.serve import RunPage, add_serve, open_page
from plugstream.cli.values import whole_number
from plugstream.cli.viewers import add_viewers, viewers_of

if TYPE_CHECKING:
    from plugstream.base.processes import Group
    from plugstream.runs.terminal import Viewers

SECTIONS: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command has besides settings."""
    parser.add_argument("folder", type=Path, help="the folder of a run")
    parser.add_argument(
        "--iterations", type=whole_number(10**12), help="steps in all, if there are to be more than were planned"
    )
    parser.add_argument("--scan", type=scan_place, help="where the scan lies, if it was moved")
    parser.add_argument("--skip-damaged", action="store_true", help="from now on leave damaged views out")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    add_viewers(parser)
    add_serve(parser)


def run(parsed: argparse.Namespace) -> int:
    """Go on with a run."""
    from plugstream.runs.folder import open_run
    from plugstream.runs.replay import replay
    from plugstream.settings import hop_steps, open_end, resolve

    open_run(parsed.folder)
    viewers = viewers_of(parsed)
    changes: list[tuple[str, str, Any]] = []
    if parsed.iterations is not None:
        before = resolve(parsed.folder / "settings.toml", trust=parsed.trust).algorithm
        changes += [("algorithm", "iterations", parsed.iterations), ("algorithm", "arrive", None)]
        # Where sigma or the step falls over all iterations, it is over those that were planned.
        if (before.sigma_end is not None or before.step_size_end is not None) and before.sigma_steps is None:
            changes.append(("algorithm", "sigma_steps", before.iterations))
        # So do stages: the last of them goes on.
        if before.stages is not None:
            changes.append(("algorithm", "stages", open_end(before.stages)))
        if (
            before.hop is not None
            and before.hop_steps is None
            and (stages := replay(parsed.folder / "events.jsonl").stages)
        ):
            changes.append(("algorithm", "hop_steps", hop_steps(before, stages[0].count)))
    if parsed.skip_damaged:
        changes.append(("scan", "skip_damaged", True))
    with join_processes() as group:
        page = open_page(parsed, group)
        return resume(
            parsed.folder,
            changes,
            moved=parsed.scan,
            group=group,
            trust=parsed.trust,
            viewers=viewers,
            page=page,
        )


def resume(
    folder: Path,
    changes: Sequence[tuple[str, str, Any]] = (),
    *,
    moved: str | Path | None = None,
    group: Group | None = None,
    trust: bool = False,
    viewers: Viewers | None = None,
    page: RunPage | None = None,
) -> int:
    """Go on with the run in a folder.

    Arguments: changes of its settings; moved, where its scan lies by now; group, the processes that share the work;
    trust, whether what its files name may be run and fetched; viewers, what else shows it; page, of its own.
    """
    from plugstream.runs.folder import open_run
    from plugstream.runs.identity import absolute
    from plugstream.runs.partition import read_partition
    from plugstream.runs.parts import prepare
    from plugstream.runs.plan import plan
    from plugstream.scans.store import open_scan
    from plugstream.settings import Settings, resolve
    from plugstream.settings.consent import check_address

    record = open_run(folder)
    source = moved or record.source
    used = None if record.simulated else Settings.model_fields.keys() - {"simulate"}
    settings = resolve(folder / "settings.toml", changes, trust=trust, used=used)
    if isinstance(source, str) and moved is None:
        check_address(source, folder / "run.json", trust=trust)
    if isinstance(source, Path) and not source.exists():
        raise InputError(f"there is no scan at {source}; if it was moved, say where it is with --scan")
    stored = open_scan(source)
    parts = prepare(absolute(settings))
    partition = read_partition(folder)
    if partition is not None and any(key == "iterations" for _, key, _ in changes):
        raise InputError(
            f"blocks of {folder} that have finished keep no state, so that none can take more steps; start a new run "
            "with more --iterations"
        )
    planned = plan(parts if group is None else parts.share(group), stored, partition=partition)
    scan = stored if partition is not None else load_small(stored, settings, group)
    if page is not None:
        page.start(folder)
    return reconstruct_scan(scan, planned, folder, record.command, source, go_on=True, viewers=viewers)
