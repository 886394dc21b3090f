"""Pseudo-contraction and the descent of a potential, where both are known in closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import plugstream as ps
from plugstream.algorithms.pairs import Pair
from plugstream.denoisers.networks.light_unet import LightUNet
from plugstream.studies.certificates.certificate import measure_descent


class Quadratic(ps.Denoiser):
    """z - c (z - 1), a gradient step of c/2 ||z - 1||^2."""

    def __init__(self, factor: float, claimed: float | None = None) -> None:
        self.factor = factor
        claim = factor if claimed is None else claimed
        self.potential = lambda image, sigma: 0.5 * claim * (image - 1).square().sum((-2, -1))

    def denoise(self, image, sigma, warm=None):
        return image - self.factor * (image - 1), None


def images() -> dict[str, Tensor]:
    return {"random": torch.rand(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}


def certificate(denoiser):
    return ps.certify(denoiser, 0.1, images(), products=6, steps=3, sizes=(1.0, 0.1))


@pytest.mark.parametrize(("slope", "k"), [(0.5, 0.0), (-0.5, 0.0), (-1.0, 0.0), (-3.0, 0.5), (1.2, 11.0)])
def test_k_of_a_pair_is_where_its_inequality_is_an_equality(slope, k):
    """D = slope z: 1 - slope = 2 / (1 - k), and where it lengthens along itself k is above 1."""
    u = torch.rand(6, 5, dtype=torch.float64)
    pair = Pair(u, torch.zeros_like(u), slope * u, torch.zeros_like(u))
    assert pair.pseudo == pytest.approx(k, abs=1e-9)
    if k > 0:
        w, r = slope * u, (1 - slope) * u
        assert float(w.square().sum()) == pytest.approx(float(u.square().sum() + pair.pseudo * r.square().sum()))
        assert pair.theta == pytest.approx(1 / (1 - k) if k < 1 else float("inf"))
    assert pair.curvature == pytest.approx(1 - slope)


def test_an_error_only_lowers_k():
    u = torch.rand(6, 5, dtype=torch.float64)
    for slope in (-3.0, 1.2):
        exact, rough = (Pair(u, 0 * u, slope * u, 0 * u, error).pseudo for error in (0.0, 0.01))
        assert rough < exact


@pytest.mark.parametrize(("factor", "raises"), [(0.5, False), (1.5, False), (3.0, True)])
def test_the_descent_of_a_quadratic_potential(factor, raises):
    """(g(D z) - g(z)) / ||z - D z||^2 = c/2 - 1."""
    seen = measure_descent(Quadratic(factor), 0.1, images()["random"], "here")
    assert seen.rate == pytest.approx(factor / 2 - 1, abs=1e-9)
    assert seen.mismatch < 1e-6
    out = certificate(Quadratic(factor))
    assert out.descent.rate == pytest.approx(factor / 2 - 1, abs=1e-6)
    assert out.curvature == pytest.approx(factor, rel=1e-3)
    assert out.pseudo.pseudo == pytest.approx(max(0.0, 1 - 2 / factor), abs=1e-3)
    assert not out.contradicted
    assert "a gradient step of a potential" in out.text()
    assert any("raise its potential" in line for line in out.refutations()) == raises
    content = out.as_json()
    assert content["descent"]["rate"] == out.descent.rate
    assert content["measured"]["pseudo_contraction"]["at_least"] == out.pseudo.pseudo
    assert {"pseudo_first", "pseudo_out_second"} <= set(out.witnesses())


def test_a_false_potential_is_contradicted():
    out = certificate(Quadratic(0.5, claimed=0.6))
    assert out.contradicted
    assert "CONTRADICTED" in out.text()


def test_others_have_no_descent():
    out = certificate(ps.SoftThreshold())
    assert out.descent is None
    assert out.curvature is None
    assert out.pseudo_contractive_status == "proved"
    assert "least curvature" not in out.text()


def test_the_safe_network_is_a_gradient_step_and_damped_it_descends():
    torch.manual_seed(0)
    network = LightUNet((2, 2), (1, 1), "safe").double().requires_grad_(False)
    network.tail.data *= 80
    out = certificate(ps.UNet(network))
    assert out.asymmetry < 0.01  # of differences of a finite size
    assert not out.contradicted
    most = out.residual.residual
    damped = certificate(ps.Damping(ps.UNet(network), min(0.9, 0.9 / most)))
    assert damped.descent.rate < 0
    assert damped.residual.residual < 1
