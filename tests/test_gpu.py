"""The same mathematics on a GPU: models, fidelity, denoisers and a whole run against the CPU's double precision."""

import numpy as np
import pytest
import torch

from plugstream import (
    ADMM,
    SNR,
    TV,
    BornGeometry,
    BornModel,
    Distance,
    Epochs,
    LeastSquares,
    MatrixModel,
    ProximalGradient,
    ShiftedViews,
    Stop,
    simulate,
    solve,
)

pytestmark = pytest.mark.gpu
F64 = torch.float64


def test_born_agrees_with_the_cpu_in_double():
    geometry = BornGeometry.paper(64)
    x = torch.rand(2, 64, 64, dtype=F64)
    views = [7, 0, 59, 7]
    exact = BornModel(geometry, method="dense", dtype=F64)
    cases = [("dense", torch.float32, 3e-6), ("dense", F64, 1e-12), ("fast", torch.float32, 1e-5), ("fast", F64, 1e-9)]
    for method, dtype, bound in cases:
        model = BornModel(geometry, method=method, device="cuda", dtype=dtype)
        for index in (None, views):
            want = exact.forward(x, index)
            got = model.forward(x.to("cuda", dtype), index)
            assert got.is_cuda
            assert float((got.cpu() - want).abs().max() / want.abs().max()) < bound
            back = model.adjoint(got, index).cpu()
            wanted = exact.adjoint(want, index)
            assert float((back - wanted).abs().max() / wanted.abs().max()) < bound
        images = x.to("cuda", dtype)
        data = exact.forward(x, views)
        gradient = model.gradient(2 * images, data.to("cuda", model.data_dtype), views).cpu()
        wanted = exact.gradient(2 * x, data, views)
        assert float((gradient - wanted).abs().max() / wanted.abs().max()) < 2 * bound
        again = model.gradient(2 * images, data.to("cuda", model.data_dtype), views).cpu()
        assert torch.equal(gradient, again)
        normal = model.normal(views)(images).cpu()
        wanted = exact.normal(views)(x)
        assert float((normal - wanted).abs().max() / wanted.abs().max()) < 2 * bound
        norms = model.squared_norms(torch.tensor([3, 9]), 1e-3)
        assert torch.allclose(norms, exact.squared_norms(torch.tensor([3, 9]), 1e-3), rtol=3e-3)
        each = model.normal_each(images, torch.tensor([3, 9])).cpu()
        wanted = exact.normal_each(x, torch.tensor([3, 9]))
        assert float((each - wanted).abs().max() / wanted.abs().max()) < bound


def test_sparse_matrices_agree_with_the_cpu():
    parts = [torch.randn(6, 20, dtype=F64).mul_(torch.rand(6, 20) < 0.4).to_sparse() for _ in range(4)]
    cpu, gpu = MatrixModel(parts, (4, 5)), MatrixModel(parts, (4, 5), device="cuda")
    x = torch.randn(3, 4, 5, dtype=F64)
    y = cpu.forward(x, [2, 0])
    assert torch.allclose(gpu.forward(x.cuda(), [2, 0]).cpu(), y)
    assert torch.allclose(gpu.adjoint(y.cuda(), [2, 0]).cpu(), cpu.adjoint(y, [2, 0]))


@pytest.mark.parametrize("isotropic", [True, False])
def test_tv_agrees_with_the_cpu(isotropic):
    z = torch.rand(3, 40, 57, dtype=F64)
    tv = TV(isotropic=isotropic, low=0.1, tol=1e-4, max_iterations=5000)
    sigma = torch.tensor([0.1, 0.5, 0.0], dtype=F64)
    want, dual = tv.denoise(z, sigma)
    got, gpu_dual = tv.denoise(z.cuda(), sigma.cuda())
    assert got.is_cuda
    assert gpu_dual.is_cuda
    assert float((got.cpu() - want).norm() / want.norm()) < 2e-4
    again, _ = tv.denoise(z.cuda(), sigma.cuda(), dual.cuda())
    assert float((again.cpu() - want).norm() / want.norm()) < 2e-4


def test_a_whole_run_agrees_with_the_cpu():
    geometry = BornGeometry.paper(64)
    truth = torch.rand(8, 8).repeat_interleave(8, 0).repeat_interleave(8, 1)
    scan = simulate(BornModel(geometry), truth, snr=40)
    results = []
    for device in ("cpu", "cuda"):
        fidelity = LeastSquares(BornModel(geometry, device=device), scan.data)
        algorithm = ProximalGradient(fidelity, TV(low=0.0), sigma=0.02, sampler=ShiftedViews(10), momentum="nesterov")
        results.append(solve(algorithm, iterations=40, monitors=[SNR(truth), Distance()]))
    cpu, gpu = results
    assert gpu.image.is_cuda
    assert gpu.reason is Stop.ITERATIONS
    assert np.allclose(cpu.history["snr"].value, gpu.history["snr"].value, atol=0.02)
    assert float((cpu.image - gpu.image.cpu()).norm() / cpu.image.norm()) < 2e-3


def test_two_and_two_steps_are_four_on_a_gpu():
    geometry = BornGeometry.paper(32)
    scan = simulate(BornModel(geometry), torch.rand(32, 32))
    fidelity = LeastSquares(BornModel(geometry, device="cuda"), scan.data)
    for algorithm in (
        ProximalGradient(fidelity, TV(), sigma=0.02, sampler=Epochs(10), momentum="nesterov"),
        ADMM(fidelity, TV(), sigma=0.02, step_size="10/L"),
    ):
        whole = solve(algorithm, iterations=4)
        halves = solve(algorithm, state=solve(algorithm, iterations=2).state, iterations=2)
        assert torch.equal(whole.image, halves.image)
