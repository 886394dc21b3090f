"""Models and denoisers that people write with NumPy alone give what the same ones in torch do."""

import numpy as np
import pytest
import torch

import plugstream as ps
from plugstream.models import ModelBase

MATRICES = np.random.default_rng(0).standard_normal((5, 6, 12))
SIZES = {"n_views": 5, "image_shape": (3, 4), "data_shape": (6,), "dtype": torch.float64}


def forward(image, views):
    return (MATRICES[views] @ image.copy().reshape(*image.shape[:-2], 1, 12, 1)).squeeze(-1)  # no tensor has `copy`


def adjoint(data, views):
    return np.einsum("vmn,...vm->...n", MATRICES[views], data.astype(float)).reshape(*data.shape[:-2], 3, 4)


class Rows(ModelBase):
    n_views, image_shape, data_shape, dtype, data_dtype = 5, (3, 4), (6,), torch.float64, torch.float64
    device = torch.device("cpu")

    def forward(self, image, views=None):
        return forward(image, slice(None) if views is None else views)

    def adjoint(self, data, views=None):
        return adjoint(data, slice(None) if views is None else views)


@pytest.mark.parametrize("model", [Rows(), ps.FunctionModel(forward, adjoint=adjoint, linear=True, **SIZES)])
def test_a_model_of_numpy_is_its_matrix(model):
    dense, views = ps.MatrixModel(list(MATRICES), (3, 4)), torch.tensor([4, 0, 2])
    image, data = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    assert torch.allclose(model.forward(image, views), dense.forward(image, views))
    assert torch.allclose(model.adjoint(data, views), dense.adjoint(data, views))
    images = []
    for m in (model, dense):
        prior = {"denoiser": lambda z, sigma: np.clip(z.copy(), 0, None), "sigma": 0.1}
        algorithm = ps.ProximalGradient(ps.LeastSquares(m, np.ones((5, 6))), sampler=2, step_size=0.01, **prior)
        images.append(ps.solve(algorithm, iterations=6).image)
    assert torch.allclose(*images, rtol=1e-6, atol=1e-8)


def test_without_an_adjoint_numpy_is_refused_and_a_persons_own_error_is_shown():
    with pytest.raises(ps.InputError, match="adjoint="):
        ps.FunctionModel(forward, linear=True, **SIZES).adjoint(torch.ones(5, 6, dtype=torch.float64))
    with pytest.raises(KeyError, match="mine"):
        ps.FunctionModel(lambda image, views: {}["mine"], **SIZES).forward(torch.ones(3, 4, dtype=torch.float64))


WRONG = {
    "two whole sizes": lambda d: ps.Grid("32", 0.1),
    "the size of a picture must be one whole number": lambda d: ps.load_picture("camera", 0),
    "does not exist; make it first": lambda d: ps.save_image(np.zeros((4, 4)), "no/such/folder/x"),
    "must be alike": lambda d: ps.snr(torch.ones(4, 4), torch.ones(4, 5)),
    r"the image is \(2,\)": lambda d: ps.snr([1.0, 2.0], [1.0, 2.5]),
    "but the reference": lambda d: ps.align_phase(np.ones((3, 3)), np.ones((4, 4))),
    "not '1%'": lambda d: ps.solve(ps.ProximalGradient(d, ps.TV(), sigma="1%", sampler=2)),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_no_number_is_refused_in_one_line(regression, words):
    with pytest.raises(ps.InputError, match=words):
        WRONG[words](regression)
