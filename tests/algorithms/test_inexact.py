"""ADMM whose prox is hardly begun: against its formula in NumPy, against ADMM, and itself after a stop."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from plugstream import (
    ADMM,
    TV,
    All,
    BornGeometry,
    BornModel,
    FromFunction,
    Grid,
    Huber,
    InexactADMM,
    InputError,
    LeastSquares,
    LossFidelity,
    ShiftedViews,
    SoftThreshold,
    Uniform,
)
from plugstream.models.kspace import centered_voxels
from plugstream.models.mri import MRIModel
from plugstream.models.scattering import ScatteringModel
from plugstream.models.trajectories import radial_spokes
from problems import dense, run


def test_the_formula(regression):
    """Two steps of conjugate gradients, with the circulant as a dense matrix, on the views of each step."""
    a, y, gamma = regression.model._stack.numpy(), regression.data().numpy(), 0.3
    sampler = Uniform(2, seed=3)
    shrink = FromFunction(lambda z, s: z / (1 + s))
    algorithm = InexactADMM(regression, shrink, sigma=0.3, step_size=gamma, sampler=sampler, products=2)
    unit = torch.eye(20, dtype=torch.float64).reshape(20, 4, 5)
    p = algorithm.circulant.solve(unit, 1 / gamma).reshape(20, 20).numpy()
    x = z = s = np.zeros(20)
    for k in range(5):
        views = sampler.draw(k, regression.available).views.numpy()
        matrix = np.eye(20) / gamma + sum(a[i].T @ a[i] for i in views) / 2
        r = (x - s) / gamma + sum(a[i].T @ y[i] for i in views) / 2 - matrix @ z
        w = d = p @ r
        for _ in range(2):
            alpha = r @ w / (d @ matrix @ d)
            z, new = z + alpha * d, r - alpha * matrix @ d
            after = p @ new
            d, r, w = after + new @ after / (r @ w) * d, new, after
        x = (z + s) / 1.3
        s = s + z - x
    state = run(algorithm, 5)
    np.testing.assert_allclose(state.image.numpy().ravel(), x, atol=1e-10)
    np.testing.assert_allclose(state.s.numpy().ravel(), s, atol=1e-10)


def test_with_many_products_it_is_admm(regression):
    parts = {"sigma": 0.2, "step_size": 0.5, "sampler": ShiftedViews(2)}
    want = run(ADMM(regression, SoftThreshold(), **parts), 8).image
    found = run(InexactADMM(regression, SoftThreshold(), products=40, **parts), 8).image
    torch.testing.assert_close(found, want, rtol=0, atol=1e-8)


def test_with_a_small_tolerance_it_is_admm_whatever_the_step(regression):
    for gamma in (0.5, 50.0):
        parts = {"sigma": 0.2, "step_size": gamma, "sampler": All()}
        want = run(ADMM(regression, SoftThreshold(), **parts), 8).image
        found = run(InexactADMM(regression, SoftThreshold(), products=100, tol=1e-6, **parts), 8).image
        torch.testing.assert_close(found, want, rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="tolerance of a prox"):
        InexactADMM(regression, SoftThreshold(), sigma=0.2, tol=1.0)


@pytest.mark.parametrize("products", [1, 2])
def test_with_all_views_it_comes_to_the_same_solution(regression, products):
    parts = {"lam": 0.5, "step_size": 0.5, "sampler": All()}
    state = run(InexactADMM(regression, SoftThreshold(), products=products, **parts), 100)
    a, b = dense(regression)
    x = state.image.numpy().ravel()
    g = a.T @ (a @ x - b) / 5  # of the mean over views; sigma of the soft threshold is its root
    zero = x == 0
    assert zero.any()
    assert not zero.all()
    np.testing.assert_allclose(g[~zero], -0.5 * np.sign(x[~zero]), atol=1e-6)
    assert np.abs(g[zero]).max() <= 0.5 + 1e-6
    algorithm = InexactADMM(regression, SoftThreshold(), products=products, **parts)
    assert float(algorithm.residual(state)) < 1e-12


def test_two_and_two_steps_are_four_to_the_bit(regression):
    def made():
        return InexactADMM(regression, SoftThreshold(), sigma=0.2, step_size="10/L", sampler=Uniform(2, seed=1))

    half, whole = run(made(), 2), run(made(), 4)
    again = run(made(), 2, half)
    assert torch.equal(again.image, whole.image)
    assert torch.equal(again.s, whole.s)


def test_images_of_a_stack_are_as_one_by_one(regression):
    data = torch.stack([regression.data(), -2 * regression.data()])
    both = LeastSquares(regression.model, data)
    parts = {"sigma": 0.2, "step_size": 0.4, "sampler": Uniform(2)}
    stack = run(InexactADMM(both, SoftThreshold(), **parts), 3).image
    alone = run(InexactADMM(LeastSquares(regression.model, data[1]), SoftThreshold(), **parts), 3).image
    torch.testing.assert_close(stack[1], alone)


def problem(name):
    if name == "born":
        geometry = BornGeometry.rings(Grid((16, 16), 0.01), 0.06, views=16, receivers=32, radius=0.8)
        model, truth = BornModel(geometry), torch.zeros(16, 16)
    else:
        voxels = centered_voxels((16, 16), 0.01)
        model, truth = MRIModel(radial_spokes(voxels, 20), voxels), torch.zeros(16, 16, dtype=torch.complex64)
    truth[4:10, 5:12] = 1
    return LeastSquares(model, model.forward(truth), prox_tol=1e-6), truth


@pytest.mark.parametrize("name", ["born", "mri"])
def test_the_circulant_pays(name):
    """Two products with it come nearer to the exact prox than three do without."""
    fidelity, truth = problem(name)
    gamma = 10 / fidelity.lipschitz_max
    want = fidelity.prox(torch.zeros_like(truth), gamma)
    algorithm = InexactADMM(fidelity, TV(), sigma=0.1, step_size=gamma)
    zero, whole = torch.zeros_like(truth), All().draw(0, fidelity.available)

    def error(products, plain=False):
        other = replace(algorithm, products=products)
        if plain:
            other.__dict__["circulant"] = replace(other.circulant, spectrum=torch.zeros_like(other.circulant.spectrum))
        start = other.init(zero)
        return float((other._data_image(start, gamma, whole) - want).norm() / want.norm())

    assert error(2) < 0.1
    assert error(2) < error(3, plain=True)


@pytest.fixture(scope="module")
def scattering():
    geometry = BornGeometry.rings(Grid((6, 5), 0.006), 0.05, views=5, receivers=11, radius=0.25)
    model = ScatteringModel(geometry, dtype=torch.float64, tolerance=1e-11)
    x = 0.8 * torch.rand(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return LeastSquares(model, model.forward(x))


def test_a_nonlinear_model_has_steps_of_gauss_and_newton(scattering):
    """Against dense algebra with the Jacobian at z, or where z was when the model was last linearised."""
    model, gamma, n = scattering.model, 3e4, 30
    z, x, s = torch.rand(3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for at in (z, z + 0.05 * z.flip(0)):
        units = torch.eye(n, dtype=torch.float64).reshape(n, 6, 5)
        jacobian = torch.view_as_real(model.derivative(at.expand(n, 6, 5), units)).reshape(n, -1).T / 5**0.5
        miss = torch.view_as_real(scattering.data() - model.forward(at)).flatten() / 5**0.5
        normal = jacobian.T @ jacobian + torch.eye(n, dtype=torch.float64) / gamma
        right = jacobian.T @ (miss + jacobian @ at.flatten()) + (x - s).flatten() / gamma
        algorithm = InexactADMM(scattering, SoftThreshold(), sigma=0.1, step_size=gamma, products=60, tol=1e-12)
        after = algorithm.step(replace(algorithm.init(x), z=z, s=s, at=at))
        assert torch.equal(after.at, at)
        assert torch.allclose(after.z, torch.linalg.solve(normal, right).reshape(6, 5), rtol=1e-6, atol=1e-8)


def test_steps_of_gauss_and_newton_come_to_the_object_and_go_on_to_the_bit(scattering):
    algorithm = InexactADMM(scattering, SoftThreshold(), sigma=1e-9, step_size=1e7, products=60, tol=1e-10)
    half = run(algorithm, 4)
    whole, other = run(algorithm, 4, half), replace(algorithm, fidelity=scattering.with_views(scattering.model))
    assert torch.equal(whole.image, run(other, 4, half).image)
    assert not torch.equal(whole.at, whole.z)
    assert float(scattering.value(whole.image) / scattering.value(torch.zeros(6, 5, dtype=torch.float64))) < 1e-4


def test_what_it_cannot_do_is_refused(regression):
    with pytest.raises(InputError, match="at least one product"):
        InexactADMM(regression, SoftThreshold(), sigma=0.1, products=0)
    robust = LossFidelity(regression.model, regression.data().abs(), Huber(1.0))
    with pytest.raises(InputError, match="least squares, and for losses of waves"):
        InexactADMM(robust, SoftThreshold(), sigma=0.1).init()
