"""A plan is built once, refuses before anything is written, and fits the denoiser to the scan's images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import plugstream
from plugstream import Born2D, InputError
from plugstream.denoisers.shapes import SliceMean
from plugstream.images.space import ImageSpace
from plugstream.instruments.base import Data, Experiment, Instrument
from plugstream.runs.parts import prepare
from plugstream.runs.plan import plan
from plugstream.runs.replay import replay
from plugstream.settings import resolve
from small_run import RUN, SMALL, main

# Every run of the file, and every denoiser and loss that it makes, leaves a line.
OWN = """
from pathlib import Path
from plugstream.denoisers.by_name import make
from plugstream.fidelity.losses import Huber

def count(what):
    with Path(__file__).with_suffix(".log").open("a") as file:
        file.write(what + "\\n")

count("run")

def denoiser():
    count("denoiser")
    return make("soft")

def loss():
    count("loss")
    return Huber(1e3)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def counts(own: Path) -> list[str]:
    """What was counted since the last call."""
    log = own.with_suffix(".log")
    lines = log.read_text().splitlines()
    log.unlink()
    return sorted(lines)


def test_own_code_runs_and_builds_once_a_command(scan: Path, own: Path, tmp_path: Path) -> None:
    parts = ["--denoiser", f"{own}:denoiser", "--loss", f"{own}:loss"]
    once, run = ["denoiser", "loss", "run"], [*RUN, "--iterations", "2", *parts]
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "a"), *run]) == 0
    assert counts(own) == once
    assert main(["resume", str(tmp_path / "a"), "--iterations", "3", "--trust"]) == 0
    assert counts(own) == once
    assert main(["reconstruct", str(scan), "--follow", "--out", str(tmp_path / "b"), *run]) == 0
    assert counts(own) == once
    assert main(["demo", *SMALL, "--out", str(tmp_path / "c"), *run]) == 0
    assert counts(own) == once
    search = ["--out", str(tmp_path / "t.toml"), "--evaluations", "5", "--over", "sigma,step_size,momentum"]
    assert main(["tune", str(scan), *search, "--iterations", "2", "--batch", "4", "--threads", "1", *parts]) == 0
    assert counts(own) == once


@pytest.mark.parametrize("loss", [["huber", "--delta", "0.001"], ["gaussian"]])
def test_a_scan_is_followed_with_any_loss_and_goes_on_to_the_bit(scan: Path, tmp_path: Path, loss: list[str]) -> None:
    words = ["reconstruct", str(scan), "--follow", *RUN, "--loss", *loss]
    assert main([*words, "--iterations", "6", "--out", str(tmp_path / "whole")]) == 0
    assert main([*words, "--iterations", "3", "--out", str(tmp_path / "halves")]) == 0
    assert main(["resume", str(tmp_path / "halves"), "--iterations", "6"]) == 0
    assert np.array_equal(*(np.load(tmp_path / name / "result.npy") for name in ("whole", "halves")))
    views = [event.lipschitz for event in replay(tmp_path / "whole" / "events.jsonl").views]
    assert all(bound is not None for bound in views)


