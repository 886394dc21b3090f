"""Several processes that work on one reconstruction: who they are, and the few messages they exchange.

Under torchrun every process runs the same program. `process_group()` makes a `Group` of them, which is all that the
rest of the library sees of torch.distributed; with one process it does nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from plugstream.base.errors import InputError, StorageError

T = TypeVar("T")

JOIN_TIMEOUT = 60.0
"""Seconds within which all processes must have come together."""

TIMEOUT = 300.0
"""Seconds after which a process that others wait for counts as hung, unless PLUGSTREAM_RANK_TIMEOUT says otherwise."""

# Every message ends with these numbers: whether its sender failed, and whether somebody interrupted it.
_FLAGS = 2


class Group:
    """The processes of one reconstruction; this class is for a single process, with nobody to talk to.

    All processes call the same methods in the same order: each call returns when all have called. If one of them fails
    or is interrupted, all raise in the same call, so none waits for another.

    Attributes: rank, the number of this process, 0 .. size - 1; size, the number of processes.
    """

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that decides and writes, rank 0."""
        return self.rank == 0

    def sum(self, tensor: Tensor, failure: BaseException | None = None) -> Tensor:
        """The sum of every process's tensor, all of one shape and type: the same bits on each.

        Arguments: failure, why this process has none; every process then raises it, and the tensor is ignored.
        """
        if failure is not None:
            raise failure
        return tensor

    def gather(self, tensor: Tensor, failure: BaseException | None = None) -> Tensor:
        """Every process's tensor, all of one shape and type, in the order of ranks: (size, *shape)."""
        if failure is not None:
            raise failure
        return tensor[None]

    def max(self, value: float, failure: BaseException | None = None) -> float:
        """The largest of every process's number."""
        return float(self.gather(torch.tensor([value], dtype=torch.float64), failure).max())

    def share(self, value: T) -> T:
        """Rank 0's value, of any kind that can be pickled; the others' are ignored."""
        return value

    def decide(self, decision: Callable[[], T]) -> T:
        """The decision of rank 0 for all; if it raises, all raise."""
        return decision()

    def remember(self, name: str, text: str) -> None:
        """Keep a text for the processes that torchrun starts to replace these, if one of them dies."""
        return

    def recall(self, name: str) -> str | None:
        """The text that earlier processes kept under this name; None if torchrun has not restarted any."""
        return None


