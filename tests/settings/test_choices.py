"""Things chosen by name reach a run: losses, code of one's own for every kind, and packages of others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from plugstream.base.registry import KINDS, entries
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


@pytest.mark.parametrize(
    "plural", ["denoisers", "algorithms", "samplers", "momenta", "gradients", "losses", "instruments", "importers"]
)
def test_every_kind_is_listed_and_the_documents_have_its_table(plural, capsys):
    (kind,) = [kind for kind in KINDS.values() if kind.plural == plural]
    names = list(entries(kind.name))
    assert main([plural]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(names)]] == names
    assert main([plural, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == names
    assert main([plural, "--markdown"]) == 0
    table = capsys.readouterr().out
    documents = Path(__file__).parents[2] / "docs" / "entries.md"
    assert table in documents.read_text(encoding="utf-8"), f"plugstream {plural} --markdown belongs into {documents}"


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
