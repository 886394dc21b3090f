"""FILE.py:NAME of every kind: options become settings and flags, the file is run once, and never without consent."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plugstream.base.errors import InputError
from plugstream.base.registry import entries, find
from plugstream.base.user_code import allow, forget
from plugstream.denoisers.by_name import make
from plugstream.settings import SamplerSettings, resolve, to_toml
from small_run import main

RUN = ["--sigma", "0.02", "--threads", "1", "--iterations", "3"]
OWN = '''
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.base.registry import Field, Options, register

if TYPE_CHECKING:
    from plugstream.fidelity.least_squares import Fidelity

with Path(__file__).with_name("ran").open("a") as file:
    file.write("once\\n")


class StrideOptions(Options):
    stride: int = Field(3, ge=1, description="views from one to the next")


@dataclass(frozen=True)
class Every:
    stride: int = 3

    def draw(self, step, available):
        from plugstream.algorithms.sampling import Batch

        return Batch(available[step % self.stride :: self.stride])


@register("sampler", "every", "every so many views", options=StrideOptions, grows=True)
def build_every(options: StrideOptions, fidelity: Fidelity) -> Every:
    return Every(options.stride)


def plain(options: StrideOptions, fidelity: Fidelity) -> Every:
    """Without a declaration."""
    return Every(options.stride)


class ShrinkOptions(Options):
    shrink: float = Field(0.9, gt=0, le=1, description="factor of the image")


def shrunk(options: ShrinkOptions):
    return lambda z, sigma: options.shrink * z


def nothing(fidelity):
    pass


def itself(fidelity):
    return Every


def other(*parts, **more):
    return Every()


def broken(options: StrideOptions, fidelity: Fidelity):
    raise ValueError("no")
'''


@pytest.fixture
def own(tmp_path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def runs(own: Path) -> int:
    """How often the file was run since the last question."""
    place = own.with_name("ran")
    count = len(place.read_text().splitlines()) if place.exists() else 0
    place.unlink(missing_ok=True)
    return count


def reconstruct(scan: Path, out: Path, *words: str) -> np.ndarray:
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN, *words]) == 0
    image: np.ndarray = np.load(out / "result.npy")
    return image


def test_options_of_a_file_are_settings_and_flags_and_it_is_run_once(scan, tmp_path, own, capsys):
    choice = ["--sampler", f"{own}:build_every"]
    with pytest.raises(SystemExit, match="0"):
        main(["reconstruct", *choice, "--help"])
    assert "--stride X" in capsys.readouterr().out
    assert runs(own) == 1
    whole = reconstruct(scan, tmp_path / "a", *choice, "--stride", "4", "--iterations", "6")
    assert runs(own) == 1
    assert f'name = "{own}:build_every"\nseed = 0\nstride = 4\n' in (tmp_path / "a" / "settings.toml").read_text()
    by_name = reconstruct(scan, tmp_path / "b", "--sampler", f"{own}:every", "--stride", "4", "--iterations", "6")
    plain = reconstruct(
        scan, tmp_path / "c", "--sampler", f"{own}:plain", "--set", "sampler.stride=4", "--iterations", "6"
    )
    assert np.array_equal(whole, by_name)
    assert np.array_equal(whole, plain)
    half = reconstruct(scan, tmp_path / "half", *choice, "--stride", "4")
    assert not np.array_equal(half, whole)
    runs(own)
    assert main(["info", str(tmp_path / "half")]) == 0  # tells of the run, and runs nothing
    assert "own.py" in capsys.readouterr().out
    assert main(["resume", str(tmp_path / "half"), "--iterations", "6"]) == 2
    assert runs(own) == 0
    assert main(["resume", str(tmp_path / "half"), "--iterations", "6", "--trust"]) == 0
    assert runs(own) == 1
    assert np.array_equal(np.load(tmp_path / "half" / "result.npy"), whole)


def test_a_denoiser_of_a_file_has_its_options(scan, tmp_path, own):
    image = np.random.default_rng(0).random((24, 24)).astype(np.float32)
    np.save(tmp_path / "z.npy", image)
    words = ["denoise", str(tmp_path / "z.npy"), str(tmp_path / "out.npy"), "--sigma", "0.1"]
    assert main([*words, "--denoiser", f"{own}:shrunk", "--shrink", "0.5"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), 0.5 * image, rtol=1e-6)
    assert runs(own) == 1
    denoiser = make(f"{own}:shrunk", shrink=0.25)  # from Python, too
    import torch

    torch.testing.assert_close(denoiser(torch.ones(8, 8), 0.1), torch.full((8, 8), 0.25))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sampler", "OWN:build_every", "--stride", "0"], "setting sampler.stride = 0 cannot be used"),
        (["--sampler", "OWN:build_every", "--set", "sampler.strid=2"], "did you mean 'sampler.stride'?"),
        (["--sampler", "OWN:build_every", "--batch", "2"], "has no use for batch; leave it out, or choose uniform"),
        (["--sampler", "OWN:broken"], "broken cannot be called: ValueError: no"),
        (["--sampler", "OWN:absent"], "has no absent"),
        (["--sampler", "OWN:nothing"], "own.py:nothing is NoneType, which has no draw; it needs draw"),
        (["--sampler", "OWN:itself"], "own.py:itself is the class Every, where one of its objects should be"),
        (["--algorithm", "OWN:other"], "own.py:other is Every, which has no init; it needs init, step, parameters"),
        (["--monitor", "OWN:other"], "own.py:other is Every, which has no begin; it needs begin, every, measures"),
        (["--gradient", "OWN:other"], "own.py:other is Every, which has no begin"),
        (["--loss", "OWN:other"], "own.py:other is Every, which has no value"),
        (["--loss", "OWN:build_every"], "is declared as a sampler, not as a loss"),
    ],
)
def test_mistakes_are_one_line(scan, tmp_path, own, capsys, words, message):
    words = [word.replace("OWN", str(own)) for word in words]
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1]
    assert not (tmp_path / "run").exists()
    assert runs(own) == 1


def test_a_file_that_cannot_be_run_is_tried_once(scan, tmp_path, own, capsys):
    own.write_text(f"{OWN}\nraise ValueError('half done')\n")
    assert main(["reconstruct", str(scan), *RUN, "--sampler", f"{own}:plain"]) == 2
    assert "own.py cannot be run: ValueError: half done" in capsys.readouterr().err
    assert runs(own) == 1


def test_settings_of_a_file_are_dropped_with_it(own, tmp_path):
    settings = resolve(None, [("sampler", "name", f"{own}:build_every"), ("sampler", "stride", 2)])
    assert settings.sampler.stride == 2
    file = tmp_path / "theirs.toml"
    file.write_text(to_toml(settings))
    assert resolve(file, trust=True) == settings
    assert resolve(file, [("sampler", "name", "all")]).sampler == SamplerSettings.of(name="all")
    forget()
    with pytest.raises(InputError, match="--trust"):
        resolve(file)
    before = runs(own)
    assert resolve(file, used=()).sampler.name == settings.sampler.name
    assert before
    assert runs(own) == 0


def test_what_a_file_imports_declares_for_everybody(tmp_path):
    """In a process of its own, where nothing of ours was loaded before."""
    own = tmp_path / "early.py"
    own.write_text(
        'from plugstream.base.registry import entries\n\nentries("sampler")\n\n\ndef sampler(fidelity): ...\n'
    )
    code = (
        f"from plugstream.base.user_code import load_from_file\nload_from_file({str(own)!r} + ':sampler')\n"
        "from plugstream.base.registry import entries\nassert 'uniform' in entries('sampler')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=150)


def test_a_file_declares_nothing_for_others(own):
    names = set(entries("sampler"))
    allow(f"{own}:every")
    entry = find("sampler", f"{own}:every")
    assert entry.facts["grows"]
    assert entry.help == "every so many views"
    assert set(entries("sampler")) == names
    own.write_text(OWN.replace("every so many", "one of so many"))  # a file that has changed is run again
    assert find("sampler", f"{own}:every").help == "one of so many views"
    forget()
    assert find("sampler", f"{own}:every").name == "FILE.py:NAME"  # without consent nobody looks into it


def test_what_fails_in_it_later_is_told_with_its_line(scan, tmp_path, own, capsys):
    own.write_text(OWN.replace("return Batch(available[", "return Batch(available.nothing["))
    line = next(n for n, text in enumerate(own.read_text().splitlines(), 1) if "nothing" in text)
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--sampler", f"{own}:every"]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"no attribute 'nothing' at {own}:{line}, which is your own code" in told


EVERYTHING = """
from pathlib import Path

