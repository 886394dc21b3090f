"""Things chosen by name reach a run: losses, code of one's own for every kind, and packages of others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from plugstream.base.registry import KINDS, entries
from plugstream.settings import resolve
from small_run import main

RUN = ["--sigma", "0.02", "--threads", "1", "--iterations", "4"]
OWN = """
from pathlib import Path
from plugstream.fidelity.losses import Huber
from plugstream.algorithms.sampling import ShiftedViews

Path(__file__).with_name("ran").touch()

def sampler(fidelity):
    return ShiftedViews(fidelity.n_views // 3)

def loss():
    return Huber(0.5)

def broken(*parts):
    raise RuntimeError("no")

number = 3
"""


def reconstruct(scan: Path, out: Path, *words: str) -> np.ndarray:
    assert main(["reconstruct", str(scan), "--out", str(out), *RUN, *words]) == 0
    image: np.ndarray = np.load(out / "result.npy")
    return image


def test_a_loss_is_chosen_and_resumed_to_the_bit(scan, tmp_path):
    plain = reconstruct(scan, tmp_path / "plain", "--batch", "4")
    assert np.array_equal(plain, reconstruct(scan, tmp_path / "gaussian", "--batch", "4", "--loss", "gaussian"))
    huber = ["--batch", "4", "--loss", "huber", "--delta", "1e-3"]
    whole = reconstruct(scan, tmp_path / "huber", *huber)
    assert np.isfinite(whole).all()
    assert not np.array_equal(plain, whole)
    reconstruct(scan, tmp_path / "halves", *huber, "--iterations", "2")
    assert main(["resume", str(tmp_path / "halves"), "--iterations", "4"]) == 0
    assert np.array_equal(np.load(tmp_path / "halves" / "result.npy"), whole)
    # All misfits are within such a delta, where the Huber loss is least squares.
    wide = reconstruct(scan, tmp_path / "wide", "--batch", "4", "--loss", "huber", "--delta", "1e6")
    np.testing.assert_allclose(wide, plain, atol=1e-4 * np.abs(plain).max())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--delta", "1"], "the loss gaussian has no use for delta; leave it out, or choose huber"),
        (["--loss", "hubber"], "did you mean 'huber'?"),
        (["--loss", "huber", "--algorithm", "admm"], "use --algorithm pgm"),
        (["--loss", "poisson"], ""),
    ],
)
def test_losses_that_cannot_be_are_refused_in_one_line(scan, tmp_path, capsys, words, message):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert message in lines[-1]
    assert not (tmp_path / "run").exists()


def test_code_of_ones_own_is_used_with_the_same_consent_for_every_kind(scan, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    drawn = reconstruct(scan, tmp_path / "a", "--sampler", f"{own}:sampler", "--loss", f"{own}:loss")
    shifted = ["--sampler", "shifted", "--batch", "4", "--loss", "huber", "--delta", "0.5"]
    assert np.array_equal(drawn, reconstruct(scan, tmp_path / "b", *shifted))
    for kind in ("sampler", "loss"):
        (tmp_path / "ran").unlink(missing_ok=True)
        file = tmp_path / f"{kind}.toml"
        file.write_text(f'[{kind}]\nname = "{own}:{kind}"\n')
        words = ["reconstruct", str(scan), "--out", str(tmp_path / f"theirs-{kind}"), *RUN, "--settings", str(file)]
        capsys.readouterr()
        assert main(words) == 2
        line = capsys.readouterr().err
        assert f"run {kind} of" in line
        assert "--trust" in line
        assert not (tmp_path / "ran").exists()
        assert main([*words, "--trust"]) == 0
        assert (tmp_path / "ran").exists()
    assert main(["resume", str(tmp_path / "a"), "--iterations", "6"]) == 2
    assert main(["resume", str(tmp_path / "a"), "--iterations", "6", "--trust"]) == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "has no nothing"), ("broken", "RuntimeError: no"), ("number", "not a function or class")],
)
def test_code_of_ones_own_that_does_not_work_is_one_line(scan, tmp_path, capsys, name, message):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--loss", f"{own}:{name}"]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_kind_is_listed_and_the_documents_have_its_table(kind, capsys):
    plural, names = kind.plural, list(entries(kind.name))
    assert main([plural]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(names)]] == names
    assert main([plural, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == names
    assert main([plural, "--markdown"]) == 0
    table = capsys.readouterr().out
    document = Path(__file__).parents[2] / "docs" / "entries.md"
    sections = dict(re.findall(r"^## (\w+)\n\n((?:\|.*\n)*)", document.read_text(encoding="utf-8"), re.MULTILINE))
    assert sections[plural.capitalize()] == table, f"plugstream {plural} --markdown belongs into {document}"


def test_what_is_declared_of_denoisers_is_in_their_document(capsys):
    assert main(["denoisers", "--facts", "--markdown"]) == 0
    assert capsys.readouterr().out in (Path(__file__).parents[2] / "docs" / "denoisers.md").read_text(encoding="utf-8")


def test_momentum_and_gradient_are_chosen_by_name_and_by_file(scan, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from plugstream import SVRG\n\n\ndef heavy():\n    return lambda k, q: 1.5\n\n\n"
        "def often(seed):\n    return SVRG(0.5, seed)\n"
    )
    plain = reconstruct(scan, tmp_path / "plain")
    heavy = reconstruct(scan, tmp_path / "heavy", "--momentum", f"{own}:heavy")
    assert not np.array_equal(plain, heavy)
    often = reconstruct(scan, tmp_path / "often", "--gradient", f"{own}:often", "--seed", "3")
    assert np.array_equal(
        often, reconstruct(scan, tmp_path / "svrg", "--gradient", "svrg", "--refresh", "0.5", "--seed", "3")
    )


def test_a_denoiser_that_does_not_use_sigma_needs_none(scan, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text(
        "from plugstream.base.registry import register\n\n\n"
        '@register("denoiser", "half", "half of it", sigma="unused")\n'
        "def half(options):\n    return lambda z, sigma: z / 2\n"
    )
    assert resolve(None, [("denoiser", "name", "box")]).algorithm.sigma == 0
    assert resolve(None, [("denoiser", "name", "box"), ("algorithm", "lam", 0.1)]).algorithm.sigma is None
    assert resolve(None, [("denoiser", "name", "box"), ("denoiser", "opening", "tv")]).algorithm.sigma is None
    assert resolve(None).algorithm.sigma is None
    words = ["reconstruct", str(scan), "--iterations", "3", "--threads", "1", "--search", "none"]
    for name in ("box", f"{own}:half"):
        images = []
        for sigma in ([], ["--sigma", "1"]):
            out = tmp_path / f"{name[-3:]}-{len(sigma)}"
            assert main([*words, "--out", str(out), "--denoiser", name, *sigma]) == 0
            images.append(np.load(out / "result.npy"))
        assert np.array_equal(*images)
    np.save(tmp_path / "z.npy", np.ones((16, 16), np.float32))
    picture = ["denoise", str(tmp_path / "z.npy"), str(tmp_path / "o.npy")]
    assert main([*picture, "--denoiser", f"{own}:half"]) == 0
    assert np.all(np.load(tmp_path / "o.npy") == 0.5)
    capsys.readouterr()
    assert main([*picture, "--denoiser", "tv"]) == 2
    assert "give --sigma" in capsys.readouterr().err


def test_nobody_searches_for_a_sigma_that_is_not_used(scan, tmp_path):
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(out), "--denoiser", "box", *RUN[2:]]) == 0  # without --sigma
    assert "search for sigma" not in (out / "events.jsonl").read_text()


def test_a_seed_is_declared_once_and_refused_where_nothing_is_drawn(scan, tmp_path, capsys):
    assert not any("seed" in entry.option_names for entry in entries("sampler").values())
    words = ["reconstruct", str(scan), "--sigma", "0.02", "--seed", "3", "--sampler"]
    for name in ("shifted", "fixed", "all"):
        assert main([*words, name, "--out", str(tmp_path / name)]) == 2
        assert f"--sampler {name} draws nothing, so --seed would do nothing" in capsys.readouterr().err
    for typed in (
        [("sampler", "name", "uniform")],
        [("sampler", "name", "epochs")],
        [("sampler", "name", "all"), ("gradient", "name", "svrg")],
        [("sampler", "name", "all"), ("algorithm", "name", "snore")],
    ):
        assert resolve(None, [*typed, ("sampler", "seed", 3)]).sampler.seed == 3
    assert resolve(None, [("sampler", "seed", 3)], presets=[("sampler", "name", "all")]).sampler.name == "all"
    file = tmp_path / "old.toml"  # runs write every setting down, also those that nobody chose
    file.write_text('[sampler]\nname = "all"\nseed = 3\n')
    assert resolve(file).sampler.seed == 3
