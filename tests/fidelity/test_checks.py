"""A right adjoint and a right gradient pass the public checks; wrong ones are refused with their error."""

from __future__ import annotations

import pytest
import torch

import plugstream as ps

REAL, COMPLEX = torch.float64, torch.complex128


def _model(image: torch.dtype = REAL, data: torch.dtype = COMPLEX, wrong: str = "") -> ps.ModelBase:
    a = torch.randn(12, 5, 6, dtype=data, generator=torch.Generator().manual_seed(1))

    class Own(ps.ModelBase):
        n_views, image_shape, data_shape = 12, (2, 3), (5,)
        device, dtype, data_dtype = torch.device("cpu"), image, data

        def forward(self, x, views=None):
            rows = a if views is None else a[views]
            out = torch.einsum("bmn,...n->...bm", rows, x.flatten(-2).to(data))
            return out + 1 if wrong == "affine" else out

        def adjoint(self, z, views=None):
            rows = a if views is None else a[views]
            if wrong == "last view":
                rows, z = rows[:-1], z[..., :-1, :]
            x = torch.einsum("bmn,...bm->...n", rows if wrong == "conjugate" else rows.conj(), z)
            x = x.unflatten(-1, (2, 3))
            x = x if image.is_complex else x.real
            return x.mT.reshape(x.shape) if wrong == "transposed" else 2 * x if wrong == "factor" else x

    return Own()


@pytest.mark.parametrize(("image", "data"), [(REAL, REAL), (REAL, COMPLEX), (COMPLEX, COMPLEX)])
def test_a_right_adjoint_has_the_error_of_rounding(image, data):
    assert ps.check_adjoint(_model(image, data)) < 1e-12
    assert ps.check_adjoint(_model(image, data), views=[3, 3, 0]) < 1e-12


@pytest.mark.parametrize("image", [REAL, COMPLEX])
@pytest.mark.parametrize("wrong", ["conjugate", "factor", "transposed", "last view", "affine"])
def test_a_wrong_adjoint_is_refused_with_its_error(image, wrong):
    with pytest.raises(ps.InputError, match=r"adjoint of Own does not match forward.* relative error of "):
        ps.check_adjoint(_model(image, wrong=wrong))


def test_shapes_are_checked():
    model = _model()
    model.data_shape = (4,)
    with pytest.raises(ps.InputError, match=r"forward of 8 views gives shape \(8, 5\), not \(8, 4\)"):
        ps.check_adjoint(model)


def test_of_a_nonlinear_model_it_is_the_derivative():
    model = ps.FunctionModel(
        lambda x, views: (views + 1)[:, None] * x.flatten(-2)[..., None, :] ** 2,
        n_views=4, image_shape=(2, 3), data_shape=(6,), dtype=REAL,
    )  # fmt: skip
    assert ps.check_adjoint(model, image=torch.arange(6.0).reshape(2, 3)) < 1e-12
    with pytest.raises(ps.InputError, match="is zero here"):
        ps.check_adjoint(model)
    model.derivative = lambda image, direction, views=None: model.forward(direction, views)
    with pytest.raises(ps.InputError, match="the pullback of linearize of FunctionModel does not match derivative"):
        ps.check_adjoint(model, image=torch.arange(6.0).reshape(2, 3))


def test_born_in_single_precision_passes(small_geometry):
    assert ps.check_adjoint(ps.BornModel(small_geometry)) < 1e-5


@pytest.mark.parametrize("image", [REAL, COMPLEX])
@pytest.mark.parametrize("loss", [None, ps.Huber(0.5), ps.Amplitude()])
def test_a_right_gradient_passes_and_a_wrong_one_is_refused(image, loss):
    model = _model(image)
    truth = torch.ones(2, 3, dtype=image)
    data = model.forward(truth)
    data = data.abs() ** 2 if loss == ps.Amplitude() else data
    fidelity = ps.LeastSquares(model, data) if loss is None else ps.LossFidelity(model, data, loss)
    assert ps.check_gradient(fidelity) < 1e-6
    assert ps.check_gradient(fidelity, 2 * truth, views=[0, 5]) < 1e-6
    wrong = _model(image, wrong="factor")
    twice = ps.LeastSquares(wrong, data) if loss is None else ps.LossFidelity(wrong, data, loss)
    with pytest.raises(ps.InputError, match=r"the gradient of \w+ does not match its value.* relative error of 0\.\d"):
        ps.check_gradient(twice)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_single_precision_is_enough(dtype):
    model = _model(dtype, torch.complex64)
    assert ps.check_adjoint(model) < 1e-6
    assert ps.check_gradient(ps.LeastSquares(model, model.forward(torch.ones(2, 3, dtype=dtype)))) < 1e-3


def test_where_the_gradient_is_zero_another_image_is_asked_for():
    model = _model()
    truth = torch.ones(2, 3, dtype=REAL)
    with pytest.raises(ps.InputError, match="zero at this image"):
        ps.check_gradient(ps.LeastSquares(model, model.forward(truth)), truth)
