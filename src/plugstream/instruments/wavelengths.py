"""Scans of several wavelengths: their columns, and models that are built one wavelength at a time.

A view is one illumination at one wavelength. Measurements of different frequencies may differ in size by orders of
magnitude, so that the largest alone would decide the image. A gain for each view brings them to a common scale
(`balance_gains`): the scan holds the measured field times the gain, and so does the model's prediction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.declarations import Column, Columns, select_rows
from plugstream.instruments.spectrum import Spectrum, describe_wave, describe_waves, find_spectrum

if TYPE_CHECKING:
    from plugstream.models.base import Model


WAVELENGTHS = Column(
    "wavelengths", "float64", (), "m", "wavelength in vacuum of each view, where there are several", optional=True
)
GAINS = Column(
    "gains",
    "float64",
    (),
    "",
    "factor of the data to the field that was measured, which brings frequencies to one scale",
    optional=True,
    default=1.0,
)

# Every wavelength has its own model; more than these are wavelengths that were meant to be equal.
_MOST = 1024


def spectrum_of(columns: Columns, wavelength: float, n_views: int) -> Spectrum:
    """The wavelengths of views, the instrument's own if there is no column of them."""
    if WAVELENGTHS.name not in columns:
        return Spectrum((wavelength,), np.zeros(n_views, dtype=np.int64))
    return find_spectrum(columns[WAVELENGTHS.name][:])


def check_spectrum(columns: Columns) -> None:
    """Refuse impossible wavelengths and gains, and more wavelengths than there can be models."""
    for column, noun in ((WAVELENGTHS, "a wavelength"), (GAINS, "a gain")):
        if column.name in columns:
            values = np.asarray(columns[column.name][:])
            valid = np.isfinite(values) & (values > 0)
            if not valid.all():
                view = int(np.argmin(valid))
                raise InputError(f"{column.name} hold {values[view]:g} at view {view}, but {noun} is a number > 0")
    if WAVELENGTHS.name in columns and (count := len(np.unique(columns[WAVELENGTHS.name][:]))) > _MOST:
        raise InputError(
            f"the views have {count} wavelengths, and {_MOST} are the most: round those that are meant to be the same"
        )


def describe_spectrum(columns: Columns, wavelength: float, n_views: int) -> dict[str, str]:
    """For `info`: the frequencies, the number of views of each, and their gains; nothing if there is only one."""
    if WAVELENGTHS.name not in columns:
        return {}
    spectrum = spectrum_of(columns, wavelength, n_views)
    counts = np.bincount(spectrum.group).tolist()
    number = f"{counts[0]} views each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} views each"
    lines = {"frequencies": f"{describe_waves(spectrum.wavelengths)}, {number}"}
    if GAINS.name in columns:
        gains = np.asarray(columns[GAINS.name][:])
        lines["gains"] = f"{gains.min():.4g} to {gains.max():.4g}, factors of the data to the measured field"
    return lines


def balance_gains(data: ArrayLike, wavelengths: ArrayLike, mask: ArrayLike | None = None) -> NDArray[np.float64]:
    r"""Gains that bring the views of every wavelength to a common scale: one for each view.

    a_i = 1 / sqrt(mean over the views j of the same wavelength of ||y_j||^2), so that after y_i -> a_i y_i that mean is
    1 for every wavelength, and none outweighs the others in d(x). It is 1 if all data of a wavelength are zero.

    Arguments: data, the measured field (views, *data_shape); wavelengths (views,); mask, of the shape of data, False
    where nothing was recorded.
    """
    values = np.asarray(data)
    recorded = values if mask is None else np.where(np.asarray(mask), values, 0)
    energy = (np.abs(recorded.astype(np.complex128)) ** 2).reshape(len(values), -1).sum(1)
    spectrum = find_spectrum(wavelengths)
    mean = np.bincount(spectrum.group, energy) / np.bincount(spectrum.group)
    with np.errstate(divide="ignore"):
        gain = np.where(mean > 0, 1 / np.sqrt(mean), 1.0)
    return gain[spectrum.group]


def split_by_wavelength(columns: Columns, spectrum: Spectrum) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each wavelength with the columns of its views, without wavelengths and gains; rows on disk stay there."""
    rest = without_spectrum(columns)
    for number, wave in enumerate(spectrum.wavelengths):
        yield wave, rest if len(spectrum.wavelengths) == 1 else select_rows(rest, spectrum.views(number))


def build_by_wavelength(
    columns: Columns,
    wavelength: float,
    n_views: int,
    build: Callable[[float, Columns, Model | None], Model],
    previous: Model | None = None,
) -> Model:
    """The model of views of one or several wavelengths: one model a wavelength, in a `GroupedModel`.

    For one wavelength without gains, it is that wavelength's model itself.

    Arguments: columns of the views; wavelength, if they have no column of it; build, which makes the model of views of
    one wavelength from their columns and the model of the first of them, if any; previous, what this returned for the
    first of these views.
    """
    from plugstream.models.grouped import GroupedModel

    spectrum = spectrum_of(columns, wavelength, n_views)
    gains = np.asarray(columns[GAINS.name][:]) if GAINS.name in columns else None
    # Wavelengths are numbered in order of appearance, so a growing scan keeps their numbers.
    earlier = previous.models if isinstance(previous, GroupedModel) else (previous,)
    parts = itertools.zip_longest(split_by_wavelength(columns, spectrum), earlier)
    models = [build(wave, rows, before) for (wave, rows), before in parts]
    if len(models) == 1:
        model = models[0]
        return model if gains is None or bool((gains == 1).all()) else GroupedModel([model], spectrum.group, gains)
    names = [describe_wave(wave) for wave in spectrum.wavelengths]
    return GroupedModel(models, spectrum.group, gains, names=names)


def without_spectrum(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns except wavelengths and gains."""
    return {name: rows for name, rows in columns.items() if name not in (WAVELENGTHS.name, GAINS.name)}
