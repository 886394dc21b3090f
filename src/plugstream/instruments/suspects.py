"""What scans of our instruments may say wrongly of their views, by instrument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.instruments.base import Columns
from plugstream.models.suspects import Suspect, Trial

__all__ = [
    "rows_of",
    "suspects_of_born",
    "suspects_of_ct",
    "suspects_of_fpm",
    "suspects_of_mri",
    "suspects_of_odt",
    "suspects_of_ptychography",
    "views_of_born",
]

_PIXELS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
_LENGTHS = (0.8, 0.9, 0.95, 1.05, 1.1, 1.25)

# The instrument of each function is of the class whose method it is; these import this file, which cannot name them.
Make = Callable[..., Trial]
Index = NDArray[np.int64]


def rows_of(columns: Columns, views: Index) -> dict[str, Any]:
    """The columns of some views, in memory."""
    picked = {name: rows.only(views) if hasattr(rows, "only") else rows[views] for name, rows in columns.items()}
    return {name: np.asarray(rows[:]) for name, rows in picked.items()}


def suspects_of_ct(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The rotation axis, which way the object turns, and how far the source is away."""
    own = rows_of(columns, views)
    rays = instrument.rays(own)

    def moved(pixels: float) -> Trial:
        return trial(f"{pixels:+g} pixels", columns={**own, "rays": rays.shift_detector(columns=pixels).vectors})

    def mirrored() -> Trial:
        # A turn by -a shows at column b what a turn by a of the mirrored object shows at column -b.
        vectors = rays.vectors.copy()
        vectors[:, 2] *= -1
        return trial("the other way", columns={**own, "rays": vectors})

    found = [
        Suspect(
            "the rotation axis, or the centre of the detector",
            "import it with another --center, or --center auto",
            tuple(moved(sign * pixels) for pixels in _PIXELS for sign in (-1, 1)),
        ),
        Suspect(
            "the turn, which goes the other way, or a mirrored detector",
            "import it with the angles' sign changed",
            (mirrored(),),
        ),
    ]
    if not instrument.parallel:
        found.append(Suspect("the distance of source or detector", "check both, and their unit", _nearer(own, trial)))
    return tuple(found)


def _nearer(own: dict[str, Any], trial: Make) -> tuple[Trial, ...]:
    """With detectors of another width, as where a distance is wrong."""
    found = []
    for factor in _LENGTHS:
        vectors = own["rays"].copy()
        vectors[:, 2] *= factor
        found.append(trial(f"a beam {factor:g} times as wide", columns={**own, "rays": vectors}))
    return tuple(found)


