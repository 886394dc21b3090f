"""Form the image of a scan while another program writes its file: import --follow and reconstruct --follow at once."""

from __future__ import annotations

import _thread
import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plugstream.base.capacity import MAX_READ
from plugstream.base.errors import InputError
from plugstream.base.progress import report
from plugstream.cli.common import draft_of, say
from plugstream.cli.import_ import FOLLOWING, PARENT, add_options as add_importer_options, add_places, importer_values
from plugstream.cli.reconstruct import SECTIONS as SECTIONS, run as reconstruct
from plugstream.cli.serve import add_viewers

_LOOK = 0.05
TOLD = {"--sigma": "the denoiser's noise level, a number in the image's unit (attenuation of ct: 1/m); or use --like"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_places(parser)
    parser.add_argument("--out", type=Path, help="the folder to make for the results")
    for name, (kind, word, text) in FOLLOWING.items():
        if name != "patience":  # which is a setting of the run, too
            parser.add_argument(f"--{name}", type=kind, metavar=word, help=text.removeprefix("when following, "))
    add_viewers(parser)


def add_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """The options of the importer."""
    add_importer_options(parser, arguments, others=False)


def run(parsed: argparse.Namespace) -> int:
    from plugstream.settings.checks import check_settings

    if parsed.out is not None and parsed.out.exists():
        raise InputError(f"the output {parsed.out} exists already; choose another with --out, or remove it")
    _take_axis(parsed)
    command = _import_command(parsed)
    values = importer_values(parsed)
    for place in [place for place in vars(parsed) if place.startswith("importer.")]:
        delattr(parsed, place)  # the rest are settings of the run
    setattr(parsed, "scan.follow", "true")
    check_settings(draft_of(parsed).for_range(None))  # before anything is awaited, as the range of an image would be
    with _Producer(command) as producer:  # both processes import what they need, which takes seconds, at once
        from plugstream.scans.importers.following import plan_following
        from plugstream.scans.peek import peek_instrument

        _, _, _, target = plan_following(parsed.kind, parsed.file, parsed.scan, values, parsed.expect)
        producer.wait_for(target)
        parsed.scan = target
        parsed.instrument = peek_instrument(str(target))
        parsed.before = lambda: command if producer.failed else []
        status = reconstruct(parsed)
        return status or (2 if producer.failed else 0)


def _take_axis(parsed: argparse.Namespace) -> None:
    """Take the rotation axis, too, from the run of --like, whose import found it, unless one is typed."""
    from plugstream.settings import EarlierRun

    place = "importer.center"
    if not isinstance(parsed.settings, EarlierRun) or "center" not in parsed.fields or hasattr(parsed, place):
        return
    from plugstream.runs.folder import open_run
    from plugstream.scans.peek import peek_attributes

    folder = parsed.settings.folder
    parsed.settings.sections()  # which says what is wrong with it
    provenance = (peek_attributes(str(open_run(folder).source)) or {}).get("provenance", {})
    if provenance.get("made_by") != f"plugstream import {parsed.kind}":
        return
    typed, found = provenance.get("options", {}).get("center"), None
    for step in provenance.get("steps", ()):
        found = step["column"] if step.get("step") == "rotation axis" else found
    if (axis := found or typed) is not None:
        setattr(parsed, place, str(axis))
        say(f"--center {axis}, as in the scan of {folder}")


def _import_command(parsed: argparse.Namespace) -> list[str]:
    """The command that makes the scan."""
    words = ["import", parsed.kind, str(parsed.file), *([] if parsed.scan is None else [str(parsed.scan)]), "--follow"]
    words += ["--trust"] * bool(parsed.trust)
    words += [] if parsed.max_read is None else [f"{MAX_READ}={parsed.max_read}"]
    patience = getattr(parsed, "scan.patience", None)
    words += [] if patience is None else ["--patience", str(patience)]
    for name in FOLLOWING:
        if (value := getattr(parsed, name, None)) is not None:
            words += [f"--{name}", str(value)]
    for place, value in vars(parsed).items():
        section, _, key = place.partition(".")
        if section == "importer":
            flag, extra = f"--{key.replace('_', '-')}", parsed.fields[key].json_schema_extra or {}
            one = [flag] if extra.get("switch") else [f"{flag}={value}"]
            words += [flag, *value] if isinstance(value, list) else one
    return words


class _Producer:
    """The process that takes views out of the file; its lines are said here. Arguments: command of plugstream."""

    def __init__(self, command: Sequence[str]) -> None:
        words = [sys.executable, "-m", "plugstream", *command, "--progress", "json"]
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        streams["env"] = os.environ | {PARENT: str(os.getpid())}
        # Ctrl-C is for the run, which ends this process after its last step.
        self._process = subprocess.Popen(words, text=True, errors="replace", start_new_session=True, **streams)
        self._error, self._begun, self._leaving = "", False, False
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> _Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving = True
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._thread.join()

    @property
    def failed(self) -> bool:
        return self._process.poll() not in (None, 0)

    def wait_for(self, scan: Path) -> None:
        """Until there is a scan; if none will come, its error is raised."""
        report("waiting for views")
        while not scan.exists():
            if self._process.poll() is not None:
                self._thread.join()
                raise InputError(self._error or f"the process that was to make {scan} ended")
            time.sleep(_LOOK)
        self._begun = True

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event.get("event") == "note" and not re.fullmatch(r"\d+ views", event["text"]):  # which the run says
                say(f"import: {event['text']}")
            self._error = event.get("error", self._error)
        if self._process.wait() != 0 and self._begun and not self._leaving:
            say(f"import: {self._error or 'its process was ended'}")
            _thread.interrupt_main()  # the run stops as on Ctrl-C, and can go on
