"""A figure that is laid out and drawn once is what matplotlib makes of it by drawing it twice."""

import io

import numpy as np

from plugstream import ImageSpace
from plugstream.base.quantities import Quantity
from plugstream.images.drawing import Curve, arrange_panels, draw_curves, draw_rows, encode_figure, figure_size


def draw_figure(layout):
    """An image with a bar and a title, above a curve, as the report of a run has it."""
    from matplotlib.figure import Figure

    image = np.linspace(0, 3, 80, dtype=np.float32).reshape(8, 10)
    space = ImageSpace((8, 10), spacing=(1e-3, 1e-3), quantity="contrast")
    rows = arrange_panels([("result, 12.34 dB", image)], space)
    width, height = figure_size(rows)
    figure = Figure(figsize=(max(width, 7.2), height + 3.2), layout=layout)
    figure.suptitle("a title\nof two lines", fontsize=11)
    images, curves = figure.subfigures(2, 1, height_ratios=[height, 2.9])
    draw_rows(images, rows, space)
    draw_curves(curves, [Curve(Quantity("distance", "distance", logarithmic=True), [0, 10, 20], [1.0, 1e-3, 1e-5])])
    return figure


def save(figure):
    file = io.BytesIO()
    figure.savefig(file, dpi=70, format="png")
    return file.getvalue()


def test_a_picture_is_that_of_matplotlib_to_the_byte_and_the_figure_stays_as_it_is():
    expected, figure = save(draw_figure("constrained")), draw_figure("constrained")
    before = figure.get_dpi(), figure.get_layout_engine()
    assert encode_figure(figure, dpi=70) == expected
    assert (figure.get_dpi(), figure.get_layout_engine()) == before


def test_figures_without_a_layout_and_other_kinds_of_files_are_written_too():
    figure = draw_figure(None)
    assert encode_figure(figure, dpi=70) == save(figure)
    assert b"<svg" in encode_figure(figure, "svg", dpi=70)
