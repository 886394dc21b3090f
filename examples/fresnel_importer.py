"""An importer of one's own: the Institut Fresnel's microwaves, scattered by cylinders, of 2001 (.exp) and 2005 (.txt).

    plugstream import examples/fresnel_importer.py:fresnel FoamDielExtTM.txt

From Python, beside this file: `from fresnel_importer import import_fresnel`.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import plugstream as ps
from plugstream.base.registry import Field, Options, register
from plugstream.images.grid import Points
from plugstream.instruments.base import find_instrument
from plugstream.instruments.spectrum import LIGHT, parse_waves
from plugstream.instruments.wavelengths import GAINS, WAVELENGTHS
from plugstream.scans.importers import ImportResult
from plugstream.scans.importers.arrays import scan_name
from plugstream.scans.importers.base import switch
from plugstream.scans.importers.calibration import MISMATCH_LIMIT, NEAR, Calibrator
from plugstream.scans.importers.frequencies import join_readings
from plugstream.scans.importers.reading import Reading, write_reading

# Over all angles horns are off by 0.6 to 1 of a line source's field; a computed file, of line sources, by nothing.
_BEAMING = 0.3
_REMARKS = ("#", "%", "!", ";", "//")


def import_fresnel(
    path: str | Path,
    frequency: float | Sequence[float] | None = None,
    *,
    size: int = 64,
    width: float = 0.2,
    instrument: str = "born-2d",
    horns: bool = True,
) -> ps.MemoryScan:
    r"""The scattered field of one Institut Fresnel file, as if from line sources of unit strength.

    y = conj(total - incident) / c, where the conjugate turns their exp(+i w t) into our exp(-i w t), and c is the
    complex number that makes the measured incident field opposite to the source that of our line source (`Calibrator`),
    one for each frequency; where the antennas are horns, c has their factor, too (`horn_factor`). Receivers are the
    whole ring; the mask says which of them recorded a view.

    With several frequencies a view is a source at a frequency, the lowest frequency first, with its wavelength and a
    gain (`plugstream.instruments.wavelengths.balance_gains`): the mean of ||y_i||^2 is 1 at every frequency.

    Holds for the TM files (scalar in 2D) of 2001 and 2005, whose targets were lit from 36, from 8 or from 18 places.
    The receivers that recorded a view tell where its source stands. The horns of the experiment beam forwards; the
    mismatch of the calibrated incident field with the line source's is in the provenance. A mismatch above 0.4 within
    30 degrees of the direct line gives a warning, and so do missing measurements.

    Arguments: path of the file; frequency in GHz, one of the file's or several, by default all; size and width (metres)
    of the image to form; instrument of the scan, one with the columns of born-2d; horns, whether to correct for their
    known effect, which is not done where the incident field is a line source's.

    Reference: Belkebir and Saillard, Inverse Problems 17, 2001; Geffrin, Sabouroux and Eyraud, ibid. 21, 2005.
    """
    reading = _read(Path(path), frequency, size, width, instrument, horns)
    columns = reading.read(slice(None))
    data = columns.pop("data").astype(np.complex64)
    return ps.MemoryScan(data, reading.instrument, provenance=reading.provenance, columns=columns)


def _read(
    path: Path, frequency: float | Sequence[float] | None, size: int, width: float, instrument: str, horns: bool
) -> Reading:
    cls: Any = find_instrument(instrument)
    if size < 1 or not width > 0:
        raise ps.InputError(f"the image needs a size >= 1 and a width > 0, not {size} and {width}")
    columns = {column.name for column in cls.columns}
    if missing := [name for name in ("transmitters", "mask", WAVELENGTHS.name, GAINS.name) if name not in columns]:
        raise ps.InputError(
            f"a Fresnel file is of transmitters, and {instrument} has no column {missing[0]}; use born-2d or "
            "scattering-2d"
        )
    rows, setup = read_fresnel(path)
    available = np.unique(np.round(rows[:, 2], 6))
    frequencies = available if frequency is None else np.sort(np.atleast_1d(np.asarray(frequency, dtype=np.float64)))
    for gigahertz in frequencies:
        if not np.isclose(available, gigahertz, rtol=0, atol=1e-6).any():
            raise ps.InputError(f"{path} has no {gigahertz:g} GHz; it has {', '.join(f'{f:g}' for f in available)} GHz")
    grid, receivers = ps.Grid((size, size), width / size), setup.receivers()
    bands = []
    for gigahertz in frequencies.tolist():
        device = cls(receivers=receivers, wavelength=LIGHT / (gigahertz * 1e9), grid=grid)
        bands.append(_read_band(path, rows, setup, device, gigahertz, horns))
    mismatches = [band.provenance["incident_mismatch"] for band in bands]
    _warn_of_beams(path, frequencies.tolist(), [mismatch["within_30_degrees"] for mismatch in mismatches], cls.name)
    near, everywhere = (_span([one[name] for one in mismatches]) for name in ("within_30_degrees", "all_angles"))
    remarks = [
        f"the calibrated incident field is off by {near} of a line source's within 30 degrees "
        f"of the direct line, by {everywhere} over all receivers"
    ]
    factors = np.array([complex(*band.provenance["horns"]) for band in bands])
    corrected = factors[factors != 1]
    if len(corrected):
        count = "all" if len(corrected) == len(factors) else f"{len(corrected)} of {len(factors)}"
        span = _span(np.abs(corrected).tolist())
        remarks.append(f"the factor of the horns, {span} in size, is divided out at {count} frequencies")
    reading = join_readings(bands) if len(bands) > 1 else bands[0]
    return replace(reading, remarks=[*reading.remarks, *remarks, f"cite {setup.series.citation}"])


def _read_band(
    path: Path, rows: NDArray[np.float64], setup: Setup, device: Any, gigahertz: float, horns: bool
) -> Reading:
    """The measurements of one frequency, calibrated; views without any are left out."""
    chosen = rows[np.isclose(rows[:, 2], gigahertz, rtol=0, atol=1e-6)]
    view, receiver = np.searchsorted(setup.views, chosen[:, 0]), chosen[:, 1].astype(int) - 1
    mask = np.zeros((len(setup.views), setup.series.receivers), dtype=bool)
    mask[view, receiver] = True
    if mask.sum() != len(chosen):
        raise ps.InputError(
            f"{path} gives a receiver of a view twice at {gigahertz:g} GHz; take the repeated lines out"
        )
    total, incident = np.zeros((2, *mask.shape), dtype=np.complex128)
    total[view, receiver] = chosen[:, 3] - 1j * chosen[:, 4]
    incident[view, receiver] = chosen[:, 5] - 1j * chosen[:, 6]
    views = np.flatnonzero(mask.any(1))
    total, incident, mask, sources = total[views], incident[views], mask[views], setup.sources()[views]
    opposite = np.rint(setup.places[views] + setup.series.receivers / 2).astype(int) % setup.series.receivers
    recorded = mask[np.arange(len(views)), opposite]
    if not recorded.all():
        raise ps.InputError(
            f"{path} at {gigahertz:g} GHz: view {int(recorded.argmin()) + 1} lacks the receiver opposite to its "
            "source, which the calibration needs"
        )
    calibrator = Calibrator(device, "transmitters")
    try:
        calibrator.add(incident, sources, mask)
        calibration = calibrator.result()
    except ps.InputError as error:
        raise ps.InputError(f"{path} at {gigahertz:g} GHz: {error}") from error
    beams = horns and calibration.everywhere > _BEAMING
    horn = horn_factor(setup.series.year, gigahertz) if beams else 1.0 + 0j
    columns = {
        "data": np.where(mask, (total - incident) / (calibration.factor * horn), 0),
        "transmitters": sources,
        "mask": mask,
    }
    expected = setup.expected * setup.series.recorded
    if len(chosen) < expected:
        _warn(
            f"{path.name} has {len(chosen)} of the {expected} measurements at {gigahertz:g} GHz, "
            "and what is missing is masked: it may have been cut short"
        )
    near, everywhere = (round(float(value or 0.0), 4) for value in (calibration.near, calibration.everywhere))
    provenance = {
        "made_by": "plugstream import fresnel_importer.py:fresnel",
        "file": path.name,
        "frequency_ghz": gigahertz,
        "calibration": [calibration.factor.real, calibration.factor.imag],
        "horns": [horn.real, horn.imag],
        "incident_mismatch": {"within_30_degrees": near, "all_angles": everywhere},
        "citation": setup.series.citation,
        "terms": "Institut Fresnel; free for scientific use, not to be relicensed",
    }

    def read(part: slice) -> dict[str, Any]:
        return {name: column[part] for name, column in columns.items()}

    return Reading(device, len(views), read, provenance=provenance)


def _warn_of_beams(path: Path, frequencies: Sequence[float], mismatches: Sequence[float], instrument: str) -> None:
    """Warn of frequencies at which the horns are no line sources."""
    beaming = {frequency: off for frequency, off in zip(frequencies, mismatches, strict=True) if off > MISMATCH_LIMIT}
    if beaming:
        where = ", ".join(f"{frequency:g}" for frequency in beaming)
        most = "" if len(beaming) == 1 else "up to "
        advice = "; born-2d does better at a lower frequency" if instrument == "born-2d" else ""
        _warn(
            f"the incident field of {path.name} at {where} GHz is off by {most}{max(beaming.values()):.2f} of a line "
            f"source's within {NEAR:g} degrees of the direct line, more than {MISMATCH_LIMIT}: see that the object "
            f"is near the middle, which the beam lights evenly{advice}"
        )


def _warn(text: str) -> None:
    warnings.warn(text, ps.PlugstreamWarning, stacklevel=5)


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


class FresnelOptions(Options):
    """Options for an Institut Fresnel file."""

    frequency: float | None = Field(None, le=1e6, description="which of the file's frequencies to take, in GHz")
    frequencies: str | None = Field(
        None,
        max_length=1 << 16,
        description="several of them, such as 2,4,6GHz, or all, as without both flags; a view is then a source at a "
        "frequency",
    )
    instrument: str = Field("born-2d", description="the instrument of the scan, such as scattering-2d")
    size: int = Field(64, le=65_536, description="pixels a side of the image to form")
    width: float = Field(0.2, le=1e15, description="width of the image, in metres")
    line_sources: bool = switch("leave out the correction for horns, as if the antennas were line sources")


@register(
    "importer",
    "fresnel",
    "an Institut Fresnel file of 2001 or 2005, as born-2d or scattering-2d",
    options=FresnelOptions,
    default_name=scan_name,
)
def fresnel(options: FresnelOptions, file: Path, out: Path) -> ImportResult:
    """Write the scan of one frequency, or of several."""
    if options.frequency is not None and options.frequencies is not None:
        raise ps.InputError("one frequency and several are both given; leave --frequency or --frequencies out")
    frequencies: float | list[float] | None = options.frequency
    if options.frequencies is not None and options.frequencies.strip().lower() != "all":
        frequencies = [round(LIGHT / wave / 1e9, 6) for wave in parse_waves(options.frequencies)]
    reading = _read(file, frequencies, options.size, options.width, options.instrument, not options.line_sources)
    return write_reading(reading, out)


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
        return ps.ring(self.series.receivers, self.series.receiver_radius)


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
            raise ps.InputError(f"{path} is cut short in its last line, number {len(lines)}; get the whole file")
        for number, line in enumerate(lines, start=1):
            if line.lstrip().startswith(_REMARKS):
                if "polari" in line.lower() and "TM" not in line:
                    raise ps.InputError(f"{path} is not of TM polarisation; this model is scalar, so use the TM file")
            elif words := line.split():
                rows.append(_row(path, number, words))
    except OSError as error:
        raise ps.InputError(f"cannot read {path}: {error.strerror or error}") from error
    if re.search(r"TE(?![A-Za-z])", path.stem):
        raise ps.InputError(f"{path} is of TE polarisation by its name; this model is scalar, so use the TM file")
    if not rows:
        raise ps.InputError(f"{path} holds no measurements")
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
        raise ps.InputError(
            f"{text}, but the known experiments have rings of 72 (2001) or 360 (2005) and several views"
        )
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
        raise ps.InputError(f"{text}, which do not stand opposite to sources that are evenly spaced from the x axis on")
    return Setup(series, views, places, max(len(views), round(size / step)))


def _row(path: Path, number: int, words: list[str]) -> list[float]:
    try:
        row = list(map(float, words))
    except ValueError:
        row = []
    if not (len(row) == 7 and all(map(math.isfinite, row)) and min(row[:2]) >= 1 and row[0] % 1 == row[1] % 1 == 0):
        raise ps.InputError(
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
