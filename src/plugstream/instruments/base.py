"""What an instrument is: its declarations, its image and its model. Instruments are found by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from plugstream.base.capacity import check_memory
from plugstream.base.errors import InputError
from plugstream.base.registry import Options, entries, find, register
from plugstream.base.rows import Rows
from plugstream.base.user_code import run_declarations
from plugstream.instruments.declarations import (
    Advice,
    Attribute,
    Column,
    Columns,
    Data,
    FixedArray,
    as_declared,
    from_json,
    resolve_shape,
    to_json,
)

if TYPE_CHECKING:
    import torch

    from plugstream.images.space import ImageSpace
    from plugstream.models.base import Model
    from plugstream.models.suspects import Suspect, Trial

__all__ = [
    "Advice",
    "Attribute",
    "Block",
    "Column",
    "Columns",
    "Data",
    "Experiment",
    "FixedArray",
    "Instrument",
    "Place",
    "Rows",
    "add_white_noise",
    "declare",
    "find_instrument",
    "instrument_of",
    "resolve_shape",
]


class Place(TypedDict):
    """Where a model computes, and in which real precision."""

    device: torch.device
    dtype: torch.dtype


class Instrument(ABC):
    """How a view's data depends on the image: a frozen dataclass whose fields are its fixed arrays and attributes.

    Code that stores, sends, checks or describes scans uses the declarations below and knows no instrument by name.

    Class attributes:
        name: in settings and scans, such as "born-2d". help: one line.
        data, columns, arrays, attributes: what its scans hold.
        conventions: what else a reader must know, by subject.
        model_options: options of its model. simulation: options of `simulate`.
        baseline: the usual method of its field, one of `plugstream baseline`, with which reports compare; "" for the
            back-projection.
        each_view: whether `check_views` checks views one by one, so that those of a scan that grows are checked once.
        neighbours: whether data beside each other on the detector see nearly the same, in every scan.
        by_slabs: whether its model is a `plugstream.models.ct.CTModel`, which a GPU can compute slab by slab.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    data: ClassVar[Data]
    columns: ClassVar[tuple[Column, ...]] = ()
    arrays: ClassVar[tuple[FixedArray, ...]] = ()
    attributes: ClassVar[tuple[Attribute, ...]] = ()
    conventions: ClassVar[Mapping[str, str]] = {}
    model_options: ClassVar[type[Options]] = Options
    simulation: ClassVar[type[Options]] = Options
    baseline: ClassVar[str] = ""
    each_view: ClassVar[bool] = False
    by_slabs: ClassVar[bool] = False
    neighbours: ClassVar[bool] = False

    @property
    @abstractmethod
    def image(self) -> ImageSpace:
        """The image that scans of this instrument are for."""

    @abstractmethod
    def build_model(
        self, columns: Columns, n_views: int, options: Any = None, *, previous: Any = None, **place: Unpack[Place]
    ) -> Model:
        """The model of these views.

        Arguments: options of `model_options`; previous, what this returned for the first of these views, whose work
        can be reused; place, device and real dtype.
        """

    def check_views(self, columns: Columns) -> Columns:
        """The columns of some views as they are stored, after checks that declarations cannot express.

        Names, dtypes and shapes have been checked. Columns of a large scan are on disk.
        """
        return columns

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse impossible experiments, such as one with a forgotten unit, before views are written or used.

        Arguments: columns of views, None before the first view.
        """
        return

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of unlikely experiments. Arguments as for `check_plausible`."""
        return

    def check_model(self, columns: Columns | None, n_views: int, options: Any = None, **place: Unpack[Place]) -> None:
        """Refuse a model that cannot be built or does not fit into memory, before it is built.

        Arguments as for `build_model`; columns are None before the first view, with n_views = 1.
        """
        return

    def check_images(self, copies: int, what: str, advice: str, place: Place, *, extra: int = 0) -> None:
        """Refuse an image if so many copies of it, and `extra` bytes a pixel, do not fit into the memory of a CPU.

        Arguments: what they are and advice, for the message.
        """
        pixel = place["dtype"].itemsize * (2 if self.image.is_complex else 1)
        if place["device"].type == "cpu":
            shape = " x ".join(map(str, self.image.shape))
            check_memory(math.prod(self.image.shape) * (copies * pixel + extra), what.format(shape), advice)

    def block(self, columns: Columns, first: int, last: int) -> Block | None:
        """Slices `first` to `last` (exclusive) along the first axis of a volume, as a scan of their own.

        None if the data of views cannot be split by slices, or if that is unknown; this must not depend on which
        slices are asked for.

        Arguments: columns of the views.
        """
        return None

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """Defaults that suit a scan of so many views better than the usual ones, and why.

        They apply to settings that neither a person nor a file gives, and are recorded with the run.

        Arguments: n_views; batch, the views of a step, None for all.
        """
        return ()

    def advise_scan(self, columns: Columns, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """As `advise`, where it depends on the views; commands call this one."""
        return self.advise(n_views, batch)

    def lacks_angles(self, columns: Columns) -> bool:
        """Whether views see the object from so few sides that bounds and a support decide how it looks."""
        return False

    def has_neighbours(self, columns: Columns) -> bool:
        """Whether data beside each other on the detector see nearly the same, so that outliers can be told by them."""
        return self.neighbours

    def groups(self, columns: Columns) -> dict[str, NDArray[np.int64]]:
        """Kinds of views that `residual` judges separately, besides all views: the views of each, by name."""
        return {}

    def trial_views(self, columns: Columns, available: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """At most `count` of the available views, on which suspects are tried: evenly spread ones by default.

        Instruments whose views are linked only through overlapping neighbours choose neighbours.
        """
        few = min(count, len(available))
        return available[np.arange(few) * len(available) // max(1, few)]

    def suspects(self, columns: Columns, views: NDArray[np.int64], trial: Callable[..., Trial]) -> tuple[Suspect, ...]:
        """What may be wrong in a scan of this instrument, for a run whose image does not explain the data.

        Arguments: columns of all views; views to try; trial, which makes a `Trial` from a label and whatever differs:
        instrument, columns of these views, and turn, a function of the data.
        """
        return ()

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """What `info` shows besides the declarations: {subject: text}."""
        return {}

    def unit_of(self, declared: Column | FixedArray | Attribute) -> str:
        """The unit of a declared part in this scan: an instrument may know lengths in pixels only."""
        return declared.unit

    @classmethod
    def simulate_views(cls, options: Any) -> Experiment:
        """The experiment that `simulate` makes from the options of `simulation`; impossible ones are refused here."""
        raise InputError(f"{cls.name} has no simulation; import a scan, or acquire one")

    def bring_to_scale(self, clean: torch.Tensor, columns: Columns) -> tuple[torch.Tensor, Columns]:
        """Simulated measurements before noise, and their columns, if columns depend on the data.

        An example are gains that bring views of several kinds to a common scale. By default, nothing changes.
        """
        return clean, columns

    def add_noise(self, clean: torch.Tensor, columns: Columns, options: Any) -> torch.Tensor:
        """The measurements with the noise that the options of `simulation` ask for, in a dtype of `data`.

        By default, there is no noise, and values are rounded if data are integers.

        Arguments: clean, predictions of the model, (views, *data_shape), on the CPU.
        """
        import torch

        dtype = getattr(torch, self.data.dtypes[0])
        return clean.to(dtype) if dtype.is_floating_point or dtype.is_complex else clean.round().to(dtype)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of named axes: those of the fixed arrays, and of the image by the names of its axes."""
        sizes = dict(zip(self.image.axes, self.image.spatial, strict=True))
        if self.image.channels:
            sizes["channel"] = self.image.shape[0]
        for array in self.arrays:
            value = getattr(self, array.name)
            if value is not None:
                sizes |= {name: size for name, size in zip(array.shape, value.shape, strict=True) if type(name) is str}
        return sizes

    @property
    def data_shape(self) -> tuple[int, ...]:
        """The shape of one view's data."""
        return resolve_shape(self.data.shape, self.sizes)

    @property
    def view_text(self) -> str:
        """The data of a view in words: "360 receivers"."""
        pairs = zip(self.data.shape, self.data_shape, strict=True)
        axes = [
            f"{size} {axis}{'s' if size != 1 else ''}" if isinstance(axis, str) else str(size) for axis, size in pairs
        ]
        return " x ".join(axes) or "one number"

    def column(self, name: str) -> Column:
        """The declaration of a column."""
        return next(column for column in self.columns if column.name == name)

    def row_shape(self, column: Column) -> tuple[int, ...]:
        """The shape of a row of a column."""
        return resolve_shape(column.shape, self.sizes)

    def values(self) -> dict[str, Any]:
        """The attributes as JSON writes them."""
        return {a.name: to_json(a.kind, getattr(self, a.name)) for a in self.attributes}

    def find_mask(self, columns: Mapping[str, Any]) -> Any:
        """The column that says which data counts, None if all of it does."""
        return next((columns[column.name] for column in self.columns if column.covers and column.name in columns), None)

    @classmethod
    def from_parts(cls, arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> Self:
        """The instrument with these fixed arrays and attributes, as they were read; refuse contradictions."""
        content: dict[str, Any] = {}
        for array in cls.arrays:
            if array.name in arrays:
                content[array.name] = as_declared(array, arrays[array.name])
            elif not array.optional:
                raise InputError(f"{array.name} is missing: {array.meaning or 'an array of ' + cls.name}")
            else:
                content[array.name] = None
        for attribute in cls.attributes:
            if attribute.name in values:
                content[attribute.name] = from_json(attribute, values[attribute.name])
            elif attribute.default is None:
                raise InputError(f"{attribute.name} is missing: {attribute.meaning or 'an attribute of ' + cls.name}")
            else:
                content[attribute.name] = attribute.default
        return cls(**content)

    def difference(self, other: Instrument) -> str:
        """The first array or attribute in which two instruments differ, "" if they are equal."""
        if type(self) is not type(other):
            return "instrument"
        for part in fields(self):  # type: ignore[arg-type]
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            if not (np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs):
                return part.name
        return ""


@dataclass(frozen=True)
class Block:
    """Some slices of a volume, with exactly the data that depends on them.

    Arguments: instrument of these slices; rows, their data along the first axis of a view; columns that differ from
    those of the volume, by name (columns with a value for each datum are cut to the rows anyway); alike, whether all
    slices of the volume have the same model except for their position.
    """

    instrument: Instrument
    rows: slice
    columns: Columns
    alike: bool


@dataclass(frozen=True)
class Experiment:
    """A simulated experiment, before its image is measured.

    Arguments: instrument; columns of its views, by name; n_views; truth, the image that is measured; provenance,
    recorded in the scan; summary, a few words for the user.
    """

    instrument: Instrument
    columns: Mapping[str, NDArray[Any]]
    n_views: int
    truth: NDArray[Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


def add_white_noise(instrument: Instrument, clean: torch.Tensor, columns: Columns, options: Any) -> torch.Tensor:
    """Complex white Gaussian noise at exactly the input SNR of the options: an instrument's `add_noise`."""
    import torch

    from plugstream.images.simulated import add_noise

    mask = instrument.find_mask(columns)
    recorded = None if mask is None else torch.from_numpy(mask[:])
    return add_noise(clean, options.snr, seed=options.seed, mask=recorded).to(torch.complex64)


InstrumentClass = TypeVar("InstrumentClass", bound=type[Instrument])


def declare(cls: InstrumentClass) -> InstrumentClass:
    """Register an instrument under its name: a decorator, above `@dataclass`."""
    register_class = register(
        "instrument", cls.name, cls.help, options=cls.model_options, instrument=cls, simulation=cls.simulation
    )
    return register_class(cls)


def find_instrument(name: str, *, trust: bool = False) -> type[Instrument]:
    """The instrument that a user names: one of ours, of a package, or FILE.py:NAME.

    Arguments: trust, whether the file may be run from now on, as for `plugstream.base.registry.find`.
    """
    entry = find("instrument", name, trust=trust)
    cls = entry.facts.get("instrument", entry.build)
    if not (isinstance(cls, type) and issubclass(cls, Instrument)):
        raise InputError(f"{name} is not declared as an instrument; write @declare above the class")
    if ":" in name and cls.name in entries("instrument"):
        raise InputError(f"{name} is called {cls.name!r}, and so is another instrument; give it a name of its own")
    return cls


def instrument_of(name: str) -> type[Instrument]:
    """The instrument that a scan names: from a file that the user ran, else one of ours or of a package."""
    for entry in run_declarations():
        if (entry.kind, entry.name) == ("instrument", name) and "instrument" in entry.facts:
            declared: type[Instrument] = entry.facts["instrument"]
            return declared
    try:
        if ":" in name:  # a scan cannot make files run
            raise InputError(f"there is no instrument {name!r}")
        return find_instrument(name)
    except InputError as error:
        raise InputError(f"{error}; install the package that has it, or give its --instrument FILE.py:NAME") from None
