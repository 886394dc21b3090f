"""Operators of SciPy, PyLops and SCICO as a model: one adapter, a view being an operator of a list.

| of        | A x              | A^H z            | shapes                          |
| --------- | ---------------- | ---------------- | ------------------------------- |
| SciPy     | `matmat`         | `rmatmat`        | `shape`; matrices of any kind   |
| PyLops    | `matmat`         | `rmatmat`        | `dims`, `dimsd`                 |
| SCICO     | `op(x)`          | `op.adj(z)`      | `input_shape`, `output_shape`   |

A class of one's own meets the last convention in a few lines. Arrays are passed as NumPy's, which on the CPU are the
tensors' own memory; those of a GPU are copied there and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plugstream.base.arrays import as_tensor
from plugstream.base.errors import InputError
from plugstream.bridges.stack import StackedModel, warn_of_mismatch
from plugstream.fidelity.by_loss import DataFidelity, make_fidelity
from plugstream.fidelity.losses import Loss

Numbers = NDArray[Any]


@dataclass(frozen=True)
class _Operator:
    """An operator of any library: two functions of several images or data at once, (N, *shape) to (N, *shape)."""

    apply: Callable[[Numbers], Numbers]
    adjoint: Callable[[Numbers], Numbers]
    image_shape: tuple[int, ...]
    data_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    complex_images: bool = False


class OperatorModel(StackedModel):
    r"""Measurements that operators of other libraries make of an image, y_i = A_i x, one of them for each view.

    The adjoint is the sum over views of A_i^H z_i, its real part where the image is real. Operators are linear.

    Arguments: operators, image_shape, dtype, device and channels as for `from_operators`.
    """

    def __init__(
        self,
        operators: Any,
        image_shape: tuple[int, ...] | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        channels: bool = False,
    ) -> None:
        self._operators = [_read_operator(op, image_shape) for op in _list_operators(operators)]
        if not self._operators:
            raise InputError("from_operators needs at least one operator, one for each view")
        shape = self._operators[0].image_shape if image_shape is None else tuple(image_shape)
        for number, op in enumerate(self._operators):
            if math.prod(op.image_shape) != math.prod(shape):
                raise InputError(
                    f"operator {number} takes {math.prod(op.image_shape)} values, but an image of {shape} has "
                    f"{math.prod(shape)}; all must be of the same image"
                )
        kinds = [_torch_dtype(op.dtype) for op in self._operators]
        single = all(kind.to_real() == torch.float32 for kind in kinds)
        real = torch.float32 if (dtype.to_real() == torch.float32 if dtype is not None else single) else torch.float64
        if dtype is None:
            dtype = real.to_complex() if any(op.complex_images for op in self._operators) else real
        is_complex = dtype.is_complex or any(kind.is_complex for kind in kinds)
        super().__init__(
            shape,
            [op.data_shape for op in self._operators],
            dtype=dtype,
            data_dtype=real.to_complex() if is_complex else real,
            device=device,
            channels=channels,
        )

    def _predict(self, images: Tensor, views: list[int]) -> list[Tensor]:
        array = images.detach().cpu().numpy()
        operators = [self._operators[view] for view in views]
        return [self._call(op.apply, array.reshape(-1, *op.image_shape), op) for op in operators]

    def _pull(self, data: list[Tensor], views: list[int]) -> Tensor:
        out = torch.zeros((len(data[0]), *self.image_shape), dtype=self.dtype, device=self.device)
        for one, view in zip(data, views, strict=True):
            op = self._operators[view]
            array = one.detach().cpu().numpy()
            if not self.dtype.is_complex and op.dtype.kind != "c":
                array = array.real  # Re(A^T z) = A^T Re z
            try:
                back = self._call(op.adjoint, array, op).reshape(out.shape)
            except (NotImplementedError, TypeError) as error:
                # SciPy raises the first for one vector, and for several calls the None that is the adjoint.
                if isinstance(error, TypeError) and "'NoneType' object is not callable" not in str(error):
                    raise
                raise InputError("an operator has no adjoint; give it one, such as rmatvec= of SciPy's") from error
            out += back if self.dtype.is_complex or not back.is_complex() else back.real
        return out

    def _call(self, function: Callable[[Numbers], Numbers], array: Numbers, op: _Operator) -> Tensor:
        """A function of an operator; a real one, which need not take complex numbers, takes their two parts."""
        if op.dtype.kind != "c" and np.iscomplexobj(array):
            result = np.asarray(function(array.real)) + 1j * np.asarray(function(array.imag))
        else:
            result = np.asarray(function(array))
        # JAX returns arrays that may not be written to, which torch does not take as they are.
        return torch.from_numpy(result if result.flags.writeable else result.copy()).to(self.device)


def from_operators(
    operators: Any,
    y: Any,
    *,
    image_shape: tuple[int, ...] | None = None,
    loss: Loss | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    channels: bool = False,
) -> DataFidelity:
    r"""How far an image is from what operators of SciPy, PyLops or SCICO measured: a fidelity for every algorithm.

        d(x) = (1/I) sum_i loss(A_i x, y_i),    without a loss 1/2 ||A_i x - y_i||^2,

    with a view for each operator of the list. They may be of different libraries, and their data of different sizes. A
    PyLops `VStack` is the list of its operators; one operator alone is one view:

        fidelity = ps.from_operators(operators, y, image_shape=(128, 128))
        algorithm = ps.ProximalGradient(fidelity, ps.TV(), sigma=0.02, sampler=ps.Uniform(6))

    Holds for linear operators. The adjoint is tested once, and a mismatch is a warning. L comes from products with the
    operators (`ModelBase.squared_norms`).

    Arguments:
        operators: one, or a list of them: SciPy's `LinearOperator`, matrices and sparse matrices, PyLops' operators, or
            anything with `op(x)`, `op.adj(z)`, `input_shape` and `output_shape`, as SCICO has them.
        y: the data of each operator, a list or an array with a row for each; of a VStack also as one vector.
        image_shape: of the image, if the operators do not tell: SciPy's know only how many values it has; (1, n) if not
            given.
        loss: such as Poisson() or Huber(0.1); least squares if not given.
        dtype: of images; that of the operators, and real unless they say that they take complex images, if not given.
            With complex data and real images the adjoint is Re(A^H z).
        device: of images and data. channels: whether the first axis of an image is of channels.
    Reference: SciPy, https://scipy.org; PyLops, https://pylops.readthedocs.io; SCICO, https://scico.readthedocs.io.
    """
    model = OperatorModel(operators, image_shape, dtype=dtype, device=device, channels=channels)
    rows = _rows(y, model, operators)
    if any(row.is_complex() for row in rows) and not model.data_dtype.is_complex:
        raise InputError("the data is complex, but the operators are real; give dtype=torch.complex64 or real data")
    warn_of_mismatch(model)
    return make_fidelity(model, model.pack(rows), loss)


def _list_operators(operators: Any) -> list[Any]:
    """The operators of a list or of a PyLops VStack; one alone is a list of one."""
    if type(operators).__name__ == "VStack" and hasattr(operators, "matvec"):
        operators = getattr(operators, "ops", operators)
    if not isinstance(operators, list | tuple):
        return [operators]
    return [one for op in operators for one in _list_operators(op)]


def _rows(y: Any, model: OperatorModel, operators: Any) -> list[Tensor]:
    """The data of each view, in its operator's shape."""
    sizes = [math.prod(shape) for shape in model.data_shapes]
    if not isinstance(y, list | tuple):
        data = as_tensor("the data", y)
        if model.n_views == 1 and (not isinstance(operators, list | tuple) or data.numel() == sizes[0]):
            y = [data]
        elif data.ndim == 1 and data.numel() == sum(sizes):  # as a VStack stacks it
            y = list(data.split(sizes))
        else:
            y = list(data)
    if len(y) != model.n_views:
        raise InputError(f"there are {model.n_views} operators, but the data of {len(y)}; give one for each")
    rows = []
    for number, (one, shape) in enumerate(zip(y, model.data_shapes, strict=True)):
        row = as_tensor(f"the data of operator {number}", one)
        if row.numel() != math.prod(shape):
            raise InputError(
                f"operator {number} gives {math.prod(shape)} values, but its data has {row.numel()} {tuple(row.shape)}"
            )
        rows.append(row.reshape(shape))
    return rows


