"""The experiments at a size of no meaning: every table and figure is written, and what was computed is kept."""

from __future__ import annotations

import csv
import dataclasses
import json
import tarfile
import time

import numpy as np
import pytest
import torch

from plugstream import TV, SoftThreshold
from plugstream.base.progress import Work, enclosing_work, listening, report
from plugstream.cli import main
from reproduction import cells, paper as printed, results, run as script
from reproduction.cells import OutOfTimeError, Store
from reproduction.paper import PerImage, Pictures, load_pictures, make_problem
from reproduction.results import Table, table2_table
from reproduction.runs import Spec, falling, make_algorithm, run
from reproduction.tables import calls_to_reach

TINY = cells.Scale(
    name="cells-quick",
    images=("monarch", "parrot"),
    steps=3,
    splits=2,
    grid=3,
    evaluations=3,
    choices=1,
    distance_steps=4,
    distance_every=2,
    calls=(3, 2),
)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    truth = torch.from_numpy(rng.random((2, 32, 32)).astype(np.float32))
    return make_problem(Pictures(("monarch", "parrot"), truth, True))


def test_printed_values_are_those_of_the_paper(shared_data):
    """Read from its source, row by row."""
    source = shared_data.parent / "paper" / "online-pnp.tex"
    if not source.exists():
        pytest.skip(f"the paper is not at {source}")

    def numbers(start):
        line = next(line for line in source.read_text().splitlines() if line.startswith(start) and "&" in line)
        return tuple(float(cell.strip().split()[0]) for cell in line.split("&")[1:])

    for name, row in printed.TABLE2.items():
        assert numbers("Babara" if name == "barbara" else name.capitalize()) == row
    assert numbers(r"\textbf{Average}") == printed.AVERAGE
    for name, row in printed.TABLE1.items():
        assert numbers(rf"\textbf{{{name.upper()}}}") == row


def test_printed_tables_agree_with_themselves():
    columns = np.array([printed.TABLE2[name] for name in printed.IMAGES])
    off = np.abs(columns.mean(0) - printed.AVERAGE)
    assert off[:2].max() <= 0.0051  # of PnP-ADMM, up to rounding
    assert off[2:].max() < 0.66  # of the others not quite: 13.61 where 14.26 is printed for PnP-FISTA(10)
    for row in printed.TABLE1.values():
        assert row[0] == row[5]  # the same setting stands in two columns
        assert row[0] > row[1] > row[2]
        assert row[3] > row[4] > row[5]


def test_an_image_of_a_batch_gets_its_own_sigma():
    z = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0))
    factors = torch.tensor([0.1, 0.5, 2.0])
    for denoiser in (SoftThreshold(), TV(tol=0.0, max_iterations=20)):
        together = PerImage(denoiser, factors)(z, 0.7)
        for i, factor in enumerate(factors.tolist()):
            assert torch.allclose(together[i], denoiser(z[i], 0.7 * factor), atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "visits"),
    [
        (Spec(denoiser="tv", views=10, iterations=6), 6 * 10),
        (Spec(denoiser="tv", sampler="all", views=None, iterations=2), 2 * 60),
        # one pass to begin with, and a forward and an adjoint of the batch in every step
        (Spec(denoiser="tv", views=10, gradient="saga", iterations=3), 60 + 3 * 10),
    ],
)
def test_visits_of_views_are_counted(problem, spec, visits):
    run(problem, spec, [0.01, 0.01])
    assert problem.counted.visits == visits


def test_the_prox_counts_its_conjugate_gradients(problem):
    """Each application of H^H H is a visit of every view; the right-hand side is half of one."""
    spec = Spec("hqs", denoiser="tv", sampler="fixed", views=30, step=10.0, iterations=1)
    run(problem, spec, [0.01, 0.01])
    applications = (problem.counted.visits - 0.5 * 30) / 30
    assert applications == int(applications)
    assert 2 <= applications <= 13  # the residual of the start, and at most 12 iterations


