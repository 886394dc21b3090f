"""Functions of CUDA tensors replayed from CUDA graphs, where the launching of kernels takes longer than they run."""

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

__all__ = ["GraphCall", "filled", "side_by_side", "stream_handle"]

_First = TypeVar("_First")
_Second = TypeVar("_Second")

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

_EAGER_CALLS = 2  # before a graph is captured: the first compiles kernels, and a call made twice may not come again
_MOST = 4  # graphs kept by one function, each with the memory that a call takes
_LARGEST = 512 * 512  # beyond, kernels take longer than their launches, and a graph would only keep memory


class GraphCall:
    """Calls a function whose kernels are short without launching each of them: from the third call on, as one graph.

    Holds for functions of tensors to a tensor that read nothing back from the device, do the same whatever the values
    are, and depend on nothing else that changes. Graphs belong to the shapes and types of the arguments and to the
    stream; arguments are copied into the graph's own and the result out of it, so that a caller sees no difference.
    Calls eagerly what is not on CUDA, what has a first argument of more than 512 x 512 numbers, what asks for
    gradients, what is itself being captured, and everything where the environment has PLUGSTREAM_CUDA_GRAPHS=0.

    Arguments:
        function: takes tensors, or None where one is left out, and returns a tensor.
        steady: which of its arguments nobody writes to: not copied again where it is the very tensor of the last call.
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
        here = tensors[0].device.index == torch.cuda.current_device()
        with self._lock, nullcontext() if here else torch.cuda.device(tensors[0].device):
            graph = self._graphs.get(key)
            if graph is None:
                self._calls[key] = self._calls.get(key, 0) + 1
                if self._calls[key] <= _EAGER_CALLS:
                    return self.function(*arguments)
                graph = self._keep(key, _Graph(self.function, arguments, self.steady))
            self._graphs.move_to_end(key)
            return graph.replay(arguments)

    def _keep(self, key: Any, graph: _Graph) -> _Graph:
        if len(self._graphs) >= _MOST:
            torch.cuda.synchronize()  # it may be running, in memory that would be given to others
            old, _ = self._graphs.popitem(last=False)
            del self._calls[old]
        self._graphs[key] = graph
        return graph


class _Graph:
    """One captured call: its arguments, its result, and the graph from those to this."""

    def __init__(
        self, function: Callable[..., Tensor], arguments: tuple[Tensor | None, ...], steady: tuple[int, ...]
    ) -> None:
        self.arguments = [None if a is None else torch.empty_like(a, memory_format=torch.contiguous_format).copy_(a)
                          for a in arguments]  # fmt: skip
        # Kept, so that no other tensor can be taken for one of them.
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
    """The current stream's handle, as Triton gets it, without the object that torch makes of it; 0 if not on CUDA."""
    if device.type != "cuda":
        return 0
    if _raw_stream is None or device.index is None:
        return torch.cuda.current_stream(device).cuda_stream
    return int(_raw_stream(device.index))


def _kind(argument: Tensor | None) -> Any:
    return None if argument is None else (argument.shape, argument.dtype, argument.device)


def filled(count: int, value: float, device: torch.device) -> Tensor:
    """A vector of one number, not to be written to: on CUDA the same one for as long as the number does not change.

    Filled in on the device: a copy from the host could not be captured in a CUDA graph.
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
    """The results of two functions that do not need each other's: at the same time where a CUDA graph is captured.

    Elsewhere one after the other: a second stream costs more launches than small images would gain, and large ones
    have memory for one of them at a time. In a graph, memory of `other` may be given to the `other` of a later pair,
    which begins after all that came before it.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return main(), other()
    here, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        second = other()
    first = main()
    here.wait_stream(side)
    return first, second


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
