"""What may be wrong in scans of our instruments, by instrument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.instruments.declarations import Columns, select_rows
from plugstream.models.suspects import Suspect, Trial

_PIXELS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
_LENGTHS = (0.8, 0.9, 0.95, 1.05, 1.1, 1.25)

# `instrument` is of the class whose method each function is; those classes import this file, which cannot name them.
Make = Callable[..., Trial]
Index = NDArray[np.int64]


class _Trials:
    """Makes trials of some views, with whatever differs from the scan."""

    def __init__(self, instrument: Any, columns: Columns, views: Index, make: Make) -> None:
        self.instrument, self.make = instrument, make
        self.rows = {name: np.asarray(rows[:]) for name, rows in select_rows(columns, views).items()}

    def columns(self, name: str, values: Mapping[str, Any]) -> tuple[Trial, ...]:
        """With other values of a column, by label."""
        return tuple(
            self.make(label, columns={**self.rows, name: np.ascontiguousarray(new)}) for label, new in values.items()
        )

    def fields(self, name: str, values: Mapping[str, Any]) -> tuple[Trial, ...]:
        """With other values of a field of the instrument, by label."""
        return tuple(
            self.make(label, instrument=replace(self.instrument, **{name: new}), columns=self.rows)
            for label, new in values.items()
        )

    def wavelengths(self, factors: Iterable[float]) -> tuple[Trial, ...]:
        """With a wavelength so many times as long."""
        waves = self.instrument.wavelength
        return self.fields("wavelength", {f"{factor:g} times as long": factor * waves for factor in factors})

    def conjugate(self) -> tuple[Trial, ...]:
        """With the complex conjugate of the data."""
        return (self.make("conjugate", columns=self.rows, turn=_conjugate),)


def _conjugate(data: Any) -> Any:
    return data.conj()


def suspects_of_ct(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The rotation axis, the direction of rotation, and the distance of the source."""
    trials = _Trials(instrument, columns, views, trial)
    rays = instrument.rays(trials.rows)
    shifts = [sign * pixels for pixels in _PIXELS for sign in (-1, 1)]
    moved = {f"{pixels:+g} pixels": rays.shift_detector(columns=pixels).vectors for pixels in shifts}

    def wider(factor: float) -> NDArray[np.float64]:
        return np.asarray(rays.vectors * np.array([1, 1, factor, 1])[:, None])

    suspects = [
        Suspect(
            "the rotation axis, or the centre of the detector",
            "import it with another --center, or --center auto",
            trials.columns("rays", moved),
        ),
        Suspect(
            "the turn, which goes the other way, or a mirrored detector",
            "import it with the angles' sign changed",
            # A turn by -a shows at column b what a turn by a of the mirrored object shows at column -b.
            trials.columns("rays", {"the other way": wider(-1.0)}),
        ),
    ]
    if not instrument.parallel:  # a wrong distance acts like a detector of another width
        beams = trials.columns("rays", {f"a beam {factor:g} times as wide": wider(factor) for factor in _LENGTHS})
        suspects.append(Suspect("the distance of source or detector", "check both, and their unit", beams))
    return tuple(suspects)