def _read_operator(op: Any, image_shape: tuple[int, ...] | None) -> _Operator:
    """An operator of any of the libraries."""
    if callable(getattr(op, "adj", None)) and callable(op):
        return _scico(op, image_shape)
    if not (callable(getattr(op, "matvec", None)) and callable(getattr(op, "rmatvec", None))):
        op = _matrix(op)
    m, n = (int(size) for size in op.shape)
    dims, dimsd = _sizes(getattr(op, "dims", None), n), _sizes(getattr(op, "dimsd", None), m)
    kind = np.dtype(op.dtype if op.dtype is not None else np.float64)

    def columns(product: Callable[[Numbers], Numbers], shape: tuple[int, ...]) -> Callable[[Numbers], Numbers]:
        def call(arrays: Numbers) -> Numbers:
            # (N, *shape) as N columns, which is how SciPy has several vectors; each is read in C's order.
            out = np.asarray(product(np.ascontiguousarray(arrays.reshape(len(arrays), -1).T)))
            return np.ascontiguousarray(out.T).reshape(len(arrays), *shape)

        return call

    shape = dims or ((1, n) if image_shape is None else tuple(image_shape))
    data_shape = dimsd or (m,)
    return _Operator(columns(op.matmat, data_shape), columns(op.rmatmat, shape), shape, data_shape, kind)


