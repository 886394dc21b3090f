"""Form the image of a scan, a few views at a time."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.errors import InputError
from plugstream.base.text import shell_quote
from plugstream.cli.common import (
    RECONSTRUCTION,
    draft_of,
    join_processes,
    reconstruct_scan,
    say,
    scan_place,
    trust_flag,
)
from plugstream.cli.serve import add_viewers, open_page, viewers_of

if TYPE_CHECKING:
    from plugstream.base.processes import Group

SECTIONS = (*RECONSTRUCTION, "scan")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scan", type=scan_place, help="a scan: a Zarr folder, a zip file of one, or an fsspec address")
    parser.add_argument("--out", type=Path, help="the folder to make for the results")
    add_viewers(parser)


def run(parsed: argparse.Namespace) -> int:
    with join_processes() as group:
        begun = None if group is None else group.decide(lambda: _begun_before(group))
        if begun is None:
            return _run(parsed, group)
        from plugstream.cli.resume import resume

        # Processes of this run died, and torchrun has started these in their place. The person who typed the command
        # has agreed to what its settings name.
        return resume(begun, group=group, trust=True, viewers=viewers_of(parsed))


def _begun_before(group: Group) -> Path | None:
    """The folder of the run that earlier processes have begun, None if there were none."""
    folder = group.recall("run")
    return Path(folder) if folder is not None and (Path(folder) / "run.json").exists() else None


def _run(parsed: argparse.Namespace, group: Group | None) -> int:
    draft, viewers = draft_of(parsed), viewers_of(parsed)
    settings = draft.settings
    page = open_page(parsed, group)
    from plugstream.runs.folder import free_folder
    from plugstream.runs.identity import absolute
    from plugstream.runs.library import load_small
    from plugstream.runs.parts import prepare
    from plugstream.runs.plan import advised_plan
    from plugstream.runs.views import wait_for_scan, wait_for_views
    from plugstream.scans.store import open_scan

    if parsed.out is not None and parsed.out.exists():  # before waiting for a scan, too
        raise InputError(f"the output {parsed.out} exists already; choose another with --out, or remove it")
    early, a = None, settings.algorithm
    # Mistakes are refused before waiting for a scan. A scan that is there advises a sigma, or is searched for one.
    if settings.scan.follow or a.sigma is not None or a.lam is not None:
        early = prepare(absolute(settings))
    if settings.scan.follow:
        wait_for_scan(parsed.scan, settings.scan.patience, say)
    stored = open_scan(parsed.scan)
    planned = advised_plan(draft, stored, early, group)
    settings = planned.settings
    if settings.scan.follow:
        wait_for_views(stored, planned, say)
    elif not stored.complete:
        say(f"the scan is still being measured; its first {stored.n_views} views are used, and all with --follow")
    scan = stored if planned.partition is not None else load_small(stored, settings, group)
    stem = Path(str(parsed.scan)).resolve().stem
    folder = parsed.out or free_folder(f"{stem}-run")
    if group is not None:
        folder = group.share(folder)
        if group.leads:
            group.remember("run", str(folder.resolve()))
    where, saved = (shell_quote(path) for path in (parsed.scan, folder / "settings.toml"))
    command = f"plugstream reconstruct {where} --settings {saved}{trust_flag(settings)}"
    if page is not None:
        page.start(folder, live=settings.scan.follow)
    before = getattr(parsed, "before", list)  # of `follow`
    return reconstruct_scan(scan, planned, folder, command, parsed.scan, viewers=viewers, before=before)
