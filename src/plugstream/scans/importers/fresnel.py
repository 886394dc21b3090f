"""The measurements of the Institut Fresnel: microwaves scattered by cylinders, in 2001 (.exp) and in 2005 (.txt)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.registry import Field, Options, register
from plugstream.base.text import shell_quote
from plugstream.images.grid import Grid, Points
from plugstream.instruments.base import Instrument, find_instrument
from plugstream.instruments.spectrum import LIGHT, parse_waves
from plugstream.instruments.wavelengths import GAINS, WAVELENGTHS, balance_gains
from plugstream.scans.importers.arrays import scan_name
from plugstream.scans.importers.base import ImportResult, switch
from plugstream.scans.importers.calibration import MISMATCH_LIMIT, NEAR
from plugstream.scans.importers.fresnel_file import Setup, horn_factor, read_fresnel

if TYPE_CHECKING:
    from plugstream.scans.scan import MemoryScan

__all__ = ["FresnelOptions", "calibrate", "import_fresnel"]

Complex = NDArray[np.complex128]

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
    complex number that makes the measured incident field opposite to the source that of our line source (`calibrate`),
    one for each frequency; where the antennas are horns, c has their factor, too (`horn_factor`). Receivers are the
    whole ring; the mask says which of them recorded a view.

    Of several frequencies each is a view of its own for every source, the lowest frequency first, with its wavelength
    and a gain (`plugstream.instruments.wavelengths.balance_gains`): the mean of ||y_i||^2 is 1 at every frequency.

    Holds for the TM files (scalar in 2D) of 2001 and 2005, whose targets were lit from 36, from 8 or from 18 places.
    Where the sources stand is read from which receivers recorded each view. The horns of the experiment beam forwards;
    the mismatch of the calibrated incident field with the line source's, which is in the provenance, is warned of above
    0.4 within 30 degrees of the direct line, and so are measurements that are missing.

    Arguments: path of the file; frequency in GHz, one of the file's or several, all of them if not given; size and
    width (metres) of the image to form; instrument that the scan is of, one with the columns of born-2d; horns, whether
    to correct for what they are known to do, which is not done where the incident field is a line source's.

    Reference: Belkebir and Saillard, Inverse Problems 17, 2001; Geffrin, Sabouroux and Eyraud, ibid. 21, 2005.
    """
    from plugstream.scans.scan import MemoryScan

    path, cls = Path(path), _instrument(instrument)
    if size < 1 or not width > 0:
        raise InputError(f"the image needs a size >= 1 and a width > 0, not {size} and {width}")
    rows, setup = read_fresnel(path)
    known = np.unique(np.round(rows[:, 2], 6))
    wanted = known if frequency is None else np.sort(np.atleast_1d(np.asarray(frequency, dtype=np.float64)))
    for one in wanted:
        if not np.isclose(known, one, rtol=0, atol=1e-6).any():
            raise InputError(f"{path} has no {one:g} GHz; it has {', '.join(f'{f:g}' for f in known)} GHz")
    bands = [_band(path, rows, setup, float(one), horns) for one in wanted]
    _warn(path, bands, cls.name)
    waves = [LIGHT / (band.gigahertz * 1e9) for band in bands]
    device = cls(receivers=setup.receivers(), wavelength=min(waves), grid=Grid((size, size), width / size))  # type: ignore[call-arg]
    sources = setup.sources()
    data = np.concatenate([band.scattered for band in bands])
    columns = {
        "transmitters": np.concatenate([sources[band.views] for band in bands]),
        "mask": np.concatenate([band.mask for band in bands]),
    }
    provenance: dict[str, Any] = {"made_by": "plugstream import fresnel", "file": path.name}
    if len(bands) > 1:
        columns[WAVELENGTHS.name] = np.concatenate(
            [np.full(len(band.views), wave) for band, wave in zip(bands, waves, strict=True)]
        )
        columns[GAINS.name] = balance_gains(data, columns[WAVELENGTHS.name])
        data = columns[GAINS.name][:, None] * data
    several: dict[str, list[Any]] = {
        "frequency_ghz": [band.gigahertz for band in bands],
        "calibration": [[band.factor.real, band.factor.imag] for band in bands],
        "horns": [[band.horns.real, band.horns.imag] for band in bands],
        "incident_mismatch": [
            {"within_30_degrees": round(band.near, 4), "all_angles": round(band.everywhere, 4)} for band in bands
        ],
    }
    provenance |= several if len(bands) > 1 else {name: values[0] for name, values in several.items()}
    provenance |= {
        "citation": setup.series.citation,
        "terms": "Institut Fresnel; free for scientific use, not to be relicensed",
    }
    return MemoryScan(data.astype(np.complex64), device, provenance=provenance, columns=columns)