def _matrix(op: Any) -> Any:
    """A matrix, dense or sparse, as SciPy's operator."""
    from scipy.sparse.linalg import aslinearoperator

    if isinstance(op, Tensor):
        op = op.detach().cpu().numpy()
    try:
        return aslinearoperator(op)
    except (TypeError, ValueError, AttributeError):
        raise InputError(
            f"{type(op).__name__} is not a known kind of linear operator: it needs matvec and rmatvec, as SciPy's and "
            "PyLops' have, or op(x) and op.adj(z), as SCICO's"
        ) from None


def _scico(op: Any, image_shape: tuple[int, ...] | None) -> _Operator:
    """An operator that is called, with `adj` for its adjoint."""
    shape = getattr(op, "input_shape", image_shape)
    if shape is None:
        raise InputError(f"{type(op).__name__} has no input_shape; give image_shape=")
    if any(isinstance(size, tuple | list) for size in shape):
        raise InputError(f"{type(op).__name__} takes block arrays, and an image is one array")
    shape = tuple(int(size) for size in shape)
    kind = np.dtype(getattr(op, "input_dtype", np.float32))
    if any(isinstance(size, tuple | list) for size in getattr(op, "output_shape", ())):
        raise InputError(f"{type(op).__name__} has block arrays; give each block as an operator of its own")
    if hasattr(op, "output_shape") and hasattr(op, "output_dtype"):
        data_shape, output = tuple(int(size) for size in op.output_shape), np.dtype(op.output_dtype)
    else:
        result = np.asarray(op(np.zeros(shape, kind)))
        data_shape, output = result.shape, result.dtype

    def each(function: Callable[[Any], Any], dtype: np.dtype[Any]) -> Callable[[Numbers], Numbers]:
        return lambda arrays: np.stack([np.asarray(function(one)) for one in arrays.astype(dtype, copy=False)])

    both = np.result_type(kind, output)
    return _Operator(each(op, kind), each(op.adj, output), shape, data_shape, both, kind.kind == "c")


def _sizes(sizes: Sequence[int] | int | None, count: int) -> tuple[int, ...] | None:
    """The shape that PyLops tells, where it holds as many values as it should."""
    if sizes is None:
        return None
    shape = tuple(int(size) for size in np.atleast_1d(sizes))
    return shape if math.prod(shape) == count and len(shape) > 1 else None


def _torch_dtype(kind: np.dtype[Any]) -> torch.dtype:
    """torch's name of an operator's precision; whole numbers count as single."""
    if kind.kind == "c":
        return torch.complex64 if kind.itemsize <= 8 else torch.complex128
    return torch.float64 if kind.kind == "f" and kind.itemsize > 4 else torch.float32
