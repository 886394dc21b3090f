"""A loss and its gradients as one CUDA graph, so that a step of training does not wait for the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_EAGER_STEPS = 3  # before a CUDA graph is captured; the first compiles kernels


class GraphedStep:
    """Calls a function of tensors of fixed shapes, and leaves its gradients in the leaves; on a GPU as a CUDA graph.

    Arguments: compute, from tensors to a loss and the gradients of the leaves; leaves.
    """

    def __init__(self, compute: Callable[..., tuple[Tensor, tuple[Tensor, ...]]], leaves: Sequence[Tensor]) -> None:
        self.compute, self.leaves = compute, list(leaves)
        self.calls = 0

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The loss of these inputs."""
        self.calls += 1
        if not inputs[0].is_cuda or self.calls <= _EAGER_STEPS:
            loss, gradients = self.compute(*inputs)
        else:
            if self.calls == _EAGER_STEPS + 1:
                self._capture(inputs)
            for own, value in zip(self.inputs, inputs, strict=True):
                own.copy_(value)
            self.graph.replay()
            loss, gradients = self.loss.clone(), self.gradients
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.grad = gradient
        return loss

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = [value.clone() for value in inputs]
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.loss, self.gradients = self.compute(*self.inputs)
