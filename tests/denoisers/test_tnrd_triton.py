"""The Triton form of TNRD against the torch form: in Triton's interpreter here, on a GPU where there is one."""

from __future__ import annotations

import json

import pytest
import torch

from effort import effort, thorough
from plugstream import TNRD
from plugstream.denoisers.tnrd import triton_form
from plugstream.denoisers.tnrd.influence import _Bumps, _FusedBumps
from tnrd_models import picture, random_model
from triton_interpreter import DEVICE, emulated, interpret, needs_triton


def check_images() -> dict[str, float]:
    """The largest difference on small images, in parts of the range, and 1 for a pixel that should not have moved."""
    answer = {}
    model = random_model(stages=effort(1 if DEVICE == "cpu" else 2, 2))
    prepared = triton_form.prepare(model, torch.device(DEVICE))
    full = [((1, 7, 7), [1.0]), ((3, 9, 12), [1.0, 0.0, 30.0]), ((1, 13, 8), [0.1])]
    for shape, gains in effort([((2, 7, 8), [0.0, 30.0])], full):
        images, gain = picture(*shape), torch.tensor(gains)
        kept = images.clone()
        got = triton_form.tnrd(images.to(DEVICE), gain.to(DEVICE), prepared).cpu()
        scale = torch.where(gain == 0, 1, gain).double()[:, None, None]
        want = torch.where(gain[:, None, None] == 0, images, model(images * scale) / scale)
        answer[str(shape)] = float((got - want).abs().max()) / 255
        if not torch.equal(got[gain == 0], images[gain == 0]) or not torch.equal(kept, images):
            answer[str(shape)] = 1.0
    broken = picture(1, *effort((7, 9), (25, 26)))
    broken[0, broken.shape[1] // 2, 6] = torch.nan
    got = triton_form.tnrd(broken.to(DEVICE), torch.ones(1, device=DEVICE), prepared).cpu()
    answer["nan"] = float((got.isnan() != model(broken.double()).isnan()).any())
    return answer


def check_influence() -> dict[str, float]:
    """The largest differences of the values and of both gradients."""
    generator = torch.Generator().manual_seed(0)
    answer = {}
    for shape in effort([(2, 2, 6, 7)], [(2, 5, 6, 7), (1, 3, 70, 61)]):
        x = 150 * torch.randn(shape, generator=generator)
        weights, grad = torch.randn(shape[1], 63, generator=generator), torch.randn(shape, generator=generator)
        results = []
        for device, form in ((DEVICE, _FusedBumps.apply), ("cpu", _Bumps.apply)):
            inputs = [t.to(device).requires_grad_() for t in (x, weights)]
            out = form(*inputs)
            results.append([t.detach().cpu() for t in (out, *torch.autograd.grad(out, inputs, grad.to(device)))])
        for name, a, b in zip(("value", "responses", "weights"), *results, strict=True):
            answer[f"{name} {shape}"] = float((a - b).abs().max())
    return answer


@thorough
@emulated
def test_the_kernels_are_the_torch_form_in_the_interpreter() -> None:
    images, influence = json.loads(interpret(__file__))
    assert len(images) == effort(2, 4)
    assert max(images.values()) <= 5e-5, images
    assert max(influence.values()) <= 1e-4, influence


@pytest.mark.gpu
@needs_triton
def test_on_a_gpu() -> None:
    assert max(check_images().values()) <= 5e-5
    assert max(check_influence().values()) <= 1e-3  # its exponentials are the fast ones


@pytest.mark.gpu
@needs_triton
def test_the_denoiser_on_a_gpu() -> None:
    models = [random_model(sigma=5.0), random_model(sigma=25.0, seed=1)]
    tnrd, images = TNRD(models), picture(4, 61, 83, white=1.0)
    sigma = torch.tensor([0.02, 0.0, 0.1, 0.05])
    got = tnrd(images.cuda(), sigma.cuda())
    assert float((got.cpu() - tnrd(images.double(), sigma)).abs().max()) <= 1e-4
    assert torch.equal(tnrd(images.cuda(), sigma.cuda()), got)
    assert torch.equal(tnrd(images[2].cuda(), float(sigma[2])), got[2])
    one, still, graph = TNRD(models[0]), images.cuda(), torch.cuda.CUDAGraph()
    expected = one(still, 0.02)
    with torch.cuda.graph(graph):
        captured = one(still, 0.02)
    graph.replay()
    assert torch.equal(captured, expected)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps([check_images(), check_influence()]))
