"""Every command that README, CONTRIBUTING, docs/ and --help print works, on small data, and so does every remedy.

A block of code runs in a folder of its own, where the files that it names are put (printed_files.py); `printed.shrink`
says how work is made less. What a command prints to be typed next is run after it.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

import warm
from plugstream import cli
from plugstream.base.errors import InputError
from plugstream.base.registry import entries
from plugstream.cli import certify, follow, resume
from plugstream.cli.import_ import PARENT
from plugstream.studies import certificates
from ports import reserved_port
from printed import PAGES, ROOT, Command, blocks, in_help, named, read_blocks, section, shrink
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
    r"^(follow ct FILE --center 511.5|reconstruct --follow scan.zarr)$": "wants flags of one's own: it ends in `...`",
    r"TNRD_sigma=5.mat": "needs the authors' weights",
    r"\.mp4": "needs ffmpeg: tests/runs/test_movie.py",
    r"--publish recon:": "needs EPICS: tests/runs/test_epics.py",
}
# What a page leaves to its reader.
PLACEHOLDERS = {"N": "30", "NAME": "tv", "S": "0.1", "KIND": "ct", "COMMAND": "reconstruct"}
PLACEHOLDERS |= {"/new/scan.zarr": "new/scan.zarr", "/tmp/live.zarr": "live.zarr", "/tmp/earlier.zarr": "earlier.zarr"}
PLACEHOLDERS |= {"average": "average.py:average", "instrument.key": "keys/instrument.key"}
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


def start_import(words: list[str], *, env: dict[str, str], errors: str, **more: object) -> subprocess.Popen[str]:
    """That of `follow`, which need not import torch and whose parent is another process."""
    return warm.Popen(words, env={name: value for name, value in env.items() if name != PARENT}, **more)


class Desk:
    """A folder in which commands run, one after another."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str], port: int) -> None:
        self.folder, self.capfd, self.port = folder, capfd, port
        self.transcript: list[str] = []
        self.sender, self.seconds = Command("", ()), 0.3

    def run(self, command: Command, *, further: bool = True) -> None:
        """Run a command, and then what it says to type next."""
        page = command.place.partition(":")[0]
        words = list(command.words)
        words = words[words.index("plugstream") + 1 :] if "plugstream" in words else words  # after torchrun's
        words = shrink([PLACEHOLDERS.get(word, word.replace("HOST:", "127.0.0.1:")) for word in words], self.seconds)
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
        # 3 says that an image explains nothing, as of data drawn at random; and in a search that `shrink` cut short, 1
        # says nothing.
        cut = "--sigma" not in words and "steps search for sigma" in said and "the time limit was reached" in said
        assert status in ((0, 1, 3) if cut else (0, 3)), f"plugstream {shlex.join(words)}: {status}\n{said}"
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
    monkeypatch.setattr(certificates, "certify", partial(certificates.certify, steps=2, halvings=2, sizes=(1.0,)))
    longer = resume._with_iterations  # than a run took whose time was over, for another while
    limit = ("algorithm", "time_limit", 1.0)
    monkeypatch.setattr(resume, "_with_iterations", lambda *arguments: [*longer(*arguments), limit])
    monkeypatch.setattr(follow, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start_import}))
    with reserved_port() as port:
        yield Desk(tmp_path, capfd, port)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block[0].place)
def test_it_works_as_printed(block: list[Command], desk: Desk) -> None:
    pairs = [pair for command in block for pair in pairwise(command.words)]
    instrument = next((pair for pair in pairs if pair[0] == "--instrument"), ())
    sender = Command(block[0].place, ("simulate", "--stream", "tcp://127.0.0.1:5577", *instrument))
    waits = any(command.words[0] == "acquire" for command in block)
    desk.sender = next((command for command in block if "--stream" in command.words), sender)
    for command in block:
        if not (waits and command is desk.sender):  # which runs while `acquire` waits
            desk.run(command)


def test_every_exception_is_met() -> None:
    printed = [shlex.join(command.words) for block in BLOCKS for command in block]
    assert [pattern for pattern in EXCEPTIONS if not any(re.search(pattern, text) for text in printed)] == []