def test_a_falling_step_takes_sigma_with_it(problem):
    spec = falling(Spec("hqs", denoiser="tv", sampler="all", views=None, step=100.0, iterations=9), 1.0, 5)
    algorithm = make_algorithm(problem, spec, [0.2, 0.4])
    pairs = np.array([algorithm.parameters(k) for k in range(1, 10)])
    assert pairs[0, 1] == 1.0
    assert np.allclose(pairs[:, 1] ** 2 / pairs[:, 0], pairs[0, 1] ** 2 / pairs[0, 0])
    assert pairs[4:, 0] * problem.fidelity.lipschitz_max == pytest.approx(1.0)


def test_a_cell_is_computed_once_for_the_same_question(tmp_path):
    store, calls = Store(tmp_path / "cells", lambda text: None), []

    def compute():
        calls.append(1)
        return {"value": [1.0, float("inf")]}, {"image": np.eye(3)}

    first = store.cell("a", {"spec": (1, 2)}, compute)
    assert store.cell("a", {"spec": [1, 2]}, compute) == first
    assert len(calls) == 1
    assert np.array_equal(store.arrays("a")["image"], np.eye(3))
    store.cell("a", {"spec": [1, 3]}, compute)  # another question
    assert len(calls) == 2
    late = dataclasses.replace(store, deadline=time.monotonic() - 1)
    assert late.cell("a", {"spec": [1, 3]}, compute) == first
    with pytest.raises(OutOfTimeError, match="b"):
        late.cell("b", {}, compute)


def test_a_cell_that_was_interrupted_is_absent(tmp_path):
    store = Store(tmp_path / "cells", lambda text: None)

    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.cell("a", {}, stopped)
    assert not list(tmp_path.rglob("a.json"))


def test_ctrl_c_within_a_run_leaves_no_cell(problem, tmp_path, monkeypatch, capsys):
    """A run that is interrupted by itself ends with what it has, which is not what the cell is about."""

    def stop(step: int) -> None:
        if step in steps:
            steps.remove(step)
            raise KeyboardInterrupt
        note(step)

    steps, note = [2], problem.counted.note
    monkeypatch.setattr("reproduction.paper.make_problem", lambda *arguments, **more: problem)
    monkeypatch.setattr(problem.counted, "note", stop)
    words = ["fig4", "--quick", "--size", "32", "--out", str(tmp_path)]
    assert main(words, script) == 130
    assert "stopped; the same command goes on from the last cell" in capsys.readouterr().err
    assert list(tmp_path.rglob("*.json")) == []


def test_a_cell_is_named_while_it_is_computed(tmp_path):
    told: list[tuple[Work, ...]] = []

    def compute():
        report("steps", 3, 10)
        return {}, {}

    with listening(lambda *work: told.append((*enclosing_work(), work))):
        Store(tmp_path, lambda text: None).cell("run-pnp-sgd", {}, compute)
    assert told == [(("run-pnp-sgd", 0, 0), ("steps", 3, 10))]


def test_calls_to_reach_a_level():
    cell = {"history": {"snr": {"step": [0, 1, 2, 3], "value": [[0, 0], [20, 30], [26, 26], [20, 20]]}}}
    assert calls_to_reach(cell, 25.0) == 1
    assert calls_to_reach(cell, 25.5) == 2
    assert calls_to_reach(cell, 27.0) is None


def test_markdown_has_a_cell_for_every_value():
    text = Table("T", ("a", "b"), [("x", 1.234), (None, 5)]).markdown()
    assert "| x | 1.23 |" in text
    assert "| - | 5 |" in text


def test_table_2_stands_beside_the_printed_values():
    cells = {m: {"names": list(printed.IMAGES), "snr": [20.0] * 8} for m in printed.METHODS}
    table = table2_table(cells)
    assert table.rows[-1] == ("average", *(v for paper in printed.AVERAGE for v in (paper, 20.0)))
    assert table.rows[5][:3] == ("monarch", 11.46, 20.0)


