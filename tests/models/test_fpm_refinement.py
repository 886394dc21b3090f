"""What is refined of a microscope: by derivatives that autograd and differences confirm, and back to what it was."""

import numpy as np
import pytest
import torch

from plugstream import Amplitude, Epochs, Identity, LossFidelity, ProximalGradient
from plugstream.fidelity.misfit import relative_misfits
from plugstream.instruments.fpm_simulation import smear
from plugstream.models import FPMModel
from plugstream.models.fpm_geometry import Microscope, light_directions, make_pupil, spiral
from plugstream.models.recording import fit_recording

SCOPE = Microscope((24, 24), 1.6e-6, 6.3e-7, 0.12, (48, 48))
LIGHT = light_directions(spiral(49) * 4.5e-3, 0.09)
TRUTH = torch.from_numpy(smear(48))


def model_of(pupil=None, dtype=torch.float64, **options):
    return FPMModel(LIGHT, SCOPE, pupil, light=2.0, dtype=dtype, **options)


def half_square(prediction, data, views):
    return Amplitude().derivative(prediction, data, views)


def test_the_pupil_goes_against_its_gradient():
    model, views = model_of(), torch.tensor([3, 20, 7])
    data = model_of(make_pupil(SCOPE, 2e-5)).forward(TRUTH.to(torch.complex128), views).abs().square()
    image = TRUTH.to(torch.complex128)
    pupil = model.pupil.clone().requires_grad_()
    waves = model.with_parameters({"pupil": pupil}).forward(image, views)
    crops = model.crop(model.transform(image), views)
    weights = 1 / crops.abs().square().amax((-2, -1))
    total = (weights[:, None, None] * (waves.abs() - data.sqrt()).square() / 2).sum()
    (slope,) = torch.autograd.grad(total, pupil)
    found = model.refine(image, data, views, ["pupil"], half_square)
    change = (found["pupil"] - model.pupil)[model.inside]
    against = -slope[model.inside]
    cosine = (change.conj() * against).sum().real / (change.norm() * against.norm())
    assert cosine > 0.5  # it is divided by the light of each place, and its norm kept
    assert torch.isclose(found["pupil"].norm(), model.pupil.norm())
    slow = model.refine(image, data, views, ["pupil"], half_square, 0.1)["pupil"][model.inside]
    near = (slow - model.pupil[model.inside]).norm()
    assert 0.05 * change.norm() < near < 0.15 * change.norm()
    assert not found["pupil"][~model.inside].any()
    assert set(found) == {"pupil", "gains", "leds"}
    assert torch.equal(found["leds"], model.aim)


def test_lenses_move_with_the_leds_and_their_transpose_is_one():
    model, views = model_of(make_pupil(SCOPE, 3e-5)), torch.arange(0, 49, 5)
    parts = torch.randn(len(views), *model.box, dtype=torch.complex128)
    weights = torch.randn(*model.box, dtype=torch.complex128)
    there = (parts.conj() * model.with_parameters({"pupil": weights}).lenses(views)).sum()
    back = (model.gather_pupil(parts, views).conj() * weights).sum() * np.sqrt(2.0)
    assert torch.isclose(there, back)
    sy, sx = SCOPE.frequencies()
    round_hill = torch.from_numpy(np.exp(-((sy**2 + sx**2) / 0.06**2)))
    model = model.with_parameters({"pupil": round_hill})
    for axis in (0, 1):
        there = torch.eye(4, dtype=torch.float64)[axis] / 4
        ahead, behind = (model.with_parameters({"leds": sign * there}) for sign in (1, -1))
        same = torch.from_numpy((ahead.steps == behind.steps).all(1))[views]
        rate = 2 * (ahead.lenses(views) - behind.lenses(views))[same]
        slopes = model.slopes_of_lenses(model.lenses(views), axis)[same]
        assert len(slopes) > 2
        assert (rate - slopes).norm() < 0.1 * slopes.norm()


def test_moved_turned_and_stretched_leds_are_found_at_a_known_image():
    model = model_of(make_pupil(SCOPE, 4e-5), dtype=torch.float32)
    off = torch.tensor([0.4, -0.3, 0.03, -0.02], dtype=torch.float64)
    data = model.with_parameters({"leds": off}).forward(TRUTH).abs().square()
    now = model
    for _ in range(12):
        now = now.with_parameters(now.refine(TRUTH, data, torch.arange(49), ["leds"], half_square))
    assert (now.aim - off).abs().max() < 0.03
    assert np.allclose(now.exact, model.with_parameters({"leds": off}).exact, atol=0.2)