def test_help_names_commands_and_flags_that_there_are() -> None:
    found = list(in_help())
    assert len(found) > 10
    assert all(parses(command, list(command.words)) or len(command.words) == 1 for command in found)


# The Python of these pages is run by tests that name them, or is not run, and why.
ELSEWHERE = {"README", "CONTRIBUTING", "bridges", "extending", "guide", "importing", "instruments", "networks", "start"}
NOT_RUN = {"scale": "needs a model and a scan of one's own", "see": "needs napari"}


def test_python_on_a_page_runs() -> None:
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    shown = {page.stem: re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL) for page in PAGES}
    assert {*ELSEWHERE, *NOT_RUN} < {name for name, blocks in shown.items() if blocks}
    assert [name for name in ELSEWHERE if f"{name}.md" not in tests] == []
    for code in (code for name in shown.keys() - ELSEWHERE - NOT_RUN.keys() for code in shown[name]):
        exec(compile(code, "a page", "exec"), {})


# Where a message may come up, by its folder or file; where nothing is said, in `reconstruct`.
SPEAKERS = {
    "base/image_size.py": ("simulate", "import"),
    "scans/importers": ("import", "follow"),
    "scans/streams": ("import", "follow"),
    "models/ct_plausible.py": ("import",),
    "scans/keys.py": ("keys",),
    "scans": ("acquire", "simulate", "reconstruct"),
    "runs/tiled.py": ("publish",),
    "runs": ("reconstruct", "resume"),
    "instruments": ("reconstruct", "simulate", "import"),
    "denoisers": ("reconstruct", "denoise"),
    "settings/consent.py": ("resume",),
    "studies": ("tune", "certify", "train", "denoise"),
    "cli/serve.py": ("serve", "reconstruct"),
}


def test_flags_that_errors_name_are_of_the_commands_that_raise_them() -> None:
    kinds = [name for name in entries("importer") if ":" not in name]
    flags = {}
    for name in cli.COMMANDS:
        typed = [[name, kind] for kind in kinds] if name in ("import", "follow") else [[name]]
        flags[name] = {flag for words in typed for flag in cli.command_parser(name, words)._option_string_actions}
    home, wrong, count = ROOT / "src" / "plugstream", [], 0
    for path in home.rglob("*.py"):
        place = path.relative_to(home).as_posix()
        own = {f"cli/{name}.py": (name,) for name in flags} | {"cli": tuple(flags)}
        speakers = next((those for part, those in (own | SPEAKERS).items() if place.startswith(part)), ("reconstruct",))
        for raised in (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise)):
            texts = [str(node.value) for node in ast.walk(raised) if isinstance(node, ast.Constant)]
            for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", "\n".join(texts)):
                count += 1
                wrong += [] if any(flag in flags[name] for name in speakers) else [f"{place}:{raised.lineno}: {flag}"]
    assert wrong == []
    assert count > 200


