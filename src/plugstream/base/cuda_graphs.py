"""Functions of CUDA tensors replayed from CUDA graphs, for kernels that run shorter than their launch takes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

_First = TypeVar("_First")
_Second = TypeVar("_Second")

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

_EAGER_CALLS = 2  # before a graph is captured: the first compiles kernels, and a call made twice may not come again
_MOST = 4  # graphs of one function, each with the memory of a call
_LARGEST = 512 * 512  # numbers; beyond, kernels take longer than their launches


class GraphCall:
    """Calls a function with short kernels as one graph, from the third call on, instead of launching each kernel.

    Condition: the function maps tensors to a tensor, reads nothing back from the device, does the same whatever the
    values are, and depends on nothing else that changes. There is a graph for each stream, and for the shapes and types
    of the arguments, which are copied in; the result is copied out. Calls are eager if arguments are not on CUDA, the
    first has more than 512 x 512 numbers, gradients are wanted, a graph is being captured already, or the environment
    has PLUGSTREAM_CUDA_GRAPHS=0.

    Arguments:
        function: takes tensors, or None if one is left out, and returns a tensor.
        steady: the arguments that nobody writes to: not copied again if the tensor is that of the last call.
    Reference: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
    """

    def __init__(self, function: Callable[..., Tensor], steady: tuple[int, ...] = ()) -> None:
        self.function, self.steady = function, steady
        self._calls: dict[Any, int] = {}
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        # Between the copy of the arguments and that of the result, no other thread may use the graph.
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphCall, (self.function, self.steady)  # a copy captures graphs of its own

    def __call__(self, *arguments: Tensor | None) -> Tensor:
        tensors = [a for a in arguments if a is not None]
        if not _may_capture(tensors):
            return self.function(*arguments)
        key = (stream_handle(tensors[0].device), *(_kind(a) for a in arguments))
        current = tensors[0].device.index == torch.cuda.current_device()
        with self._lock, nullcontext() if current else torch.cuda.device(tensors[0].device):
            graph = self._graphs.get(key)
            if graph is None:
                self._calls[key] = self._calls.get(key, 0) + 1
                if self._calls[key] <= _EAGER_CALLS:
                    return self.function(*arguments)
                graph = _Graph(self.function, arguments, self.steady)
                if len(self._graphs) >= _MOST:
                    torch.cuda.synchronize()  # the oldest may be running, in memory that others would get
                    oldest, _ = self._graphs.popitem(last=False)
                    del self._calls[oldest]
                self._graphs[key] = graph
            self._graphs.move_to_end(key)
            return graph.replay(arguments)


class _Graph:
    """One captured call: its arguments, its result, and the graph from those to this."""

    def __init__(
        self, function: Callable[..., Tensor], arguments: tuple[Tensor | None, ...], steady: tuple[int, ...]
    ) -> None:
        self.arguments = [None if a is None else a.clone(memory_format=torch.contiguous_format) for a in arguments]
        # Stored, so that no other tensor can have their identity.
        self.last = {k: arguments[k] for k in steady}
        self.graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that read views ahead, may allocate while this one captures.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.result = function(*self.arguments)

    def replay(self, arguments: tuple[Tensor | None, ...]) -> Tensor:
        for k, (mine, argument) in enumerate(zip(self.arguments, arguments, strict=True)):
            if mine is None or argument is None or self.last.get(k) is argument:
                continue
            mine.copy_(argument)
            if k in self.last:
                self.last[k] = argument
        self.graph.replay()
        return self.result.clone()


def _may_capture(arguments: list[Tensor]) -> bool:
    return (
        bool(arguments)
        and all(a.is_cuda for a in arguments)
        and arguments[0].numel() <= _LARGEST
        and not (torch.is_grad_enabled() and any(a.requires_grad for a in arguments))
        and os.environ.get("PLUGSTREAM_CUDA_GRAPHS", "1") != "0"
        and not torch.cuda.is_current_stream_capturing()
    )


def stream_handle(device: torch.device) -> int:
    """The current stream's handle, as Triton gets it, without torch's object for it; 0 if not on CUDA."""
    if device.type != "cuda":
        return 0
    if _raw_stream is None or device.index is None:
        return torch.cuda.current_stream(device).cuda_stream
    return int(_raw_stream(device.index))


def _kind(argument: Tensor | None) -> Any:
    return None if argument is None else (argument.shape, argument.dtype, argument.device)


def filled(count: int, value: float, device: torch.device) -> Tensor:
    """A vector of one number, not to be written to; on CUDA it is cached.

    It is filled on the device: a copy from the host could not be captured in a CUDA graph.
    """
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.full((count,), value, device=device)
    return _filled(count, value, device, stream_handle(device))


@lru_cache(maxsize=64)
def _filled(count: int, value: float, device: torch.device, stream: int) -> Tensor:
    return torch.full((count,), value, device=device)


def side_by_side(
    device: torch.device, main: Callable[[], _First], other: Callable[[], _Second]
) -> tuple[_First, _Second]:
    """The results of two independent functions: in parallel if a CUDA graph is being captured.

    Otherwise one after the other: a second stream costs more launches than small images gain, and large ones have
    memory for one at a time. In a graph, memory of `other` may be reused by the `other` of a later pair.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return main(), other()
    current, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        second = other()
    first = main()
    current.wait_stream(side)
    return first, second


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
