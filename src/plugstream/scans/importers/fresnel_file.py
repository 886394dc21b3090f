"""Files of the Institut Fresnel: their lines, the places of the antennas, and the effect of the horns."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError
from plugstream.images.grid import Points
from plugstream.models.born_geometry import ring

_REMARKS = ("#", "%", "!", ";", "//")
# Columns may be separated by commas, and Fortran writes the exponent of a double with the letter D.
_PLAIN = str.maketrans(",Dd", " EE")


@dataclass(frozen=True)
class Series:
    """One of the two experiments: antennas on rings about the origin, numbered from the x axis on.

    A view is recorded by the receivers from 60 to 300 degrees from its source. The radii are not in the files.
    """

    year: int
    receivers: int  # of the whole ring
    source_radius: float
    receiver_radius: float
    citation: str

    @property
    def recorded(self) -> int:
        """Receivers a view."""
        return self.receivers * 2 // 3 + 1


_BELKEBIR = "Belkebir and Saillard, Inverse Problems 17, 2001, doi 10.1088/0266-5611/17/6/301"
_GEFFRIN = "Geffrin, Sabouroux and Eyraud, Inverse Problems 21, 2005, doi 10.1088/0266-5611/21/6/S09"
_KNOWN = (Series(2001, 72, 0.72, 0.76, _BELKEBIR), Series(2005, 360, 1.67, 1.67, _GEFFRIN))


@dataclass(frozen=True)
class Setup:
    """The antennas of a file: its series, its views, and the place of the source of each.

    places: in steps of the receivers' ring from the x axis on, (views,). expected: the views of a full turn.
    """

    series: Series
    views: NDArray[np.int64]
    places: NDArray[np.float64]
    expected: int

    def sources(self) -> Points:
        angle = 2 * np.pi * self.places / self.series.receivers
        return self.series.source_radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def receivers(self) -> Points:
        return ring(self.series.receivers, self.series.receiver_radius)


def read_fresnel(path: Path) -> tuple[NDArray[np.float64], Setup]:
    """The lines of a file, (lines, 7), and its antennas.

    A line is the number of the view (of its source), that of the receiver, the frequency in GHz, and real and imaginary
    parts of the total and of the incident field; lines that begin with # or % are remarks. Other files, and those of
    the other polarisation, are refused.
    """
    rows = []
    try:
        text = path.read_text(encoding="latin-1").removeprefix("\u00ef\u00bb\u00bf")  # what Windows may put in front
        # There may be commas between columns, and Fortran writes the exponent of a double with the letter D.
        lines = text.replace(",", " ").replace("D", "E").replace("d", "e").splitlines()
        if len(lines) > 1 and not text.endswith("\n") and len(lines[-1].rstrip()) < len(lines[-2].rstrip()):
            raise InputError(f"{path} is cut short in its last line, number {len(lines)}; get the whole file")
        for number, line in enumerate(lines, start=1):
            if line.lstrip().startswith(_REMARKS):
                if "polari" in line.lower() and "TM" not in line:
                    raise InputError(f"{path} is not of TM polarisation; this model is scalar, so use the TM file")
            elif words := line.split():
                rows.append(_row(path, number, words))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if re.search(r"TE(?![A-Za-z])", path.stem):
        raise InputError(f"{path} is of TE polarisation by its name; this model is scalar, so use the TM file")
    if not rows:
        raise InputError(f"{path} holds no measurements")
    table = np.array(rows)
    return table, _setup(path, table)


def _setup(path: Path, table: NDArray[np.float64]) -> Setup:
    """The antennas, from the file's views and receivers.

    A complete view has its source opposite to the middle of its receivers. Sources are evenly spaced from the x axis
    on, by the step between complete neighbouring views, or by the number of views.
    """
    views, last = np.unique(table[:, 0]).astype(int), int(table[:, 1].max())
    text = f"{path} has {len(views)} views and receivers up to {last}"
    series = next((s for s in _KNOWN if last <= s.receivers), None)
    if series is None or len(views) < 2:
        raise InputError(f"{text}, but the known experiments have rings of 72 (2001) or 360 (2005) and several views")
    size = series.receivers
    pairs = np.unique(table[:, :2].astype(int), axis=0)
    opposite = {}
    for view in views:
        receivers = pairs[pairs[:, 0] == view, 1] - 1
        first = receivers[(receivers - 1) % size != np.roll(receivers, 1)]  # where the arc begins
        if len(receivers) == series.recorded and len(first) == 1:
            opposite[int(view)] = (first[0] + (series.recorded - 1) / 2 + size / 2) % size
    steps = [(opposite[v + 1] - opposite[v]) % size for v in opposite if v + 1 in opposite]
    step = steps[0] if steps else size / views[-1]
    places = (step * (views - 1)) % size
    agree = all(np.isclose(place, opposite.get(int(view), place)) for view, place in zip(views, places, strict=True))
    if not agree or step <= 0 or (not opposite and len(views) < views[-1]):
        raise InputError(f"{text}, which do not stand opposite to sources that are evenly spaced from the x axis on")
    return Setup(series, views, places, max(len(views), round(size / step)))


def _row(path: Path, number: int, words: list[str]) -> list[float]:
    try:
        row = list(map(float, words))
    except ValueError:
        row = []
    if not (len(row) == 7 and all(map(math.isfinite, row)) and min(row[:2]) >= 1 and row[0] % 1 == row[1] % 1 == 0):
        raise InputError(
            f"line {number} of {path} is not the seven numbers of a Fresnel file: view, receiver, GHz, total, incident"
        )
    return row


# Measured by examples/fresnel_horns.py on the cylinders of each series; a test measures it again. Radii and
# permittivities were fitted with it, from 2 to 6 GHz for 2001, and other bands give others: docs/scattering.md.
_MEASURED: dict[int, dict[float, complex]] = {
    2001: {
        1.0: 0.766 + 0.190j,
        2.0: 0.909 + 0.104j,
        3.0: 0.894 + 0.114j,
        4.0: 0.888 + 0.081j,
        5.0: 0.882 + 0.078j,
        6.0: 0.816 + 0.052j,
        7.0: 0.840 - 0.025j,
        8.0: 0.874 + 0.074j,
    },
    2005: {
        2.0: 0.945 + 0.070j,
        3.0: 0.993 + 0.063j,
        4.0: 0.972 + 0.060j,
        5.0: 0.909 + 0.043j,
        6.0: 0.898 + 0.025j,
        7.0: 0.856 + 0.032j,
        8.0: 0.932 + 0.009j,
        9.0: 0.972 - 0.065j,
        10.0: 0.928 - 0.102j,
    },
}


def horn_factor(year: int, gigahertz: float) -> complex:
    r"""The scattered field of a target in the middle, calibrated by the direct line, over that of line sources.

    Fields are calibrated by c = incident / (i/4) H_0(k d) opposite to the source. A horn is no line source there: its
    wave begins some way behind the mouth and is wider than a point, so that what two horns give over d is not the
    product of what each gives at the target. One complex number a frequency is left, for all views and targets of a
    series: 0.79 to 1 in size, -0.11 to 0.24 in phase.

    Holds for the rings of that year, within 0.05 for the targets that it was measured on (0.1 at 1 GHz, where the
    horns hardly radiate). Between measured frequencies it is interpolated; beyond them it is unknown, and 1.

    Arguments: year of the series, 2001 or 2005; frequency in GHz.
    """
    frequencies, factors = list(_MEASURED[year]), np.array(list(_MEASURED[year].values()))
    if not frequencies[0] - 1e-6 <= gigahertz <= frequencies[-1] + 1e-6:
        return 1.0 + 0j
    return complex(np.interp(gigahertz, frequencies, factors))
