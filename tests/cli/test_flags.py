"""Every flag of every command and script with values that nobody means: one line, exit status 2, nothing left behind.

What would take long (iterating, training, waiting for an instrument) is cut off where it begins, so that all that comes
before it, which is where mistakes are to be found, is done for real.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import pkgutil
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import plugstream
from effort import effort, thorough
from plugstream.base.errors import InputError
from plugstream.cli import _LISTS, COMMANDS, _module, _Parser, main
from plugstream.cli.common import scan_place
from plugstream.cli.flags import add_settings
from plugstream.models.born_geometry import ring
from reproduction import run as reproduction
from small_run import SMALL
from training import run as training

VALUES = {
    "empty": "", "zero": "0", "negative": "-1", "nan": "nan", "inf": "inf", "huge": "1e308", "tiny": "1e-308",
    "31 bits": "2147483648", "128 bits": str(2**128), "5,000 digits": "9" * 5000, "dashes": "--", "none": "none",
    "true": "true", "deep": "[" * 3000, "fraction": "1/0", "step": "nan/L", "long": "a" * 5000,
    "control": "\x1b[31m\n\x07", "not utf-8": "\udcff", "null": "\0", "formula": "$\\frac{$", "here": ".",
    "device": "/dev/full", "address": "s3://x/y", "lines": "1\nvalue = 2",
}  # fmt: skip
# In which each of them must be answered: many times what any takes, and much less than work that has begun.
_SECONDS = 30


class ReachedError(InputError):
    """The work would begin here."""


def reached(*arguments: Any, **keywords: Any) -> Any:
    raise ReachedError("the work would begin here")


@functools.cache
def import_everything() -> None:
    """Before anything is replaced: a module that is first imported meanwhile would keep the replacement for ever."""
    for module in pkgutil.walk_packages(plugstream.__path__, "plugstream."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


CUTS = (
    "plugstream.runs.execution.solve", "plugstream.studies.tuning.scan.solve", "plugstream.scans.simulation.simulate",
    "plugstream.denoisers.pictures.denoise_picture", "plugstream.studies.certificates.certify",
    "plugstream.cli.train._train", "training.run._train", "reproduction.paper.make_problem",
    "plugstream.scans.receive.Receiver.run", "plugstream.runs.pages.listening.serve_runs",
    "plugstream.runs.movie._Scene.draw",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan, a run, a file to import, a picture and a folder of them."""
    folder = tmp_path_factory.mktemp("fuzz")
    assert main(["simulate", str(folder / "s.zarr"), *SMALL]) == 0
    run = ["reconstruct", str(folder / "s.zarr"), "--sigma", "0.02", "--batch", "4", "--iterations", "2"]
    run += ["--report", "none"]
    assert main([*run, "--out", str(folder / "run")]) == 0
    arrays = {"receivers": ring(5, 0.5), "transmitters": ring(4, 0.5), "data": np.ones((4, 5), dtype=np.complex64)}
    np.savez(folder / "d.npz", **arrays, wavelength=0.03, size=16, width=0.1)
    (folder / "pictures").mkdir()
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{number}.png")
    return folder


BASES: dict[str, list[str]] = {
    "demo": ["--batch", "4", *SMALL], "simulate": ["new.zarr", *SMALL],
    "reconstruct": ["s.zarr", "--sigma", "0.02", "--batch", "4"], "resume": ["run"], "baseline": ["s.zarr", "new"],
    "residual": ["s.zarr", "run"], "import": ["npz", "d.npz", "new.zarr"], "follow": ["npz", "d.npz", "new.zarr"],
    "acquire": ["new.zarr", "--listen", "tcp://127.0.0.1:*"], "movie": ["run", "--size", "24"],
    "publish": ["run", "http://127.0.0.1:9/a"], "report": ["run"], "watch": ["run"], "serve": ["run"],
    "info": ["s.zarr"], "verify": ["s.zarr"], "denoise": ["pictures/0.png", "new.png", "--sigma", "0.05"],
    "keys": ["new"], "completion": ["bash"], **{name: [] for name in _LISTS},
    "train": ["unet", "pictures", "new.safetensors", "--patch", "16"], "tune": ["s.zarr", "--batch", "4"],
    "certify": ["--sigma", "0.1", "--images", "pictures", "--size", "16", "--denoiser", "tv"],
    "training": ["ridge", "pictures", "new.safetensors", "--patch", "16"],
    "reproduction": ["table1", "--quick", "--size", "32"],
}  # fmt: skip
# What is no command, and a script of the checkout.
SCRIPTS = {"training": training, "reproduction": reproduction}
# Settings that another command tries as well, in the same way.
SHARED = {"demo", "follow", "tune", "certify", "denoise"}


def call(command: str, words: list[str]) -> int:
    return main(words, SCRIPTS[command]) if command in SCRIPTS else main([command, *words])


def actions(command: str) -> Iterator[argparse.Action]:
    parser, module = _Parser(prog="plugstream"), SCRIPTS.get(command) or _module(command)
    module.add_arguments(parser)
    sections = () if command in SHARED else getattr(module, "SECTIONS", ())
    add_settings(parser, sections, [command, *BASES[command]], getattr(module, "PRESETS", ()))
    return (action for action in parser._actions if action.dest != "help")


