"""Functions of CUDA tensors replayed from CUDA graphs, for kernels that run shorter than their launch takes."""

from __future__ import annotations

import gc
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

_Captured = TypeVar("_Captured")

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

_EAGER_CALLS = 2  # before a graph is captured: the first compiles kernels, and a call made twice may not come again
_MOST = 4  # graphs of one function, each with the memory of a call
_FREE = 8  # graphs are captured while a part of this many of the memory is free
_KEYS = 256  # that are counted before they are captured
_LARGEST = 512 * 512
# A first argument that comes at one address this often is read there, and not copied; for so many addresses, and images
# so small that the copy counts.
_OFTEN, _ADDRESSES, _SMALL = 8, 2, 256 * 256


class GraphStore(Generic[_Captured]):
    """What was captured in CUDA graphs, by key: at most so many, of which the one not used for longest goes first.

    Graphs are for work with short kernels that reads nothing back from the device, does the same whatever the values
    are, and depends on nothing else that changes. They are replayed on the default stream alone, since they share
    memory with one another. Work stays eager, launch by launch, the first two times a key comes; if gradients are
    wanted, a graph is being captured already, or less than an eighth of the device's memory is free; and always if the
    environment has PLUGSTREAM_CUDA_GRAPHS=0.

    Arguments: most, how many are kept.
    Reference: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs
    """

    def __init__(self, most: int = _MOST) -> None:
        self.most = most
        self._calls: dict[Any, int] = {}
        self._found: OrderedDict[Any, _Captured] = OrderedDict()
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._found)

    @property
    def pool(self) -> Any:
        """The memory that graphs of this store may share: none keeps a result in it from one replay to the next."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def find(self, key: Any, tensor: Tensor, capture: Callable[[], _Captured]) -> _Captured | None:
        """What was captured for a key, now or before; None for work that is to be eager.

        Arguments: tensor that the work is on; capture, within `on_device` of it.
        """
        if not _may_capture(tensor):
            return None
        found = self._found.get(key)
        if found is None:
            if len(self._calls) > _KEYS:  # of which most never came twice
                self._calls = {key: self._calls[key] for key in self._found}
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= _EAGER_CALLS or not _has_room(tensor.device):
                return None
            found = capture()
            if len(self._found) >= self.most:
                torch.cuda.synchronize()  # the oldest may be running, in memory that others would get
                oldest, _ = self._found.popitem(last=False)
                del self._calls[oldest]
            self._found[key] = found
        self._found.move_to_end(key)
        return found


def capture_work(work: Callable[[], object], pool: Any = None) -> torch.cuda.CUDAGraph:
    """A graph of work on memory that stays where it is; what the work allocates is taken from a pool."""
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # it may find graphs that nobody has any more, whose end would be the end of this capture
    try:
        # Other threads, such as those that read views ahead, may allocate while this one captures.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            work()
    finally:
        if collects:
            gc.enable()
    return graph


class GraphCall:
    """Calls a function with short kernels as one graph, from the third call on, instead of launching each kernel.

    Condition: the function maps tensors to a tensor, and is work for a `GraphStore`. There is a graph for the shapes
    and types of the arguments, which are copied in; the result is copied out. Calls are eager also if arguments are not
    on CUDA, or the first is large.

    Arguments:
        function: takes tensors, or None if one is left out, and returns a tensor.
        steady: the arguments that nobody writes to: not copied again if the tensor is that of the last call.
        largest: numbers of the first argument beyond which kernels take longer than their launches.
        in_place: whether a small first argument that comes at the same address again and again, as images of a loop do,
            is read where it is, by a graph of its own.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        steady: tuple[int, ...] = (),
        largest: int = _LARGEST,
        *,
        in_place: bool = False,
    ) -> None:
        self.function, self.steady, self.largest, self.in_place = function, steady, largest, in_place
        self._graphs: GraphStore[_Graph] = GraphStore()
        self._addresses: dict[Any, int] = {}
        self._in_place: dict[Any, _Graph] = {}
        self._known: dict[Any, tuple[_Graph, tuple[Tensor | None, ...]]] = {}
        # Between the copy of the arguments and that of the result, no other thread may use the graph.
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy captures graphs of its own.
        return partial(GraphCall, in_place=self.in_place), (self.function, self.steady, self.largest)

    def __call__(self, *arguments: Tensor | None) -> Tensor:
        # Until a GPU has its work it waits for these lines: they make few objects and calls.
        first: Tensor | None = None
        for a in arguments:
            if a is None:
                continue
            if not a.is_cuda or (a.requires_grad and torch.is_grad_enabled()):
                return self.function(*arguments)
            first = a if first is None else first
        if first is None or first.numel() > self.largest:
            return self.function(*arguments)
        key = _kinds(arguments)
        with self._lock:
            if first.device.index != torch.cuda.current_device():
                with torch.cuda.device(first.device):
                    return self._replay(key, first, arguments)
            return self._replay(key, first, arguments)

    def again(self, key: Any, first: Tensor) -> Tensor | None:
        """The result of a call that `remember` was told of by this key; None if there was none.

        Until a GPU has its work it waits for this, which therefore looks at nothing else.
        """
        known = self._known.get(key)
        if known is None or not _may_capture(first) or first.device.index != torch.cuda.current_device():
            return None
        graph, others = known
        with self._lock:
            return graph.replay((first, *others))

    def remember(self, key: Any, *arguments: Tensor | None) -> None:
        """Let `again` know a call by a key, if a graph reads its first argument where it is.

        Condition: the key stands for the address, shape and type of the first argument, which is contiguous, and for
        the values of the others, which nobody changes.
        """
        first = arguments[0]
        graph = None if first is None else self._in_place.get((_kinds(arguments), first.data_ptr()))
        if graph is not None:
            if len(self._known) > _KEYS:
                self._known.clear()
            self._known[key] = graph, arguments[1:]

    def _replay(self, key: Any, first: Tensor, arguments: tuple[Tensor | None, ...]) -> Tensor:
        graph = self._graphs.find(key, first, lambda: _Graph(self.function, arguments, self.steady))
        if graph is None:
            return self.function(*arguments)
        if self.in_place and first is arguments[0] and first.numel() <= _SMALL and first.is_contiguous():
            graph = self._find_in_place((key, first.data_ptr()), first, arguments) or graph
        return graph.replay(arguments)

    def _find_in_place(self, key: Any, first: Tensor, arguments: tuple[Tensor | None, ...]) -> _Graph | None:
        """The graph that reads the first argument where it is; None where that does not come there often."""
        graph = self._in_place.get(key)
        if graph is None and len(self._in_place) < _ADDRESSES:
            if len(self._addresses) > _KEYS:
                self._addresses.clear()
            self._addresses[key] = self._addresses.get(key, 0) + 1
            if self._addresses[key] > _OFTEN and _has_room(first.device):
                graph = self._in_place[key] = _Graph(self.function, arguments, self.steady, in_place=True)
        return graph


