"""Fourier ptychography against a direct sum in double precision, autograd, and a dense matrix."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from plugstream import Amplitude, InputError, LossFidelity, Poisson
from plugstream.fidelity.misfit import relative_misfits, unexplained_light
from plugstream.models import FPMModel
from plugstream.models.fpm_geometry import Microscope, light_directions, make_pupil, spiral, zernike
from plugstream.models.recording import fit_recording

WAVE, PIXEL = 6.3e-7, 1.8e-6
SCOPE = Microscope((10, 9), PIXEL, WAVE, 0.13, (25, 24))
RANDOM = np.random.default_rng(3)


def made(views=5, light=2.5, dtype=torch.float64, **options):
    """Light from anywhere, and a pupil with a phase and an amplitude of its own."""
    directions = RANDOM.uniform(-0.17, 0.17, (views, 2))
    pupil = make_pupil(SCOPE, 3e-5, [0, 0.2, -0.1, 0.4, 0, 0.1, 0, 0.3])
    pupil = pupil * (1 + 0.2 * RANDOM.standard_normal(pupil.shape))
    return FPMModel(directions, SCOPE, pupil, light=light, dtype=dtype, **options)


def numbers(*shape):
    return torch.from_numpy(RANDOM.standard_normal(shape) + 1j * RANDOM.standard_normal(shape))


def test_a_view_is_the_sum_over_waves_that_its_aperture_lets_through():
    model, image = made(), numbers(25, 24)
    seen = model.forward(image)
    (height, width), (rows, columns) = SCOPE.image, SCOPE.shape
    y, x = np.arange(height)[:, None], np.arange(width)[None, :]
    (top, bottom), (left, right) = SCOPE.box
    for view, (sx, sy) in enumerate(model.directions):
        step = np.array([sy * rows, sx * columns]) * PIXEL / WAVE
        whole = np.rint(step)
        pupil = model.pupil.numpy()
        moved = sum(  # SciPy's linear interpolation, of an aperture that is dark outside
            part * ndimage.shift(value, step - whole, order=1, mode="grid-constant")
            for part, value in ((1, pupil.real), (1j, pupil.imag))
        )
        want = np.zeros(SCOPE.shape, complex)
        for m in range(top, bottom + 1):
            for n in range(left, right + 1):
                wave = np.exp(-2j * np.pi * ((m + whole[0]) * y / height + (n + whole[1]) * x / width))
                amount = (image.numpy() * wave).sum() / (height * width) * moved[m - top, n - left]
                a, b = np.arange(rows)[:, None], np.arange(columns)[None, :]
                want += np.sqrt(2.5) * amount * np.exp(2j * np.pi * (m * a / rows + n * b / columns))
        assert np.abs(seen[view].numpy() - want).max() <= 1e-12 * np.abs(want).max()


def test_adjoint_norms_and_overlap_are_those_of_the_matrix():
    model, views = made(), torch.tensor([3, 0, 3])
    basis = torch.eye(25 * 24, dtype=torch.complex128).reshape(-1, 25, 24)
    matrix = model.forward(basis, views).reshape(600, 3, -1).permute(1, 2, 0)  # (B, data, pixels)
    data = numbers(3, 10, 9)
    back = torch.einsum("bdp,bd->p", matrix.conj(), data.reshape(3, -1)).reshape(25, 24)
    assert torch.allclose(model.adjoint(data, views), back, atol=1e-13)
    norms = torch.linalg.matrix_norm(matrix, 2).square()
    assert torch.allclose(model.squared_norms(views, 0.1), norms, rtol=1e-10)
    normal = torch.einsum("bdp,bdq->pq", matrix.conj(), matrix)
    values = torch.linalg.eigvalsh(normal)
    overlap = model.overlap(views)
    assert torch.allclose(values, overlap.flatten().sort().values, atol=1e-12)
    image = numbers(25, 24)  # and they belong to the waves that they are said to
    spectrum = torch.fft.fftshift(torch.fft.fft2(image))
    through = torch.fft.ifft2(torch.fft.ifftshift(overlap * spectrum))
    assert torch.allclose((normal @ image.flatten()).reshape(25, 24), through, atol=1e-12)


def test_light_of_a_near_led_is_a_spherical_wave():
    """What is seen of an object under exp(i pi |r - p|^2 / (wavelength z)), written out."""
    z, field = 2e-3, [n * PIXEL for n in SCOPE.shape]
    image = numbers(*SCOPE.image)
    y, x = ((np.arange(n) - n // 2) * step for n, step in zip(SCOPE.image, SCOPE.spacing, strict=True))
    for steps in ((2, -1), (0, 3)):  # of the spectrum, in rows and columns
        down, across = (step * WAVE * z / length for step, length in zip(steps, field, strict=True))
        wave = np.exp(1j * np.pi / (WAVE * z) * ((y[:, None] - down) ** 2 + (x[None, :] - across) ** 2))
        spectrum = np.fft.fftshift(np.fft.fft2(image.numpy() * wave, norm="forward"))
        (top, bottom), (left, right) = SCOPE.box
        r, c = (n // 2 for n in SCOPE.image)
        through = np.zeros(SCOPE.shape, complex)
        for m in range(top, bottom + 1):
            for n in range(left, right + 1):
                through[m, n] = make_pupil(SCOPE)[m - top, n - left] * spectrum[r + m, c + n]
        want = np.abs(np.fft.ifft2(through, norm="forward"))
        directions = [[steps[1] * WAVE / field[1], steps[0] * WAVE / field[0]]]
        model = FPMModel(directions, SCOPE, curvature=1 / z, dtype=torch.float64)
        assert np.allclose(model.forward(image)[0].abs().numpy(), want, rtol=0, atol=1e-12 * want.max())


def test_a_guard_is_a_wider_field_of_which_the_camera_sees_the_middle():
    options = {"curvature": 40.0, "dtype": torch.float64}
    directions, image, data = RANDOM.uniform(-0.17, 0.17, (3, 2)), numbers(25, 24), numbers(3, 6, 5)
    wide, model = FPMModel(directions, SCOPE, **options), FPMModel(directions, SCOPE, guard=2, **options)
    assert model.data_shape == (6, 5)
    assert torch.equal(model.forward(image), wide.forward(image)[:, 2:-2, 2:-2])
    inside = (model.forward(image).conj() * data).sum()
    assert torch.allclose(inside, (image.conj() * model.adjoint(data)).sum())
    for one in (wide, model):
        both = one.adjoint(one.forward(image))
        assert torch.allclose(one.normal()(image), both, atol=1e-12)
        assert torch.allclose(one.untransform(one.transform(image)), image)
    with pytest.raises(InputError, match="leaves no camera"):
        FPMModel(directions, SCOPE, guard=4)


@pytest.mark.parametrize("loss", [Amplitude(), Poisson()], ids=["amplitude", "poisson"])
def test_the_gradient_is_autograds(loss):
    model = made(gains=RANDOM.uniform(1, 12, 5), backgrounds=RANDOM.uniform(0, 1, 5))
    data = torch.from_numpy(RANDOM.poisson(9.0, (5, 10, 9)).astype(float))
    fidelity, image = LossFidelity(model, data, loss), numbers(25, 24).requires_grad_()
    (want,) = torch.autograd.grad(fidelity.value(image, [4, 1]), image)
    got = fidelity.gradient(image.detach(), [4, 1])
    assert (got - want).abs().max() <= 1e-10 * want.abs().max()


def test_an_empty_object_is_seen_as_the_light_and_dark_beyond_the_aperture():
    directions = [[0.0, 0.0], [0.06, -0.06], [0.21, 0.0]]
    model = FPMModel(directions, SCOPE, light=7.0, dtype=torch.float64)
    seen = model.forward(torch.ones(SCOPE.image)).abs().square()
    assert torch.allclose(seen[:2], torch.tensor(7.0, dtype=torch.float64))
    assert seen[2].max() <= 1e-20
    assert model.bright.tolist() == [True, True, False]


def test_gains_and_backgrounds_are_taken_out_and_masked_pixels_do_not_count():
    mask = np.ones((3, 10, 9), bool)
    mask[1, 2, 3] = False
    gains, beside = np.array([1.0, 12, 2]), np.array([0.0, 0.5, 1])
    model = FPMModel(np.zeros((3, 2)), SCOPE, gains=gains, backgrounds=beside, mask=mask, dtype=torch.float64)
    image = numbers(25, 24)
    waves = model.forward(image)
    data = torch.from_numpy(gains)[:, None, None] * waves.abs().square() + torch.from_numpy(beside)[:, None, None]
    for loss in (Amplitude(), Poisson(floor=1e-12)):
        fidelity = LossFidelity(model, data, loss)
        assert float(fidelity.value(image)) <= 1e-20 + 1e-9 * isinstance(loss, Poisson)
        data[1, 2, 3] = 77.0  # which is masked
        assert float(fidelity.value(image, [2, 1])) <= 1e-20 + 1e-9 * isinstance(loss, Poisson)
        assert float(fidelity.value(1.1 * image, [1])) > 1e-3


def test_views_of_less_than_a_photon_a_pixel_are_explained_by_their_light():
    model, image = made(light=0.3), 0.1 * numbers(25, 24) + 1
    counts = torch.from_numpy(RANDOM.poisson(model.forward(image).abs().square().numpy()).astype(float))
    fidelity = LossFidelity(model, counts, Poisson())
    assert relative_misfits(fidelity, image).nanmean() > 0.9
    assert unexplained_light(fidelity, image, torch.arange(5)) < 0.8
    assert unexplained_light(fidelity, 0 * image, torch.arange(5)) == 1


def test_gain_and_background_are_fitted_in_closed_form():
    light = torch.from_numpy(RANDOM.uniform(0, 3, (4, 6, 5)))
    gains, beside = torch.tensor([12.0, 0.5, 3.0, 1.0]).double(), torch.tensor([0.3, 0.0, 2.0, 0.1]).double()
    found = fit_recording(light, gains[:, None, None] * light + beside[:, None, None])
    assert torch.allclose(found[0], gains)
    assert torch.allclose(found[1], beside, atol=1e-12)
    g, b = fit_recording(light, (light - 0.5).clamp_min(0))  # with b < 0 it is left out
    assert (b == 0).all()
    assert torch.allclose(g, (light * (light - 0.5).clamp_min(0)).sum((1, 2)) / light.square().sum((1, 2)))
    g, b = fit_recording(torch.ones(1, 4, 4), torch.full((1, 4, 4), 5.0))  # a view without detail
    assert (g.item(), b.item()) == (5.0, 0.0)


def test_light_through_a_slide_obeys_snell():
    places = np.array([[0, 0], [4e-3, 0], [-20e-3, 30e-3], [1.0, -3.0]])
    for thickness, index in ((0.0, 1.0), (1e-3, 1.52), (20e-3, 1.9)):
        sines = light_directions(places, 90e-3, thickness, index)
        sine = np.hypot(*sines.T)
        reached = 90e-3 * sine / np.sqrt(1 - sine**2) + thickness * sine / np.sqrt(index**2 - sine**2)
        assert np.allclose(reached, np.hypot(*places.T), rtol=1e-12)
        assert np.allclose(sines[:, 0] * places[:, 1], sines[:, 1] * places[:, 0], atol=1e-15)


def test_leds_go_in_a_spiral_and_zernikes_polynomials_are_orthonormal():
    assert spiral(10).tolist() == [
        [0, 0], [1, 0], [1, 1], [0, 1], [-1, 1], [-1, 0], [-1, -1], [0, -1], [1, -1], [2, -1]
    ]  # fmt: skip
    assert len({tuple(place) for place in spiral(225).tolist()}) == 225
    assert np.abs(spiral(225)).max() == 7
    nodes, weights = np.polynomial.legendre.leggauss(12)
    rho, theta = np.meshgrid(np.sqrt((nodes + 1) / 2), np.arange(32) * np.pi / 16, indexing="ij")
    each = np.stack([zernike(j, rho, theta) for j in range(15)])
    products = np.einsum("jrt,krt,r->jk", each, each, weights / 2 / 32)
    assert np.allclose(products, np.eye(15), atol=1e-12)


def test_defocus_is_free_space():
    """A plane wave under an angle comes back from defocus with the phase of its way."""
    pupil = make_pupil(SCOPE, 5e-6)
    sy, sx = SCOPE.frequencies()
    inside = np.hypot(sy, sx) <= SCOPE.aperture
    k = 2 * np.pi / WAVE
    want = np.exp(1j * 5e-6 * (np.sqrt(k**2 * (1 - sy**2 - sx**2)) - k))
    assert np.allclose(pupil[inside], want[inside], atol=1e-9)
    assert not pupil[~inside].any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: FPMModel([[0.5, 0.0]], SCOPE), "view 0 sees finer detail than an image of 24 columns"),
        (lambda: FPMModel([[0.0, 0.0]], SCOPE, np.ones((3, 3))), "the pupil is"),
        (lambda: FPMModel([[0.0, 0.0]], SCOPE, gains=[1, 2]), "one for each of 1 views"),
        (lambda: Microscope((10, 9), PIXEL, WAVE, -0.1, (25, 24)), "aperture must be > 0"),
        (lambda: Microscope((10, 9), PIXEL, WAVE, 0.1, (8, 24)), "at least as many pixels"),
        (lambda: light_directions([[0, 0]], 0.0), "distance to the LEDs"),
        (lambda: zernike(-1, np.ones(1), np.ones(1)), "begins with 0"),
    ],
)
def test_what_cannot_be_is_refused(change, said):
    with pytest.raises(InputError, match=said):
        change()