def suspects_of_born(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The wavelength, the sign of time, the reference of phases, and the order and distance of antennas."""
    trials = _Trials(instrument, columns, views, trial)
    rows = trials.rows

    def waved(factor: float) -> Trial:
        scaled = {"wavelengths": factor * rows["wavelengths"]} if "wavelengths" in rows else {}
        other = replace(instrument, wavelength=factor * instrument.wavelength)
        return trial(f"{factor:g} times as long", instrument=other, columns=rows | scaled)

    # Fine enough to give the phase at the object's edge to half a radian, over at least a tenth.
    across = max(instrument.grid.shape) * instrument.grid.pixel / instrument.wavelength
    step = float(np.clip(0.16 / across, 0.005, 0.04))
    count = round(max(0.1, 5 * step) / step)
    factors = [1 + sign * n * step for n in range(1, count + 1) for sign in (-1, 1)]
    radii = {} if instrument.far_field else {f"{f:g} times as far": f * instrument.receivers for f in _LENGTHS}
    turned: list[Trial] = []
    for way, factor in (("the other way round", np.array([1.0, -1.0])), ("opposite", np.array([-1.0, -1.0]))):
        for name in ("transmitters", "plane_waves"):
            if name in rows:
                turned += trials.columns(name, {f"{name} {way}": rows[name] * factor})
    return (
        Suspect(
            "the wavelength, or a unit of length",
            "check wavelength or frequency, background, and the unit of all lengths",
            tuple(waved(factor) for factor in factors),
            any_phase=True,
        ),
        Suspect(
            "the sign of time, of which the data is the complex conjugate",
            "import the complex conjugate of the data",
            trials.conjugate(),
        ),
        Suspect(
            "the phase that data refers to",
            "divide the data by the incident field at the object, or check how far antennas are away",
            (trial("turned", columns=rows),),
            any_phase=True,
        ),
        Suspect(
            "the radius of the receivers",
            "check how far receivers are away, and in which unit",
            trials.fields("receivers", radii),
            any_phase=True,
        ),
        Suspect(
            "the order or the angles of antennas",
            "check which way round angles of transmitters and receivers go, and where they begin",
            tuple(turned),
        ),
    )


def views_of_born(instrument: Any, columns: Columns, available: Index, count: int) -> Index:
    """Spread views of the longest wavelength, which lead to an image from any start, and fastest."""
    if "wavelengths" in columns:
        waves = np.asarray(columns["wavelengths"][:])[available]
        available = available[waves == waves.max()]
    few = min(count, len(available))
    return available[np.arange(few) * len(available) // max(1, few)]


def suspects_of_ptychography(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The probe, and positions whose axes are swapped or reversed, or that are in another unit."""
    trials = _Trials(instrument, columns, views, trial)
    places = trials.rows["positions"]
    room = np.array([instrument.image_rows, instrument.image_columns]) - instrument.probe.shape[1:]

    def centred(new: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.clip(new - (new.min(0) + new.max(0)) / 2 + room / 2, 0, room))

    ways = {
        "rows and columns swapped": places[:, ::-1],
        "rows the other way": places * [-1, 1],
        "columns the other way": places * [1, -1],
        "both the other way": -places,
        "swapped, rows the other way": places[:, ::-1] * [-1, 1],
        "swapped, columns the other way": places[:, ::-1] * [1, -1],
    } | {f"{f:g} times as far apart": places * f for f in (0.8, 0.9, 1.1, 1.25)}
    return (
        Suspect(
            "the probe",
            "refine it (--refine probe), or give the beam that was measured",
            trials.fields("probe", _other_beams(instrument.probe)),
            refine="probe",
        ),
        Suspect(
            "the positions: their axes, signs or unit",
            "import it with the axes of positions swapped or turned round, in pixels of the object",
            trials.columns("positions", {label: centred(new) for label, new in ways.items()}),
        ),
    )


def _other_beams(probe: NDArray[np.complex64]) -> dict[str, NDArray[np.complex64]]:
    """Beams out of focus, by the phase at the edge of their aperture, and the conjugate beam."""
    waves = np.fft.fft2(probe)
    y, x = np.meshgrid(*(np.fft.fftfreq(n) for n in probe.shape[1:]), indexing="ij")
    squares, light = y * y + x * x, (np.abs(waves) ** 2).sum(0)
    edge = 2 * float((light * squares).sum() / light.sum())  # of a disc, the mean of squares is half the largest
    beams = {
        f"{turn:+g} radians out of focus": np.fft.ifft2(waves * np.exp(1j * turn * squares / edge)).astype(np.complex64)
        for turn in (-8.0, -4.0, -2.0, 2.0, 4.0, 8.0)
    }
    return {**beams, "conjugate": probe.conj()}


def suspects_of_fpm(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The places of the LEDs, the wavelength, the defocus and the pupil."""
    trials = _Trials(instrument, columns, views, trial)
    suspects, factors = [], (0.8, 0.9, 1.1, 1.25)
    if "leds" in trials.rows:
        leds = trials.rows["leds"]
        near = np.sort(np.hypot(*(leds - leds.mean(0)).T))
        pitch = float(near[near > 0].min()) if (near > 0).any() else 0.0
        halves = (-1, -0.5, 0, 0.5, 1)
        moves = {
            f"moved by {a:g}, {b:g} steps": leds + np.array([a, b]) * pitch
            for a in halves
            for b in halves
            if (a, b) != (0, 0)
        }
        moves |= {f"{f:g} times as far apart": leds * f for f in factors}
        moves |= {"swapped": leds[:, ::-1], "x the other way": leds * [-1, 1], "y the other way": leds * [1, -1]}
        advice = "refine them (--refine leds), or check them"
        suspects.append(Suspect("the LEDs: their centre, order or axes", advice, trials.columns("leds", moves)))
    return (
        *suspects,
        Suspect(
            "the wavelength, or a unit of length",
            "check wavelength, distance of the LEDs, size of the camera's pixels, and their unit",
            trials.wavelengths(factors if instrument.pupil is None else ()),
        ),
        Suspect("the pupil, or defocus", "refine it (--refine pupil), or give --defocus", refine="pupil"),
    )


def suspects_of_mri(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The order of coil maps and their sign, and the path through k-space: its sign, scale and delay."""
    trials = _Trials(instrument, columns, views, trial)
    if "density" not in trials.rows:  # from all views: a few views would have other densities
        trials.rows["density"] = instrument.sample_density(columns)[views]
    path, maps, suspects = trials.rows["trajectory"], instrument.coil_maps, []
    if maps is not None and instrument.coils > 1:
        orders = {f"moved on by {n}": np.roll(maps, n, 0) for n in range(1, min(instrument.coils, 9))}
        orders |= {"in reverse order": maps[::-1], "conjugate": maps.conj(), "turned round": maps[..., ::-1, ::-1]}
        orders |= {"rows the other way": maps[..., ::-1, :], "columns the other way": maps[..., ::-1]}
        orders |= {"rows and columns swapped": maps.swapaxes(-1, -2)} if maps.shape[-1] == maps.shape[-2] else {}
        orders = {label: np.ascontiguousarray(new) for label, new in orders.items()}
        advice = "import it again, so that maps are estimated from the data"
        suspects += [
            Suspect(
                "the coil maps: their order, orientation or sign",
                f"{advice}, or check the order of coils",
                trials.fields("coil_maps", orders),
            ),
            Suspect("the coil maps", advice, refine="coil_maps"),
        ]
    paths = {
        "the other way": -path,
        "axes swapped": path[..., ::-1],
        "one axis the other way": path * ([1.0] * (path.shape[-1] - 1) + [-1.0]),
    }
    paths |= {f"{f:g} times as far out": path * f for f in (0.5, 0.9, 1.1)}
    if path.shape[1] > 2:
        paths |= {f"{n:+g} samples late": path + n * np.gradient(path, axis=1) for n in (-1.0, -0.5, 0.5, 1.0)}
    advice = "check sign, scale (1/m) and delay of the trajectory"
    return (*suspects, Suspect("the path through k-space", advice, trials.columns("trajectory", paths)))


def suspects_of_odt(instrument: Any, columns: Columns, views: Index, trial: Make) -> tuple[Suspect, ...]:
    """The sign of phases, the wavelength and the focus."""
    trials = _Trials(instrument, columns, views, trial)
    step = instrument.wavelength / instrument.medium
    planes = {f"{n:+g} wavelengths away": instrument.distance + n * step for n in (-16, -8, -4, -2, 2, 4, 8, 16)}
    return (
        Suspect(
            "the sign of phases, of which the data is the complex conjugate",
            "import the complex conjugate of the data",
            trials.conjugate(),
        ),
        Suspect(
            "the wavelength, or a unit of length",
            "check wavelength, refractive index and pixel, and their unit",
            trials.wavelengths(_LENGTHS),
        ),
        Suspect(
            "the focus",
            "check --distance, from the object's middle to the plane in focus",
            trials.fields("distance", planes),
        ),
    )