def _kinds(arguments: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    """What a graph is for: shapes, types and devices of the arguments."""
    key: list[Any] = []
    for a in arguments:
        key += (None,) if a is None else (a.shape, a.dtype, a.device)
    return tuple(key)


class _Graph:
    """One captured call: its arguments, its result, and the graph from those to this."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        arguments: tuple[Tensor | None, ...],
        steady: tuple[int, ...],
        *,
        in_place: bool = False,
    ) -> None:
        own = [None if a is None else a.clone(memory_format=torch.contiguous_format) for a in arguments]
        if in_place:
            own[0] = arguments[0]

        def work() -> None:
            self.result = function(*own)

        self.graph = capture_work(work)
        self.arguments: list[Tensor | None] = [None, *own[1:]] if in_place else own
        # Those of the last call, stored so that no other tensor can have their identity; None where they are copied.
        self.last = [a if k in steady else None for k, a in enumerate(arguments)]
        self.steady = steady

    def replay(self, arguments: tuple[Tensor | None, ...]) -> Tensor:
        for k, argument in enumerate(arguments):
            mine = self.arguments[k]
            if mine is None or argument is None or self.last[k] is argument:
                continue
            mine.copy_(argument)
            if k in self.steady:
                self.last[k] = argument
        self.graph.replay()
        return self.result.clone()


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """A tensor's device as the current one, within which it can be captured."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


def _may_capture(tensor: Tensor) -> bool:
    # Nothing is captured on the default stream.
    return tensor.is_cuda and stream_handle(tensor.device) == 0 and os.environ.get("PLUGSTREAM_CUDA_GRAPHS", "1") != "0"


def _has_room(device: torch.device) -> bool:
    """Whether enough memory is free for what a graph would keep, which nobody else could then have."""
    free, total = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return _FREE * (free + cached) >= total


def stream_handle(device: torch.device) -> int:
    """The current stream's handle, as Triton gets it, without torch's object for it; 0 if not on CUDA."""
    if device.type != "cuda":
        return 0
    if _raw_stream is None or device.index is None:
        return torch.cuda.current_stream(device).cuda_stream
    return int(_raw_stream(device.index))


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


class Branches:
    """Parts of work that do not depend on each other: side by side if a CUDA graph is being captured.

    Otherwise one after the other: more streams cost more launches than small images gain, and large ones have memory
    for one at a time. `with branches[k]` goes on with branch k, after what was done outside of branches. In a graph,
    memory that a branch allocates may be reused by a later part of it.

    Attributes: parallel, whether they are side by side.
    """

    def __init__(self, device: torch.device) -> None:
        self.parallel = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._device, self._open = device, set[torch.cuda.Stream]()

    def __getitem__(self, k: int) -> AbstractContextManager[object]:
        if not self.parallel:
            return nullcontext()
        stream = _side_stream(self._device, k)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        self._open.add(stream)
        return torch.cuda.stream(stream)

    def wait(self, k: int) -> None:
        """Let the branch that is at work go on after what branch k has done so far."""
        if self.parallel:
            torch.cuda.current_stream(self._device).wait_stream(_side_stream(self._device, k))

    def join(self) -> None:
        """Let what follows outside of branches wait for all of them."""
        for stream in self._open:
            torch.cuda.current_stream(self._device).wait_stream(stream)
        self._open.clear()


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