def suspects_of_born(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """Wavelength, sign of the time, the reference of phases, order of antennas, and how far they are away."""
    own = rows_of(columns, views)

    def waved(factor: float) -> Trial:
        rows = dict(own)
        if "wavelengths" in rows:
            rows["wavelengths"] = rows["wavelengths"] * factor
        other = replace(instrument, wavelength=factor * instrument.wavelength)
        return trial(f"{factor:g} times as long", instrument=other, columns=rows)

    def conjugate(data: Any) -> Any:
        return data.conj()

    # So fine that the phase at the object's edge is known to half a radian, over a tenth at least.
    across = max(instrument.grid.shape) * instrument.grid.pixel / instrument.wavelength
    step = float(np.clip(0.16 / across, 0.005, 0.04))
    count = round(max(0.1, 5 * step) / step)
    factors = [1 + sign * n * step for n in range(1, count + 1) for sign in (-1, 1)]
    found = [
        Suspect(
            "the wavelength, or a unit of length",
            "check wavelength or frequency, background, and the unit of all lengths",
            tuple(waved(factor) for factor in factors),
            any_phase=True,
        ),
        Suspect(
            "the sign of time, of which the data is the complex conjugate",
            "import the complex conjugate of the data",
            (trial("conjugate", columns=own, turn=conjugate),),
        ),
        Suspect(
            "the phase that data refers to",
            "divide the data by the incident field at the object, or check how far antennas are away",
            (trial("turned", columns=own),),
            any_phase=True,
        ),
        Suspect(
            "the radius of the receivers",
            "check how far receivers are away, and in which unit",
            tuple(
                trial(
                    f"{f:g} times as far",
                    instrument=replace(instrument, receivers=f * instrument.receivers),
                    columns=own,
                )
                for f in _LENGTHS
                if not instrument.far_field
            ),
            any_phase=True,
        ),
    ]
    mirror = np.array([1.0, -1.0])
    others = [
        trial(f"{name} the other way round", columns={**own, name: own[name] * mirror})
        for name in ("transmitters", "plane_waves")
        if name in own
    ]
    others += [
        trial(f"{name} opposite", columns={**own, name: -own[name]})
        for name in ("transmitters", "plane_waves")
        if name in own
    ]
    advice = "check which way round angles of transmitters and receivers go, and where they begin"
    return (*found, Suspect("the order or the angles of antennas", advice, tuple(others)))


def views_of_born(instrument: Any, columns: Columns, available: Index, count: int) -> Index:
    """Spread views of the longest wavelength, from which an image is found from any start, and soonest."""
    if "wavelengths" in columns:
        waves = np.asarray(columns["wavelengths"][:])[available]
        available = available[waves == waves.max()]
    few = min(count, len(available))
    return available[np.arange(few) * len(available) // max(1, few)]


def suspects_of_ptychography(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The probe, and positions whose axes are swapped or point the other way, or that are in another unit."""
    own = rows_of(columns, views)
    places = own["positions"]
    room = np.array([instrument.image_rows, instrument.image_columns]) - instrument.probe.shape[1:]

    def placed(label: str, new: NDArray[np.float64]) -> Trial:
        shifted = new - (new.min(0) + new.max(0)) / 2 + room / 2
        return trial(label, columns={**own, "positions": np.clip(shifted, 0, room)})

    ways = {
        "rows and columns swapped": places[:, ::-1],
        "rows the other way": places * [-1, 1],
        "columns the other way": places * [1, -1],
        "both the other way": -places,
        "swapped, rows the other way": places[:, ::-1] * [-1, 1],
        "swapped, columns the other way": places[:, ::-1] * [1, -1],
    } | {f"{f:g} times as far apart": places * f for f in (0.8, 0.9, 1.1, 1.25)}
    advice = "refine it (--refine probe), or give the beam that was measured"
    beams = tuple(
        trial(label, instrument=replace(instrument, probe=probe), columns=own)
        for label, probe in _other_beams(instrument.probe).items()
    )
    return (
        Suspect("the probe", advice, beams, refine="probe"),
        Suspect(
            "the positions: their axes, signs or unit",
            "import it with the axes of positions swapped or turned round, in pixels of the object",
            tuple(placed(label, new) for label, new in ways.items()),
        ),
    )


def _other_beams(probe: NDArray[np.complex64]) -> dict[str, NDArray[np.complex64]]:
    """Beams in another plane, by the phase that this makes at the edge of their aperture, and the conjugate one."""
    waves = np.fft.fft2(probe)
    y, x = np.meshgrid(*(np.fft.fftfreq(n) for n in probe.shape[1:]), indexing="ij")
    squares, light = y * y + x * x, (np.abs(waves) ** 2).sum(0)
    edge = 2 * float((light * squares).sum() / light.sum())  # of a disc the mean of squares is half of the largest
    found = {
        f"{turn:+g} radians out of focus": np.fft.ifft2(waves * np.exp(1j * turn * squares / edge)).astype(np.complex64)
        for turn in (-8.0, -4.0, -2.0, 2.0, 4.0, 8.0)
    }
    return {**found, "conjugate": probe.conj()}


def suspects_of_fpm(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """Where the LEDs are, the wavelength, the defocus and the pupil."""
    own = rows_of(columns, views)
    found = []
    if "leds" in own:
        leds = own["leds"]
        near = np.sort(np.hypot(*(leds - leds.mean(0)).T))
        pitch = float(near[near > 0].min()) if (near > 0).any() else 0.0
        shifts = [(a, b) for a in (-1, -0.5, 0, 0.5, 1) for b in (-1, -0.5, 0, 0.5, 1) if (a, b) != (0, 0)]
        moves = [
            trial(f"moved by {a:g}, {b:g} steps", columns={**own, "leds": leds + np.array([a, b]) * pitch})
            for a, b in shifts
        ]
        moves += [trial(f"{f:g} times as far apart", columns={**own, "leds": leds * f}) for f in (0.8, 0.9, 1.1, 1.25)]
        turns = {"swapped": leds[:, ::-1], "x the other way": leds * [-1, 1], "y the other way": leds * [1, -1]}
        moves += [trial(label, columns={**own, "leds": np.ascontiguousarray(new)}) for label, new in turns.items()]
        found.append(
            Suspect("the LEDs: their centre, order or axes", "refine them (--refine leds), or check them", tuple(moves))
        )
    waves = [(f, replace(instrument, wavelength=f * instrument.wavelength)) for f in (0.8, 0.9, 1.1, 1.25)]
    advice = "check wavelength, distance of the LEDs, size of the camera's pixels, and their unit"
    found += [
        Suspect(
            "the wavelength, or a unit of length",
            advice,
            tuple(
                trial(f"{f:g} times as long", instrument=other, columns=own)
                for f, other in waves
                if other.pupil is None
            ),
        ),
        Suspect("the pupil, or defocus", "refine it (--refine pupil), or give --defocus", refine="pupil"),
    ]
    return tuple(found)


def suspects_of_mri(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The order of coil maps and their sign, and the path through k-space: its sign, scale and delay."""
    own = rows_of(columns, views)
    if "density" not in own:  # of all views: those of a few would be others
        own["density"] = instrument.sample_density(columns)[views]
    path, maps, found = own["trajectory"], instrument.coil_maps, []
    if maps is not None and instrument.coils > 1:
        orders = {f"moved on by {n}": np.roll(maps, n, 0) for n in range(1, min(instrument.coils, 9))}
        orders |= {"in reverse order": maps[::-1], "conjugate": maps.conj(), "turned round": maps[..., ::-1, ::-1]}
        orders |= {"rows the other way": maps[..., ::-1, :], "columns the other way": maps[..., ::-1]}
        orders |= {"rows and columns swapped": maps.swapaxes(-1, -2)} if maps.shape[-1] == maps.shape[-2] else {}
        found.append(
            Suspect(
                "the coil maps: their order, orientation or sign",
                "import it again, so that maps are estimated from the data, or check the order of coils",
                tuple(
                    trial(name, instrument=replace(instrument, coil_maps=np.ascontiguousarray(new)), columns=own)
                    for name, new in orders.items()
                ),
            )
        )
        found.append(
            Suspect("the coil maps", "import it again, so that maps are estimated from the data", refine="coil_maps")
        )
    paths = {
        "the other way": -path,
        "axes swapped": path[..., ::-1],
        "one axis the other way": path * ([1.0] * (path.shape[-1] - 1) + [-1.0]),
    }
    paths |= {f"{f:g} times as far out": path * f for f in (0.5, 0.9, 1.1)}
    if path.shape[1] > 2:
        paths |= {f"{n:+g} samples late": path + n * np.gradient(path, axis=1) for n in (-1.0, -0.5, 0.5, 1.0)}
    advice = "check sign, scale (1/m) and delay of the trajectory"
    trials = tuple(trial(name, columns={**own, "trajectory": np.ascontiguousarray(new)}) for name, new in paths.items())
    return (*found, Suspect("the path through k-space", advice, trials))


def suspects_of_odt(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The sign of phases, the wavelength, the focus, the axis, and which way the object turns."""
    own = rows_of(columns, views)
    poses, step = own["poses"], instrument.wavelength / instrument.medium

    def conjugate(data: Any) -> Any:
        return data.conj()

    turned = poses.copy()
    turned[:, :, [0, 2]] = turned[:, :, [2, 0]]
    return (
        Suspect(
            "the sign of phases, of which the data is the complex conjugate",
            "import the complex conjugate of the data",
            (trial("conjugate", columns=own, turn=conjugate),),
        ),
        Suspect(
            "the wavelength, or a unit of length",
            "check wavelength, refractive index and pixel, and their unit",
            tuple(
                trial(
                    f"{f:g} times as long",
                    instrument=replace(instrument, wavelength=f * instrument.wavelength),
                    columns=own,
                )
                for f in _LENGTHS
            ),
        ),
        Suspect(
            "the focus",
            "check --distance, from the object's middle to the plane in focus",
            tuple(
                trial(
                    f"{n:+g} wavelengths away",
                    instrument=replace(instrument, distance=instrument.distance + n * step),
                    columns=own,
                )
                for n in (-16, -8, -4, -2, 2, 4, 8, 16)
            ),
        ),
    )
