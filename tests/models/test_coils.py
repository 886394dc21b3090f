"""Coil maps from the middle of k-space: those of known coils come back, up to a phase that coils share."""

import numpy as np
import pytest

from plugstream import InputError
from plugstream.images.simulated import shepp_logan
from plugstream.instruments.mri_simulation import ring_coils
from plugstream.models.coils import adaptive_maps, espirit_maps, find_calibration


def coil_images(shape, coils):
    """True maps (coils, *shape), and the images of a phantom through them."""
    maps = ring_coils(shape, coils)
    maps = maps[:, 0] if len(shape) == 2 else maps
    image = shepp_logan(shape) * np.exp(0.5j * np.linspace(-1, 1, shape[-1]))
    return maps, maps * image, np.abs(image)


def middle_of(images, width):
    axes = tuple(range(1, images.ndim))
    kspace = np.fft.fftshift(np.fft.fftn(np.fft.ifftshift(images, axes), axes=axes, norm="ortho"), axes)
    return kspace[(slice(None), *(slice(n // 2 - width // 2, n // 2 - width // 2 + width) for n in images.shape[1:]))]


def agreement(found, true, where):
    """The mean over pixels of |<found, true>|^2, which for unit vectors is 1 at most."""
    products = np.abs((found.conj() * true).sum(0)) ** 2
    return float(products[where].mean())


@pytest.mark.parametrize("shape", [(48, 40), (12, 16, 14)])
def test_maps_of_known_coils_come_back(shape):
    maps, images, amplitude = coil_images(shape, 4)
    inside = amplitude > 0.1
    width = 16 if len(shape) == 2 else 10
    found = espirit_maps(middle_of(images, width), shape, kernel=5 if len(shape) == 2 else 3)
    assert found.shape == maps.shape
    assert np.allclose((np.abs(found) ** 2).sum(0), 1, atol=1e-4)
    assert agreement(found, maps, inside) > (0.99 if len(shape) == 2 else 0.97)
    cropped = espirit_maps(middle_of(images, width), shape, kernel=5 if len(shape) == 2 else 3, crop=0.9)
    assert (np.abs(cropped).sum(0) == 0)[~inside].mean() > (np.abs(cropped).sum(0) == 0)[inside].mean()


def test_an_image_becomes_nearly_real():
    _, images, amplitude = coil_images((48, 40), 4)
    found = espirit_maps(middle_of(images, 16), (48, 40), kernel=5, real_image=True)
    image = (found.conj() * images).sum(0)
    inside = amplitude > 0.1
    assert np.abs(image.imag[inside]).sum() < 0.1 * np.abs(image.real[inside]).sum()
    assert (image.real[inside] > 0).mean() > 0.97
    plain = espirit_maps(middle_of(images, 16), (48, 40), kernel=5)
    assert np.allclose(np.abs(plain), np.abs(found), atol=1e-5)


def test_adaptive_maps_agree():
    maps, images, amplitude = coil_images((48, 40), 4)
    assert agreement(adaptive_maps(images), maps, amplitude > 0.1) > 0.99
    assert (adaptive_maps(images, crop=0.1)[:, 0, 0] == 0).all()


def test_the_middle_is_found():
    sampled = np.random.default_rng(0).random((40, 30)) < 0.2
    sampled[14:25, 10:22] = True
    sampled[13, 10], sampled[25, 11], sampled[14, 9], sampled[15, 22] = (False,) * 4
    assert find_calibration(sampled) == (slice(14, 25), slice(10, 22))
    sampled[20, 15] = False
    with pytest.raises(InputError, match="was not sampled"):
        find_calibration(sampled)
    few = np.zeros((40, 30), bool)
    few[19:21, 14:16] = True
    with pytest.raises(InputError, match="too small"):
        find_calibration(few)