def values_for(number: int, flags: int) -> list[tuple[str, str]]:
    """The values to try with a flag: all of them, or usually a sixth, a twelfth of many flags, and one of very many;
    others for the next flag."""
    part = effort(25 if flags > 40 else 12 if flags > 12 else 6, 1)
    return list(VALUES.items())[number % part :: part]


def cases(command: str) -> Iterator[tuple[str, list[str]]]:
    base, position, known = BASES[command], 0, list(actions(command))
    for number, action in enumerate(known):
        for name, value in values_for(number, len(known)):
            if action.option_strings:
                yield f"{action.option_strings[-1]} {name}", [*base, f"{action.option_strings[-1]}={value}"]
            elif position < len(base) and not value.startswith("-"):
                yield f"{action.dest} {name}", [*base[:position], value, *base[position + 1 :]]
        position += not action.option_strings


def test_every_command_is_tried():
    assert {*COMMANDS, *SCRIPTS} == set(BASES), "give the new command a line in BASES"


@thorough
@pytest.mark.timeout(effort(180, 1800))  # all values are 2,700 calls of reconstruct, of a twentieth of a second each
@pytest.mark.parametrize("command", BASES)
def test_hostile_values(place, tmp_path, monkeypatch, capfd, command):
    count = try_all(place, tmp_path, monkeypatch, capfd, command, cases(command))
    assert count > effort(3, 15)


@pytest.mark.parametrize("command", BASES)
def test_an_empty_path_is_refused_wherever_there_is_one(tmp_path, monkeypatch, capfd, command):
    """As of a variable of the shell that is not set; Python takes it for the folder in which one is."""
    monkeypatch.chdir(tmp_path)
    base, position = BASES[command], 0
    for action in actions(command):
        if action.type in (Path, scan_place) or action.dest == "settings":
            if action.option_strings:
                words = [*base, action.option_strings[-1], ""]
            else:
                words = [*base[:position], "", *base[position + 1 :]]
            assert call(command, words) == 2
            said = capfd.readouterr().err
            assert said.startswith("plugstream: argument ")
            assert said.endswith(": the path is empty; name a file or folder, or leave the argument out\n")
        position += not action.option_strings
    assert listing(tmp_path) == set()


@pytest.mark.parametrize(
    "choice",
    [
        *(["--denoiser", name] for name in ("bm3d", "nlm", "tnrd", "ridge", "soft", "box")),
        *(["--loss", name] for name in ("huber", "poisson", "amplitude")),
        ["--gradient", "svrg"],
        ["--algorithm", "admm"],
        ["--sampler", "importance"],
    ],
    ids=lambda choice: choice[1],
)
def test_hostile_values_of_what_is_chosen(place, tmp_path, monkeypatch, capfd, choice):
    """The flags that only this denoiser, loss or gradient has."""
    base = set(flags_of(()))
    new = [flag for flag in flags_of(tuple(choice)) if flag not in base]
    words = [*BASES["reconstruct"], *choice]
    tried = [
        (f"{flag} {name}", [*words, f"{flag}={value}"])
        for number, flag in enumerate(new)
        for name, value in values_for(number, len(new))
    ]
    try_all(place, tmp_path, monkeypatch, capfd, "reconstruct", iter([("alone", words), *tried]))


@functools.cache
def flags_of(choice: tuple[str, ...]) -> list[str]:
    """The flags that 'reconstruct --help' shows with these words."""
    parser, module = _Parser(prog="plugstream"), _module("reconstruct")
    add_settings(
        parser, getattr(module, "SECTIONS", ()), ["reconstruct", "s.zarr", *choice], getattr(module, "PRESETS", ())
    )
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return [action.option_strings[-1] for action in shown if action.option_strings]


def try_all(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
    tried: Iterator[tuple[str, list[str]]],
) -> int:
    """Call the command with each list of words, and check what became of it; how many there were."""
    import_everything()
    for cut in CUTS:
        monkeypatch.setattr(cut, reached)
    monkeypatch.chdir(tmp_path)
    for path in place.iterdir():
        if path.name != "run":
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(place / "run", tmp_path / "run")
    before, count = listing(tmp_path), 0
    for name, words in tried:
        begun = time.monotonic()
        status = call(command, words)
        took, said = time.monotonic() - begun, capfd.readouterr().err
        what = f"{command} {name}: {status}, {said[-400:]!r}"
        assert status in (0, 2), what
        assert "Traceback" not in said, what
        assert Path(VALUES["device"]).is_char_device(), what
        assert took < _SECONDS, f"{what}, after {took:.0f} s"
        assert all(line.isprintable() and len(line) < 2600 for line in said.splitlines()), what
        if status == 2:
            assert said.splitlines()[-1].startswith("plugstream: "), what
        if status == 2 and "the work would begin here" not in said:
            assert listing(tmp_path) == before, what
        restore(tmp_path, before)
        count += 1
    return count


def listing(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if not name.startswith("new.checkpoint")}


def restore(folder: Path, names: set[str]) -> None:
    remove: Callable[[Path], Any]
    for path in folder.iterdir():
        if path.name not in names:
            remove = shutil.rmtree if path.is_dir() else os.unlink
            remove(path)
