"""The picture of a result: its image beside the truth, above the measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.quantities import Series, sort_quantities
from plugstream.images.drawing import INK, Curve, arrange_panels, draw_curves, draw_rows, figure_size
from plugstream.images.planes import turn_images
from plugstream.images.space import ImageSpace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_result(
    result: Tensor, history: Mapping[str, Series], title: str, space: ImageSpace, truth: NDArray[Any] | None
) -> Figure:
    """The image of a result beside the truth, if it is known, above the measurements; see `arrange_panels`.

    Of several images the first six are drawn. Arguments: result, (..., *space.shape); history of the measurements;
    title; space, where pixels lie; truth (*space.shape), None if it is not known.
    """
    from matplotlib.figure import Figure

    image = result.detach().cpu().resolve_conj().numpy()
    space.check_shape(image.shape)
    if truth is not None:
        space.check_shape(truth.shape)
    several = image.reshape(-1, *space.shape)[:_MOST_IMAGES]
    names = ["result"] if len(several) == 1 else [f"image {number}" for number in range(len(several))]
    images = list(zip(names, several, strict=True))
    if truth is not None and truth.ndim == space.ndim:
        images.insert(0, ("truth", truth))
    rows = arrange_panels(turn_images(images, space, truth), space, truth)
    history = {name: series for name, series in history.items() if len(series.step) > 1}
    quantities = sort_quantities((series.quantity for series in history.values()), history, stop_first=True)[:2]
    curves = [Curve(q, history[q.name].step.tolist(), history[q.name].value) for q in quantities]
    width, height = figure_size(rows)
    figure = Figure(
        figsize=(max(width, 3.2 * len(curves), 4.4), height + 0.4 + 2.4 * bool(curves)), layout="constrained"
    )
    figure.suptitle(title, fontsize=10, color=INK)
    if not curves:
        draw_rows(figure, rows, space)
        return figure
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=[height, 2.4])).tolist()
    draw_rows(above, rows, space)
    draw_curves(below, curves)
    return figure


_MOST_IMAGES = 6
