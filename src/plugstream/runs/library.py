"""A whole reconstruction from Python, with the defaults, the search and the verdict of `plugstream reconstruct`."""

from __future__ import annotations

import contextlib
import difflib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugstream.base.display.screen import Display, active_display
from plugstream.base.errors import DamagedError, InputError, is_refusal
from plugstream.base.processes import Group
from plugstream.base.text import shell_quote
from plugstream.runs.folder import remove_unbegun, whole_folder, write_down
from plugstream.runs.plan import Plan, advised_plan
from plugstream.runs.run import reconstruct as run_plan
from plugstream.runs.terminal import Terminal
from plugstream.scans.scan import Scan
from plugstream.scans.store import StoredScan, open_scan
from plugstream.scans.writer import save_scan
from plugstream.settings import Draft, EarlierRun, Settings, SettingsFile, leaves, parse_setting
from plugstream.settings.fields import marks_of
from plugstream.solver.result import Result

# Those of the command, in the order in which their flags are given.
_SECTIONS = (
    *("algorithm", "momentum", "gradient", "sampler", "denoiser", "loss", "instrument"),
    *("monitor", "compute", "run", "scan"),
)


def reconstruct(
    scan: Scan | str | Path,
    out: str | Path | None = None,
    *,
    file: str | Path | None = None,
    like: str | Path | None = None,
    trust: bool = False,
    progress: bool = False,
    **settings: Any,
) -> Result[Any]:
    """Reconstruct a scan as `plugstream reconstruct` does: what nobody sets, the scan's instrument and its data choose.

    Scans of any instrument whose views are all there; for one that goes on use `plugstream follow`.

    Arguments: scan, or where it lies; out, the folder to make for what the command leaves there, None to leave nothing;
    file of settings, or like, the folder of an earlier run, to whose settings nothing is added, and trust in what they
    name; progress, whether to show it; settings, by
    the names of the command's flags: `sigma=0.02, denoiser="bm3d", iterations=200, hold_out=10`. Returns the result,
    which `Result.save` writes.

        >>> import plugstream as ps
        >>> result = ps.reconstruct("scan.zarr")  # doctest: +SKIP
    """
    place = scan if isinstance(scan, str | Path) else None
    opened: Scan = open_scan(scan) if isinstance(scan, str | Path) else scan
    folder = None if out is None else Path(out)
    if folder is not None and folder.exists():
        raise InputError(f"the output {folder} exists already; choose another, or remove it")
    typed = _typed(settings, opened.instrument.name)
    presets = [("run", "report", "none")] if folder is None and "report" not in settings else []
    if file is not None and like is not None:
        raise InputError("file and like are both given; leave one out")
    source = EarlierRun(like) if like is not None else None if file is None else SettingsFile(file)
    origin: Mapping[str, Any] = {"instrument": opened.instrument.name, "trust": trust, "used": _SECTIONS}
    draft = Draft.of(source, [*typed, *presets], **origin)
    if draft.settings.scan.follow:
        raise InputError("a scan that is still measured is for the command: plugstream follow, or reconstruct --follow")
    with contextlib.ExitStack() as stack:
        if progress and active_display() is None:
            stack.enter_context(Display(what="preparing"))
        planned = advised_plan(draft, opened)
        if planned.partition is not None:
            raise InputError("a volume that goes by blocks of slices is for the command, 'plugstream reconstruct'")
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="plugstream-"))) / "run"
        display = active_display()
        terminal = None if display is None else Terminal(display)
        place, command = _put_down(opened, place, planned, folder, keep=out is not None)
        held = load_small(opened, planned.settings) if isinstance(opened, StoredScan) else opened
        try:
            return run_plan(held, planned, folder, command=command, source=place, terminal=terminal)
        except InputError as error:
            if is_refusal(error):
                remove_unbegun(folder, "scan.zarr")
            raise


def _typed(settings: Mapping[str, Any], instrument: str) -> list[tuple[str, str, Any]]:
    """Settings by the names of their flags, as (section, key, value); text is read as the command reads it."""
    names: dict[str, Any] = {"instrument": instrument}
    names |= {section: settings[section] for section in _SECTIONS if isinstance(settings.get(section), str)}
    places: dict[str, tuple[str, str]] = {section: (section, "name") for section in _SECTIONS[:7]}
    for section, key, info in leaves(_SECTIONS, names):
        flag = str(marks_of(info).get("flag", key)).replace("-", "_")
        places.setdefault(f"{section}_{key}" if flag in places else flag, (section, key))
    typed = []
    for name, value in settings.items():
        if name not in places:
            near = difflib.get_close_matches(name, places, n=1, cutoff=0.5)
            also = f"; did you mean {near[0]}?" if near else "; 'plugstream reconstruct --help-all' lists them"
            raise InputError(f"there is no setting {name!r}{also}")
        section, key = places[name]
        value = "none" if value is None else value
        typed.append((section, key, parse_setting(section, key, value, names) if isinstance(value, str) else value))
    return typed


def _put_down(
    scan: Scan, place: str | Path | None, planned: Plan, folder: Path, *, keep: bool
) -> tuple[str | Path, str]:
    """Where the scan lies, and the command that repeats the run: a scan in memory is written into the run's folder."""
    settings = shell_quote(folder / "settings.toml")
    if place is None and isinstance(scan, StoredScan):
        place = scan.path
    if place is not None or not keep:
        place = folder / "scan.zarr" if place is None else place
        return place, f"plugstream reconstruct {shell_quote(place)} --settings {settings}"
    place = folder / "scan.zarr"
    command = f"plugstream reconstruct {shell_quote(place)} --settings {settings}"
    with whole_folder(folder) as partial:
        save_scan(scan, partial / place.name)
        write_down(partial, planned.settings, command, Path(place.name))
    return place, command


def load_small(stored: StoredScan, settings: Settings, group: Group | None = None) -> Scan:
    """A small scan in memory, with every chunk checked; others stay on disk.

    Of several processes each reads its own part of every batch.
    """
    s = settings.scan
    if group is not None or s.follow or s.skip_damaged or stored.nbytes > s.in_memory * 1e6:
        return stored
    try:
        return stored.load()
    except DamagedError as error:
        raise DamagedError(f"{error}; to go on without damaged views, use --skip-damaged") from error