# A command that is refused | what its message says | the flags with which it works; `- FLAG` leaves one out.
REMEDIES = """
reconstruct scan.zarr --iterations 20 | use --sigma | --sigma 0.02
reconstruct scan.zarr --iterations 20 | --lam | --lam 0.001
reconstruct scan.zarr --iterations 20 | --search 250 --iterations 300 | --search 250 --iterations 300
reconstruct scan.zarr --opening tv --denoiser bm3d | --sigma | --sigma 0.02
reconstruct scan.zarr --sigma 1 --lam 1 | leave one out | - --sigma
reconstruct scan.zarr --search 50 --iterations 50 | or use --search none and --sigma | --search none --sigma 0.02
reconstruct scan.zarr --fall 40 --search 60 | --search none --fall none and | --search none --fall none --sigma 0.02
reconstruct scan.zarr --lam 1 --search 60 | or use --search none | --search none
reconstruct scan.zarr --rivals tv | leave it out of --rivals | - --rivals
reconstruct scan.zarr --sigma 0.02 --fall 20 | leave --fall out | - --fall
reconstruct scan.zarr --sigma 0.02 --settled 5 | add --hold-out, such as 10 | --hold-out 10
reconstruct scan.zarr --sigma 0.02 --window 8 | leave it out | - --window
reconstruct scan.zarr --sigma 0.02 --port 0 | leave them out | - --port
reconstruct scan.zarr --sigma 0.02 --algorithm admm --loss huber | or --loss gaussian | --loss gaussian
reconstruct scan.zarr --sigma 0.02 --algorithm admm --loss huber | use --algorithm pgm | --algorithm pgm
reconstruct scan.zarr --sigma 0.02 --algorithm admm --gradient saga | use --algorithm pgm | --algorithm pgm
reconstruct scan.zarr --sigma 0.02 --algorithm ipa --momentum nesterov | leave it out | - --momentum
reconstruct scan.zarr --algorithm red --lam 1 | give --sigma, and leave --lam out | - --lam --sigma 0.02
reconstruct ptychography.zarr --denoiser bm3d --rivals tnrd --fall 10 | add --fall none | --fall none
reconstruct scan.zarr --sigma 0.02 --nlm-guide noisy.npy | or choose nlm | --denoiser nlm
denoise noisy.png clean.png | give --sigma, such as 15/255 | --sigma 15/255
import mri spokes.npz | such as --size 128 | --size 24 --pixel 0.001
import ct tooth.h5 --expect 3 --center 11.5 | add --follow | --follow
import npz scan.npz | --size in pixels, and --width or | --size 24 --width 0.1 --wavelength 0.03
simulate scan.zarr --instrument ct --receivers 9 | leave it out | - --receivers
baseline slice.zarr first --iterations 3 | choose sirt | --method sirt
certify --denoiser bm4d --sigma 0.1 --images pictures | leave --images out | - --images
acquire scan.zarr --listen tcp://*:5577 | --remote --keys FOLDER | --remote --keys keys
"""


@pytest.mark.parametrize("row", REMEDIES.strip().splitlines())
def test_a_remedy_is_one(row: str, desk: Desk) -> None:
    refused, says, flags = row.split(" | ")
    words = shlex.split(refused)
    made = desk.make_way(words)
    provide([word for word in words if word not in made], "", desk.folder)
    assert main(words) == 2
    assert says in desk.capfd.readouterr().err
    if flags.startswith("- "):
        _, gone, flags = f"{flags} ".split(" ", 2)
        del words[words.index(gone) : words.index(gone) + 2]
    desk.sender = Command("", ("simulate", "--stream", "tcp://127.0.0.1:5577", "--key", "keys/instrument.key"))
    desk.run(Command("", (*words, *flags.split())))


# What the docs tell each of four visitors to do: pages and headings, of which every command and all Python is run.
VISITS = {
    "a photograph": ["README.md: One command", "docs/start.md: Your own picture"],
    "a NeXus file": ["docs/tomography.md: A NeXus file"],
    "radial MRI from arrays": ["docs/mri.md: Samples along spokes or spirals"],
    "one's own model and denoiser": [
        "docs/guide.md: Your own forward model, in a notebook",
        "README.md: In Python",
    ],
}


def test_four_visits_go_without_a_fault(desk: Desk) -> None:
    """The transcript is build/visits.txt."""
    desk.seconds = 1
    for visit, sections in VISITS.items():
        desk.transcript.append(f"== {visit}")
        for page, title in (place.split(": ") for place in sections):
            text = section(ROOT / page, title)
            for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
                provide(re.findall(r'load\("(.*?)"', code), "", desk.folder)
                code = code.replace("ps.TV(low=0.0)", "damp")  # as README says: any function
                exec(compile(code, page, "exec"), {"damp": lambda image, sigma: image / (1 + sigma)})
                desk.transcript += [code, *desk.capfd.readouterr()]
            for command in (command for block in read_blocks(text, Path(page).name) for command in block):
                desk.run(command)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "visits.txt").write_text("\n".join(desk.transcript), encoding="utf-8")
    lines = [line for text in desk.transcript if not text.startswith("usage") for line in text.splitlines()]
    assert [line for line in lines if re.search(r"error|Traceback|bug in plugstream", line)] == []
