"""Models and denoisers that people write with NumPy alone give what the same ones in torch do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import plugstream as ps
from plugstream.models import ModelBase

MATRICES = np.random.default_rng(0).standard_normal((5, 6, 12))


class Rows(ModelBase):
    """In NumPy, by means that no tensor has."""

    n_views, image_shape, data_shape = 5, (3, 4), (6,)
    device, dtype, data_dtype = torch.device("cpu"), torch.float64, torch.float64

    def forward(self, image, views=None):
        used = MATRICES if views is None else MATRICES[views]
        return (used @ image.copy().reshape(*image.shape[:-2], 1, 12, 1)).squeeze(-1)

    def adjoint(self, data, views=None):
        used = MATRICES if views is None else MATRICES[views]
        return np.einsum("vmn,...vm->...n", used, data.astype(float)).reshape(*data.shape[:-2], 3, 4)


def forward(image, views):
    return Rows.forward.__wrapped__.__wrapped__(None, image, views)


def adjoint(data, views):
    return Rows.adjoint.__wrapped__.__wrapped__(None, data, views)


MODELS = {
    "class": Rows(),
    "functions": ps.FunctionModel(
        forward, adjoint=adjoint, n_views=5, image_shape=(3, 4), data_shape=(6,), linear=True, dtype=torch.float64
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_numpy_is_its_matrix(name):
    model, dense = MODELS[name], ps.MatrixModel(list(MATRICES), (3, 4))
    image, data = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    views = torch.tensor([4, 0, 2])
    assert torch.allclose(model.forward(image, views), dense.forward(image, views))
    assert torch.allclose(model.adjoint(data, views), dense.adjoint(data, views))
    assert ps.check_adjoint(model) < 1e-12
    images = []
    for m in (model, dense):
        fidelity = ps.LeastSquares(m, np.ones((5, 6)))
        clip = lambda z, sigma: np.clip(z.copy(), 0, None)  # noqa: E731 (which a tensor has not)
        algorithm = ps.ProximalGradient(fidelity, clip, sigma=0.1, sampler=2, step_size=0.01)
        images.append(ps.solve(algorithm, iterations=6).image)
    assert torch.allclose(*images, rtol=1e-6, atol=1e-8)


def test_without_an_adjoint_numpy_is_refused_with_what_to_do():
    model = ps.FunctionModel(forward, n_views=5, image_shape=(3, 4), data_shape=(6,), linear=True, dtype=torch.float64)
    with pytest.raises(ps.InputError, match="adjoint="):
        model.adjoint(torch.ones(5, 6, dtype=torch.float64))
    with pytest.raises(ps.InputError, match="linear=True"):
        ps.FunctionModel(forward, adjoint=adjoint, n_views=5, image_shape=(3, 4), data_shape=(6,))


def test_a_persons_own_error_is_shown_not_the_second_ones():
    def wrong(image, sigma):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        ps.solve(ps.ProximalGradient(ps.LeastSquares(MODELS["class"], np.ones((5, 6))), wrong, sigma=0.1, sampler=2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ps.Epochs("10"), "a batch must be a whole number"),
        (lambda: ps.Epochs(2.5), "a batch must be a whole number"),
        (lambda: ps.Grid("32", 0.1), "two whole sizes"),
        (lambda: ps.Grid((8, 8), "1 mm"), "a pixel width"),
        (lambda: ps.load_picture("camera", 0), "at least 1"),
        (lambda: ps.load_picture("camera", "64"), "a whole number"),
        (lambda: ps.save_image(np.zeros((4, 4)), "no/such/folder/x"), "does not exist; make it first"),
        (lambda: ps.snr(torch.ones(4, 4), torch.ones(4, 5)), "must be alike"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(call, words):
    with pytest.raises(ps.InputError, match=words):
        call()


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"sigma": "1%"}, "not '1%'"), ({"iterations": 1.5}, "a whole number, not 1.5"), ({"iterations": "3"}, "not '3'")],
)
def test_settings_of_another_type_are_refused_in_one_line(regression, settings, words):
    algorithm = ps.ProximalGradient(regression, ps.TV(), sigma=settings.pop("sigma", 0.1), sampler=2)
    with pytest.raises(ps.InputError, match=words):
        ps.solve(algorithm, **settings)