def test_the_demo_builds_one_model_to_simulate_and_to_reconstruct(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("plugstream.runs.answers.explain_run", lambda *_: None)  # which tries others at the end
    build, models = Born2D.build_model, []
    monkeypatch.setattr(Born2D, "build_model", lambda *args, **more: models.append(build(*args, **more)) or models[-1])
    assert main(["demo", *SMALL, "--out", str(tmp_path / "a"), *RUN, "--iterations", "2"]) == 0
    assert len(models) == 1


def test_runs_and_searches_know_no_instrument() -> None:
    home = Path(plugstream.__file__).parent
    files = [file for room in ("solver", "runs", "studies/tuning") for file in (home / room).glob("*.py")]
    assert len(files) > 50
    words = ("born", "geometry", "receiver", "transmitter")
    assert [f.name for f in files if any(word in f.read_text().lower() for word in words)] == []


def test_what_is_refused_leaves_nothing_and_runs_no_model(scan: Path, tmp_path: Path, capsys: Any) -> None:
    for words, said in (
        (["--batch", "1000"], "a batch of 1000 views was asked for"),
        (["--denoiser", "bm3d", "--high", "-1", "--low", "1"], "must be below"),
        (["--method", "fast", "--eps", "1e-9"], "eps must be from"),
        (["--device", "cuda:77"], "GPU"),
    ):
        assert main(["reconstruct", str(scan), "--out", str(tmp_path / "a"), "--sigma", "0.02", *words]) == 2
        assert said in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Nowhere(Instrument):
    """An instrument without columns, whose image is whatever is asked for."""

    space: ImageSpace
    name: ClassVar[str] = "born-2d"  # which settings are for if they do not say
    help: ClassVar[str] = "for tests"
    data: ClassVar[Data] = Data(("float32",), (3,))

    @property
    def image(self) -> ImageSpace:
        return self.space

    def build_model(self, *args: Any, **keywords: Any) -> Any:
        raise AssertionError("nothing is built before it is needed")


def planned(space: ImageSpace, *words: tuple[str, str, Any]) -> Any:
    settings = resolve(None, [("algorithm", "sigma", 0.1), ("sampler", "batch", 1), *words])
    return plan(settings, Experiment(Nowhere(space), {}, 4, truth=None))


def test_the_denoiser_is_fitted_to_the_image_and_says_so() -> None:
    name = ("denoiser", "name", "bm3d")
    flat = planned(ImageSpace((20, 18)), name)
    assert flat.notes == ()
    volume = planned(ImageSpace((20, 18, 16)), name)
    assert isinstance(volume.denoiser.denoiser, SliceMean)  # clipped from outside
    assert "slices along the three axes" in volume.notes[0]
    waves = planned(ImageSpace((2, 20, 18), is_complex=True, channels=True), name)
    z = torch.randn(2, 20, 18, dtype=torch.complex64)
    assert waves.denoiser(z, 0.1).shape == z.shape
    assert waves.settings.denoiser.low is None
    assert any("channel by channel" in note for note in waves.notes)
    assert any("complex" in note for note in waves.notes)
    with pytest.raises(InputError, match=r"20 x 4, but .* needs at least 8 x 8"):
        planned(ImageSpace((20, 4)), name)
    with pytest.raises(InputError, match="complex values have no order"):
        planned(ImageSpace((20, 18), is_complex=True), name, ("denoiser", "low", 0.0))


@pytest.mark.parametrize(
    ("phase", "asked", "said", "averaged"),
    [
        ("free", None, "on real and imaginary part after the mean phase was taken out; not known to be averaged", None),
        ("measured", None, "on real and imaginary part; 1/2-averaged", 0.5),
        ("free", "real-imaginary", "on real and imaginary part; 1/2-averaged", 0.5),
        ("measured", "mean-phase", "after the mean phase was taken out; not known to be averaged", None),
        ("free", "magnitude-phase", "on magnitude and phasor; not known to be averaged", None),
    ],
)
def test_a_complex_image_is_denoised_in_parts_without_a_phase_that_is_free(
    phase: Any, asked: str | None, said: str, averaged: float | None
) -> None:
    words = [("denoiser", "name", "ridge")] + ([] if asked is None else [("denoiser", "parts", asked)])
    made = planned(ImageSpace((20, 18), is_complex=True, phase=phase), *words)
    assert any(said in note for note in made.notes), made.notes
    assert made.denoiser.averaged == averaged
    z, turn = torch.randn(20, 18, dtype=torch.complex64), complex(np.exp(2j))
    same = torch.allclose(made.denoiser(turn * z, 0.3), turn * made.denoiser(z, 0.3), atol=1e-4)
    assert same == ("real and imaginary part;" not in said)


def test_parts_are_for_complex_images_and_tv_needs_none() -> None:
    with pytest.raises(InputError, match="--parts is for complex images, and this one is real"):
        planned(ImageSpace((20, 18)), ("denoiser", "parts", "mean-phase"))
    waves = planned(ImageSpace((20, 18), is_complex=True), ("denoiser", "name", "tv"))
    assert waves.denoiser.averaged == 0.5  # which takes complex images as they are, whatever their phase


def test_tv_has_a_form_of_its_own_for_volumes() -> None:
    volume = planned(ImageSpace((6, 5, 4)), ("denoiser", "name", "tv"))
    z = torch.randn(6, 5, 4)
    assert volume.denoiser.ndim == 3
    assert volume.denoiser(z, 0.1).shape == z.shape


def test_other_settings_build_only_what_differs() -> None:
    settings = resolve(None, [("algorithm", "sigma", 0.1), ("denoiser", "name", "bm3d"), ("gradient", "name", "saga")])
    first = prepare(settings)
    words = [("algorithm", "sigma", 0.3), ("denoiser", "name", "bm3d"), ("denoiser", "high", 2.0)]
    second = prepare(resolve(None, [*words, ("gradient", "name", "saga"), ("momentum", "name", "none")]), first)
    assert second.prior is first.prior
    assert second.loss is first.loss
    assert second.gradient is first.gradient
    assert second.momentum is not first.momentum
    assert second.denoiser().high == 2.0
    assert np.isinf(first.denoiser().high)
    third = prepare(resolve(None, [*words, ("sampler", "seed", 7), ("gradient", "name", "saga")]), first)
    assert third.gradient is not first.gradient  # which draws by that seed


@pytest.mark.parametrize("asked", [("gradient", "name", "saga"), ("momentum", "restart", "gradient")])
@pytest.mark.parametrize("algorithm", ["admm", "hqs"])
def test_what_the_algorithm_does_nothing_with_is_refused(asked: tuple[str, str, str], algorithm: str) -> None:
    words = [("algorithm", "name", algorithm), ("algorithm", "sigma", 0.1)]
    with pytest.raises(InputError, match=f"{algorithm} does nothing with --.*; leave it out, or use --algorithm pgm"):
        prepare(resolve(None, [*words, asked]))
    prepare(resolve(None, words))
