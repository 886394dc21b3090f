"""Notebooks: progress is one element that is drawn again, and a result shows its image and curves by itself."""

from __future__ import annotations

import base64
import io
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from plugstream import SNR, Distance, LeastSquares, MatrixModel, ProximalGradient, Result, SoftThreshold, solve
from plugstream.base.display import screen as module
from plugstream.base.display.steps import Steps
from plugstream.images.planes import thumbnail
from terminals import Screen


class Notebook:
    """What a notebook's front end would show: elements by their number, each as it is now, and how often it changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: bool = True) -> None:
        self.elements: list[list[str]] = []
        shell: Any = ModuleType("IPython")
        shell.get_ipython = lambda: SimpleNamespace(kernel=1) if kernel else SimpleNamespace()
        shell.display = ModuleType("IPython.display")
        shell.display.HTML = lambda text: text
        shell.display.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", shell)
        monkeypatch.setitem(sys.modules, "IPython.display", shell.display)

    def display(self, html: str, display_id: bool) -> SimpleNamespace:
        element = [html]
        self.elements.append(element)
        return SimpleNamespace(update=element.append)


def problem() -> tuple[Any, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrices, truth = torch.randn(4, 30, 20, generator=generator), torch.rand(4, 5, generator=generator)
    model = MatrixModel(list(matrices), (4, 5))
    data = torch.stack([matrix @ truth.flatten() for matrix in matrices])
    return ProximalGradient(LeastSquares(model, data), SoftThreshold(), sigma=0.01), truth


def solved(progress: bool, until: Callable[[], bool] = lambda: True) -> Result[Any]:
    """A result; after ten steps the run waits until something is true."""
    algorithm, truth = problem()

    def wait(told: Any) -> None:
        end = time.monotonic() + 60
        while told.state.k == 10 and not until() and time.monotonic() < end:
            time.sleep(0.005)

    monitors = [SNR(truth), Distance()]
    return solve(algorithm, iterations=20, monitors=monitors, every=5, callbacks=[wait], progress=progress)


def test_a_notebook_shows_the_steps_in_one_element(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    notebook = Notebook(monkeypatch)
    monkeypatch.setattr(module, "_FRAME", 0.01)
    result = solved(progress=True, until=lambda: 'value="10"' in notebook.elements[0][-1])
    (drawn,) = notebook.elements
    last = drawn[-1]
    assert '<progress max="20" value="20">' in last
    assert "step 20/20" in last
    assert "SNR" in last
    pictures = [re.search(r'src="data:image/png;base64,([^"]+)"', html) for html in drawn]
    (*_, latest) = (base64.b64decode(found[1]) for found in pictures if found)  # the first may be of step 0, and black
    shown = np.asarray(Image.open(io.BytesIO(latest)))  # 4 x 5 pixels, enlarged to be seen
    assert shown.shape == (205, 256)
    assert (int(shown.min()), int(shown.max())) == (0, 255)
    assert "<img" not in last  # the result shows its image itself
    assert "<polyline" in last
    assert "stopped after 20 steps" in last
    assert capsys.readouterr() == ("", "")
    assert torch.equal(result.image, solved(progress=False).image)  # what is shown changes nothing


def test_a_thumbnail_is_of_any_image_and_has_few_pixels() -> None:
    def size(image: torch.Tensor, axes: int) -> tuple[int, int]:
        return Image.open(io.BytesIO(thumbnail(image, axes))).size

    assert size(torch.rand(600, 300), 2) == (128, 256)
    assert size(torch.rand(3, 64, 32), 2) == (128, 256)  # the first of three
    assert size(torch.rand(8, 64, 32), 3) == (128, 256)  # a volume
    assert size(torch.zeros(4, 4, dtype=torch.complex64) * torch.nan, 2) == (256, 256)


def test_nothing_is_drawn_over_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that draws may come to it between the last words and the end of the display."""
    notebook = Notebook(monkeypatch)
    monkeypatch.setattr(module, "_FRAME", 1000.0)  # drawn here alone
    with module.Display() as display:
        steps = Steps(20)
        display.show(steps)
        display.finish(steps, "it is over")
        display._show_rich(time.monotonic())
    (drawn,) = notebook.elements
    assert "it is over" in drawn[-1]


def test_python_in_a_terminal_shows_the_steps_and_leaves_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    Notebook(monkeypatch, kernel=False)  # IPython in a terminal is none
    screen = Screen(70)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(module, "_FRAME", 0.01)
    solved(progress=True, until=lambda: "step 10/20" in screen.written)
    assert "━" in screen.written
    assert screen.shown[0].startswith("SNR ")
    assert screen.shown[-1] == "all iterations were done" or "stopped after 20 steps" in screen.shown[-1]
    assert sys.stderr is screen


def test_a_result_shows_itself_drawn_once_and_whatever_names_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    result = solved(progress=False)
    series = result.history["snr"]
    evil = replace(series, quantity=replace(series.quantity, title="<script>x</script>"))
    result = replace(result, history={**result.history, "snr": evil})
    drawn = []
    plot = Result.plot
    monkeypatch.setattr(Result, "plot", lambda self: drawn.append(1) or plot(self))
    bundle = result._repr_mimebundle_()
    assert len(drawn) == 1
    assert bundle["image/png"].startswith(b"\x89PNG")
    assert bundle["text/plain"] == repr(result)
    page = bundle["text/html"]
    assert 'src="data:image/png;base64,iVBOR' in page
    assert f"<b>{result.verdict.name}</b>" in page
    assert "<td>&lt;script&gt;x&lt;/script&gt;</td>" in page
    assert "<script>" not in page


@pytest.mark.slow
def test_a_real_kernel_shows_progress_and_result() -> None:
    client, format_ = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    code = (
        "import torch\n"
        "from plugstream import LeastSquares, MatrixModel, ProximalGradient, SoftThreshold, SNR, solve\n"
        "model = MatrixModel(list(torch.randn(4, 30, 20)), (4, 5))\n"
        "algorithm = ProximalGradient(LeastSquares(model, torch.ones(4, 30)), SoftThreshold(), sigma=0.01)\n"
        "solve(algorithm, iterations=50, monitors=[SNR(torch.ones(4, 5))], progress=True)"
    )
    book = format_.v4.new_notebook(cells=[format_.v4.new_code_cell(code)])
    client.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    progress, shown = book.cells[0].outputs
    assert "stopped after 50 steps" in progress["data"]["text/html"]
    assert {"text/html", "image/png"} <= set(shown["data"])