def test_a_view_that_is_not_predicted_keeps_the_expected_gain():
    data = torch.rand(2, 8, 8, dtype=torch.float64) + 1
    light = torch.stack([1e-9 * torch.rand(8, 8).double(), (data[1] - 0.5) / 3])
    gain, beside = fit_recording(light, data, torch.tensor([5.0, 5.0], dtype=torch.float64))
    assert gain[0] == pytest.approx(5, rel=1e-3)
    assert beside[0] == pytest.approx(0.3 * float(data[0].mean()), rel=1e-3)
    assert gain[1] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("wavelength", [4.7e-7, 5.32e-7, 6.3e-7])
def test_an_led_at_the_edge_of_the_aperture_is_no_dark_view(wavelength):
    """Its light is only cut by the edge; taken for a dark one it makes the gain of all ten times wrong."""
    scope = Microscope((24, 24), 1.6e-6, wavelength, 0.12, (60, 60))
    light = light_directions(spiral(49) * 4.5e-3, 0.09)
    beside = light.copy()
    beside[9] *= 1.003 * scope.aperture / np.hypot(*beside[9])  # the first of the third ring, now just outside
    gains = []
    for directions in (light, beside):
        real = FPMModel(directions, scope, make_pupil(scope, 1.2e-5), light=2.0)
        data = real.forward(torch.from_numpy(smear(60))).abs().square()
        surely = torch.from_numpy(real.sines > 1.05 * scope.aperture)
        data[surely] = 6 * data[surely]
        model = FPMModel(directions, scope, light=2.0)
        _, found = model.start_from(lambda some, data=data: data[some], torch.arange(49), ("gains",))
        gains.append(float(found["gains"][-1, 0]))
    assert gains[1] == pytest.approx(gains[0], rel=0.2)
    assert 3 < gains[0] < 12


def test_leds_stay_while_their_views_are_new_and_where_a_step_would_explain_them_worse():
    model = model_of(make_pupil(SCOPE, 4e-5))
    off = torch.tensor([0.4, -0.3, 0.03, -0.02], dtype=torch.float64)
    views, image = torch.arange(49), TRUTH.to(torch.complex128)
    data = model.with_parameters({"leds": off}).forward(image).abs().square()
    rows = torch.tensor([1.0, 0.0, 0.0]).double().repeat(49, 1)
    new = model.with_parameters({"gains": rows})
    assert torch.equal(new.refine(image, data, views, ["gains", "leds"], half_square)["leds"], model.aim)
    moved = model.refine(image, data, views, ["leds"], half_square)["leds"]
    misfits = [
        (m.forward(image).abs() - data.sqrt()).square().sum((1, 2)) / data.sum((1, 2))
        for m in (model, model.with_parameters({"leds": moved}))
    ]
    assert float(misfits[1].sum()) < float(misfits[0].sum())
    there = model.with_parameters({"leds": off})
    assert torch.equal(there.refine(image, data, views, ["leds"], half_square)["leds"], off)


def test_gains_of_other_views_are_fitted_and_those_of_the_first_ones_kept():
    model = model_of()
    rows = torch.tensor([[1.0, 0.0, 1.0]] * 9 + [[7.0, 0.1, 1.0]] * 51).double()
    fitted = model.with_parameters({"gains": rows})  # of sixty views, which this scan has not
    assert not fitted.recording.known.any()
    assert set(fitted.recording.gains.tolist()) == {1.0, 7.0}
    grown = model.with_parameters({"gains": rows[:20]})
    assert grown.recording.known.tolist() == [True] * 20 + [False] * 29
    assert model.with_parameters(model.parameters).recording is None


def test_gains_are_shown_where_their_leds_are():
    rows = torch.stack([torch.arange(49.0), -torch.arange(49.0), torch.ones(49)], -1)
    shown = model_of().report_parameters({"gains": rows})
    assert shown["gains-by-led"].shape == (7, 7)
    for view, (x, y) in enumerate(spiral(49).tolist()):
        assert shown["gains-by-led"][y + 3, x + 3] == view
        assert shown["backgrounds-by-led"][y + 3, x + 3] == -view
    anywhere = FPMModel(LIGHT + 0.01 * np.random.default_rng(0).uniform(-1, 1, LIGHT.shape), SCOPE)
    assert set(anywhere.report_parameters({"gains": rows})) == {"gains"}


