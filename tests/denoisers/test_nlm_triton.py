"""The Triton form of NLM against the torch form: in Triton's interpreter here, on a GPU where there is one."""

from __future__ import annotations

import json

import pytest
import torch

from effort import effort, thorough
from plugstream import NLM
from plugstream.denoisers.nlm import reference, triton_form
from triton_interpreter import DEVICE, emulated, interpret, needs_triton

LARGE = ((2, 7, 10), (2, 1, 2))
CASES = effort([((2, 4, 5), (1, 1, 2)), ((1, 4, 3), (2, 1, 1))], [LARGE, ((1, 4, 3), (3, 2, 1))])


def check() -> dict[str, float]:
    """The largest difference on small images with values from 0 to 1, and 1 where an image should not have moved."""
    answer = {}
    generator = torch.Generator().manual_seed(0)
    for shape, parameters in CASES:
        images, width = torch.rand(shape, generator=generator), torch.tensor([0.2, 0.0])[: shape[0]]
        kept, want = images.clone(), reference.nlm(images.double(), width, *parameters)
        there = images.to(DEVICE)
        got = triton_form.nlm(there, width.to(DEVICE), *parameters).cpu()
        answer[f"{shape}"] = float((got - want).abs().max())
        if not torch.equal(got[width == 0], images[width == 0]) or not torch.equal(there.cpu(), kept):
            answer[f"{shape}"] = 1.0
        matrix = triton_form.form(there[0], 0.3, *parameters)
        fixed = reference.apply(reference.form(images[0].double(), 0.3, *parameters), images.double())
        answer[f"{shape} guided"] = float((triton_form.apply(matrix, there).cpu() - fixed).abs().max())
    return answer


@thorough
@emulated
def test_the_kernels_are_the_torch_form_in_the_interpreter() -> None:
    answer = json.loads(interpret(__file__))
    assert len(answer) == 4
    assert max(answer.values()) <= 1e-5, answer


@pytest.mark.gpu
@needs_triton
def test_on_a_gpu() -> None:
    assert max(check().values()) <= 2e-5
    images = torch.rand(4, 61, 83, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.02, 0.0, 0.1, 0.05])
    for guide in (None, images[2]):
        nlm = NLM(guide)
        got = nlm(images.cuda(), sigma.cuda())
        assert float((got.cpu() - nlm(images.double(), sigma)).abs().max()) <= 1e-4
        assert torch.equal(nlm(images.cuda(), sigma.cuda()), got)
    nlm, still, graph = NLM(), images.cuda(), torch.cuda.CUDAGraph()
    want = nlm(still, 0.1)
    with torch.cuda.graph(graph):
        captured = nlm(still, 0.1)
    graph.replay()
    assert torch.equal(captured, want)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(check()))
