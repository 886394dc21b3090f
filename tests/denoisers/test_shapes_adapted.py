"""Every denoiser of images serves volumes, channels and complex images by itself, and says what was done to it."""

from __future__ import annotations

import pytest
import torch

from plugstream import (
    ADMM,
    BM3D,
    NLM,
    TNRD,
    TV,
    Clip,
    ConvexRidge,
    FunctionModel,
    InputError,
    LeastSquares,
    ProximalGradient,
    SoftThreshold,
    adapt,
    solve,
)

KINDS = {
    "volume": ((9, 10, 11), torch.float32, False),
    "thin volume": ((3, 10, 11), torch.float32, False),
    "complex": ((10, 11), torch.complex64, False),
    "complex volume": ((9, 10, 11), torch.complex64, False),
    "channels": ((2, 10, 11), torch.float32, True),
    "complex volumes of channels": ((2, 9, 9, 9), torch.complex64, True),
}
DENOISERS = [BM3D(), NLM(search=3), TNRD(), ConvexRidge(), TV(max_iterations=20), SoftThreshold()]


def masked_identity(shape: tuple[int, ...], dtype: torch.dtype, channels: bool) -> LeastSquares:
    """Two views that see half of the pixels each."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(shape, generator=generator) < 0.5
    masks = torch.stack([mask, ~mask])
    model = FunctionModel(
        lambda image, views: image[..., None, *[slice(None)] * len(shape)] * masks[views],
        n_views=2,
        image_shape=shape,
        data_shape=shape,
        linear=True,
        dtype=dtype,
        channels=channels,
    )
    truth = torch.zeros(shape, dtype=dtype)
    truth[..., 2:7, 3:8] = 1 + (0.5j if dtype.is_complex else 0)
    noise = 0.1 * torch.randn(shape, generator=generator, dtype=dtype)
    return LeastSquares(model, (truth + noise).expand(2, *shape) * masks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("denoiser", DENOISERS, ids=lambda denoiser: type(denoiser).__name__)
def test_any_denoiser_on_any_image(denoiser, kind):
    shape, dtype, channels = KINDS[kind]
    algorithm = ProximalGradient(masked_identity(shape, dtype, channels), denoiser, sigma=0.05)
    wanted = adapt(denoiser, shape, complex=dtype.is_complex, channels=channels)
    assert algorithm.denoiser.describe() == wanted.describe()
    result = solve(algorithm, iterations=2)
    assert (result.image.shape, result.image.dtype) == (shape, dtype)
    assert 0.1 < float(result.image.abs().max()) < 2


def test_what_was_done_is_said():
    shape, dtype, channels = KINDS["complex volumes of channels"]
    algorithm = ADMM(masked_identity(shape, dtype, channels), Clip(BM3D(), None, None), sigma=0.05)
    said = algorithm.denoiser.describe()
    assert "mean of BM3D on the slices along the three axes" in said
    assert "channel by channel" in said
    assert "real and imaginary" in said


def test_a_denoiser_that_takes_channels_says_that_the_image_has_them():
    fidelity = masked_identity((2, 10, 11), torch.float32, channels=False)
    coupled = TV(channels=True)
    assert ProximalGradient(fidelity, coupled, sigma=0.05).denoiser is coupled
    assert ProximalGradient(fidelity, TV(), sigma=0.05).denoiser.ndim == 3


def test_images_are_denoised_by_the_denoiser_itself():
    fidelity = masked_identity((10, 11), torch.float32, channels=False)
    for denoiser in DENOISERS:
        assert ProximalGradient(fidelity, denoiser, sigma=0.05).denoiser is denoiser


def test_a_volume_that_is_too_small_in_every_direction_is_refused():
    fidelity = masked_identity((7, 7, 11), torch.float32, channels=False)
    with pytest.raises(InputError, match=r"7 x 7 x 11, but the denoiser needs at least 8 x 8 x 8: .*BM3D"):
        ProximalGradient(fidelity, BM3D(), sigma=0.05)
