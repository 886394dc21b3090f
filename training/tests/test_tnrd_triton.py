"""The Triton form of a step of TNRD against the torch form: in the interpreter, and on a GPU where there is one."""

from __future__ import annotations

import json

import pytest
import torch

from effort import effort
from plugstream.denoisers.tnrd.model import diffuse
from tnrd_models import picture, random_model
from training import tnrd_triton
from triton_interpreter import DEVICE, emulated, interpret, needs_triton


def check_stage() -> dict[str, float]:
    """The largest differences of a stage and its gradients in single precision from the torch form in double."""
    if DEVICE == "cpu":  # the interpreter does every loop, also those beyond the images
        tnrd_triton._BACK.update(LOOPS=5)
        tnrd_triton._SUMS.update(BLOCK=512, LOOPS=2)
    answer = {}
    for shape in effort([(1, 7, 7)], [(1, 7, 7), (2, 13, 10)]):
        generator = torch.Generator().manual_seed(0)
        model = random_model(stages=1)
        stage = (model.kernels()[0], model.log_reaction.exp()[0], model.weights[0])
        given = (picture(*shape, seed=1), picture(*shape, seed=2), *stage)
        grad = torch.randn(shape, generator=generator)
        results = []
        for device, dtype, form in ((DEVICE, torch.float32, tnrd_triton.diffuse), ("cpu", torch.float64, diffuse)):
            inputs = [t.to(device, dtype).requires_grad_() for t in given]
            out = form(*inputs)
            results.append([t.detach().cpu() for t in (out, *torch.autograd.grad(out, inputs, grad.to(device, dtype)))])
        names = ("value", "image", "noisy", "kernels", "reaction", "weights")
        for name, a, b in zip(names, *results, strict=True):
            answer[f"{name} {shape}"] = float((a - b).abs().max() / b.abs().max())
    return answer


@pytest.mark.slow
@emulated
def test_the_kernels_are_the_torch_form_in_the_interpreter() -> None:
    stage = json.loads(interpret(__file__))
    assert max(stage.values()) <= 4e-4, stage  # of rough influence functions, in cubics


@pytest.mark.gpu
@needs_triton
def test_on_a_gpu() -> None:
    assert max(check_stage().values()) <= 5e-3  # products of 11 bits


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(check_stage()))