@dataclass(frozen=True)
class _Band:
    """One frequency of a file: which of the setup's views it has, its calibrated data and mask, and how well it fits.

    complete: how many measurements there are, and how many there would be of a file that nothing is missing of.
    """

    gigahertz: float
    views: NDArray[np.int64]
    scattered: Complex
    mask: NDArray[np.bool_]
    factor: complex
    horns: complex
    near: float
    everywhere: float
    complete: tuple[int, int]


def _band(path: Path, rows: NDArray[np.float64], setup: Setup, frequency: float, horns: bool) -> _Band:
    """The measurements of one frequency, calibrated; views that have none are left out."""
    chosen = rows[np.isclose(rows[:, 2], frequency, rtol=0, atol=1e-6)]
    view, receiver = np.searchsorted(setup.views, chosen[:, 0]), chosen[:, 1].astype(int) - 1
    mask = np.zeros((len(setup.views), setup.series.receivers), dtype=bool)
    mask[view, receiver] = True
    if mask.sum() != len(chosen):
        raise InputError(f"{path} gives a receiver of a view twice at {frequency:g} GHz; take the repeated lines out")
    total, incident = np.zeros((2, *mask.shape), dtype=np.complex128)
    total[view, receiver] = chosen[:, 3] - 1j * chosen[:, 4]
    incident[view, receiver] = chosen[:, 5] - 1j * chosen[:, 6]
    there = np.flatnonzero(mask.any(1))
    total, incident, mask = total[there], incident[there], mask[there]
    wavenumber = 2 * np.pi / (LIGHT / (frequency * 1e9))
    try:
        factor, near, everywhere = calibrate(incident, mask, setup.sources()[there], setup.receivers(), wavenumber)
    except InputError as error:
        raise InputError(f"{path} at {frequency:g} GHz: {error}") from error
    beams = horns and everywhere > _BEAMING
    extra = horn_factor(setup.series.year, frequency) if beams else 1.0 + 0j
    scattered = np.where(mask, (total - incident) / (factor * extra), 0)
    complete = (len(chosen), setup.expected * setup.series.recorded)
    return _Band(frequency, there, scattered, mask, factor, extra, near, everywhere, complete)


def _warn(path: Path, bands: Sequence[_Band], instrument: str) -> None:
    """Say which measurements are missing, and where the horns are no line sources."""
    for band in bands:
        found, whole = band.complete
        if found < whole:
            _tell(
                f"{path.name} has {found} of the {whole} measurements at {band.gigahertz:g} GHz, "
                "and what is missing is masked: it may have been cut short"
            )
    beaming = [band for band in bands if band.near > MISMATCH_LIMIT]
    if beaming:
        worst = max(beaming, key=lambda band: band.near)
        where = ", ".join(f"{band.gigahertz:g}" for band in beaming)
        most = "" if len(beaming) == 1 else "up to "
        advice = "; born-2d does better at a lower frequency" if instrument == "born-2d" else ""
        _tell(
            f"the incident field of {path.name} at {where} GHz is off by {most}{worst.near:.2f} of a line source's "
            f"within {NEAR:g} degrees of the direct line, more than {MISMATCH_LIMIT}: see that the object "
            f"is near the middle, which the beam lights evenly{advice}"
        )


def _tell(text: str) -> None:
    warnings.warn(text, PlugstreamWarning, stacklevel=4)


def _instrument(name: str) -> type[Instrument]:
    """An instrument whose scans can be made of line sources, receivers, masks and wavelengths."""
    cls = find_instrument(name)
    needed = ("transmitters", "mask", WAVELENGTHS.name, GAINS.name)
    if missing := [one for one in needed if one not in {column.name for column in cls.columns}]:
        raise InputError(
            f"a Fresnel file is of transmitters, and {name} has no column {missing[0]}; use born-2d or scattering-2d"
        )
    return cls