@pytest.mark.slow
def test_every_table_and_figure_is_written_and_nothing_is_computed_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cells, "QUICK", TINY)
    every = results.beyond_rows  # of which some of each kind, to be quick
    monkeypatch.setattr(results, "beyond_rows", lambda *arguments: every(*arguments)[::5])
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for name in printed.IMAGES:
        np.save(folder / f"{name}.npy", (255 * rng.random((32, 32))).astype(np.uint8))
    out = tmp_path / "results"
    command = ["all", "--quick", "--images", str(folder), "--size", "32", "--out", str(out)]
    first = main([*command, "--seconds", "0"], script)
    assert first == 130  # out of time before it began, and the same command goes on
    assert main(command, script) == 0
    for name in ("table1", "table2", "beyond"):
        rows = list(csv.reader((out / f"{name}.csv").open()))
        content = json.loads((out / f"{name}.json").read_text())
        assert len(content["rows"]) == len(rows) - 1
        assert (out / f"{name}.md").read_text().count("\n|") == len(rows) + 1
    for name in ("fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "beyond"):
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("cells*/*.json")}
    assert len(before) > 40
    capsys.readouterr()
    command[:1] = ["table1", "table2", "fig5", "beyond"]  # drawing all figures again would take long
    assert main(command, script) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("cells*/*.json")} == before


@pytest.mark.slow
def test_cells_computed_elsewhere_are_packed_and_taken_up(tmp_path, monkeypatch, capsys):
    """As on a machine with a GPU: computed and packed, unpacked, and only drawn by the same command without --pack."""
    monkeypatch.setattr(cells, "QUICK", TINY)
    folder = tmp_path / "images"
    folder.mkdir()
    for i, name in enumerate(printed.IMAGES):
        np.save(folder / f"{name}.npy", (255 * np.random.default_rng(i).random((32, 32))).astype(np.uint8))
    words = ["fig4", "--images", str(folder), "--size", "32", "--quick", "--out"]
    assert main([*words, str(tmp_path / "there"), "--pack"], script) == 0
    assert set(json.loads(capsys.readouterr().out)) == {path.stem for path in tmp_path.rglob("there/cells*/*.json")}
    with tarfile.open(tmp_path / "there" / "cells.tar.gz") as tar:
        tar.extractall(tmp_path / "here", filter="data")
    assert main([*words, str(tmp_path / "here"), "--seconds", "0"], script) == 0
    assert (tmp_path / "here" / "fig4.png").exists()
    again = [*words, str(tmp_path / "again"), "--cells", str(tmp_path / "here" / "cells-quick-32"), "--seconds", "0"]
    assert main(again, script) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--images", "nowhere"], "there is no folder nowhere"),
        (["--size", "8"], "at least 32"),
        (["--tnrd", "nothing.mat"], "no weights nothing.mat"),
        (["--cells", "nowhere"], "no folder nowhere of cells"),
        (["--image", "nowhere"], "did you mean --images?"),
    ],
)
def test_mistakes_are_told_before_work_starts(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["table2", *arguments], script) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plugstream: ")
    assert message in line
    (tmp_path / "empty").mkdir()
    assert main(["table2", "--images", "empty"], script) == 2
    assert "has no barbara.png" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_without_the_papers_images_others_stand_in():
    pictures = load_pictures(None, 32)
    assert not pictures.printed
    assert pictures.truth.shape == (4, 32, 32)
    assert not set(pictures.names) & set(printed.IMAGES)


def test_the_papers_images_are_exact(shared_data):
    pictures = load_pictures(shared_data / "paper-images")
    assert pictures.names == printed.IMAGES
    assert pictures.truth.shape == (8, 256, 256)
    assert torch.equal(pictures.truth * 255, (pictures.truth * 255).round())
