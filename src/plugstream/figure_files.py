"""Figures as files: laid out once and drawn once, where matplotlib draws everything once more to lay it out."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["encode_figure"]


def encode_figure(figure: Figure, kind: str = "png", *, dpi: float = 150) -> bytes:
    """The content of a file of a figure, which stays as it is.

    `savefig` draws a figure that has a layout twice: first to nowhere, since that is how the layout is computed, and
    then to the file. Pictures of pixels are drawn once here, after the layout alone, and are the same to the byte.

    Arguments: figure, with a layout or without; kind, what the file's name ends with: png, pdf, svg; dpi, its pixels in
    an inch.
    """
    file, layout = io.BytesIO(), figure.get_layout_engine()
    if layout is None or kind != "png":  # letters of other formats have sizes of their own
        figure.savefig(file, dpi=dpi, format=kind)
        return file.getvalue()
    before = figure.get_dpi()
    try:
        figure.set_dpi(dpi)
        layout.execute(figure)
        figure.set_layout_engine("none")
        figure.savefig(file, dpi=dpi, format=kind)
    finally:
        figure.set_dpi(before)
        figure.set_layout_engine(layout)
    return file.getvalue()
