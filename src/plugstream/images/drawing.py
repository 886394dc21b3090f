"""Images with physical axes and a colour bar, and a result as one figure; matplotlib is imported only to draw."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.quantities import Quantity
from plugstream.images.planes import Plane, cut_planes, dim_unseen, is_faint, phase_label, split_parts, value_span
from plugstream.images.space import ImageSpace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INK, BLUE, ORANGE = "#222222", "#1f5fa8", "#c2571a"
# In inches: the longer side of an image, of one in many rows, and of one that is wide and flat; the height below which
# the colour bar lies below an image, since its label would not fit beside it; the least height of a row; a letter.
_PANEL, _SMALL_PANEL, _WIDE_PANEL, _LOW, _LEAST, _LETTER = 3.1, 2.2, 6.0, 0.9, 0.4, 0.07
_FLAT = 2.5  # width over height beyond which images stand one below the other
_LONGEST = 30.0  # width over height up to which an image has one scale in both directions
_NOTHING, _CYCLIC = "#808080", "twilight_shifted"


@dataclass(frozen=True)
class Shades:
    """The colours of some panels, from `low` to `high`, and the label of their bar."""

    low: float
    high: float
    label: str = ""
    colours: str = "gray"

    @classmethod
    def of(cls, image: NDArray[Any], label: str = "") -> Shades:
        """From the least value, or zero if none is negative, to the largest."""
        low, high = value_span(image)
        return cls(low, high if high > low else low + 1.0, label)


@dataclass(frozen=True)
class Panel:
    """An image (H, W) to draw, with its title, and its space if that is not the figure's."""

    title: str
    image: NDArray[Any]
    shades: Shades
    space: ImageSpace | None = None


Rows = Sequence[Sequence[Panel]]
"""Panels as they stand in a figure."""


@dataclass(frozen=True)
class Curve:
    """Measurements of a quantity: the steps, and (n, ...) values."""

    quantity: Quantity
    steps: Sequence[int]
    values: ArrayLike


def label_of(space: ImageSpace) -> str:
    """The label of a colour bar: the quantity, with its unit if it has one."""
    return f"{space.quantity} ({space.value_unit})" if space.value_unit else space.quantity


def arrange_panels(
    images: Sequence[tuple[str, NDArray[Any]]], space: ImageSpace, scale_by: NDArray[Any] | None = None
) -> list[list[Panel]]:
    """Rows of panels that show images of one space, with their names, all on one scale of colours.

    Images of two axes stand side by side, and those that are much wider than high one below the other. Volumes are rows
    of slices, and channels stand side by side (`cut_planes`). Complex images are drawn as magnitude and below it phase,
    or beside it for a single image; the phase is grey where the magnitude is next to nothing. A free phase is drawn as
    it is in the images: `turn_images` removes the meaningless part first.

    Arguments: scale_by, the image whose values the colours span, all of them if not given.
    """
    label, measured = label_of(space), [image for _, image in images] if scale_by is None else [scale_by]
    waves = any(np.iscomplexobj(image) for _, image in images)
    spanned = np.concatenate([np.abs(image).ravel() if waves else image.ravel() for image in measured])
    shades = Shades.of(spanned, f"|{label}|" if waves else label)
    blocks = [[_row(name, row, shades, waves) for row in cut_planes(image, space)] for name, image in images]
    if len(blocks[0][0][0]) > 1:  # rows of slices or channels, one block below the other
        return [row for block in blocks for rows in block for row in rows]
    columns = [[row[0] for row in block[0]] for block in blocks]
    if len(columns) == 1 or (not waves and _is_flat(columns[0][0])):
        return columns
    return [list(row) for row in zip(*columns, strict=True)]


def _row(name: str, planes: Sequence[Plane], shades: Shades, waves: bool) -> list[list[Panel]]:
    """A row of panels, or two for complex planes: magnitudes and phases. The first panel of each has the name."""
    rows: list[list[Panel]] = []
    for number, plane in enumerate(planes):
        parts = split_parts(plane.values.astype(np.complex128 if waves else np.float64))
        for place, (part, values, span) in enumerate(parts):
            colours = shades
            if span is not None:
                values = np.where(is_faint(np.abs(plane.values), shades.high), np.nan, values)
                colours = Shades(*span, phase_label(plane.space), _CYCLIC)
            if number == 0:
                rows.append([])
            # On two lines: the name of an image and where a slice lies are too long for one.
            first = ", ".join(word for word in (name, part) if word) if number == 0 else ""
            title = "\n".join(line for line in (first, plane.title) if line)
            rows[place].append(Panel(title, values, colours, plane.space))
    return rows


def with_error(rows: Rows, error: NDArray[Any], space: ImageSpace) -> list[list[Panel]]:
    """Rows of `arrange_panels` with those of an error, for complex images its magnitude, on its own scale.

    It stands beside images, or below rows of them.
    """
    finite = np.abs(error[np.isfinite(error)])
    most = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    if np.iscomplexobj(error):
        return _with_map(rows, "|result - truth|", np.abs(error), Shades(0.0, most, "|error|"), space)
    return _with_map(rows, "result - truth", error, Shades(-most, most, "error", "RdBu_r"), space)


