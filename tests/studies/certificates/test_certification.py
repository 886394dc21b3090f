"""The certificate against operators whose constants are known in closed form, and of the denoisers we ship."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch

from effort import cases, effort
from plugstream import BM3D, NLM, TV, Box, Damping, FromFunction, FromModule, InputError, SoftThreshold
from plugstream.algorithms.pairs import Pair, bisect, damping_for, measure
from plugstream.studies.certificates import certify
from plugstream.studies.certificates.search import Secants, asymmetry, make_adjoint, worst_directions

F64 = torch.float64
SHAPE = (8, 9)
N = 72


def image(seed: int, shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def orthogonal(seed: int, n: int = N) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=F64))[0]


def linear(matrix: torch.Tensor, *, gradients: bool = True) -> FromFunction:
    """z to M z, for autograd or, without gradients, for finite differences."""

    def function(z: torch.Tensor) -> torch.Tensor:
        out = (z.flatten(-2) @ matrix.T.to(z)).reshape(z.shape)
        return out if gradients else out.detach()

    return FromFunction(function)


def rotation(angle: float, scale: float = 1.0) -> torch.Tensor:
    """Every plane of 36 turned by one angle, in a random basis: normal, and not symmetric."""
    c, s = math.cos(angle), math.sin(angle)
    block = torch.block_diag(*[torch.tensor([[c, -s], [s, c]], dtype=F64)] * (N // 2))
    q = orthogonal(5)
    return scale * q @ block @ q.T


def dense_constants(matrix: torch.Tensor) -> tuple[float, float, float]:
    """The constants of M by dense algebra: theta = 1 / (2 least eigenvalue of the symmetric part of (I - M)^-1)."""
    a = torch.eye(N, dtype=F64) - matrix
    inverse = torch.linalg.inv(a)
    least = float(torch.linalg.eigvalsh((inverse + inverse.T) / 2)[0])
    norm = torch.linalg.matrix_norm
    return float(norm(matrix, 2)), float(norm(a, 2)), 1 / (2 * least) if least > 0 else math.inf


def symmetric(values: torch.Tensor) -> torch.Tensor:
    q = orthogonal(1)
    return q @ torch.diag(values) @ q.T


SPECTRUM = torch.linspace(-0.6, 0.95, N, dtype=F64)
CLOSED = {
    # name: (matrix, Lipschitz constant of D, of I - D, theta)
    "symmetric": (symmetric(SPECTRUM), 0.95, 1.6, 0.8),
    "positive": (symmetric(torch.linspace(0.1, 1, N, dtype=F64)), 1.0, 0.9, 0.45),
    "minus": (-torch.eye(N, dtype=F64), 1.0, 2.0, 1.0),
    "rotation": (rotation(1.2), 1.0, math.sqrt(2 - 2 * math.cos(1.2)), 1.0),
    "shrinking rotation": (
        rotation(0.7, 0.8),
        0.8,
        math.sqrt(1 - 1.6 * math.cos(0.7) + 0.64),
        (1 - 1.6 * math.cos(0.7) + 0.64) / (2 * (1 - 0.8 * math.cos(0.7))),
    ),
    "damped rotation": (
        0.7 * torch.eye(N, dtype=F64) + 0.3 * rotation(2.0),
        math.sqrt(0.49 + 0.09 + 0.42 * math.cos(2.0)),
        0.3 * math.sqrt(2 - 2 * math.cos(2.0)),
        0.3,
    ),
    "projection": (symmetric((torch.arange(N) < 20).to(F64)), 1.0, 1.0, 0.5),
    "reflection": (symmetric(2.0 * (torch.arange(N) < 20).to(F64) - 1), 1.0, 2.0, 1.0),
    "too strong": (symmetric(torch.linspace(-1.5, 0.9, N, dtype=F64)), 1.5, 2.5, 1.25),
    "growing": (symmetric(torch.linspace(0, 1.1, N, dtype=F64)), 1.1, 1.0, math.inf),
}


def attained(matrix: torch.Tensor, *, gradients: bool, products: int = 36) -> tuple[float, float, float]:
    secants = Secants(linear(matrix, gradients=gradients), 0.1, image(0), 0.01)
    adjoint = make_adjoint(secants)
    assert (adjoint is not None) == gradients
    pairs = worst_directions(secants, adjoint, products=products)
    return tuple(max(getattr(pair, goal) for pair in pairs) for goal in ("lipschitz", "residual", "theta"))


@pytest.mark.parametrize(("name", "gradients"), cases(CLOSED, [True, False]))
def test_the_constants_of_closed_forms_are_found_to_one_percent(name, gradients):
    matrix, *wanted = CLOSED[name]
    found = attained(matrix, gradients=gradients)
    for value, exact in zip(found, wanted, strict=True):
        assert value == exact == math.inf or value == pytest.approx(exact, rel=1e-2)
        assert value <= exact * (1 + 1e-6)  # a lower bound, never more


@pytest.mark.parametrize("seed", range(effort(1, 3)))
def test_a_map_that_is_not_normal_needs_the_adjoint(seed):
    rng = torch.Generator().manual_seed(seed)
    matrix = torch.randn(N, N, generator=rng, dtype=F64) / (2 * math.sqrt(N)) - 0.2 * torch.eye(N, dtype=F64)
    wanted = dense_constants(matrix)
    for value, exact in zip(attained(matrix, gradients=True, products=60), wanted, strict=True):
        assert value == pytest.approx(exact, rel=1e-2)
    for value, exact in zip(attained(matrix, gradients=False), wanted, strict=True):
        assert 0.5 * exact < value <= exact * (1 + 1e-6)  # still a lower bound


def test_minus_identity_is_nonexpansive_and_not_averaged():
    found = certify(linear(-torch.eye(N, dtype=F64)), 0.1, {"noise": image(1)}, steps=0)
    assert found.nonexpansive_status == "open"  # a search proves nothing
    assert found.lipschitz.lipschitz <= 1
    assert found.lipschitz.lipschitz == pytest.approx(1)
    assert found.averaged_status == "refuted"
    assert found.theta.theta == pytest.approx(1, abs=1e-6)
    assert found.proofs() == []
    assert any("any damping" in line for line in found.refutations())
    half = certify(Damping(linear(-torch.eye(N, dtype=F64)), 0.5), 0.1, {"noise": image(1)}, steps=0)
    assert half.averaged_status == "open"
    assert half.theta.theta == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("theta", [1.25, 3.0, 47.0])
def test_the_damping_suggested_makes_it_averaged(theta):
    expansive = (1 - 2 * theta) * torch.eye(N, dtype=F64)  # I - M = 2 theta I, whose theta is theta
    assert dense_constants(expansive)[2] == pytest.approx(theta)
    damping = damping_for(theta)
    assert 0.8 / theta < damping < 1 / theta
    damped = (1 - damping) * torch.eye(N, dtype=F64) + damping * expansive
    assert dense_constants(damped)[2] < 1
    assert damping_for(math.inf) is None


def test_asymmetry_is_that_of_frobenius_norms():
    rng = torch.Generator().manual_seed(3)
    matrix = torch.randn(N, N, generator=rng, dtype=F64)
    matrix = (matrix + matrix.T) / 2 + 0.3 * (matrix - matrix.T) / 2
    norm = torch.linalg.matrix_norm
    wanted = float(norm((matrix - matrix.T) / 2) / norm(matrix))
    for gradients in (True, False):
        secants = Secants(linear(matrix, gradients=gradients), 0.1, image(0), 0.01)
        adjoint = make_adjoint(secants)
        assert asymmetry(secants, adjoint, probes=24)[0] == pytest.approx(wanted, rel=0.15)
    secants = Secants(linear(symmetric(SPECTRUM), gradients=False), 0.1, image(0), 0.01)
    value, floor = asymmetry(secants, None)
    assert value <= 3 * floor < 1e-6


def test_an_adjoint_that_is_not_of_the_jacobian_is_not_used():
    flat = 0.1 * image(2, (16, 16))  # noise of the size of sigma, so that pixels look alike
    guided = NLM(search=2, patch=1)  # its guide is the image, and detached
    assert make_adjoint(Secants(guided, 0.1, flat, 0.001)) is None
    fixed = Damping(NLM(image(3, (16, 16)), search=2, patch=1), 0.5)
    assert make_adjoint(Secants(fixed, 0.1, flat, 0.001)) is not None
    refuses = FromFunction(lambda z: torch.abs(z, out=torch.empty_like(z)))
    assert make_adjoint(Secants(refuses, 0.1, flat, 0.001)) is None


def test_a_network_is_differentiated_in_the_precision_it_has():
    torch.manual_seed(0)
    net = torch.nn.Conv2d(1, 1, 3, padding=1, bias=False)
    secants = Secants(FromModule(net), 0.1, image(0, (12, 12)).float(), 0.1)
    adjoint = make_adjoint(secants)
    assert adjoint is not None
    pairs = worst_directions(secants, adjoint, products=30)
    basis = torch.eye(144).reshape(144, 1, 12, 12)
    with torch.no_grad():
        exact = float(torch.linalg.matrix_norm(net(basis).reshape(144, 144), 2))
    assert max(pair.lipschitz for pair in pairs) == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize("seed", range(5))
def test_halving_never_loses(seed):
    curved = FromFunction(lambda z: torch.sin(3 * z).roll(1, -1) * 0.8)
    pair = measure(curved, 0.1, image(seed), image(seed + 10))
    for goal in ("lipschitz", "residual", "theta"):
        values = [getattr(pair, goal)]
        values += [getattr(p, goal) for p in bisect(curved, 0.1, pair, lambda p, g=goal: getattr(p, g), halvings=8)]
        assert all(after >= before * (1 - 1e-9) for before, after in itertools.pairwise(values))


def test_a_jump_is_found_and_told():
    jumps = FromFunction(lambda z: torch.where(z > 0.5, z - 0.05, z + 0.05))
    found = certify(jumps, 0.1, {"noise": image(1)}, steps=0, products=8)
    assert found.jumps
    assert found.nonexpansive_status == "refuted" or found.theta.theta > 1
    smooth = certify(FromFunction(lambda z: 0.9 * torch.sin(z)), 0.1, {"noise": image(1)}, steps=0, products=8)
    assert not smooth.jumps


def test_tv_is_half_averaged_by_construction_and_nothing_contradicts_it():
    found = certify(TV(tol=1e-5, max_iterations=50_000), 0.2, {"noise": image(1, (12, 12))}, products=10, steps=3)
    assert found.averaged == 0.5
    assert (found.nonexpansive_status, found.averaged_status) == ("proved", "proved")
    assert not found.contradicted
    assert 0.4 < found.theta.theta <= 0.5
    assert any("0.5-averaged" in line for line in found.proofs())
    assert any("proximal operator" in line for line in found.proofs())
    assert found.refutations() == []


def test_a_wrong_claim_is_contradicted():
    claimed = FromFunction(lambda z: -0.8 * z, averaged=0.5)
    found = certify(claimed, 0.1, {"noise": image(1)}, steps=0, products=6)
    assert found.contradicted
    assert "CONTRADICTED" in found.text()


@pytest.mark.parametrize("denoiser", [SoftThreshold(), Box(0.2, 0.8), NLM(image(3, (16, 16)), search=2, patch=1)])
def test_what_is_proved_is_never_contradicted(denoiser):
    found = certify(denoiser, 0.3, {"noise": image(1, (16, 16))}, products=12, steps=3)
    assert not found.contradicted
    assert found.theta.theta <= 0.5
    assert found.lipschitz.lipschitz <= 1


def test_bm3d_is_measured_and_reported_as_it_is():
    found = certify(BM3D(), 0.1, {"noise": image(1, (24, 24)).float()}, products=6, steps=3)
    assert found.proofs() == []
    assert found.how == "finite differences"
    assert found.accuracy == pytest.approx(8 * torch.finfo(torch.float32).eps, rel=0.2)


def test_every_number_comes_with_the_images_that_attain_it():
    denoiser = linear(CLOSED["shrinking rotation"][0])
    found = certify(denoiser, 0.1, {"one": image(1), "two": image(2)}, products=12, steps=2)
    arrays = found.witnesses()
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    for goal, name in (("lipschitz", "lipschitz"), ("residual", "residual_lipschitz"), ("theta", "theta")):
        first, second = (torch.from_numpy(arrays[f"{goal}_{end}"]) for end in ("first", "second"))
        again = measure(denoiser, 0.1, first, second)
        assert getattr(again, goal) == pytest.approx(told["measured"][name]["at_least"], rel=1e-9)
        assert np.allclose(arrays[f"{goal}_out_first"], again.out_first.numpy(), rtol=0, atol=1e-12)
    z, out = arrays["lipschitz_first"], arrays["lipschitz_out_first"]
    assert told["measured"]["boundedness"]["at_least"] >= ((z - out) ** 2).mean() / 0.01 * (1 - 1e-9)
    assert told["images"] == ["one", "two"]


def test_errors_of_the_outputs_are_taken_off():
    z, w = image(1), image(2)
    exact = Pair(z, w, 0.5 * z, 0.5 * w)
    blurred = Pair(z, w, 0.5 * z, 0.5 * w, error=0.01)
    assert exact.lipschitz == pytest.approx(0.5)
    assert exact.theta == pytest.approx(0.25)
    for goal in ("lipschitz", "residual", "theta"):
        assert getattr(blurred, goal) < getattr(exact, goal)
    assert Pair(z, z, z, z).lipschitz == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: certify(TV(), 0.0, {"a": image(0)}), "sigma > 0"),
        (lambda: certify(TV(), 0.1, {}), "at least one image"),
        (lambda: certify(BM3D(), 0.1, {"a": image(0, (4, 4))}), "at least 8"),
        (lambda: certify(TV(), 0.1, {"a": image(0)[None, None]}), r"\(H, W\)"),
        (lambda: certify(TV(), 0.1, {"a": image(0)}, sizes=()), "sizes"),
    ],
)
def test_what_cannot_be_certified_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_outputs_that_fell_short_of_their_tolerance_count_for_nothing():
    short = TV(tol=1e-9, max_iterations=3)
    assert measure(short, 0.2, image(1), image(2)).lipschitz == 0
    with pytest.raises(InputError, match="never reached its tolerance"):
        certify(short, 0.2, {"noise": image(1)}, steps=0, products=4)
