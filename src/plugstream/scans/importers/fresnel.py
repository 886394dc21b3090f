"""The measurements of the Institut Fresnel: microwaves scattered by cylinders, in 2001 (.exp) and in 2005 (.txt)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.registry import Field, Options, register
from plugstream.base.text import shell_quote
from plugstream.images.grid import Grid
from plugstream.instruments.base import find_instrument
from plugstream.instruments.spectrum import LIGHT, parse_waves
from plugstream.instruments.wavelengths import GAINS, WAVELENGTHS
from plugstream.scans.importers.arrays import scan_name
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.calibration import MISMATCH_LIMIT, NEAR, Calibrator
from plugstream.scans.importers.frequencies import join_readings
from plugstream.scans.importers.fresnel_file import Setup, horn_factor, read_fresnel
from plugstream.scans.importers.reading import Reading, write_reading

if TYPE_CHECKING:
    from plugstream.scans.scan import MemoryScan


# Over all angles horns are off by 0.6 to 1 of a line source's field; a computed file, of line sources, by nothing.
_BEAMING = 0.3


def import_fresnel(
    path: str | Path,
    frequency: float | Sequence[float] | None = None,
    *,
    size: int = 64,
    width: float = 0.2,
    instrument: str = "born-2d",
    horns: bool = True,
) -> MemoryScan:
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
    from plugstream.scans.scan import MemoryScan

    reading = _read(Path(path), frequency, size, width, instrument, horns)
    columns = reading.read(slice(None))
    data = columns.pop("data").astype(np.complex64)
    return MemoryScan(data, reading.instrument, provenance=reading.provenance, columns=columns)


def _read(
    path: Path, frequency: float | Sequence[float] | None, size: int, width: float, instrument: str, horns: bool
) -> Reading:
    cls: Any = find_instrument(instrument)
    if size < 1 or not width > 0:
        raise InputError(f"the image needs a size >= 1 and a width > 0, not {size} and {width}")
    columns = {column.name for column in cls.columns}
    if missing := [name for name in ("transmitters", "mask", WAVELENGTHS.name, GAINS.name) if name not in columns]:
        raise InputError(
            f"a Fresnel file is of transmitters, and {instrument} has no column {missing[0]}; use born-2d or "
            "scattering-2d"
        )
    rows, setup = read_fresnel(path)
    available = np.unique(np.round(rows[:, 2], 6))
    frequencies = available if frequency is None else np.sort(np.atleast_1d(np.asarray(frequency, dtype=np.float64)))
    for gigahertz in frequencies:
        if not np.isclose(available, gigahertz, rtol=0, atol=1e-6).any():
            raise InputError(f"{path} has no {gigahertz:g} GHz; it has {', '.join(f'{f:g}' for f in available)} GHz")
    grid, receivers = Grid((size, size), width / size), setup.receivers()
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
        raise InputError(f"{path} gives a receiver of a view twice at {gigahertz:g} GHz; take the repeated lines out")
    total, incident = np.zeros((2, *mask.shape), dtype=np.complex128)
    total[view, receiver] = chosen[:, 3] - 1j * chosen[:, 4]
    incident[view, receiver] = chosen[:, 5] - 1j * chosen[:, 6]
    views = np.flatnonzero(mask.any(1))
    total, incident, mask, sources = total[views], incident[views], mask[views], setup.sources()[views]
    opposite = np.rint(setup.places[views] + setup.series.receivers / 2).astype(int) % setup.series.receivers
    recorded = mask[np.arange(len(views)), opposite]
    if not recorded.all():
        raise InputError(
            f"{path} at {gigahertz:g} GHz: view {int(recorded.argmin()) + 1} lacks the receiver opposite to its "
            "source, which the calibration needs"
        )
    calibrator = Calibrator(device, "transmitters")
    try:
        calibrator.add(incident, sources, mask)
        calibration = calibrator.result()
    except InputError as error:
        raise InputError(f"{path} at {gigahertz:g} GHz: {error}") from error
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
        "made_by": "plugstream import fresnel",
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
    warnings.warn(text, PlugstreamWarning, stacklevel=5)


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


def describe_fresnel(path: Path) -> tuple[str, list[str]] | None:
    """What can be made of an Institut Fresnel file, and its content; None for another file."""
    if path.suffix.lower() not in (".exp", ".txt"):
        return None
    rows, setup = read_fresnel(path)
    return f"'plugstream import fresnel {shell_quote(path)}' makes a scan of it; --frequency GHZ takes one frequency", [
        f"Institut Fresnel, {setup.series.year}: {setup.series.citation}",
        f"{len(setup.views)} views, {len(np.unique(rows[:, 1]))} receivers, {len(rows)} measurements",
        f"{', '.join(f'{f:g}' for f in np.unique(rows[:, 2]))} GHz",
    ]


@register(
    "importer",
    "fresnel",
    "an Institut Fresnel file of 2001 or 2005, as born-2d or scattering-2d",
    options=FresnelOptions,
    default_name=scan_name,
    describe=describe_fresnel,
)
def build(options: FresnelOptions, file: Path, out: Path) -> ImportResult:
    """Write the scan of one frequency, or of several."""
    if options.frequency is not None and options.frequencies is not None:
        raise InputError("one frequency and several are both given; leave --frequency or --frequencies out")
    frequencies: float | list[float] | None = options.frequency
    if options.frequencies is not None and options.frequencies.strip().lower() != "all":
        frequencies = [round(LIGHT / wave / 1e9, 6) for wave in parse_waves(options.frequencies)]
    reading = _read(file, frequencies, options.size, options.width, options.instrument, not options.line_sources)
    return write_reading(reading, out)