def test_a_microscope_that_is_not_known_is_found_along_with_the_image():
    """Dark views recorded 6 times as strongly above a pedestal, defocus, and LEDs that are turned and moved."""
    real = model_of(make_pupil(SCOPE, 1.2e-5), dtype=torch.float32)
    real = real.with_parameters({"leds": torch.tensor([0.3, -0.2, 0.015, 0.01])})
    data = real.forward(TRUTH).abs().square()
    data[~real.bright] = 6 * data[~real.bright] + 0.02
    fidelity = LossFidelity(model_of(dtype=torch.float32), data, Amplitude())
    found = {}
    for names in ((), ("pupil", "gains", "leds")):
        algorithm = ProximalGradient(
            fidelity, Identity(), sigma=0.0, step_size="overlap", sampler=Epochs(12), momentum="bounded", refine=names
        )
        state = algorithm.init()
        for _ in range(40 if names else 12):
            state = algorithm.step(state)
        found[names] = float(relative_misfits(algorithm.fidelity_at(state), state.image).mean().sqrt())
    assert found["pupil", "gains", "leds"] < 0.25 * found[()]
    gains = state.parameters["gains"]
    assert 2 < float(gains[~real.bright, 0].median()) < 18  # which the object's own contrast is hard to tell from
    assert (gains[:, 2] == 1).all()
    assert float(state.parameters["leds"][2]) == pytest.approx(0.015, abs=0.005)


@pytest.mark.gpu
def test_steps_on_a_gpu_are_those_of_the_cpu():
    real = model_of(make_pupil(SCOPE, 1.2e-5), dtype=torch.float64)
    data = 3 * real.forward(TRUTH.to(torch.complex128)).abs().square() + 0.01
    found = []
    for device in ("cpu", "cuda"):
        fidelity = LossFidelity(model_of(device=device), data.to(device), Amplitude())
        algorithm = ProximalGradient(
            fidelity,
            Identity(),
            sigma=0.0,
            step_size="overlap",
            sampler=Epochs(12),
            momentum="bounded",
            refine=("pupil", "gains", "leds"),
        )
        state = algorithm.init()
        for _ in range(6):
            state = algorithm.step(state)
        found.append(state)
    one, other = found
    assert torch.allclose(one.image, other.image.cpu(), atol=1e-8)
    for name, value in one.parameters.items():
        assert torch.allclose(value, other.parameters[name].cpu(), atol=1e-7), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wavelength", "off"),
    [(4.7e-7, (1.0, 0.8, -0.02, 0.02)), (5.32e-7, (0.5, -0.4, 0.015, -0.012)), (6.3e-7, (-0.6, 0.9, 0.01, 0.015))],
)
def test_leds_arrive_where_they_are_at_several_wavelengths(wavelength, off):
    """121 LEDs, moved, turned and stretched, dark views 6 times as strong above a pedestal, a pupil out of focus."""
    scope = Microscope((48, 48), 1.845e-6, wavelength, 0.1, (192, 192))
    light = light_directions(spiral(121) * 4e-3, 0.09088, 1e-3, 1.52)
    real = FPMModel(light, scope, make_pupil(scope, 1.5e-5)).with_parameters({"leds": torch.tensor(off).double()})
    data = real.forward(torch.from_numpy(smear(192, 3))).abs().square()
    photons = 1e5  # a pixel, in bright field
    data = torch.from_numpy(np.random.default_rng(3).poisson(photons * data.numpy()) / photons).float()
    dark = torch.from_numpy(np.hypot(*real.exact.T) > scope.radius[0])
    data[dark] = 6 * (data[dark] + 0.3 * data[dark].mean((1, 2), keepdim=True))
    model = FPMModel(light, scope, make_pupil(scope, soft=True))
    algorithm = ProximalGradient(
        LossFidelity(model, data, Amplitude()),
        Identity(),
        sigma=0.0,
        step_size="overlap",
        sampler=Epochs(12),
        momentum="bounded",
        refine=("pupil", "gains", "leds"),
        refine_steps=16 * 11,
        refine_tolerance=0.05,
    )
    state = algorithm.init()
    while not state.refinement.ended:
        state = algorithm.step(state)
    moved = model.with_parameters({"leds": state.parameters["leds"]})
    away, before = (np.sqrt(((m.exact - real.exact) ** 2).sum(1).mean()) for m in (moved, model))
    assert float(state.refinement.left[1]) <= 0.05  # the pupil may come to the limit first
    assert away < 0.6  # steps of the spectrum
    assert away < before / 2
    assert float(moved.aim[2]) == pytest.approx(off[2], abs=0.002)