class _Ranks(Group):
    """The processes that torchrun started."""

    def __init__(self, rank: int, size: int, timeout: float, store: Any = None) -> None:
        self.rank, self.size, self.timeout, self._store = rank, size, timeout, store
        self.interrupted = False
        # A group of its own: the time to join is short, and that for a step is not.
        self._group = dist.new_group(timeout=timedelta(seconds=timeout))

    def sum(self, tensor: Tensor, failure: BaseException | None = None) -> Tensor:
        packed = self._pack(tensor, failure)
        with self._talk():
            dist.all_reduce(packed, group=self._group)
        self._settle(packed[-_FLAGS:], failure)
        return _unpack(packed, tensor)

    def gather(self, tensor: Tensor, failure: BaseException | None = None) -> Tensor:
        packed = self._pack(tensor, failure)
        rows = packed.new_empty((self.size, len(packed)))
        with self._talk():
            dist.all_gather(list(rows), packed, group=self._group)
        self._settle(rows[:, -_FLAGS:].sum(0), failure)
        return torch.stack([_unpack(row, tensor) for row in rows])

    def share(self, value: T) -> T:
        box: list[Any] = [value if self.leads else None]
        with self._talk():
            dist.broadcast_object_list(box, src=0, group=self._group, device=torch.device("cpu"))
        shared: T = box[0]
        return shared

    def decide(self, decision: Callable[[], T]) -> T:
        outcome: tuple[T | None, BaseException | None] = (None, None)
        original: BaseException | None = None
        if self.leads:
            try:
                outcome = (decision(), None)
            except Exception as error:
                original, outcome = error, (None, _portable(error))
        value, failure = self.share(outcome)
        if failure is not None:
            raise original or failure
        return cast(T, value)

    def remember(self, name: str, text: str) -> None:
        if self._store is not None:
            self._store.set(f"plugstream/memory/{name}", text)

    def recall(self, name: str) -> str | None:
        key = f"plugstream/memory/{name}"
        stored = self._store is not None and self._store.check([key])
        return self._store.get(key).decode() if stored else None

    def gather_objects(self, value: T) -> list[T]:
        """Every process's value, in the order of ranks."""
        box: list[Any] = [None] * self.size
        with self._talk():
            dist.all_gather_object(box, value, group=self._group)
        return box

    def _pack(self, tensor: Tensor, failure: BaseException | None) -> Tensor:
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        flags = [float(failure is not None), float(self.interrupted)]
        return torch.cat([real.reshape(-1), torch.tensor(flags, dtype=real.dtype, device=real.device)])

    def _settle(self, flags: Tensor, failure: BaseException | None) -> None:
        """Raise the error of any of the processes."""
        failed, interrupted = flags.tolist()
        if failed > 0:
            failures = self.gather_objects(_portable(failure))
            first = next(number for number, error in enumerate(failures) if error is not None)
            error = failure if first == self.rank else failures[first]
            assert error is not None
            raise error
        if interrupted > 0:
            self.interrupted = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def _talk(self) -> Iterator[None]:
        """Errors inside are those of the network, or of a process that died or hangs."""
        try:
            yield
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0]
            raise StorageError(
                f"rank {self.rank} of {self.size} cannot reach the others: one of them ended, or did not answer for "
                f"{self.timeout:g} s ({first[:160]}); look at its messages, and start again to continue from "
                "the last checkpoint"
            ) from error

    @contextlib.contextmanager
    def interrupts(self) -> Iterator[None]:
        """Ctrl-C reaches all processes in the same call, so that they end after the same step; a second one kills."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def hear(number: int, frame: FrameType | None) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        before = signal.signal(signal.SIGINT, hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def process_group(*, timeout: float | None = None) -> Iterator[Group]:
    """The processes that torchrun started, for the duration of the block; without torchrun, a group of one.

        with plugstream.process_group() as group:
            fidelity = plugstream.Sharded(plugstream.LeastSquares(model, scan), group)
            result = plugstream.solve(plugstream.ProximalGradient(fidelity, ...))

    Tensors on the CPU go through gloo, those on GPUs through NCCL; each process gets its own GPU (LOCAL_RANK). With
    fewer GPUs than processes they share them, through gloo, since NCCL refuses that. Processes that torchrun restarted
    find each other again, whatever the earlier ones left in its store. All must have the same versions, processor and
    number of threads, since each computes the common state itself; others are refused.

    Arguments: timeout, seconds after which a process that the others wait for counts as hung, so that all end
    (and torchrun --max-restarts starts them again); PLUGSTREAM_RANK_TIMEOUT, or 300, if not given.
    """
    size, rank = _read_number("WORLD_SIZE", 1), _read_number("RANK", 0)
    if size == 1 or "RANK" not in os.environ:
        yield Group()
        return
    if not 0 <= rank < size or not os.environ.get("MASTER_ADDR") or _read_number("MASTER_PORT", 0) < 1:
        raise InputError(
            f"this should be rank {rank} of {size}, but its meeting point (MASTER_ADDR, MASTER_PORT) is missing, or "
            "there is no such rank; start it with torchrun, or without WORLD_SIZE in the environment"
        )
    seconds = _timeout() if timeout is None else timeout
    if not seconds > 0:
        raise InputError(f"the timeout of ranks must be > 0 seconds, not {seconds:g}")
    backend = _choose_backend(size)
    wait = timedelta(seconds=JOIN_TIMEOUT)
    try:
        store = None
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store, fresh = _fresh_store(rank, size)
            dist.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=wait)
        else:  # rank 0 has a new store, without leftovers
            dist.init_process_group(backend, timeout=wait)
        group = _Ranks(rank, size, seconds, store)
    except RuntimeError as error:  # torch's network errors among them
        raise StorageError(
            f"rank {rank} did not find the other {size - 1} within {JOIN_TIMEOUT:g} s "
            f"({str(error).strip().splitlines()[0][:160]}); check that all were started and can reach "
            f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        ) from error
    with group.interrupts():
        _require_alike(group)
        yield group
    dist.destroy_process_group()  # not after an error, so that nobody waits for this process


def _choose_backend(size: int) -> str:
    """The backend for tensors; this process takes its GPU, if there are any."""
    if not torch.cuda.is_available():
        return "gloo"
    local, gpus = _read_number("LOCAL_WORLD_SIZE", size), torch.cuda.device_count()
    torch.cuda.set_device(_read_number("LOCAL_RANK", 0) % gpus)
    return "cpu:gloo,cuda:nccl" if dist.is_nccl_available() and local <= gpus else "gloo"


def _read_number(name: str, otherwise: int) -> int:
    """A whole number of the environment."""
    text = os.environ.get(name, str(otherwise))
    if not text.isdecimal() or len(text) > 9:
        raise InputError(f"{name} of the environment must be a whole number, as torchrun sets it, not {text!r}")
    return int(text)


def _timeout() -> float:
    text = os.environ.get("PLUGSTREAM_RANK_TIMEOUT", "")
    try:
        return float(text) if text else TIMEOUT
    except ValueError:
        raise InputError(f"PLUGSTREAM_RANK_TIMEOUT must be a number of seconds, not {text!r}") from None


def _fresh_store(rank: int, size: int) -> tuple[Any, Any]:
    """torchrun's store, which outlasts a restart, and a part of it for these processes alone.

    torch 2.13 gives restarted processes the store of those before them, with the addresses of the dead
    (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun avoids it, and is not needed here). The number of restarts does
    not help: the torchrun of each machine counts only its own. So each process posts a random word, and rank 0 lists
    the words until every process has seen its own on the same list.
    """
    deadline = time.monotonic() + JOIN_TIMEOUT
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    joined = timedelta(seconds=JOIN_TIMEOUT)
    store = dist.TCPStore(host, port, None, False, timeout=joined)  # type: ignore[attr-defined]
    word = uuid.uuid4().hex
    store.set(f"plugstream/word/{rank}", word)
    listed = ""
    while True:
        if rank == 0:
            keys = [f"plugstream/word/{other}" for other in range(size)]
            if store.check(keys):
                words = ",".join(one.decode() for one in store.multi_get(keys))
                if words != listed:
                    listed = words
                    store.set("plugstream/list", words)
        elif store.check(["plugstream/list"]):
            words = store.get("plugstream/list").decode()
            listed = words if words.split(",")[rank : rank + 1] == [word] else ""
        if listed:
            store.set(f"plugstream/{listed}/{rank}", "here")
            if store.check([f"plugstream/{listed}/{other}" for other in range(size)]):
                return store, dist.PrefixStore(f"plugstream/{listed}", store)  # type: ignore[attr-defined]
        if time.monotonic() > deadline:
            raise RuntimeError("they did not come together")
        time.sleep(0.02)


def _require_alike(group: _Ranks) -> None:
    """Refuse processes that differ: each computes the shared state itself, so they must compute alike."""
    from plugstream.base.version import __version__

    facts = {
        "plugstream": __version__,
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }
    for number, other in enumerate(group.gather_objects(facts)):
        for name, value in facts.items():
            if other[name] != value:
                raise InputError(
                    f"rank {number} has {name} {other[name]}, but rank {group.rank} {name} {value}; all ranks must be "
                    "alike, or their images would differ"
                )


def _unpack(packed: Tensor, like: Tensor) -> Tensor:
    values = packed[:-_FLAGS]
    if like.is_complex():
        return torch.view_as_complex(values.reshape(*like.shape, 2))
    return values.reshape(like.shape)


def _portable(error: BaseException | None) -> BaseException | None:
    """An error that can be sent to another process."""
    if error is None:
        return None
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    return copy if type(copy) is type(error) else RuntimeError(f"{type(error).__name__}: {error}")
