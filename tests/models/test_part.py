"""A part of each view's data judges: no step sees it, and both parts make the whole, whatever the model and loss."""

import math

import pytest
import torch

from effort import effort, thorough
from plugstream import InputError, MatrixModel, ProximalGradient
from plugstream.cli import command_parser
from plugstream.cli.common import make_experiment, settings_of
from plugstream.fidelity.by_loss import make_fidelity
from plugstream.fidelity.losses import Amplitude, Gaussian, Huber, Poisson, Transmission
from plugstream.models.part import PartOfData, judged_entries
from plugstream.models.recording import Recording
from plugstream.scans.simulation import measure

BORN = ["--size", "8", "--views", "3", "--receivers", "40", "--radius", "0.4", "--wavelength", "0.03"]
CASES = {
    "dense": (["--instrument", "born-2d", *BORN, "--method", "dense"], None),
    "fast": (["--instrument", "born-2d", *BORN, "--method", "fast"], None),
    "frequencies": (["--instrument", "born-2d", *BORN, "--frequencies", "6,9GHz"], Huber(0.1)),
    "scattering": (["--instrument", "scattering-2d", "--size", "8", "--views", "3", "--receivers", "40"], None),
    "ct": (["--instrument", "ct", "--size", "8", "--views", "3", "--photons", "1e3"], None),
    "transmission": (["--instrument", "ct", "--size", "8", "--views", "3", "--photons", "1e2"], Transmission()),
    "mri": (["--instrument", "mri", "--size", "8", "--coils", "2", "--acceleration", "4"], None),
    "weights": (["--instrument", "mri", "--size", "8", "--coils", "1"], Gaussian(deviations=torch.full((1, 1), 2.0))),
    "odt": (["--instrument", "odt-3d", "--size", "8", "--views", "2"], None),
    "ptychography": (["--instrument", "ptychography", "--frame", "8", "--across", "2"], Amplitude()),
    "modes": (
        ["--instrument", "ptychography", "--frame", "8", "--across", "2", "--probe-modes", "2"],
        Poisson(floor=0.02),
    ),
    "fpm": (["--instrument", "fpm", "--size", "24", "--camera", "8", "--leds", "2"], Amplitude()),
}


@pytest.fixture(scope="module", params=CASES)
def scan(request):
    """The model, data and loss of a small scan in double precision."""
    words, loss = CASES[request.param]
    typed = ["scan.zarr", *words]
    settings = settings_of(command_parser("simulate", typed).parse_args(typed))
    made = make_experiment(settings)
    model = made.instrument.build_model(
        made.columns, made.n_views, settings.instrument.options, device=torch.device("cpu"), dtype=torch.float64
    )
    data = measure(made, model, settings.simulate.options).read()
    return model, data if data.is_complex() else data.double(), loss


def make_image(model, seed=0):
    random = torch.Generator().manual_seed(seed)
    image = torch.rand(model.image_shape, generator=random, dtype=model.dtype.to_real())
    return (0.5 + image / 10).to(model.dtype)


def parts_of(model, data, loss):
    """The fidelity of all data, and those of what steps use and of what judges them."""
    whole = make_fidelity(model, data, loss)
    left, judge = (whole.with_views(PartOfData(model, 5, judge=which)) for which in (False, True))
    return whole, left, judge


def spoil(model, data, *, judged):
    """The stored data, with those entries changed that judge, or the others."""
    shape = data.shape[1:]
    where = torch.stack([judged_entries(5, view, shape) for view in range(model.n_views)])
    assert 0 < where.sum() < where.numel()
    return torch.where(where if judged else ~where, data * 3 + 1, data)


def test_what_judges_is_a_tenth_and_a_pure_function_of_seed_view_and_entry():
    shape = (40, 50)
    first = judged_entries(3, 7, shape)
    assert torch.equal(first, judged_entries(3, 7, shape))
    assert abs(first.float().mean() - 0.1) < 4 * math.sqrt(0.09 / 2000)
    for other in (judged_entries(3, 8, shape), judged_entries(4, 7, shape)):
        both = (first & other).float().mean()
        assert both < 0.03  # 0.01 where they have nothing to do with each other
    assert torch.equal(judged_entries(3, 7, (2000,)), first.flatten())
    assert judged_entries(3, 7, shape, 0.3).float().mean() == pytest.approx(0.3, abs=0.05)


