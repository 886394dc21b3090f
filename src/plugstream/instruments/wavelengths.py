"""Several wavelengths in a scan: the columns that say so, and models that are built a wavelength at a time.

A view is then of one illumination at one wavelength. Measurements of different frequencies may differ in size by orders
of magnitude, and the largest would decide alone what the image is; a gain for each view brings them to a common scale
(`balance_gains`): the scan holds the measured field times the gain, and the model predicts just that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.base import Column, Columns
from plugstream.instruments.spectrum import Spectrum, describe_wave, describe_waves, find_spectrum

if TYPE_CHECKING:
    from plugstream.models.base import Model

__all__ = [
    "GAINS",
    "WAVELENGTHS",
    "balance_gains",
    "build_by_wavelength",
    "check_spectrum",
    "describe_spectrum",
    "spectrum_of",
    "take_rows",
    "without_spectrum",
]

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

# Every wavelength has a model of its own; more than this are views whose wavelengths were meant to be the same.
_MOST = 1024


def spectrum_of(columns: Columns, wavelength: float, n_views: int) -> Spectrum:
    """The wavelengths of views, the instrument's own where the views have no column of them."""
    if WAVELENGTHS.name not in columns:
        return Spectrum((wavelength,), np.zeros(n_views, dtype=np.int64))
    return find_spectrum(columns[WAVELENGTHS.name][:])


def check_spectrum(columns: Columns) -> None:
    """Refuse wavelengths and gains that cannot be, and more wavelengths than there can be models."""
    for column, what in ((WAVELENGTHS, "a wavelength"), (GAINS, "a gain")):
        if column.name in columns:
            values = np.asarray(columns[column.name][:])
            if not (np.isfinite(values) & (values > 0)).all():
                view = int(np.argmin(np.isfinite(values) & (values > 0)))
                raise InputError(f"{column.name} hold {values[view]:g} at view {view}, but {what} is a number > 0")
    if WAVELENGTHS.name in columns and (count := len(np.unique(columns[WAVELENGTHS.name][:]))) > _MOST:
        raise InputError(
            f"the views have {count} wavelengths, and {_MOST} are the most: round those that are meant to be the same"
        )


def describe_spectrum(columns: Columns, wavelength: float, n_views: int) -> dict[str, str]:
    """For `info`: which frequencies the views are of, how many of each, and their gains; nothing where there is one."""
    if WAVELENGTHS.name not in columns:
        return {}
    spectrum = spectrum_of(columns, wavelength, n_views)
    counts = np.bincount(spectrum.group).tolist()
    number = f"{counts[0]} views each" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} views each"
    told = {"frequencies": f"{describe_waves(spectrum.wavelengths)}, {number}"}
    if GAINS.name in columns:
        gains = np.asarray(columns[GAINS.name][:])
        told["gains"] = f"{gains.min():.4g} to {gains.max():.4g}, factors of the data to the measured field"
    return told


def balance_gains(data: ArrayLike, wavelengths: ArrayLike, mask: ArrayLike | None = None) -> NDArray[np.float64]:
    r"""Gains that bring the views of every wavelength to a common scale: one for each view, the same within each.

    a_i = 1 / sqrt(mean over the views j of the same wavelength of ||y_j||^2), so that after y_i -> a_i y_i that mean is
    1 for every wavelength, and none outweighs the others in d(x). 1 where a wavelength's data is zero throughout.

    Arguments: data, the measured field (views, *data_shape); wavelengths (views,); mask, of the shape of data, False
    where nothing was recorded.
    """
    values = np.asarray(data)
    kept = values if mask is None else np.where(np.asarray(mask), values, 0)
    energy = (np.abs(kept.astype(np.complex128)) ** 2).reshape(len(values), -1).sum(1)
    spectrum = find_spectrum(wavelengths)
    mean = np.bincount(spectrum.group, energy) / np.bincount(spectrum.group)
    with np.errstate(divide="ignore"):
        gain = np.where(mean > 0, 1 / np.sqrt(mean), 1.0)
    return gain[spectrum.group]


def take_rows(columns: Columns, index: NDArray[np.int64]) -> dict[str, Any]:
    """The columns of some views; what lies on a disk stays there."""
    return {name: rows.only(index) if hasattr(rows, "only") else rows[index] for name, rows in columns.items()}


def build_by_wavelength(
    columns: Columns,
    wavelength: float,
    n_views: int,
    build: Callable[[float, Columns, Model | None], Model],
    previous: Model | None = None,
) -> Model:
    """The model of views of one or several wavelengths: one model a wavelength, in a `GroupedModel`.

    Of one wavelength without gains it is just that model.

    Arguments: columns of the views; wavelength, where they have no column of it; build, which makes the model of some
    views of one wavelength (their columns without wavelengths and gains), from the model of the first of them where
    there is one; previous, what this returned for the first of these views.
    """
    from plugstream.models.grouped import GroupedModel

    rest = without_spectrum(columns)
    spectrum = spectrum_of(columns, wavelength, n_views)
    gains = np.asarray(columns[GAINS.name][:]) if GAINS.name in columns else None
    before = previous.models if isinstance(previous, GroupedModel) else () if previous is None else (previous,)

    def known(number: int) -> Model | None:  # wavelengths are numbered as they come, so that they keep their numbers
        return before[number] if number < len(before) else None

    if len(spectrum.wavelengths) == 1:
        model = build(spectrum.wavelengths[0], rest, known(0))
        return model if gains is None or bool((gains == 1).all()) else GroupedModel([model], spectrum.group, gains)
    models = [
        build(wave, take_rows(rest, spectrum.views(number)), known(number))
        for number, wave in enumerate(spectrum.wavelengths)
    ]
    names = [describe_wave(wave) for wave in spectrum.wavelengths]
    return GroupedModel(models, spectrum.group, gains, names=names)


def without_spectrum(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that say nothing of wavelengths and gains."""
    return {name: rows for name, rows in columns.items() if name not in (WAVELENGTHS.name, GAINS.name)}
