"""NumPy arrays in place of tensors: arguments are converted, and results are tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.errors import InputError

Array = Tensor | NDArray[Any]
"""The types that images and data may have."""

P = ParamSpec("P")
R = TypeVar("R")


def as_tensor(
    name: str, value: Any, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor unchanged, or anything that NumPy accepts as an array of numbers as a tensor.

    Arguments: name, for error messages; device and dtype for an array, since NumPy's default precision is double, which
    is seldom meant. Without a dtype, integers become torch's default and other numbers stay as they are. Values are
    copied only if necessary.
    """
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:  # rows of different lengths, say
        raise InputError(f"{name} cannot be read as an array: {error}".splitlines()[0]) from error
    if array.dtype.kind not in "fcbiu":
        kind = type(value).__name__ if array.dtype == object else f"an array of {array.dtype}"
        raise InputError(f"{name} must be a tensor or an array of numbers, not {kind}")
    if array.dtype.kind == "c" and dtype is not None and not dtype.is_complex:
        raise InputError(f"{name} is complex, but a real one is needed; give its real part, or its absolute value")
    if dtype is None and array.dtype.kind in "biu":
        dtype = torch.get_default_dtype()
    return torch.from_numpy(_plain(array)).to(device=device, dtype=dtype)


def call_function(function: Callable[..., Any], name: str, like: Tensor, *arguments: Any) -> Any:
    """What a person's function returns, be it written with torch or with NumPy: an array becomes a tensor like another.

    It is called with tensors. If it cannot take them it is called with NumPy arrays, on the CPU, and its own error is
    the first one. Arguments: name, for error messages; like, whose device and dtype an array gets.
    """
    try:
        out = function(*arguments)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        plain = [value.detach().cpu().numpy() if isinstance(value, Tensor) else value for value in arguments]
        try:
            out = function(*plain)
        except Exception:
            raise error from None
        if not isinstance(out, np.ndarray):
            raise
    return as_tensor(name, out, device=like.device, dtype=like.dtype) if isinstance(out, np.ndarray) else out


def accept_arrays(method: Callable[P, R]) -> Callable[P, R]:
    """A method that receives tensors when it is called with NumPy arrays, on its object's device and in its dtype.

    `data` and `slopes` get the object's `data_dtype`, `weights` a real one, and everything else the `dtype`, if the
    object has them; `views` stay as they are.
    """
    names = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def accepting(*args: P.args, **kwargs: P.kwargs) -> R:
        if _has_array(args) or (kwargs and _has_array(kwargs.values())):
            owner, *rest = args
            positional: Any = [_tensor_for(owner, name, value) for name, value in zip(names, rest, strict=False)]
            keywords: Any = {name: _tensor_for(owner, name, value) for name, value in kwargs.items()}
            return cast(R, cast(Any, method)(owner, *positional, **keywords))
        return method(*args, **kwargs)

    return accepting


def _has_array(values: Iterable[object]) -> bool:
    for value in values:  # noqa: SIM110 (`any` takes several times as long, which a GPU waits for)
        if isinstance(value, np.ndarray):
            return True
    return False


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A small tensor on a device; the host does not wait for a GPU's earlier work, as it would with pageable memory."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def accept_arrays_in(kind: type, names: Sequence[str]) -> None:
    """Let the methods of these names that a class defines itself accept arrays; for `__init_subclass__`."""
    for name in names:
        method = vars(kind).get(name)
        if inspect.isfunction(method):
            setattr(kind, name, accept_arrays(method))


def _tensor_for(owner: Any, name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray) or name == "views":
        return value
    dtype = getattr(owner, "data_dtype" if name in ("data", "slopes") else "dtype", None)
    if name == "weights" and dtype is not None:
        dtype = dtype.to_real()
    return as_tensor(name, value, device=getattr(owner, "device", None), dtype=dtype)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """The array in a form that torch accepts: native byte order, no long double, writable, no negative strides."""
    kind = array.dtype.newbyteorder("=")
    if kind.kind in "fc" and kind.itemsize > (8 if kind.kind == "f" else 16):
        kind = np.dtype(np.float64 if kind.kind == "f" else np.complex128)
    elif kind.kind == "u" and kind.itemsize > 1:
        kind = np.dtype(np.int64)  # torch has next to nothing for larger unsigned numbers
    plain = np.ascontiguousarray(array, dtype=kind).reshape(array.shape)
    return plain if plain.flags.writeable else plain.copy()
