"""The measurements of the Institut Fresnel: microwaves scattered by cylinders, in 2001 (.exp) and in 2005 (.txt)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plugstream.errors import InputError, PlugstreamWarning
from plugstream.grid import Grid, Points
from plugstream.importers.arrays import scan_name
from plugstream.importers.base import ImportResult
from plugstream.importers.calibration import MISMATCH_LIMIT, NEAR
from plugstream.importers.frequencies import LIGHT
from plugstream.instruments.born import Born2D
from plugstream.models.born_geometry import ring
from plugstream.registry import Field, Options, register
from plugstream.text import shell_quote

if TYPE_CHECKING:
    from plugstream.scans.scan import MemoryScan

__all__ = ["FresnelOptions", "calibrate", "import_fresnel"]

Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class _Series:
    """One of the two experiments: antennas on rings about the origin, numbered from the x axis on.

    A view is recorded by the receivers from 60 to 300 degrees from its source. The files do not tell the radii.
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


_SERIES = (
    _Series(2001, 72, 0.72, 0.76, "Belkebir and Saillard, Inverse Problems 17, 2001, doi 10.1088/0266-5611/17/6/301"),
    _Series(
        2005,
        360,
        1.67,
        1.67,
        "Geffrin, Sabouroux and Eyraud, Inverse Problems 21, 2005, doi 10.1088/0266-5611/21/6/S09",
    ),
)


@dataclass(frozen=True)
class _Setup:
    """What a file says of its antennas: which series it is of, its views, and where the source of each stands.

    places: in steps of the receivers' ring from the x axis on, (views,). expected: how many views go once around.
    """

    series: _Series
    views: NDArray[np.int64]
    places: NDArray[np.float64]
    expected: int

    def sources(self) -> Points:
        angle = 2 * np.pi * self.places / self.series.receivers
        return self.series.source_radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def receivers(self) -> Points:
        return ring(self.series.receivers, self.series.receiver_radius)


def import_fresnel(path: str | Path, frequency: float, *, size: int = 64, width: float = 0.2) -> MemoryScan:
    r"""The scattered field of one Institut Fresnel file at one frequency, as if from line sources of unit strength.

    y = conj(total - incident) / c, where the conjugate turns their exp(+i w t) into our exp(-i w t), and c is the
    complex number that makes the measured incident field opposite to the source that of our line source (`calibrate`).
    Receivers are the whole ring; the mask says which of them recorded a view.

    Holds for the TM files (scalar in 2D) of 2001 and 2005, whose targets were lit from 36, from 8 or from 18 places.
    Where the sources stand is read from which receivers recorded each view. The horns of the experiment beam forwards;
    the mismatch of the calibrated incident field with the line source's, which is in the provenance, is warned of above
    0.4 within 30 degrees of the direct line, and so are measurements that are missing.

    Arguments: path of the file; frequency in GHz, one of the file's; size and width (metres) of the image to form.

    Reference: Belkebir and Saillard, Inverse Problems 17, 2001; Geffrin, Sabouroux and Eyraud, ibid. 21, 2005.
    """
    from plugstream.scans.scan import MemoryScan

    path = Path(path)
    if size < 1 or not width > 0:
        raise InputError(f"the image needs a size >= 1 and a width > 0, not {size} and {width}")
    rows, setup = _read(path)
    known = np.unique(rows[:, 2])
    chosen = rows[np.isclose(rows[:, 2], frequency, rtol=0, atol=1e-6)]
    if len(chosen) == 0:
        raise InputError(f"{path} has no {frequency:g} GHz; it has {', '.join(f'{f:g}' for f in known)} GHz")
    view, receiver = np.searchsorted(setup.views, chosen[:, 0]), chosen[:, 1].astype(int) - 1
    mask = np.zeros((len(setup.views), setup.series.receivers), dtype=bool)
    mask[view, receiver] = True
    if mask.sum() != len(chosen):
        raise InputError(f"{path} gives a receiver of a view twice at {frequency:g} GHz; take the repeated lines out")
    whole = setup.expected * setup.series.recorded
    if len(chosen) < whole:
        warnings.warn(
            f"{path.name} has {len(chosen)} of the {whole} measurements at {frequency:g} GHz, "
            "and what is missing is masked: it may have been cut short",
            PlugstreamWarning,
            stacklevel=2,
        )
    total, incident = np.zeros((2, *mask.shape), dtype=np.complex128)
    total[view, receiver] = chosen[:, 3] - 1j * chosen[:, 4]
    incident[view, receiver] = chosen[:, 5] - 1j * chosen[:, 6]
    wavelength = LIGHT / (frequency * 1e9)
    sources, receivers = setup.sources(), setup.receivers()
    try:
        factor, near, everywhere = calibrate(incident, mask, sources, receivers, 2 * np.pi / wavelength)
    except InputError as error:
        raise InputError(f"{path} at {frequency:g} GHz: {error}") from error
    if near > MISMATCH_LIMIT:
        warnings.warn(
            f"the incident field of {path.name} at {frequency:g} GHz is off by {near:.2f} of a line source's within "
            f"{NEAR:g} degrees of the direct line, more than {MISMATCH_LIMIT}: use a lower frequency",
            PlugstreamWarning,
            stacklevel=2,
        )
    scattered = np.where(mask, (total - incident) / factor, 0).astype(np.complex64)
    instrument = Born2D(receivers, wavelength, Grid((size, size), width / size))
    provenance = {
        "made_by": "plugstream import fresnel",
        "file": path.name,
        "frequency_ghz": float(frequency),
        "calibration": [factor.real, factor.imag],
        "incident_mismatch": {"within_30_degrees": round(near, 4), "all_angles": round(everywhere, 4)},
        "citation": setup.series.citation,
        "terms": "Institut Fresnel; free for scientific use, not to be relicensed",
    }
    columns = {"transmitters": sources, "mask": mask}
    return MemoryScan(scattered, instrument, provenance=provenance, columns=columns)


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


