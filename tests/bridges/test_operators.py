"""Operators of SciPy and of SCICO's convention as models; PyLops' where it is installed (`make test-peers`)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.sparse.linalg import LinearOperator

import plugstream as ps
from plugstream.base.errors import InputError, PlugstreamWarning

SHAPE = (5, 4)


class Called:
    """An operator as SCICO has them: called, with `adj`, shapes and dtypes; one image at a time."""

    def __init__(self, matrix: np.ndarray, output_shape: tuple[int, ...], input_dtype: type = np.float32) -> None:
        self.matrix, self.output_shape = matrix, output_shape
        self.input_shape, self.input_dtype = SHAPE, input_dtype
        self.output_dtype = np.result_type(matrix.dtype, input_dtype)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        assert x.shape == self.input_shape
        assert x.dtype == self.input_dtype
        out = (self.matrix @ x.reshape(-1)).reshape(self.output_shape)
        out.flags.writeable = False  # as JAX's are
        return out

    def adj(self, z: np.ndarray) -> np.ndarray:
        assert z.shape == self.output_shape
        return (self.matrix.conj().T @ z.reshape(-1)).reshape(self.input_shape)


def matrices(*rows: int, complex: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    found = [rng.standard_normal((m, 20)) + 1j * complex * rng.standard_normal((m, 20)) for m in rows]
    return found if complex else [one.real for one in found]


def as_scipy(a: np.ndarray) -> LinearOperator:
    return LinearOperator(a.shape, matvec=lambda x: a @ x, rmatvec=lambda z: a.conj().T @ z, dtype=a.dtype)


def assert_same_as_matrices(fidelity, dense: list[np.ndarray], y: list[np.ndarray], lead: tuple[int, ...] = ()) -> None:
    """Value and gradient over some views are those of the matrices, written out in double precision."""
    kind = torch.complex128 if fidelity.dtype.is_complex else torch.float64
    x = torch.randn(*lead, *SHAPE, dtype=kind)
    views = [2, 0, 2]
    value, gradient = 0.0, 0.0
    for i in views:
        a, b = torch.from_numpy(dense[i]), torch.from_numpy(y[i])
        kind = torch.promote_types(a.dtype, x.dtype)
        residual = x.flatten(-2).to(kind) @ a.T.to(kind) - b
        value = value + residual.abs().square().sum(-1) / 2 / len(views)
        back = (residual @ a.conj().to(residual.dtype)).reshape(x.shape) / len(views)
        gradient = gradient + (back if x.is_complex() else back.real)
    x = x.to(fidelity.dtype)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if fidelity.dtype.itemsize <= 8 and kind.to_real() != x.real.dtype else {}
    torch.testing.assert_close(fidelity.value(x, views).double(), value, **tolerance)
    torch.testing.assert_close(fidelity.gradient(x, views).to(gradient.dtype), gradient, **tolerance)


@pytest.mark.parametrize("kind", ["operators", "matrices", "sparse", "called"])
@pytest.mark.parametrize("complex", [False, True])
def test_gradients_are_those_of_the_matrices(kind: str, complex: bool) -> None:
    dense = matrices(6, 6, 6, complex=complex)
    y = [np.ones(6, a.dtype) for a in dense]
    make = {
        "operators": as_scipy,
        "matrices": lambda a: a,
        "sparse": scipy.sparse.csr_array,
        "called": lambda a: Called(a, (2, 3), np.float64),
    }[kind]
    fidelity = ps.from_operators([make(a) for a in dense], y, image_shape=SHAPE)
    assert fidelity.dtype == torch.float64
    assert fidelity.data_shape == ((2, 3) if kind == "called" else (6,))
    assert_same_as_matrices(fidelity, dense, y, lead=(2,))


def test_views_of_different_sizes_and_libraries_go_together() -> None:
    dense = matrices(6, 3, 9)
    y = [np.arange(len(a), dtype=float) for a in dense]
    operators = [as_scipy(dense[0]), Called(dense[1], (3,), np.float64), dense[2]]
    fidelity = ps.from_operators(operators, y, image_shape=SHAPE)
    assert_same_as_matrices(fidelity, dense, y)
    tops = [np.linalg.norm(a, 2) ** 2 for a in dense]
    np.testing.assert_allclose(fidelity.lipschitz_views, tops, rtol=0.02)
    # No loss counts what is beyond the end of a view, not even one that is not zero at zero.
    x = torch.rand(SHAPE, dtype=torch.float64)
    counts = ps.from_operators(operators, y, image_shape=SHAPE, loss=ps.Poisson())
    alone = ps.from_operators([dense[1]], [y[1]], image_shape=SHAPE, loss=ps.Poisson())
    torch.testing.assert_close(counts.value(x, [1]), alone.value(x))
    torch.testing.assert_close(counts.gradient(x, [1]), alone.gradient(x))


def test_complex_images_are_asked_for_or_told_by_the_operator() -> None:
    dense = matrices(6, 6, 6, complex=True)
    y = [np.ones(6, complex) for _ in dense]
    asked = ps.from_operators([as_scipy(a) for a in dense], y, image_shape=SHAPE, dtype=torch.complex128)
    told = ps.from_operators([Called(a, (6,), np.complex128) for a in dense], y)
    for fidelity in (asked, told):
        assert fidelity.dtype == torch.complex128
        assert_same_as_matrices(fidelity, dense, y)


def test_a_real_operator_is_shown_real_numbers_only() -> None:
    dense = matrices(6, 6, 6)

    def strict(a: np.ndarray) -> LinearOperator:
        def product(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
            assert np.isrealobj(x)
            return matrix @ x

        return LinearOperator(a.shape, lambda x: product(a, x), rmatvec=lambda z: product(a.T, z), dtype=a.dtype)

    operators, y = [strict(a) for a in dense], [np.ones(6)] * 3
    fidelity = ps.from_operators(operators, y, image_shape=SHAPE, dtype=torch.complex128)
    assert_same_as_matrices(fidelity, dense, y)
    mixed = matrices(6, complex=True)[0]
    fidelity = ps.from_operators([operators[0], mixed, operators[2]], [y[0], y[1] * 1j, y[2]], image_shape=SHAPE)
    assert fidelity.data_dtype == torch.complex128
    assert_same_as_matrices(fidelity, [dense[0], mixed, dense[2]], [y[0], y[1] * 1j, y[2]])


def test_single_precision_of_the_operators_is_that_of_images() -> None:
    dense = [a.astype(np.float32) for a in matrices(6, 6, 6)]
    fidelity = ps.from_operators([as_scipy(a) for a in dense], np.ones((3, 6)), image_shape=SHAPE)
    assert fidelity.dtype == torch.float32
    assert_same_as_matrices(fidelity, dense, [np.ones(6, np.float32)] * 3)


def test_a_run_ends_where_lasso_does() -> None:
    """ISTA with a soft threshold on views of SciPy: the optimality conditions of d + lambda ||x||_1 hold at its end."""
    dense = matrices(12, 12)
    y = [a @ np.eye(20)[3] for a in dense]
    fidelity = ps.from_operators([as_scipy(a) for a in dense], y, image_shape=SHAPE)
    algorithm = ps.ProximalGradient(fidelity, ps.SoftThreshold(), lam=0.5, momentum="nesterov", restart="gradient")
    x = ps.solve(algorithm, iterations=300).image
    slope, active = fidelity.gradient(x), x != 0
    torch.testing.assert_close(slope[active], -0.5 * x[active].sign(), atol=1e-5, rtol=0)
    assert float(slope.abs().max()) <= 0.5 + 1e-5
    assert int(active.sum()) < 20


def test_one_operator_is_one_view() -> None:
    (a,) = matrices(6)
    assert ps.from_operators(as_scipy(a), np.ones(6)).n_views == 1
    assert ps.from_operators([a], np.ones(6)).image_shape == (1, 20)


def test_a_wrong_adjoint_is_warned_of() -> None:
    (a,) = matrices(6)
    wrong = LinearOperator(a.shape, matvec=lambda x: a @ x, rmatvec=lambda z: 1.02 * (a.T @ z), dtype=a.dtype)
    with pytest.warns(PlugstreamWarning, match=r"adjoint of view 0 .* 1.5 %"):
        ps.from_operators([wrong], np.ones((1, 6)))


@pytest.mark.parametrize(
    ("operators", "y", "message"),
    [
        ([], np.ones(3), "at least one operator"),
        (["text"], [np.ones(3)], "not a known kind of linear operator"),
        ([np.ones((6, 20)), np.ones((6, 19))], np.ones((2, 6)), "operator 1 takes 19 values"),
        ([np.ones((6, 20))] * 2, np.ones((3, 6)), "2 operators, but the data of 3"),
        ([np.ones((6, 20))] * 2, [np.ones(6), np.ones(5)], "operator 1 gives 6 values, but its data has 5"),
        ([np.ones((6, 20))], [np.ones(6) * 1j], "data is complex"),
        ([LinearOperator((6, 20), matvec=lambda x: x[:6], dtype=float)], [np.ones(6)], "no adjoint"),
    ],
)
def test_what_does_not_fit_is_refused(operators: list[object], y: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ps.from_operators(operators, y)


def test_the_document_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    exec(compile(code, "bridges.md", "exec"), {})
    assert float(capsys.readouterr().out.split()[0]) > 25  # dB


def test_pylops_tells_its_shapes_and_a_stack_is_its_views() -> None:
    pylops = pytest.importorskip("pylops", reason="PyLops is not installed; `make test-peers` has it")
    one = pylops.FirstDerivative(SHAPE, axis=0, edge=True)
    two = pylops.FirstDerivative(SHAPE, axis=1, edge=True)
    three = pylops.signalprocessing.FFT2D(SHAPE, dtype=np.complex128)
    x = np.random.default_rng(0).standard_normal(SHAPE)
    y = [op @ x for op in (one, two, three)]
    dense = [op.todense() for op in (one, two, three)]
    fidelity = ps.from_operators([one, two, three], y)
    assert fidelity.image_shape == SHAPE
    assert_same_as_matrices(fidelity, dense, [np.asarray(b).reshape(-1) for b in y])
    stack = pylops.VStack([one, two, one])
    stacked = ps.from_operators(stack, stack @ x.reshape(-1))
    assert (stacked.n_views, stacked.data_shape) == (3, SHAPE)
    flat = [np.asarray(b).reshape(-1) for b in (y[0], y[1], y[0])]
    assert_same_as_matrices(stacked, [dense[0], dense[1], dense[0]], flat)


def test_operators_of_scico_itself() -> None:
    """Its X-ray transform, an angle a view, against the matrices of its columns."""
    xray = pytest.importorskip("scico.linop.xray", reason="SCICO is not installed")
    operators = [xray.XRayTransform2D(SHAPE, np.array([angle]), det_count=6) for angle in (0.1, 0.9, 2.0)]
    units = np.eye(20, dtype=np.float32).reshape(20, *SHAPE)
    dense = [np.stack([np.asarray(op(unit)).ravel() for unit in units], axis=1) for op in operators]
    y = [np.arange(6, dtype=np.float64) + k for k in range(3)]
    fidelity = ps.from_operators(operators, [data.astype(np.float32).reshape(1, 6) for data in y])
    x = torch.rand(SHAPE)
    wanted = sum(a.T @ (a @ x.numpy().ravel() - data) for a, data in zip(dense, y, strict=True)) / 3
    torch.testing.assert_close(fidelity.gradient(x).flatten().double(), torch.from_numpy(wanted), rtol=1e-4, atol=1e-4)