def with_uncertainty(rows: Rows, errors: NDArray[Any], space: ImageSpace) -> list[list[Panel]]:
    """Rows of `arrange_panels` with those of an error map, which is real, on its own scale."""
    finite = errors[np.isfinite(errors)]
    most = float(np.quantile(finite, 0.999)) if finite.size and finite.max() > 0 else 1.0
    return _with_map(rows, "error from noise and views", errors, Shades(0.0, most, "error"), space)


def _with_map(rows: Rows, name: str, values: NDArray[Any], shades: Shades, space: ImageSpace) -> list[list[Panel]]:
    panels = [_row(name, planes, shades, False)[0] for planes in cut_planes(values, space)]
    if len(panels[0]) > 1 or _is_stack(rows):
        return [*(list(row) for row in rows), *panels]
    return [[*row, *(panels[0] if place == 0 else [])] for place, row in enumerate(rows)]


def _is_flat(panel: Panel) -> bool:
    height, width = _extent(panel)
    return width > _FLAT * height


def _is_stack(rows: Rows) -> bool:
    """Whether these are flat images, one below the other."""
    return len(rows) > 1 and all(len(row) == 1 for row in rows) and _is_flat(rows[0][0])


def _extent(panel: Panel) -> tuple[float, float]:
    """Height and width as it is drawn, but for a common scale."""
    height, width = panel.image.shape if panel.space is None else panel.space.extent_size()
    return height, width


def figure_size(rows: Rows) -> tuple[float, float]:
    """Inches that rows of panels take, with their titles, axes and colour bars."""
    widths, heights = _measures(rows)
    side_bars, below = 0, 0.0
    for place, row in enumerate(rows):
        bars = [n for n in range(len(row)) if _bar_panels(rows, place, n)]
        if bars and _is_low(*_inches(rows, row[bars[0]])):
            below += 0.85
        else:
            side_bars = max(side_bars, len(bars))
    same_axes = _share_axes(rows)
    labels = 0.8 * (1 if same_axes else len(widths))
    lines = sum(max(panel.title.count("\n") for panel in row) for row in rows)
    ticks = 0.75 + 0.42 * (len(rows) - 1) if same_axes else 0.75 * len(rows)
    return sum(widths) + 0.85 * side_bars + labels, sum(heights) + ticks + below + 0.17 * lines


def _inches(rows: Rows, panel: Panel) -> tuple[float, float]:
    """Height and width of a panel: all of them have one scale, set by the longest side of any."""
    longest = max(max(_extent(one)) for row in rows for one in row)
    side = _WIDE_PANEL if _is_stack(rows) else _PANEL if len(rows) <= 2 else _SMALL_PANEL
    height, width = _extent(panel)
    return side * height / longest, side * width / longest


def _is_low(height: float, width: float) -> bool:
    """Whether a panel of these inches has its bar below it; not if it is stretched, so that its height is unknown."""
    return height < _LOW and width <= _LONGEST * height


def _measures(rows: Rows) -> tuple[list[float], list[float]]:
    """Inches of columns and rows, which have room for the ticks and the title of a thin panel."""
    sizes = [[_inches(rows, panel) for panel in row] for row in rows]
    columns = range(max(len(row) for row in sizes))
    widths = [max(row[n][1] for row in sizes if n < len(row)) for n in columns]
    heights = [max(size[0] for size in row) for row in sizes]
    words = [max(len(row[n].title.split("\n")[0]) for row in rows if n < len(row)) for n in columns]
    least = [1.0 if len(widths) == 1 else max(1.0, min(2.2, _LETTER * letters)) for letters in words]
    return [max(pair) for pair in zip(widths, least, strict=True)], [max(_LEAST, height) for height in heights]


def _share_axes(rows: Rows) -> bool:
    """Whether all panels have the same axes, which then need only one label."""
    return all(panel.space == rows[0][0].space for row in rows for panel in row)


def draw_rows(figure: Any, rows: Rows, space: ImageSpace) -> None:
    """Draw rows of images: axes in the unit of each panel's own space, or of this one if it has none, y as it says, and
    a bar for each scale of colours."""
    widths, heights = _measures(rows)
    same_axes = _share_axes(rows)
    grid = figure.subplots(
        len(rows), len(widths), squeeze=False, sharey=same_axes, width_ratios=widths, height_ratios=heights
    )
    for place, row in enumerate(rows):
        for axes in grid[place][len(row) :]:
            axes.set_visible(False)
        for number, (axes, panel) in enumerate(zip(grid[place], row, strict=False)):
            artist = _draw_panel(axes, panel, panel.space or space, photograph=len(space.spatial) == 2)
            if not same_axes or "\n" in row[0].title:  # the first one's is long
                axes.title.set(x=0.0, horizontalalignment="left")
            if same_axes and number > 0:
                axes.set_ylabel("")
                axes.tick_params(labelleft=False)
            if same_axes and place + 1 < len(rows) and number < len(rows[place + 1]):
                axes.set_xlabel("")
                axes.tick_params(labelbottom=False)
            height, width = _inches(rows, panel)
            axes.locator_params("x", nbins=_ticks(width, 0.5))
            axes.locator_params("y", nbins=_ticks(height, 0.3))
            if sharers := _bar_panels(rows, place, number):
                _draw_bar(figure, axes, artist, sharers, (height, width))