def _read(path: Path) -> tuple[NDArray[np.float64], _Setup]:
    """The seven columns, and which experiment they are of."""
    rows = []
    try:
        text = path.read_text(encoding="latin-1").removeprefix("\u00ef\u00bb\u00bf")  # what Windows may put in front
        lines = text.splitlines()
        if len(lines) > 1 and not text.endswith("\n") and len(lines[-1].rstrip()) < len(lines[-2].rstrip()):
            raise InputError(f"{path} is cut short in its last line, number {len(lines)}; get the whole file")
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if line.startswith("#") and "Polarization" in line and "TM" not in line:
                raise InputError(f"{path} is not of TM polarisation; this model is scalar, so use the TM file")
            if words and not line.startswith("#"):
                rows.append(_row(path, number, words))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if path.stem.endswith("TE"):
        raise InputError(f"{path} is of TE polarisation by its name; this model is scalar, so use the TM file")
    if not rows:
        raise InputError(f"{path} holds no measurements")
    table = np.array(rows)
    return table, _setup(path, table)


def _setup(path: Path, table: NDArray[np.float64]) -> _Setup:
    """Where the antennas stand, as the file's views and receivers tell.

    A view that was recorded whole has its source opposite to the middle of its receivers. Sources are evenly spaced
    from the x axis on; by how much, neighbouring views that are whole tell, or else the number of views.
    """
    views, last = np.unique(table[:, 0]).astype(int), int(table[:, 1].max())
    what = f"{path} has {len(views)} views and receivers up to {last}"
    series = next((s for s in _SERIES if last <= s.receivers), None)
    if series is None or len(views) < 2:
        raise InputError(f"{what}, but the known experiments have rings of 72 (2001) or 360 (2005) and several views")
    size = series.receivers
    seen = np.unique(table[:, :2].astype(int), axis=0)
    opposite = {}
    for view in views:
        which = seen[seen[:, 0] == view, 1] - 1
        first = which[(which - 1) % size != np.roll(which, 1)]  # where the arc begins
        if len(which) == series.recorded and len(first) == 1:
            opposite[int(view)] = (first[0] + (series.recorded - 1) / 2 + size / 2) % size
    steps = [(opposite[v + 1] - opposite[v]) % size for v in opposite if v + 1 in opposite]
    step = steps[0] if steps else size / views[-1]
    places = (step * (views - 1)) % size
    agree = all(np.isclose(place, opposite.get(int(view), place)) for view, place in zip(views, places, strict=True))
    if not agree or step <= 0 or (not opposite and len(views) < views[-1]):
        raise InputError(f"{what}, which do not stand opposite to sources that are evenly spaced from the x axis on")
    return _Setup(series, views, places, max(len(views), round(size / step)))


def _row(path: Path, number: int, words: list[str]) -> list[float]:
    try:
        row = [float(word) for word in words]
    except ValueError:
        row = []
    whole = len(row) == 7 and np.isfinite(row).all() and all(n >= 1 and n == int(n) for n in row[:2])
    if not whole:
        raise InputError(
            f"line {number} of {path} is not the seven numbers of a Fresnel file: view, receiver, GHz, total, incident"
        )
    return row


class FresnelOptions(Options):
    """What can be said of an Institut Fresnel file."""

    frequency: float | None = Field(None, le=1e6, description="which of the file's frequencies to take, in GHz")
    size: int = Field(64, le=65_536, description="pixels a side of the image to form")
    width: float = Field(0.2, le=1e15, description="width of the image, in metres")


def describe_fresnel(path: Path) -> tuple[str, list[str]] | None:
    """What can be made of an Institut Fresnel file, and what it holds, for a person; None for another file."""
    if path.suffix.lower() not in (".exp", ".txt"):
        return None
    rows, setup = _read(path)
    return f"'plugstream import fresnel {shell_quote(path)} --frequency GHZ' makes a scan of it", [
        f"Institut Fresnel, {setup.series.year}: {setup.series.citation}",
        f"{len(setup.views)} views, {len(np.unique(rows[:, 1]))} receivers, {len(rows)} measurements",
        f"{', '.join(f'{f:g}' for f in np.unique(rows[:, 2]))} GHz",
    ]


@register(
    "importer",
    "fresnel",
    "an Institut Fresnel file of 2001 or 2005, as born-2d",
    options=FresnelOptions,
    default_name=scan_name,
    describe=describe_fresnel,
)
def build(options: FresnelOptions, file: Path, out: Path) -> ImportResult:
    """Write the scan of one frequency."""
    from plugstream.scans.writer import save_scan

    if options.frequency is None:
        raise InputError("which frequency to take is not given; use --frequency, such as 3 for 3 GHz")
    scan = import_fresnel(file, options.frequency, size=options.size, width=options.width)
    save_scan(scan, out)
    off = scan.provenance["incident_mismatch"]
    quality = (
        f"the calibrated incident field is off by {off['within_30_degrees']:.2f} of a line source's within 30 degrees "
        f"of the direct line, by {off['all_angles']:.2f} over all receivers"
    )
    return ImportResult(scan.n_views, (quality, f"cite {scan.provenance['citation']}"))