from plugstream import Quantity
from plugstream.algorithms import Plain, ProximalGradient
from plugstream.denoisers import SoftThreshold
from plugstream.fidelity.losses import Gaussian
from plugstream.algorithms.sampling import ShiftedViews

with Path(__file__).with_name("ran").open("a") as file:
    file.write("once\\n")

denoiser = SoftThreshold()


def algorithm(fidelity, denoiser, **parts):
    return ProximalGradient(fidelity, denoiser, **parts)


def sampler(fidelity):
    return ShiftedViews(4)


def momentum():
    return lambda k, q: 1.0


def gradient(seed):
    return Plain()


def loss():
    return Gaussian()


class monitor:
    every = None
    measures = (Quantity("largest"),)

    def __init__(self, truth, views):
        pass

    def begin(self, algorithm, state, past):
        return lambda algorithm, state: {"largest": state.image.amax((-2, -1))}
"""
KINDS = ["denoiser", "algorithm", "sampler", "momentum", "gradient", "loss", "monitor"]


def test_one_file_has_everything_and_is_run_once(scan, tmp_path, own):
    own.write_text(EVERYTHING)
    words = [word for kind in KINDS for word in (f"--{kind}", f"{own}:{kind}")]
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, *words]) == 0
    assert runs(own) == 1
    assert "largest" in (tmp_path / "run" / "history.csv").read_text()


@pytest.mark.parametrize("kind", [*KINDS, "instrument"])
def test_a_file_of_settings_has_nothing_run(tmp_path, own, kind):
    """The same consent for every kind: none is run because a file says so, and all with --trust."""
    own.write_text(EVERYTHING)
    forget()
    file = tmp_path / "theirs.toml"
    named = f"{own}:{kind}"
    file.write_text(f"[{kind}]\n" + (f'names = ["{named}"]\n' if kind == "monitor" else f'name = "{named}"\n'))
    with pytest.raises(InputError, match=f"asks to run {kind} of .*sha256.*--trust"):
        resolve(file)
    assert runs(own) == 0
    with contextlib.suppress(InputError):  # of the instrument, which it does not have
        resolve(file, trust=True)
    assert runs(own) == 1