def _ticks(inches: float, room: float) -> int:
    """The largest number of intervals of an axis, each this many inches long."""
    return max(1, min(5, int(inches / room)))


def _draw_bar(figure: Any, axes: Any, artist: Any, panels: Sequence[Panel], inches: tuple[float, float]) -> None:
    """The colour bar of some panels: beside the last of them, drawn as `artist` in `axes`, or below it if it is low."""
    shades, (height, width) = panels[-1].shades, inches
    low = _is_low(height, width)
    if low:
        room = 0.62 if axes.get_xlabel() else 0.25  # for ticks and the name of the axis
        cax = axes.inset_axes((0.0, -room / height, 1.0, 0.1 / height))
    else:
        cax = axes.inset_axes((1 + 0.14 / max(_LEAST, width), 0.0, 0.15 / max(_LEAST, width), 1.0))
    values = np.concatenate([panel.image.ravel() for panel in panels])
    slack = 0.005 * (shades.high - shades.low)
    beyond = bool((values < shades.low - slack).any()), bool((values > shades.high + slack).any())
    ends = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
    bar = figure.colorbar(artist, cax=cax, extend=ends, orientation="horizontal" if low else "vertical")
    bar.ax.tick_params(labelsize=8, color="#666666")
    bar.outline.set_edgecolor("#999999")
    bar.set_label(shades.label, fontsize=9)
    if shades.colours == _CYCLIC:
        bar.set_ticks([-np.pi, 0, np.pi], labels=["−π", "0", "π"])


def _draw_panel(axes: Any, panel: Panel, space: ImageSpace, *, photograph: bool) -> Any:
    """Draw one panel; without a spacing the axes of a photograph are its rows and columns, others have their names."""
    from matplotlib import colormaps

    unit, shades, sides = space.scale()[0], panel.shades, space.extent_size()
    artist = axes.imshow(
        dim_unseen(panel.image, (shades.low, shades.high), space),
        origin="lower" if space.upwards else "upper",
        extent=space.extent(),
        vmin=shades.low,
        vmax=shades.high,
        cmap=colormaps[shades.colours].with_extremes(bad=_NOTHING),
        interpolation="nearest",
        aspect="equal" if max(sides) <= _LONGEST * min(sides) else "auto",
    )
    names = [f"{name} ({unit})" for name in space.axes[-2:]]
    if space.spacing is None:
        names = ["row", "column"] if photograph else list(space.axes[-2:])
    axes.set_title(panel.title, fontsize=10, color=INK)
    axes.set_ylabel(names[0], fontsize=9)
    axes.set_xlabel(names[1], fontsize=9)
    axes.tick_params(labelsize=8, color="#666666")
    axes.locator_params(integer=space.spacing is None)
    for spine in axes.spines.values():
        spine.set_color("#999999")
    return artist


def draw_curves(figure: Any, curves: Sequence[Curve]) -> list[Any]:
    """Draw the measurements side by side, and return the axes."""
    row: list[Any] = np.atleast_1d(figure.subplots(1, len(curves))).tolist()
    for number, (axes, curve) in enumerate(zip(row, curves, strict=True)):
        values = np.asarray(curve.values, dtype=np.float64).reshape(len(curve.steps), -1)
        axes.plot(curve.steps, values, color=(BLUE, ORANGE)[number % 2], marker="o", markersize=3, linewidth=1.4)
        if curve.quantity.logarithmic and np.nanmin(values) > 0:
            axes.set_yscale("log")
        axes.set_xlabel("iteration", fontsize=9)
        axes.set_title(curve.quantity.label, fontsize=10, color=INK)
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return row


def _bar_panels(rows: Rows, place: int, number: int) -> list[Panel]:
    """The panels whose colour bar stands at this one: the last of those that share its colours, else none.

    Panels of a row share them, and flat images that stand one below the other.
    """
    panels, index = ([row[0] for row in rows], place) if _is_stack(rows) else (list(rows[place]), number)
    shades = panels[index].shades
    if index + 1 < len(panels) and panels[index + 1].shades == shades:
        return []
    return [panel for panel in panels if panel.shades == shades]


def encode_figure(figure: Figure, kind: str = "png", *, dpi: float = 150) -> bytes:
    """The content of a figure's file; the figure does not change.

    `savefig` draws a figure that has a layout twice: first to nowhere, to compute the layout, and then to the file. A
    PNG is drawn once here, after the layout alone, and is the same to the byte.

    Arguments: figure, with a layout or without; kind, the ending of the file: png, pdf, svg; dpi, its pixels an inch.
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
