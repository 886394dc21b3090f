"""Files as those of the Institut Fresnel, of a known image, for tests without the real ones; and their importer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.special import hankel1

from plugstream import BornGeometry, BornModel, Grid, ring
from plugstream.base.user_code import run_file

RINGS = {2001: (72, 0.72, 0.76), 2005: (360, 1.67, 1.67)}
LIGHT = 299_792_458.0
_FILE = Path(__file__).parents[2] / "examples" / "fresnel_importer.py"
IMPORTER = f"{_FILE}:fresnel"
importer = run_file(_FILE).module
import_fresnel = importer.import_fresnel


def write_fresnel(
    path: Path,
    image: np.ndarray | Callable[[BornGeometry], np.ndarray],
    *,
    year: int,
    sources: int,
    frequencies: list[float],
    width: float = 0.2,
    lost: tuple[int, ...] = (),
) -> dict[float, np.ndarray]:
    """Write what their antennas would record of an image under first Born; the field that we define, by frequency.

    Instead of an image there may be a function that gives the scattered field (views, receivers) of a geometry.

    The sources have a strength and phase of their own at each frequency, and time goes as exp(+i w t), as there.

    Arguments: lost, numbers of sources (from 0) that are missing at the first frequency.
    """
    count, source_radius, receiver_radius = RINGS[year]
    places, receivers = ring(sources, source_radius), ring(count, receiver_radius)
    size = 8 if callable(image) else len(image)
    grid = Grid((size, size), width / size)
    lines, fields = ["# Polarization : TM (E paral)"], {}
    span, step = count * 2 // 3 + 1, count // sources
    for number, frequency in enumerate(frequencies):
        wavelength = LIGHT / (frequency * 1e9)
        geometry = BornGeometry(receivers, wavelength, grid, places)
        if callable(image):
            fields[frequency] = image(geometry)
        else:
            fields[frequency] = BornModel(geometry, dtype=torch.float64).forward(torch.from_numpy(image)).numpy()
        distance = np.linalg.norm(places[:, None] - receivers[None], axis=-1)
        incident = 0.25j * hankel1(0, geometry.wavenumber * distance)
        strength = (3 - 1j) * np.exp(1j * number) / frequency
        total = strength * (incident + fields[frequency])
        for view in range(sources):
            if number == 0 and view in lost:
                continue
            for one in range(span):
                m = (view * step + count // 6 + one) % count
                t, i = np.conj(total[view, m]), np.conj(strength * incident[view, m])
                row = f"{t.real:.9e} {t.imag:.9e} {i.real:.9e} {i.imag:.9e}"
                lines.append(f"{view + 1} {m + 1} {frequency:g} {row}")
    path.write_text("\n".join(lines) + "\n")
    return fields
