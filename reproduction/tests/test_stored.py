"""The results in docs/results, made on a GPU, against one image of Table 2 and one row of Table 1 run here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reproduction.cells import FULL
from reproduction.paper import AVERAGE, IMAGES, METHODS, OTHER_INSTRUMENTS, load_pictures, make_problem
from reproduction.runs import Spec, known_settings, run
from reproduction.tables import Row, beyond_rows, strengths, successor_rows

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SUCCESSORS = {"successors": "born-2d", "successors-ct": "ct", "successors-mri": "mri"}


def stored(name: str) -> dict:
    path = RESULTS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"there are no stored results {path}")
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def house():
    folder = Path(__file__).parents[3] / "shared" / "data" / "paper-images"
    if not folder.is_dir():
        pytest.skip(f"the paper's images are not at {folder}")
    return make_problem(load_pictures(folder).only(("house",)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["PnP-SGD(10)", "PnP-FISTA(30)"])
def test_an_image_of_table_2(house, method):
    content = stored("table2")
    tuned, place = content["tuned"][method], IMAGES.index("house")
    row = next(row for row in content["rows"] if row["image"] == "house")
    result = run(house, Spec(**tuned["spec"]), [tuned["sigma"][place]], every=50)
    got = float(result.history["snr"].value[-1, 0])
    print(f"{method} on house: {got:.2f} dB here, {row[f'{method} ours']:.2f} dB stored")
    assert got == pytest.approx(row[f"{method} ours"], abs=0.1)


@pytest.mark.slow
def test_a_row_of_table_1(house):
    """TV, every column, both variants, at iteration 40."""
    curves = [curve for curve in stored("table1")["curves"] if curve["denoiser"] == "tv"]
    assert len(curves) == 10
    for curve in curves:
        spec = Spec(denoiser="tv", views=curve["views"], step=curve["step"], momentum=curve["momentum"], iterations=40)
        result = run(house, spec, strengths(house, "tv", spec.step), distance=True, every=40)
        place = curve["names"].index("house")
        want = curve["distance"][curve["iteration"].index(40)][place]
        assert result.history["distance"].value[-1, 0] == pytest.approx(want, rel=0.1), curve


def test_known_settings_are_the_stored_ones():
    """What --quick takes is what the full search found, for every method and line; another picture gets their mean."""
    for method, tuned in stored("table2")["tuned"].items():
        known = known_settings(method, IMAGES, 1000)
        assert known.spec == Spec(**tuned["spec"])
        assert known.sigma == pytest.approx(tuned["sigma"], rel=1e-5)
        (other,) = known_settings(method, ["camera"], 1000).sigma
        assert min(known.sigma) <= other <= max(known.sigma)
    lines = beyond_rows(FULL, ("tnrd-ours", "ridge"))
    assert {line.name for line in lines} == {row["method"] for row in stored("beyond")["rows"]}
    for line in lines:
        known = known_settings(line.name, IMAGES, 1000)
        assert known.spec in line.choices
        assert all(line.low / 255 - 1e-6 <= sigma <= line.high / 255 + 1e-6 for sigma in known.sigma)
    assert known_settings("PnP-SGD(10)", IMAGES, 7).spec.iterations == 7


def test_the_stored_table_2_beats_the_printed_averages():
    """What the documentation claims, checked on what it shows."""
    rows = stored("table2")["rows"]
    average = rows[-1]
    for method, paper in zip(METHODS, AVERAGE, strict=True):
        assert average[f"{method} paper"] == paper
        assert average[f"{method} ours"] == pytest.approx(np.mean([r[f"{method} ours"] for r in rows[:-1]]), abs=1e-3)
        assert average[f"{method} ours"] >= paper
    for row in rows[:-1]:
        for method in METHODS[4:]:
            assert row[f"{method} ours"] >= row[f"{method} paper"] - 0.15


def successor_names(instrument: str) -> dict[str, Row]:
    """The lines of a table by name; MRI's has its weighted line, too."""
    names = [name for name in ("born-2d", *OTHER_INSTRUMENTS) if name.removesuffix("-density") == instrument]
    lines = [row for name in names for row in successor_rows(FULL, name)]
    return {line.name: line for line in lines}


@pytest.mark.parametrize(("name", "instrument"), list(SUCCESSORS.items()))
def test_the_stored_successors_are_whole_and_of_one_run(name, instrument):
    """Every line is there, with seconds and with settings that the search could find."""
    content, lines = stored(name), successor_names(instrument)
    assert [row["method"] for row in content["rows"]] == list(lines) == list(content["tuned"])
    assert all(row["seconds"] > 0 for row in content["rows"])
    for method, tuned in content["tuned"].items():
        line = lines[method]
        spec = Spec(**tuned["spec"])
        assert spec in line.choices, method
        assert all(line.low / 255 - 1e-6 <= sigma <= line.high / 255 + 1e-6 for sigma in tuned["sigma"]), method


def test_the_page_shows_the_stored_successors():
    """Each number of the two tables of docs/reproduction.md is that of a JSON file, rounded."""
    page = (RESULTS.parent / "reproduction.md").read_text(encoding="utf-8")
    section = page.split("## What followed the paper")[1].split("###")[0]
    shown = [[part.strip() for part in line.strip("| ").split(" | ")] for line in section.splitlines() if "|" in line]
    shown = [row for row in shown if row[0] not in ("method", "---")]
    born, ct, mri = ({row["method"]: list(row.values()) for row in stored(name)["rows"]} for name in SUCCESSORS)
    digits = (None, 2, 0, 0, 1, 2, 0, 1, 2, None)
    assert shown[: len(born)] == [[as_shown(*pair) for pair in zip(row, digits, strict=True)] for row in born.values()]
    want = []
    for method in dict.fromkeys([*ct, *mri]):
        rows = [table.get(method) for table in (ct, mri)]
        places = (1, 4, 5, 6)
        want.append([method, str(next(row[3] for row in rows if row))])
        want[-1] += ["" if row is None else as_shown(row[i], digits[i]) for row in rows for i in places]
    assert [[*row, *[""] * (10 - len(row))] for row in shown[len(born) :]] == want


def as_shown(value: str | float | None, digits: int | None) -> str:
    """A value of a table as the page has it."""
    if value is None:
        return "-"
    return str(value) if digits is None else f"{value:.{digits}f}"
