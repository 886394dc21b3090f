"""Several processes give what one gives: real ranks over loopback, started once for all that is asked of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rank_problems
import warm
from effort import effort, thorough
from plugstream import Group, InputError, Sharded, SmoothFidelity, process_group
from plugstream.base.processes import _choose_backend, _Ranks
from plugstream.fidelity.shards import Shares, tree_sum
from ports import reserved_port

SIZES = effort((2,), (2, 4))
# Each number of ranks with which samplers: draws do not depend on it, so that four need not try all of them every time.
SAMPLERS = {
    2: effort(("uniform", "one"), tuple(rank_problems.SAMPLERS)),
    4: effort(("one",), tuple(rank_problems.SAMPLERS)),
}
KINDS = {2: ("plain", "fixed"), 4: effort(("fixed",), ("plain", "fixed"))}
LIMIT = 160  # seconds, for all ranks together: a few on a quiet machine


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as number:
        yield number


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What 2 and 4 ranks computed, a folder for each number."""
    out, started = {}, []
    with contextlib.ExitStack() as ports:
        for size in SIZES:
            out[size] = tmp_path_factory.mktemp(f"ranks{size}")
            port = ports.enter_context(reserved_port())
            common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            given = [str(out[size]), ",".join(SAMPLERS[size]), ",".join(KINDS[size])]
            words = [sys.executable, rank_problems.__file__, *given]
            for rank in range(size):
                started.append(warm.Popen(words, env={**os.environ, **common, "RANK": str(rank)}))
        deadline = time.monotonic() + LIMIT
        try:
            assert [process.wait(max(0.0, deadline - time.monotonic())) for process in started] == [0] * len(started)
        finally:
            for process in started:
                process.kill()
    return out


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    """What one process computes: without `Sharded`, and with the shards that it cuts batches into."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    everything = {
        kind: rank_problems.compute(Group(), shards, SAMPLERS[2]) for kind, shards in rank_problems.KINDS.items()
    }
    tensors = {f"{kind} {name}": value for kind, values in everything.items() for name, value in values.items()}
    torch.set_num_threads(before)
    return tensors


def _computed(folder: Path, rank: int) -> dict[str, np.ndarray]:
    with np.load(folder / f"rank{rank}.npz") as file:
        return dict(file)


@thorough
@pytest.mark.parametrize("size", [size for size in SIZES if "plain" in KINDS[size]])
def test_ranks_agree_with_one_process(size: int, folders: dict[int, Path], alone: dict[str, Tensor]) -> None:
    """Every algorithm, gradient and kind of sampler, linear or not, real or complex; and every number asked of d."""
    there = _computed(folders[size], 0)
    assert set(there) <= set(alone)
    assert len(there) > effort(150, 200)
    for name, value in ((name, alone[name]) for name in there):
        if name.startswith("plain"):
            error = np.abs(there[name] - value.numpy()).max()
            assert error <= 1e-5 * max(float(value.abs().max()), 1e-30), f"{name}: {error}"


@thorough
@pytest.mark.parametrize("size", SIZES)
def test_fixed_shards_give_the_same_bits(size: int, folders: dict[int, Path], alone: dict[str, Tensor]) -> None:
    there = _computed(folders[size], 0)
    names = [name for name in there if name.startswith("fixed")]
    assert [name for name in names if there[name].tobytes() != alone[name].numpy().tobytes()] == []


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_hold_the_same_images(size: int, folders: dict[int, Path]) -> None:
    first = _computed(folders[size], 0)
    for rank in range(1, size):
        other = _computed(folders[size], rank)
        assert [name for name in first if first[name].tobytes() != other[name].tobytes()] == []


@pytest.mark.parametrize("size", SIZES)
def test_what_ranks_say_of_reading_failing_and_interrupts(size: int, folders: dict[int, Path]) -> None:
    said = [json.loads((folders[size] / f"rank{rank}.json").read_text()) for rank in range(size)]
    # Each view of a batch is read by one rank, in order, and so is each in a pass over all.
    assert [view for one in said for view in one["reads"]["step"]] == [6, 1, 3, 3, 0, 5]
    assert [one["reads"]["told"] for one in said] == [one["reads"]["step"] for one in said]
    assert [view for one in said for view in one["reads"]["pass"]] == list(range(rank_problems.VIEWS))
    # What one cannot read all raise, in the same words; all end after the same step; rank 0's word counts.
    assert {one["failure"] for one in said} == {
        "view 6 of the scan cannot be read: its checksum is wrong {6: 'its checksum is wrong'}"
    }
    assert {one["tile"] for one in said} == {"this tile cannot be denoised"}
    assert {tuple(one["interrupt"]) for one in said} == {("INTERRUPTED", 2)}
    assert all(one["shared"] == {"rank": 0} for one in said)


class ThreadGroup(Group):
    """Ranks that are threads, for what does not need processes."""

    def __init__(self, rank: int, size: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.board, self.barrier = rank, size, board, barrier

    def gather(self, tensor: Tensor, failure: BaseException | None = None) -> Tensor:
        self.board[self.rank] = (tensor, failure)
        self.barrier.wait(60)
        posts = list(self.board)
        self.barrier.wait(60)
        for _, error in posts:
            if error is not None:
                raise error
        return torch.stack([post for post, _ in posts])

    def sum(self, tensor: Tensor, failure: BaseException | None = None) -> Tensor:
        return self.gather(tensor, failure).sum(0)


def on_threads(size: int, work: Callable[[Group], Any]) -> list[Any]:
    board: list[Any] = [None] * size
    out: list[Any] = [None] * size
    barrier = threading.Barrier(size)

    def run(rank: int) -> None:
        try:
            out[rank] = work(ThreadGroup(rank, size, board, barrier))
        except Exception as error:
            out[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return out


@pytest.mark.parametrize("count", [1, 3, 8, 29])
@pytest.mark.parametrize("shards", [1, 4, 8])
def test_sums_of_shards_are_the_same_bits_for_any_number_of_ranks(count: int, shards: int) -> None:
    """Also where ranks do not divide shards, or are more than shards or terms."""
    terms = torch.randn((count, 5, 2))

    def add(group: Group) -> tuple[Tensor, Tensor]:
        shares = Shares(group, shards)
        total = shares.sum(count, lambda rows: terms[rows].sum(0), torch.zeros(5, 2))
        return total, shares.join(count, lambda rows: terms[rows], terms[:0], 0)

    expected = add(Group())
    assert torch.allclose(expected[0], terms.sum(0), atol=1e-5)
    for size in (2, 3, 4, 5, 8, 9):
        for total, joined in on_threads(size, add):
            assert torch.equal(total, expected[0])
            assert torch.equal(joined, terms)


@pytest.mark.parametrize("size", [2, 3])
def test_parts_are_even_and_cover_everything(size: int) -> None:
    for shards in (None, 8):
        for count in (0, 1, 10, 64):
            runs = [
                Shares(ThreadGroup(rank, size, [], threading.Barrier(1)), shards).own(count) for rank in range(size)
            ]
            assert [place for run in runs for part in run for place in range(part.start, part.stop)] == list(
                range(count)
            )
            lengths = [sum(part.stop - part.start for part in run) for run in runs]
            assert max(lengths) - min(lengths) <= (1 if shards is None else -(-count // shards) + 1)


def test_a_failure_of_one_rank_is_raised_by_all() -> None:
    def fail(group: Group) -> Tensor:
        def part(rows: slice) -> Tensor:
            if group.rank == 1:
                raise InputError("no")
            return torch.ones(2)

        return Shares(group).sum(6, part, torch.zeros(2))

    assert [str(error) for error in on_threads(3, fail)] == ["no"] * 3


def test_one_process_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with process_group() as group:
        assert (group.rank, group.size, group.leads, group.share(3), group.max(2.0)) == (0, 1, True, 3, 2.0)
        whole = rank_problems.born()
        x = torch.rand(12, 10)
        assert torch.equal(Sharded(whole, group).gradient(x), whole.gradient(x))
        assert not torch.distributed.is_initialized()


def test_what_cannot_be_shared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="power of two"):
        Sharded(rank_problems.born(), Group(), shards=6)
    with pytest.raises(InputError, match="SmoothFidelity cannot be shared"):
        Sharded(SmoothFidelity([lambda x: x.sum()], (2, 2)), Group())
    place = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for wrong, text in (
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE of the environment must be a whole number"),
        ({"RANK": "2"}, "rank 2 of 2"),
        ({"MASTER_ADDR": ""}, "start it with torchrun"),
        ({"PLUGSTREAM_RANK_TIMEOUT": "soon"}, "PLUGSTREAM_RANK_TIMEOUT"),
        ({"PLUGSTREAM_RANK_TIMEOUT": "-1"}, "must be > 0"),
    ):
        with monkeypatch.context() as patch:
            for name, value in {**place, **wrong}.items():
                patch.setenv(name, value)
            with pytest.raises(InputError, match=text), process_group():
                pass


def test_tree_sum_adds_neighbours_first() -> None:
    a, b, c, d = torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert tree_sum([a, b, c, d]) == (a + b) + (c + d)


@pytest.mark.gpu
def test_two_ranks_share_a_gpu(tmp_path: Path, port: int) -> None:
    """As many ranks as asked for on one GPU, through gloo, since NCCL wants a GPU for each."""
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = []
    for rank in range(2):
        environment = {**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": "0"}
        started.append(subprocess.Popen([sys.executable, rank_problems.__file__, str(tmp_path)], env=environment))
    try:
        assert [process.wait(LIMIT) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    first, second = _computed(tmp_path, 0), _computed(tmp_path, 1)
    for name, value in rank_problems.run_on_gpu(Group()).items():
        assert first[name].tobytes() == second[name].tobytes()
        assert np.abs(first[name] - value.numpy()).max() <= 1e-5 * np.abs(value.numpy()).max()
    assert bytes(first["backend"].tolist()).decode() == "gloo"


@pytest.mark.gpu
def test_messages_go_through_nccl(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of one rank, which is what one GPU has room for: the sums, gathers and decisions of any number."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    backend = _choose_backend(1)
    assert backend == "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(backend)
    try:
        group = _Ranks(0, 1, 60.0)
        for dtype in (torch.float32, torch.complex64):
            x = torch.randn((5, 7), dtype=dtype, device="cuda")
            assert torch.equal(group.sum(x), x)
            assert torch.equal(group.gather(x), x[None])
        assert group.decide(lambda: "go on") == "go on"
        assert group.max(2.5) == 2.5
        with pytest.raises(InputError, match="cannot"):
            group.sum(x, InputError("one rank cannot"))
    finally:
        torch.distributed.destroy_process_group()