def calibrate(
    incident: Complex, mask: NDArray[np.bool_], sources: Points, receivers: Points, wavenumber: float
) -> tuple[complex, float, float]:
    r"""The strength and phase of an instrument's source, from the field that it measures without an object.

    c = mean_i incident[i, o_i] / u_i(r_{o_i}) with u_i(r) = (i/4) H_0^(1)(k |r - t_i|) and o_i the receiver opposite to
    source i. Then the relative mismatch ||incident / c - u|| / ||u|| over the recorded receivers, first over those
    within 30 degrees of the direct line.

    Holds for sources that radiate alike; a horn does so near its axis only, which the mismatch shows.

    Arguments: incident (views, receivers), mask of the same shape, positions (views, 2) and (receivers, 2) on rings
    about the origin, wavenumber in 1 / m. Returns c, the mismatch near the direct line, and the mismatch over all.

    Reference: Belkebir and Saillard, Inverse Problems 17, 2001.
    """
    from scipy.special import hankel1

    modelled = 0.25j * hankel1(0, wavenumber * np.linalg.norm(sources[:, None] - receivers[None], axis=-1))
    cosine = -(sources @ receivers.T) / np.outer(np.hypot(*sources.T), np.hypot(*receivers.T))
    opposite = cosine.argmax(axis=1)
    views = np.arange(len(sources))
    if not mask[views, opposite].all():
        view = int(np.argmin(mask[views, opposite]))
        raise InputError(f"view {view + 1} lacks the receiver opposite to its source, which the calibration needs")
    factor = complex(np.mean(incident[views, opposite] / modelled[views, opposite]))
    if not (np.isfinite(factor) and abs(factor) > 0):
        raise InputError("the incident field opposite to the source is zero, so it cannot be calibrated")

    def mismatch(where: NDArray[np.bool_]) -> float:
        error = incident[where] / factor - modelled[where]
        return float(np.linalg.norm(error) / np.linalg.norm(modelled[where]))

    near = mask & (cosine >= np.cos(np.deg2rad(NEAR + 1e-6)))
    return factor, mismatch(near), mismatch(mask)


class FresnelOptions(Options):
    """What can be said of an Institut Fresnel file."""

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
    """What can be made of an Institut Fresnel file, and what it holds, for a person; None for another file."""
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
    from plugstream.scans.writer import save_scan

    if options.frequency is not None and options.frequencies is not None:
        raise InputError("one frequency and several are both given; leave --frequency or --frequencies out")
    wanted: float | list[float] | None = options.frequency
    if options.frequencies is not None and options.frequencies.strip().lower() != "all":
        wanted = [round(LIGHT / wave / 1e9, 6) for wave in parse_waves(options.frequencies)]
    scan = import_fresnel(
        file,
        wanted,
        size=options.size,
        width=options.width,
        instrument=options.instrument,
        horns=not options.line_sources,
    )
    save_scan(scan, out)
    said = scan.provenance["incident_mismatch"]
    each = said if isinstance(said, list) else [said]
    near, all_angles = (_span([off[name] for off in each]) for name in ("within_30_degrees", "all_angles"))
    quality = (
        f"the calibrated incident field is off by {near} of a line source's within 30 degrees "
        f"of the direct line, by {all_angles} over all receivers"
    )
    remarks = [quality, f"cite {scan.provenance['citation']}"]
    factors = np.array(scan.provenance["horns"]).reshape(-1, 2) @ (1, 1j)
    if (factors != 1).any():
        known = f"{np.sum(factors != 1)} of {len(factors)}" if (factors == 1).any() else "all"
        size = _span(np.abs(factors[factors != 1]).tolist())
        remarks.insert(1, f"the factor of the horns, {size} in size, is divided out at {known} frequencies")
    if isinstance(said, list):
        ghz = ", ".join(f"{f:g}" for f in scan.provenance["frequency_ghz"])
        remarks.insert(0, f"{len(each)} frequencies, {ghz} GHz, each brought to the same mean energy")
    return ImportResult(scan.n_views, tuple(remarks))


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
