"""The Institut Fresnel targets with multiple scattering beside first Born, by commands alone, in one picture.

    python examples/fresnel_scattering.py ../shared/data/fresnel scattering.png [FILE ...]

Born has the low frequencies, at which it is best; multiple scattering has all of them and no setting at all: what the
instrument advises serves every target. Axes are in millimetres, colour bars in relative permittivity. Other files of
the series may be named; those of the four dielectric targets are shown with their cylinders.

Cite Belkebir and Saillard, Inverse Problems 17, 2001, and Geffrin, Sabouroux and Eyraud, Inverse Problems 21, 2005.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

import plugstream as ps
from plugstream.cli import main as plugstream
from plugstream.scans.baselines.first_image import relative_residual, scan_model

# Frequencies for Born, and the cylinders, x, y and radius in mm: where the data has them, with the published radii.
TARGETS = {
    "dielTM_dec8f.exp": ("1,2,3GHz", [(1.3, 26.2, 15.0)]),
    "twodielTM_8f.exp": ("1,2,3GHz", [(-2.5, 46.3, 15.0), (-12.3, -43.6, 15.0)]),
    "FoamDielExtTM.txt": ("2,3GHz", [(2.2, 1.5, 40.0), (-53.5, 1.6, 15.5)]),
    "FoamDielIntTM.txt": ("2,3GHz", [(-1.9, -0.4, 40.0), (-7.0, -0.3, 15.5)]),
}
IMPORTER = f"{Path(__file__).with_name('fresnel_importer.py')}:fresnel"
BORN = ["--sigma", "0.05", "--low", "0", "--iterations", "100"]
SCATTERING: list[str] = []


@dataclass(frozen=True)
class Found:
    """An image, its grid, and the part of the data's energy that it leaves unexplained."""

    image: NDArray[np.float32]
    grid: ps.Grid
    left: float


def reconstruct(file: Path, home: Path, instrument: str, frequencies: str, settings: list[str]) -> Found:
    """Import a file and reconstruct it, by the commands that a person would type."""
    scan, run = home / f"{file.stem}-{instrument}.zarr", home / f"{file.stem}-{instrument}"
    chosen = ["--instrument", instrument, "--frequencies", frequencies]
    for words in (
        ["import", IMPORTER, str(file), str(scan), *chosen],
        ["reconstruct", str(scan), "--out", str(run), *settings, "--report", "none"],
    ):
        if plugstream(words) != 0:
            sys.exit(f"plugstream {' '.join(words)} failed")
    opened = ps.open_scan(scan)
    model = scan_model(opened)
    image = ps.load_picture(run / "result.npy")
    grid: ps.Grid = opened.instrument.grid  # type: ignore[attr-defined]
    return Found(image.numpy(), grid, relative_residual(opened, image, model) ** 2)


def draw(figure: Figure, axes: Axes, found: Found, title: str, cylinders: list[tuple[float, float, float]]) -> None:
    """The permittivity, with the cylinders as they are."""
    pixel, half = 1e3 * found.grid.pixel, 500 * found.grid.shape[0] * found.grid.pixel
    low, high = -half - pixel / 2, half - pixel / 2  # pixel (i, j) lies on its point, half a pixel from its edges
    shown = axes.imshow(
        1 + found.image, origin="lower", extent=(low, high, low, high), cmap="viridis", vmin=1, vmax=3.2
    )
    for x, y, radius in cylinders:
        axes.add_patch(Circle((x, y), radius, fill=False, color="white", linewidth=1.0, linestyle="--"))
    figure.colorbar(shown, ax=axes, shrink=0.8, label="relative permittivity")
    axes.set(xlabel="x, mm", ylabel="y, mm")
    axes.set_title(title, fontsize=9)


def main(folder: Path, picture: str, names: list[str]) -> None:
    figure = Figure(figsize=(3.3 * len(names), 5.6), layout="constrained")
    rows = figure.subplots(2, len(names), squeeze=False)
    with tempfile.TemporaryDirectory() as home:
        for name, born_axes, axes in zip(names, *rows, strict=True):
            frequencies, cylinders = TARGETS.get(name, ("2,3GHz", []))
            born = reconstruct(folder / name, Path(home), "born-2d", frequencies, BORN)
            full = reconstruct(folder / name, Path(home), "scattering-2d", "all", SCATTERING)
            stem = Path(name).stem
            draw(figure, born_axes, born, f"{stem}: Born, {frequencies}\n{born.left:.1%} unexplained", cylinders)
            draw(figure, axes, full, f"{stem}: multiple scattering\n{full.left:.1%} unexplained", cylinders)
            print(f"{name:<20} up to {1 + born.image.max():.2f} by Born, {1 + full.image.max():.2f} by scattering")
    figure.savefig(picture, dpi=80)


if __name__ == "__main__":
    main(
        Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/fresnel"),
        sys.argv[2] if len(sys.argv) > 2 else "scattering.png",
        sys.argv[3:] or list(TARGETS),
    )
