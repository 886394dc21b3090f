"""What an instrument is: its declarations, its image, its model, and how it is known by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

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
    "Rows",
    "declare",
    "find_instrument",
    "instrument_of",
    "resolve_shape",
]


class Instrument(ABC):
    """How a view's data depends on the image: a frozen dataclass, whose fields are its fixed arrays and attributes.

    Whatever stores, sends, checks or describes scans goes by the declarations below, and knows no instrument by name.

    Class attributes:
        name: in settings and scans, such as "born-2d". help: one line.
        data, columns, arrays, attributes: what its scans hold.
        conventions: what a reader must know besides, by subject.
        model_options: what a person can say of its model. simulation: what `simulate` takes.
        baseline: the usual method of its field, of those of `plugstream baseline`, by which reports compare; "" for
            none, and then they compare with the back-projection.
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

    @property
    @abstractmethod
    def image(self) -> ImageSpace:
        """The image that scans of this instrument are for."""

    @abstractmethod
    def build_model(
        self,
        columns: Columns,
        n_views: int,
        options: Any = None,
        *,
        device: torch.device,
        dtype: torch.dtype,
        previous: Model | None = None,
    ) -> Model:
        """The model of these views; `previous` is that of the first of them, whose work can be used again.

        Arguments: options of `model_options`; dtype, the real precision.
        """

    def check_views(self, columns: Columns) -> Columns:
        """The columns of some views as they are stored, after checks that their declarations cannot express.

        Their names, dtypes and shapes have been checked; those of a large scan lie on its disk.
        """
        return columns

    def check_plausible(self, columns: Columns | None = None) -> None:
        """Refuse what no experiment can be, such as one with a forgotten unit, before views are written or used.

        Arguments: columns of views; None for what is known before the first view.
        """
        return

    def warn_if_implausible(self, columns: Columns | None = None) -> None:
        """Warn of what hardly any experiment is; as `check_plausible`."""
        return

    def check_model(
        self, columns: Columns | None, n_views: int, options: Any = None, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Refuse a model that cannot be built, or not fit into memory, before it is built.

        Arguments: as of `build_model`; columns are None before the first view, and n_views is then 1.
        """
        return

    def block(self, columns: Columns, first: int, last: int) -> Block | None:
        """Slices `first` to `last` (left out) along the first axis of a volume, as a scan of their own.

        None where the data of views does not fall apart into data of slices, or where that is not known; whether it
        does must not depend on which slices are asked for.

        Arguments: columns of the views.
        """
        return None

    def advise(self, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """Which defaults suit a scan of so many views better than the usual ones, and why.

        They count where neither a person nor a file says anything, and are written down with the run.

        Arguments: n_views; batch, the views of a step, None for all.
        """
        return ()

    def advise_scan(self, columns: Columns, n_views: int, batch: int | None) -> tuple[Advice, ...]:
        """As `advise`, where it depends on what the views are; this is what the commands ask."""
        return self.advise(n_views, batch)

    def lacks_angles(self, columns: Columns) -> bool:
        """Whether views see the object from so few sides that bounds and a support decide how it looks."""
        return False

    def groups(self, columns: Columns) -> dict[str, NDArray[np.int64]]:
        """Kinds of views that `residual` judges one by one, besides all of them: the views of each, by name."""
        return {}

    def trial_views(self, columns: Columns, available: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """At most so many of the available views that together tell whether suspects are right; spread ones, usually.

        Where views know of each other only through what neighbours share, they are neighbours.
        """
        few = min(count, len(available))
        return available[np.arange(few) * len(available) // max(1, few)]

    def suspects(self, columns: Columns, views: NDArray[np.int64], trial: Callable[..., Trial]) -> tuple[Suspect, ...]:
        """What a scan of this instrument may say wrongly, for a run whose image does not explain the data.

        Arguments: columns of all views; views that are tried; trial, which makes one of a label, and of what is then
        another: instrument, columns of these views, and turn, what is done to the data.
        """
        return ()

    def describe(self, columns: Columns, n_views: int) -> dict[str, str]:
        """What `info` shows besides what the declarations tell: {subject: text}."""
        return {}

    def unit_of(self, declared: Column | FixedArray | Attribute) -> str:
        """The unit of what is declared, as this scan has it: an instrument may know lengths in pixels alone."""
        return declared.unit

    @classmethod
    def simulate_views(cls, options: Any) -> Experiment:
        """The experiment that `simulate` makes of the options of `simulation`; what cannot be is refused here."""
        raise InputError(f"{cls.name} has no simulation; import a scan, or acquire one")

    def bring_to_scale(self, clean: torch.Tensor, columns: Columns) -> tuple[torch.Tensor, Columns]:
        """Simulated measurements before their noise, and their columns, where what is stored depends on the data.

        Such as gains that bring views of several kinds to a common scale. Both as they are if not overridden.
        """
        return clean, columns

    def add_noise(self, clean: torch.Tensor, columns: Columns, options: Any) -> torch.Tensor:
        """The measurements with the noise that the options of `simulation` ask for, in a dtype of `data`.

        Arguments: clean, what the model predicts, (views, *data_shape), on the CPU. Without noise if not overridden,
        and rounded where data is integers.
        """
        import torch

        dtype = getattr(torch, self.data.dtypes[0])
        return clean.to(dtype) if dtype.is_floating_point or dtype.is_complex else clean.round().to(dtype)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of named axes: those of the fixed arrays, and of the image by the names of its axes."""
        found = dict(zip(self.image.axes, self.image.spatial, strict=True))
        if self.image.channels:
            found["channel"] = self.image.shape[0]
        for array in self.arrays:
            value = getattr(self, array.name)
            if value is not None:
                found |= {name: size for name, size in zip(array.shape, value.shape, strict=True) if type(name) is str}
        return found

    @property
    def data_shape(self) -> tuple[int, ...]:
        """The shape of one view's data."""
        return resolve_shape(self.data.shape, self.sizes)

    @property
    def view_text(self) -> str:
        """What the data of a view is, in words: "360 receivers"."""
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
        """The attributes as JSON has them."""
        return {a.name: to_json(a.kind, getattr(self, a.name)) for a in self.attributes}

    def find_mask(self, columns: Mapping[str, Any]) -> Any:
        """That column which says which data counts, None where all of it does."""
        return next((columns[column.name] for column in self.columns if column.covers and column.name in columns), None)

    @classmethod
    def from_parts(cls, arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> Self:
        """The instrument with these fixed arrays and attributes, as they were read; what contradicts is refused."""
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
        """The first array or attribute in which two instruments differ, "" if they are the same."""
        if type(self) is not type(other):
            return "instrument"
        for part in fields(self):  # type: ignore[arg-type]
            mine, theirs = getattr(self, part.name), getattr(other, part.name)
            if not (np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs):
                return part.name
        return ""


@dataclass(frozen=True)
class Block:
    """Some slices of a volume, with the data that depends on them, on no others, and on nothing else.

    Arguments: instrument of these slices; rows, where their data is along the first axis of each view's; columns that
    are others than those of the whole, by name, those apart that have a value for each datum, of which the rows are
    meant; alike, whether all slices of the volume have the same model, but for their place.
    """

    instrument: Instrument
    rows: slice
    columns: Columns
    alike: bool


@dataclass(frozen=True)
class Experiment:
    """A simulated experiment, before its image is measured.

    Arguments: instrument; columns of its views, by name; n_views; truth, the image that is measured; provenance, what
    the scan says of it; summary, a few words for whoever waits.
    """

    instrument: Instrument
    columns: Mapping[str, NDArray[Any]]
    n_views: int
    truth: NDArray[Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


InstrumentClass = TypeVar("InstrumentClass", bound=type[Instrument])


def declare(cls: InstrumentClass) -> InstrumentClass:
    """Make an instrument known by its name: a decorator, above `@dataclass`."""
    register_class = register(
        "instrument", cls.name, cls.help, options=cls.model_options, instrument=cls, simulation=cls.simulation
    )
    return register_class(cls)


def find_instrument(name: str, *, trust: bool = False) -> type[Instrument]:
    """The instrument of a name that somebody asked for: of ours, of a package, or FILE.py:NAME.

    Arguments: trust, that the file may be run from now on, as of `plugstream.base.registry.find`.
    """
    entry = find("instrument", name, trust=trust)
    cls = entry.facts.get("instrument", entry.build)
    if not (isinstance(cls, type) and issubclass(cls, Instrument)):
        raise InputError(f"{name} is not declared as an instrument; write @declare above the class")
    if ":" in name and cls.name in entries("instrument"):
        raise InputError(f"{name} is called {cls.name!r}, and so is another instrument; give it a name of its own")
    return cls


def instrument_of(name: str) -> type[Instrument]:
    """The instrument that a scan names: of a file that a person had run, and else of ours and of packages."""
    for entry in run_declarations():
        if (entry.kind, entry.name) == ("instrument", name) and "instrument" in entry.facts:
            own: type[Instrument] = entry.facts["instrument"]
            return own
    try:
        if ":" in name:  # what a scan says is not run
            raise InputError(f"there is no instrument {name!r}")
        return find_instrument(name)
    except InputError as error:
        raise InputError(f"{error}; install the package that has it, or give its --instrument FILE.py:NAME") from None
