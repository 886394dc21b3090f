"""Reading views before they are wanted, a few batches ahead and no more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.scans.scan import Scan


class Prefetcher:
    """A scan that is read by a few threads while the last batch is still being worked on.

    `expect` says which batches will be asked for, and `read` returns them when they are there; one that was not
    expected is read at once. The last `keep` expected batches stay in memory until they are asked for, whatever the
    size of the scan. An error of a thread is raised by `read`.

    Arguments: scan, anything with `read(views)`, such as a `StoredScan`; threads that read; keep, batches in memory;
    pin, read into pinned memory, from which a GPU copies by itself.
    """

    def __init__(self, scan: Scan, *, threads: int = 2, keep: int = 6, pin: bool = False) -> None:
        if threads < 1 or keep < 1:
            raise InputError(f"reading ahead needs at least one thread and one batch, not {threads} and {keep}")
        self.scan = scan
        self.keep, self.pin = keep, pin
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="plugstream-read")
        self._coming: OrderedDict[bytes, tuple[Tensor, Future[Tensor]]] = OrderedDict()

    @property
    def n_views(self) -> int:
        return self.scan.n_views

    def expect(self, batches: Sequence[Tensor]) -> None:
        """Begin to read these batches of views, soonest first, where that has not begun yet."""
        for views in batches:
            key = self._key(views)
            if key not in self._coming:
                self._coming[key] = views, self._pool.submit(self._read, views)
            self._coming.move_to_end(key)
        while len(self._coming) > self.keep:
            _, (_, dropped) = self._coming.popitem(last=False)
            dropped.cancel()

    def read(self, views: Tensor | None = None) -> Tensor:
        """The measurements of these views, (B, *data_shape), on the CPU; all for None."""
        coming = None if views is None else self._coming.pop(self._key(views), None)
        return self._read(views) if coming is None else coming[1].result()

    def close(self) -> None:
        """Stop reading."""
        self._coming.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, views: Tensor | None) -> Tensor:
        data = self.scan.read(views)
        return data.pin_memory() if self.pin else data

    def _key(self, views: Tensor) -> bytes:
        for key, (batch, _) in self._coming.items():
            if batch is views:  # as a rule: a batch is announced several times before it is asked for
                return key
        return views.cpu().numpy().tobytes()
