"""NumPy arrays wherever a tensor is taken, and what was meant, or a clear error, for what is no denoiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import plugstream as ps
from plugstream.base.arrays import as_tensor

RNG = np.random.default_rng(3)
MATRICES = list(RNG.standard_normal((5, 6, 20)))
DATA = RNG.standard_normal((5, 6))
IMAGE = RNG.standard_normal((4, 5))


def fidelity(data=DATA) -> ps.LeastSquares:
    return ps.LeastSquares(ps.MatrixModel(MATRICES, (4, 5)), data, lipschitz_tol=1e-6, prox_tol=1e-12)


def born() -> ps.BornModel:
    geometry = ps.BornGeometry.rings(ps.Grid((16, 16), 0.01), 0.05, views=4, receivers=9, radius=0.5)
    return ps.BornModel(geometry)


@pytest.mark.parametrize(
    "array",
    [
        IMAGE,
        IMAGE.astype(np.float32),
        IMAGE.astype(">f8"),
        IMAGE.astype(np.longdouble),
        IMAGE.T.copy().T,
        IMAGE[::-1, ::-1],
        np.broadcast_to(np.float32(2.0), (4, 5)),
        (1000 * IMAGE).astype(np.int32),
        (np.abs(1000 * IMAGE)).astype(np.uint16),
        IMAGE > 0,
        IMAGE.tolist(),
    ],
    ids=["double", "single", "swapped", "long", "columns", "backwards", "constant", "int", "uint16", "bool", "list"],
)
def test_any_array_becomes_the_same_tensor(array):
    tensor = as_tensor("it", array)
    assert tensor.is_floating_point()
    assert np.allclose(tensor.double().numpy(), np.asarray(array, dtype=np.float64), rtol=1e-6)
    assert tensor.shape == (4, 5)


@pytest.mark.parametrize("wrong", ["text", [[1, 2], [3]], None, {"a": 1}, np.array(["a"]), object()])
def test_what_is_no_array_is_refused_in_one_line(wrong):
    with pytest.raises(ps.InputError) as error:
        as_tensor("the image", wrong)
    assert "\n" not in str(error.value)
    with pytest.raises(ps.InputError, match="the image"):
        ps.TV()(wrong, 0.1)


def test_a_tensor_stays_the_one_it_was():
    tensor = torch.rand(3, 3)
    assert as_tensor("it", tensor) is tensor


def test_fidelity_and_models_take_arrays():
    f, x = fidelity(), torch.from_numpy(IMAGE)
    assert fidelity(torch.from_numpy(DATA)).value(x) == f.value(IMAGE)
    assert f.gradient(IMAGE).equal(f.gradient(x))
    assert f.gradient(IMAGE, np.array([1, 3]), weights=np.array([0.5, 2.0])).equal(
        f.gradient(x, [1, 3], torch.tensor([0.5, 2.0], dtype=torch.float64))
    )
    assert f.prox(IMAGE, 0.3, start=IMAGE).equal(f.prox(x, 0.3, start=x))
    y = f.model.forward(IMAGE)
    assert y.equal(f.model.forward(x))
    assert f.model.adjoint(y.numpy()).equal(f.model.adjoint(y))
    some = ps.LeastSquares(f.model, DATA, available=np.array([0, 2]))
    assert some.value(IMAGE) == f.value(x, [0, 2])


def test_a_model_in_single_precision_takes_numpys_double():
    model = born()
    image = RNG.random((16, 16))
    y = model.forward(image)
    assert y.dtype == torch.complex64
    assert y.equal(model.forward(torch.from_numpy(image).float()))
    assert model.adjoint(y.numpy()).equal(model.adjoint(y))
    with pytest.raises(ps.InputError, match="image is complex"):
        model.forward(image + 1j)
    function = ps.FunctionModel(lambda x, views: x.sum((-2, -1))[..., None, None].expand(*x.shape[:-2], len(views), 1),
                                n_views=2, image_shape=(16, 16), data_shape=(1,), linear=True)  # fmt: skip
    assert function.forward(image).shape == (2, 1)


def test_smooth_fidelity_takes_arrays():
    f = ps.SmoothFidelity([lambda x: x.square().sum((-2, -1))], (4, 5), lipschitz=2.0)
    x = torch.from_numpy(IMAGE).float()
    assert f.value(IMAGE) == f.value(x)
    assert f.gradient(IMAGE).equal(f.gradient(x))
    assert f.prox(IMAGE, 0.5).equal(f.prox(x, 0.5))


@pytest.mark.parametrize(
    "denoiser",
    [ps.TV(), ps.Box(0, 1), ps.SoftThreshold(), ps.Identity(), ps.NLM(search=2, patch=1), ps.BM3D(),
     ps.Damping(ps.TV(), 0.5), ps.Clip(ps.TV()), ps.FromFunction(lambda z, s: z * (1 - s)),
     ps.FromModule(nn.Conv2d(1, 1, 3, padding=1)), ps.ConvexRidge()],
    ids=lambda d: type(d).__name__,
)  # fmt: skip
def test_denoisers_take_arrays(denoiser):
    z = RNG.random((24, 24)).astype(np.float32)
    want = denoiser(torch.from_numpy(z), 0.1)
    assert denoiser(z, 0.1).equal(want)
    assert denoiser.denoise(z, 0.1)[0].equal(want)
    if denoiser.value is not None:
        assert torch.as_tensor(denoiser.value(z)).equal(torch.as_tensor(denoiser.value(torch.from_numpy(z))))


@pytest.mark.parametrize(
    ("image", "sigma", "words"),
    [
        (np.float64(3), 0.1, "needs 2 axes"),
        (np.ones(5), 0.1, "needs 2 axes"),
        (np.ones((0, 4)), 0.1, "none of them empty"),
        (np.ones((4, 4)), "0.1", "sigma must be a number"),
        (np.ones((4, 4)), None, "sigma must be a number"),
        (np.ones((3, 4, 4)), [0.1, 0.2], "one for each image"),
    ],
)
def test_what_a_denoiser_cannot_take_is_refused(image, sigma, words):
    with pytest.raises(ps.InputError, match=words):
        ps.TV()(image, sigma)


def test_a_denoiser_of_real_images_refuses_complex_ones():
    with pytest.raises(ps.InputError, match="takes real images"):
        ps.BM3D()(np.ones((8, 8)) * 1j, 0.1)


def test_scans_are_read_by_arrays_and_lists_of_views(scan):
    stored = ps.open_scan(scan)
    for views in (np.array([0, 5]), [0, 5]):
        assert stored.read(views).equal(stored.read(torch.tensor([0, 5])))
        assert stored.load().read(views).equal(stored.read(views))


def test_several_images_and_noise_levels_as_arrays():
    z, sigma = RNG.random((3, 12, 12)).astype(np.float32), np.array([0.1, 0.2, 0.3])
    assert ps.TV()(z, sigma).equal(ps.TV()(torch.from_numpy(z), torch.from_numpy(sigma)))


def test_a_run_takes_arrays_and_gives_tensors():
    truth = RNG.standard_normal((4, 5))
    results = []
    for kind in (np.asarray, torch.from_numpy):
        f = fidelity(kind(DATA))
        algorithm = ps.ProximalGradient(
            f, ps.SoftThreshold(), sigma=np.float64(0.2), sampler=ps.FixedViews(np.array([0, 3]))
        )
        monitors = [ps.SNR(kind(truth)), ps.PSNR(kind(truth)), ps.Distance()]
        results.append(ps.solve(algorithm, kind(IMAGE), iterations=5, monitors=monitors))
    a, b = results
    assert isinstance(a.image, torch.Tensor)
    assert a.image.equal(b.image)
    assert np.array_equal(a.history["snr"].value, b.history["snr"].value)


def test_simulation_and_pictures_take_arrays(tmp_path):
    image = RNG.random((16, 16)).astype(np.float32)
    scan, same = ps.simulate(born(), image), ps.simulate(born(), torch.from_numpy(image))
    assert scan.data.equal(same.data)
    assert np.array_equal(scan.truth, image)
    data = RNG.standard_normal((4, 9)) + 1j
    assert ps.add_noise(data, 20.0, mask=np.ones((4, 9), bool)).equal(ps.add_noise(torch.from_numpy(data), 20.0))
    assert ps.save_image(image, tmp_path / "a") == ps.save_image(torch.from_numpy(image), tmp_path / "b")
    assert ps.snr(image, image + 1).equal(ps.snr(torch.from_numpy(image), torch.from_numpy(image) + 1))


def test_theory_takes_arrays():
    f, x = fidelity(), torch.from_numpy(IMAGE)
    want = ps.fixed_point_distance(x, f, ps.SoftThreshold(), 0.01, 0.1)
    assert ps.fixed_point_distance(IMAGE, f, ps.SoftThreshold(), 0.01, 0.1) == want
    assert ps.fixed_point_map(IMAGE, f, ps.SoftThreshold(), 0.01, 0.1).dtype == torch.float64
    image = RNG.random((16, 16))
    found = ps.certify(ps.SoftThreshold(), 0.1, {"one": image}, products=2, steps=0, halvings=0, sizes=(1.0,))
    assert found.averaged == 0.5
    assert ps.NLM(RNG.random((8, 8)), search=2, patch=1)(np.ones((8, 8)), 0.1).allclose(torch.ones(8, 8).double())


def test_no_bound_is_none():
    z = torch.randn(8, 8)
    assert ps.TV(low=None, high=None)(z, 0.1).equal(ps.TV()(z, 0.1))
    assert ps.TV(low=None) == ps.TV()
    assert ps.Box(None, None)(z, 0.1).equal(z)
    assert ps.Clip(ps.Identity(), None, 0.5)(z, 0.1).equal(z.clamp(max=0.5))
    for make in (ps.TV, ps.Box, lambda **words: ps.Clip(ps.TV(), **words)):
        with pytest.raises(ps.InputError, match="low must be a number, or None"):
            make(low="none")
        with pytest.raises(ps.InputError, match="is empty"):
            make(low=1.0, high=0.0)


def test_a_number_is_a_sampler_of_so_many_views():
    algorithm = ps.ProximalGradient(fidelity(), ps.TV(), sigma=0.1, sampler=4)
    assert algorithm.sampler == ps.Uniform(4)
    assert ps.ADMM(fidelity(), ps.TV(), sigma=0.1, sampler=np.int64(2)).sampler == ps.Uniform(2)


@pytest.mark.parametrize("wrong", ["uniform", 2.5, True, None, ps.Uniform, [0, 1], 0, -3])
def test_what_is_no_sampler_is_refused(wrong):
    with pytest.raises(ps.InputError, match=r"a sampler must be one of|at least one view") as error:
        ps.ProximalGradient(fidelity(), ps.TV(), sigma=0.1, sampler=wrong)
    assert "\n" not in str(error.value)


class TakesSigma(nn.Module):
    """As deepinv's and many others': the noise level comes second."""

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return x * (1 - sigma.reshape(-1, 1, 1, 1))


def test_a_raw_network_is_what_its_arguments_say():
    z = torch.rand(12, 12)
    one = nn.Conv2d(1, 1, 3, padding=1)
    algorithm = ps.ProximalGradient(fidelity(), one, sigma=0.1)
    assert algorithm.denoiser(z, 0.1).equal(ps.FromModule(one)(z, 0.1))
    two = ps.ProximalGradient(fidelity(), TakesSigma(), sigma=0.1).denoiser
    assert two(z, 0.25).equal(0.75 * z)
    with torch.no_grad():
        solved = ps.solve(ps.ProximalGradient(fidelity(), TakesSigma(), sigma=0.1), iterations=2)
    assert solved.image.dtype == torch.float64


@pytest.mark.parametrize(
    "network",
    [nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1), nn.Linear(7, 7), nn.Conv2d(1, 1, 3)],
    ids=["colour", "map", "linear", "shrinks"],
)
def test_a_network_that_cannot_is_refused_with_what_to_do(network):
    algorithm = ps.ProximalGradient(fidelity(), network, sigma=0.1)
    with pytest.raises(ps.InputError, match=r"network") as error:
        ps.solve(algorithm, iterations=1)
    assert "\n" not in str(error.value)


def test_a_class_is_no_denoiser():
    with pytest.raises(ps.InputError, match=r"TV is a class; make a denoiser of it first: TV\(...\)"):
        ps.ProximalGradient(fidelity(), ps.TV, sigma=0.1)
