"""Certificates of volumes, complex images and channels: the constants of known operators, and of adapters."""

from __future__ import annotations

import math

import pytest
import torch

from plugstream import BM3D, TV, FromFunction, InputError, MagnitudePhase, RealImaginary, SoftThreshold
from plugstream.algorithms.pairs import Pair, error_of
from plugstream.studies.certificates import certify

F64, C128 = torch.float64, torch.complex128


def image(*shape: int, dtype: torch.dtype = F64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_a_turn_of_the_complex_plane_has_its_constants():
    """D z = e^{i a} z is a rotation of real and imaginary parts: L = 1, |1 - e^{ia}|, and theta >= 1."""
    angle = 0.7
    turn = FromFunction(lambda z: z * complex(math.cos(angle), math.sin(angle)), takes_complex=True)
    found = certify(turn, 0.1, {"noise": image(5, 6, dtype=C128)}, steps=3, products=12)
    assert found.lipschitz.lipschitz == pytest.approx(1, abs=1e-6)
    assert found.residual.residual == pytest.approx(abs(1 - complex(math.cos(angle), math.sin(angle))), rel=1e-6)
    assert found.theta.theta == pytest.approx(1, rel=1e-4)
    assert found.averaged_status == "refuted"
    assert found.asymmetry == pytest.approx(math.sin(angle) / 1.0, rel=0.3)
    assert found.shape == (5, 6)
    assert found.dtype == "complex128"


@pytest.mark.parametrize(
    ("denoiser", "shape", "dtype", "channels"),
    [
        (SoftThreshold(), (3, 4, 5), F64, False),
        (TV(tol=1e-8, max_iterations=50_000), (3, 4, 5), F64, False),
        pytest.param(TV(tol=1e-8, max_iterations=50_000), (5, 6), C128, False, marks=pytest.mark.slow),
        (SoftThreshold(), (2, 4, 5), C128, True),
    ],
    ids=["soft volume", "tv volume", "tv complex", "soft complex channels"],
)
def test_what_is_proved_is_not_contradicted(denoiser, shape, dtype, channels):
    found = certify(
        denoiser, 0.3, {"noise": image(*shape, dtype=dtype)}, steps=3, products=9, halvings=4, channels=channels
    )
    assert found.averaged == 0.5
    assert not found.contradicted
    assert found.averaged_status == "proved"
    assert 0.1 < found.lipschitz.lipschitz <= 1
    assert " x ".join(map(str, shape)) in found.text()
    assert len(found.pairs) > 10


def test_magnitude_and_phase_is_refuted_where_real_and_imaginary_is_not():
    shrink = SoftThreshold()
    start = {"noise": image(4, 5, dtype=C128)}
    whole = certify(RealImaginary(shrink), 1.0, start, steps=0, products=9)
    assert whole.averaged_status == "proved"
    grow = FromFunction(lambda z: 1.5 * z)
    assert certify(MagnitudePhase(grow), 1.0, start, steps=0, products=9).nonexpansive_status == "refuted"


def test_a_denoiser_of_images_is_certified_with_its_adapter():
    found = certify(BM3D(), 0.1, {"noise": image(8, 8, 8).float()}, steps=0, products=3, halvings=2)
    assert found.denoiser == "SliceMean(BM3D)"
    assert found.averaged_status != "proved"


def test_pairs_of_complex_images_count_both_parts():
    a, b = image(3, 4, dtype=C128), image(3, 4, dtype=C128, seed=1)
    turned = Pair(a, b, 1j * a, 1j * b)
    assert turned.lipschitz == pytest.approx(1)
    assert turned.residual == pytest.approx(math.sqrt(2))
    assert turned.theta == pytest.approx(1)
    assert turned.distance == pytest.approx(float((a - b).norm()))
    assert error_of(RealImaginary(SoftThreshold()), a[None], a[None]) == pytest.approx(
        8 * torch.finfo(F64).eps * float(a.norm())
    )


def test_images_that_differ_in_kind_are_refused():
    with pytest.raises(InputError, match="bring them to one shape and dtype"):
        certify(TV(), 0.1, {"one": image(4, 5), "other": image(5, 4)})
    with pytest.raises(InputError, match="needs at least 8 x 8 x 8"):
        certify(BM3D(), 0.1, {"one": image(4, 5, 6)})
