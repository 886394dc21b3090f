"""Every command that README, CONTRIBUTING, docs/ and --help print works, on small data, and so does every remedy.

A block of code runs in a folder of its own, where the files that it names are put (printed_files.py); `printed.shrink`
says how work is made less. What a command prints to be typed next is run after it.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

import warm
from plugstream import cli
from plugstream.base.errors import InputError
from plugstream.cli import certify, follow
from plugstream.cli.import_ import PARENT
from ports import reserved_port
from printed import Command, blocks, in_help, named, shrink
from printed_files import provide
from small_run import main

pytestmark = [pytest.mark.printed, pytest.mark.filterwarnings("default::plugstream.base.errors.PlugstreamWarning")]

# What is parsed and not run, and why.
EXCEPTIONS = {
    r"--device cuda": "needs a GPU: tests/test_gpu.py",
    r"^torchrun": "needs several processes: tests/runs/test_ranks_command.py",
    r"dectris://": "needs a detector: tests/scans/streams/test_dectris.py",
    r"pva://": "needs EPICS: tests/scans/streams/test_pva.py",
    r"https?://": "needs a Tiled server: make test-tiled",
    r"deepinv:": "needs deepinv: make test-peers",
    r"^(follow ct FILE --center 511.5|reconstruct --follow scan.zarr)$": "wants flags of one's own, for which `...` stands",
    r"^follow ct \S+ --center 511.5( --serve)?$": "is refused without a strength: to be --like RUN, issue 49",
    r"TNRD_sigma=5.mat": "needs the authors' weights",
    r"\.mp4": "needs ffmpeg: tests/runs/test_movie.py",
    r"--publish recon:": "needs EPICS: tests/runs/test_epics.py",
}
# What a page leaves to its reader.
PLACEHOLDERS = {"N": "30", "NAME": "tv", "S": "0.1", "KIND": "ct", "COMMAND": "reconstruct"}
PLACEHOLDERS |= {"average": "average.py:average", "/new/scan.zarr": "new/scan.zarr", "/tmp/live.zarr": "live.zarr", "instrument.key": "keys/instrument.key"}
# The places of the words that name what a command makes, which may be there from the one before.
MADE = {"simulate": 1, "acquire": 1, "keys": 1, "import": 3, "follow": 3, "denoise": 2, "baseline": 2, "train": 3}


BLOCKS = blocks()
TOLD: set[tuple[str, ...]] = {command.words for block in BLOCKS for command in block}


def reason(command: Command) -> str | None:
    """Why it is not run."""
    return next((why for pattern, why in EXCEPTIONS.items() if re.search(pattern, shlex.join(command.words))), None)


def parses(command: Command, words: list[str]) -> bool:
    """By the real parser; of a sentence's words that are less than a command, every flag must be one of it."""
    if not command.whole and len(command.words) == 1:
        return False
    try:
        with patch.object(cli, "check_place"), contextlib.suppress(SystemExit):  # of --help
            cli._parse(words)
    except InputError:
        assert not command.whole, str(command)
        known = cli.command_parser(words[0], words)._option_string_actions
        assert {word for word in words if word.startswith("--")} <= set(known), str(command)
        return False
    return True


def instrument(block: list[Command]) -> tuple[str, ...]:
    """The instrument that a block names, as words of a command."""
    pairs = [pair for command in block for pair in pairwise(command.words)]
    return next((pair for pair in pairs if pair[0] == "--instrument"), ())


def start_import(words: list[str], *, env: dict[str, str], errors: str, **more: object) -> subprocess.Popen[str]:
    """That of `follow`, which need not import torch and whose parent is another process."""
    return warm.Popen(words, env={name: value for name, value in env.items() if name != PARENT}, **more)


class Desk:
    """A folder in which commands run, one after another."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str], port: int) -> None:
        self.folder, self.capfd, self.port = folder, capfd, port
        self.transcript: list[str] = []
        self.sender = Command("", ())

    def run(self, command: Command, *, further: bool = True) -> None:
        """Run a command, and then what it says to type next."""
        page = command.place.partition(":")[0]
        words = list(command.words)
        words = words[words.index("plugstream") + 1 :] if "plugstream" in words else words  # after torchrun's
        words = shrink([PLACEHOLDERS.get(word, word.replace("HOST:", "127.0.0.1:")) for word in words])
        words = [word.replace(":5577", f":{self.port}") for word in words]
        made = self.make_way(words)
        provide([word for word in words if word not in made], page, self.folder)
        if not parses(command, words) or reason(command) is not None:
            return
        said = self.attend(words) if words[0] in ("acquire", "serve") else self.perform(words)
        self.transcript += [f"$ plugstream {shlex.join(command.words)}", said]
        for more in named(said, f"{command.place}, after it") if further and words[0] != "completion" else ():
            if more.words not in TOLD:
                TOLD.add(more.words)
                self.run(more, further=False)

    def make_way(self, words: list[str]) -> list[str]:
        """Remove what the command makes, if the one before it in a list has made it, too."""
        place = MADE.get(words[0], len(words))
        made = [after for before, after in pairwise(words) if before in ("--out", "--live-zarr")]
        made += [word for word in words[place : place + 1] if not word.startswith("-")]
        if words[0] == "import" and not made and len(words) > 2:
            made = [f"{Path(words[2]).name.partition('.')[0]}.zarr"]
        for name in made:
            if (self.folder / name).is_dir():
                shutil.rmtree(self.folder / name)
            (self.folder / name).unlink(missing_ok=True)
        return made

    def perform(self, words: list[str]) -> str:
        try:
            status: object = main(words)
        except SystemExit as end:  # of --help
            status = end.code
        said = "".join(self.capfd.readouterr())
        assert status == 0, f"plugstream {shlex.join(words)}: {status}\n{said}"
        return said

    def attend(self, words: list[str]) -> str:
        """What goes on until others end it: a page of `serve` is looked at, and `acquire` has a scan sent to it."""
        started = [sys.executable, "-m", "plugstream", *words]
        with warm.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            said = process.stdout.readline()
            if words[0] == "serve":
                with urllib.request.urlopen(said.split()[-1]) as page:
                    assert page.status == 200
                process.send_signal(signal.SIGINT)
            else:
                self.run(self.sender)
            said += process.communicate(timeout=60)[0]
        assert process.returncode == 0, said
        return said


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(certify, "_PICTURES", ("camera",))  # of three
    known = {"Popen": start_import, "DEVNULL": subprocess.DEVNULL, "PIPE": subprocess.PIPE}
    monkeypatch.setattr(follow, "subprocess", SimpleNamespace(**known))
    with reserved_port() as port:
        yield Desk(tmp_path, capfd, port)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[0].place)
def test_it_works_as_printed(block: list[Command], desk: Desk) -> None:
    sender = Command(block[0].place, ("simulate", "--stream", "tcp://127.0.0.1:5577", *instrument(block)))
    waits = any(command.words[0] == "acquire" for command in block)
    desk.sender = next((command for command in block if "--stream" in command.words), sender)
    for command in block:
        if not (waits and command is desk.sender):  # which runs while `acquire` waits
            desk.run(command)


def test_every_exception_is_met() -> None:
    """And nothing is run that is one."""
    printed = [shlex.join(command.words) for block in BLOCKS for command in block]
    assert [pattern for pattern in EXCEPTIONS if not any(re.search(pattern, text) for text in printed)] == []


def test_help_names_flags_that_there_are() -> None:
    found = list(in_help())
    assert len(found) > 10
    assert all(parses(command, list(command.words)) or not command.whole for command in found)