def test_both_parts_add_up_to_the_whole(scan):
    model, data, loss = scan
    image = make_image(model)
    whole, left, judge = parts_of(model, data, loss)
    views = torch.tensor([model.n_views - 1, 0])
    for some in (None, views):
        both = left.value(image, some) + judge.value(image, some)
        torch.testing.assert_close(both, whole.value(image, some))
        assert 0 < judge.value(image, some) < left.value(image, some)
        torch.testing.assert_close(judge.values(image, some).mean(), judge.value(image, some))
        slopes = left.gradient(image, some) + judge.gradient(image, some)
        torch.testing.assert_close(slopes, whole.gradient(image, some))


def test_nothing_that_steps_do_depends_on_the_data_that_judges(scan):
    model, data, loss = scan
    image, views = make_image(model), torch.tensor([0, 1])
    whole, left, judge = parts_of(model, data, loss)
    other_whole, other, _ = parts_of(model, spoil(model, data, judged=True), loss)
    _, _, same_judge = parts_of(model, spoil(model, data, judged=False), loss)
    seen = [
        lambda d: d.value(image),
        lambda d: d.gradient(image, views),
        lambda d: d.gradient_change(image, image / 2),
        lambda d: d.data(views),
    ]
    if whole.linear and loss is None:
        seen += [lambda d: d.prox(image, 0.1), lambda d: d.backprojection()]
    for look in seen:
        assert torch.equal(look(left), look(other))
        assert torch.equal(look(judge), look(same_judge))
    assert not torch.equal(whole.gradient(image), other_whole.gradient(image))


@thorough
@pytest.mark.parametrize("gradient", effort(["plain or svrg"], ["plain", "saga", "svrg"]))
def test_steps_are_the_same_to_the_bit_whatever_the_judging_data_is(scan, gradient):
    model, data, loss = scan
    gradient = {"plain or svrg": "svrg" if model.linear else "plain"}.get(gradient, gradient)
    if gradient != "plain" and not model.linear:
        pytest.skip("gradients that remember predictions are of linear models")
    images = []
    whole = make_fidelity(model, data, loss)
    step = 1 / whole.lipschitz_max if whole.has_lipschitz else "1/L"  # which is of all data, or found on the way
    for each in (data, spoil(model, data, judged=True)):
        _, left, _ = parts_of(model, each, loss)
        algorithm = ProximalGradient(
            left, lambda x, s: x, sigma=0.1, step_size=step, sampler=2, gradient=gradient, momentum="nesterov"
        )
        state = algorithm.init(make_image(model))
        for _ in range(2):
            state = algorithm.step(state)
        images.append(state.image)
    assert torch.equal(*images)


def test_the_adjoint_belongs_to_the_forward_map_and_norms_bound_it(scan):
    model, _, _ = scan
    part = PartOfData(model, 5)
    if not model.linear:
        part = part.linearized(make_image(model) / 10)
    image, views = make_image(model, 1), torch.arange(model.n_views)
    seen = part.forward(image, views)
    z = torch.randn(seen.shape, generator=torch.Generator().manual_seed(2), dtype=seen.dtype)
    one = (seen.conj() * z).real.sum()
    other = (image.conj() * part.adjoint(z, views)).real.sum()
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8 * float(seen.abs().max()))
    bounds = part.squared_norm_bounds(views)
    for view in range(model.n_views):
        energy = part.forward(image, [view]).abs().square().sum() / image.abs().square().sum()
        assert energy <= bounds[view] * (1 + 1e-6)


def test_the_image_that_a_model_begins_with_is_of_the_data_that_steps_use(scan):
    model, data, loss = scan
    starts = [parts_of(model, each, loss)[1].start_image() for each in (data, spoil(model, data, judged=True))]
    assert (starts[0] is None and starts[1] is None) or torch.equal(*starts)


def test_what_is_fitted_to_all_data_of_a_view_is_refused():
    model = MatrixModel(torch.eye(4)[None].repeat(2, 1, 1), (2, 2))
    model.recording = Recording(torch.ones(2), torch.zeros(2), torch.tensor([True, False]))
    with pytest.raises(InputError, match="leave none to judge by"):
        PartOfData(model)
