"""Send a scan over ZeroMQ while it is measured, until the receiver has acknowledged every view."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from numpy.typing import ArrayLike, NDArray

from plugstream.base.errors import InputError
from plugstream.instruments.born import InstrumentLike, instrument_parts
from plugstream.scans.checks import check_continuation, check_views
from plugstream.scans.keys import ClientKeys, zmq_module
from plugstream.scans.layout import is_packed
from plugstream.scans.link import BehindError, Link
from plugstream.scans.parts import Part, check_sizes, checksum_of, read_sums, view_of
from plugstream.scans.receive import check_address
from plugstream.scans.scan import Scan, hashes, stored_dtype
from plugstream.scans.stream import Name, begin, bye, end, view

_MESSAGE = 300  # bytes of a view's message besides what it carries
_PUMP = 0.05  # seconds between two looks at the answers while the instrument measures


class ScanSender:
    """Send a scan as it is measured to `plugstream acquire`: append views, and say when there will be no more.

    A `ScanWriter` over the network. `append` returns once a view is on its way; a thread sends it again until the
    receiver has it on its disk, even if messages are lost, the connection breaks, or the receiver is restarted. `flush`
    waits until all views are safe, and so does leaving a `with` block without an error. The next call raises what went
    wrong.

        with ScanSender("tcp://127.0.0.1:5577", instrument) as sender:
            for data, angle in measure():
                sender.append(data[None], angle=[angle])
            sender.finish()

    A scan is known by its name, and belongs to whoever knows its token. Both are random if not given; a restarted
    program that kept `sender.name` and `sender.token` can go on with view `sender.committed`.

    Arguments:
        address: where `plugstream acquire` listens, such as tcp://127.0.0.1:5577.
        instrument: with its fixed arrays and attributes; of a geometry all but its views is taken.
        dtype: of the data, one that the instrument has; its usual one if not given.
        provenance: where the data comes from, anything that JSON can write, up to 64 kB.
        name: 1 to 64 letters, digits, dots and dashes. token: a secret of 16 to 128 characters.
        key: a NAME.key file that `plugstream keys` made, for a receiver that has keys.
        window: views that may be under way without an acknowledgement.
        most_bytes: of views in memory that are not acknowledged; beyond that `append` waits.
        timeout: seconds without a new acknowledgement after which it gives up.
    """

    def __init__(
        self,
        address: str,
        instrument: InstrumentLike,
        *,
        dtype: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        name: str | None = None,
        token: str | None = None,
        key: str | Path | None = None,
        window: int = 32,
        most_bytes: int = 64 << 20,
        timeout: float = 30.0,
    ) -> None:
        keys = check_sending(address, rate=None, timeout=timeout, key=key)
        if window < 1:
            raise InputError(f"the window must be at least 1, not {window}")
        self.instrument = instrument_parts(instrument)[0]
        self.dtype = dtype or self.instrument.data.dtypes[0]
        self._name = Name(name or secrets.token_hex(8), token or secrets.token_hex(16))
        self._before: set[str] | None = None  # the columns of earlier views
        self._most_bytes, self._most = most_bytes, window
        self._window = window
        self._error: InputError | None = None
        self._finished = self._closed = False
        self._lock = threading.RLock()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        first = begin(self._name, self.instrument, provenance or {}, dtype=self.dtype)
        self._link = Link(address, first, window=window, timeout=timeout, keys=keys)
        try:
            while not self._link.greeted:
                self._pump(_PUMP)
            self._ended = self._link.complete
            self._appended = self._link.safe - self._ended
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The name of the scan."""
        return self._name.scan

    @property
    def token(self) -> str:
        """The secret by which the receiver knows this sender again."""
        return self._name.token

    @property
    def committed(self) -> int:
        """Views that are safe on the receiver's disk."""
        return min(self._link.safe, self._appended)

    @property
    def appended(self) -> int:
        """Views, including those that are not acknowledged yet."""
        return self._appended

    @property
    def sent_again(self) -> int:
        """Messages that had to be sent more than once."""
        return self._link.again

    def append(self, data: ArrayLike, *rows: ArrayLike | None, **columns: ArrayLike | None) -> None:
        """Add views after the last, as `ScanWriter.append`; waits if too many are not acknowledged."""
        if self._ended:
            raise InputError(f"the scan {self.name} is finished; no view can be added")
        self._check_usable()
        values = check_views(self.instrument, data, rows, columns, self._appended, self.dtype)
        self._check_columns(values)
        for index in range(len(values["data"])):
            while len(self._link.waiting) >= self._most:
                self._pump(_PUMP)
            self._push({name: column[index] for name, column in values.items()})
        self._pump(0.0)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_going, name=f"plugstream {self.name}", daemon=True)
            self._thread.start()
        self._news.set()

    def flush(self) -> None:
        """Wait until every view is safe on the receiver's disk."""
        while self._link.waiting:
            self._pump(_PUMP)

    def finish(self) -> None:
        """Wait until every view is safe, and tell the receiver that there will be no more."""
        if self._finished:
            return
        if self._appended == 0:
            raise InputError(f"the scan {self.name} has no views, so it cannot be finished")
        self._push_end()
        self.flush()
        with self._lock:
            self._link.leave(bye(self._name, self._appended))
        self._finished = True
        self.close()

    def close(self) -> None:
        """Stop sending; views that were not acknowledged may be lost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._news.set()
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and not self._closed:
                self.flush()
        finally:
            self.close()

    def _check_usable(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise InputError(f"the sender of {self.name} is closed; make another to go on")

    def _check_columns(self, columns: Iterable[str]) -> None:
        """Refuse views with other columns than those before; new columns tell how large a view is."""
        names, before = set(columns) - {"data"}, self._before
        if before is not None:
            check_continuation(self.instrument, f"the scan {self.name}", before, names)
        if before is None or names - before:
            check_sizes(self.instrument, self.dtype, sorted(names))
            declared = self.instrument.columns
            possible = [c.name for c in declared if not is_packed(c) and (c.choice is None or c.name in names)]
            each = sum(part.nbytes for part in Part.of_view(self.instrument, self.dtype, possible))
            self._most = max(self._window, self._most_bytes // (each + _MESSAGE))
        self._before = (before or set()) | names

    def _push(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Send a view that has been checked."""
        with self._lock:
            self._link.push(view(self._name, self._appended, columns), checksum_of(self.instrument, columns))
            self._appended += 1

    def _push_end(self) -> None:
        with self._lock:
            if not self._ended:
                self._link.push(end(self._name, self._appended))
                self._ended = True

    def _pump(self, wait: float) -> None:
        """Send and listen; an error stays."""
        with self._lock:
            self._check_usable()
            try:
                self._link.pump(wait)
            except InputError as error:
                self._error = error
                raise

    def _keep_going(self) -> None:
        """Send again and listen while the program does something else."""
        with suppress(InputError):  # which the next call raises
            while not self._closed:
                self._news.wait(_PUMP if self._link.waiting else None)
                self._news.clear()
                while self._link.waiting and not self._closed:
                    self._pump(0.0)
                    time.sleep(_PUMP)


def send_scan(
    scan: Scan,
    address: str,
    *,
    name: str | None = None,
    token: str | None = None,
    key: str | Path | None = None,
    rate: float | None = None,
    window: int = 32,
    timeout: float = 30.0,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Send a scan to `plugstream acquire` by a `ScanSender`, and return how many messages had to be sent again.

    View v is sent no sooner than v / rate seconds after the first. A scan that was sent in part goes on where it was,
    also after a restart of this program: what the receiver has is compared with the scan by checksums. Returns when the
    end of the scan is acknowledged. Holds for scans whose views have at most 8 MB a column.

    Arguments: scan; name, its fingerprint if not given, so that the same scan sent again goes on and another is
    refused; token, a hash of the scan's contents if not given; rate in views a second, as fast as they are taken if not
    given; progress, called with the number of views acknowledged; the others as for `ScanSender`.
    """
    check_sending(address, rate=rate, timeout=timeout, key=key)
    dtype = stored_dtype(scan)
    check_sizes(scan.instrument, dtype, tuple(scan.columns))
    content = repr((scan.n_views, hashes(scan, scan.n_views))).encode()  # the same for the same scan
    name = name or hashlib.sha256(content).hexdigest()[:16]
    token = token or hashlib.sha256(b"plugstream token of " + content).hexdigest()[:32]
    again = 0
    while True:
        sender = ScanSender(
            address,
            scan.instrument,
            dtype=dtype,
            provenance=scan.provenance,
            name=name,
            token=token,
            key=key,
            window=window,
            most_bytes=0,
            timeout=timeout,
        )
        try:
            with sender:
                _send_rest(scan, sender, rate, progress)
            return again + sender.sent_again
        except BehindError:  # the receiver was given another folder, and all of the scan is here
            again += sender.sent_again


def _send_rest(scan: Scan, sender: ScanSender, rate: float | None, progress: Callable[[int], None] | None) -> None:
    """Send the views that the receiver does not have, and the end."""
    link, first, reported = sender._link, sender.committed, -1

    def pump(wait: float) -> None:
        nonlocal reported
        sender._pump(wait)
        if progress is not None and sender.committed > reported:
            reported = sender.committed
            progress(reported)

    if first > scan.n_views or (link.complete and first != scan.n_views):
        raise InputError(f"{link.address} has {first} views of scan {sender.name}, more than are sent")
    if first and read_sums(scan, first).total(first) != link.before[1] is not None:
        raise InputError(f"{link.address} has other views of scan {sender.name}; send this one under another name")
    start = time.monotonic()
    for number in range(first, scan.n_views):
        while rate is not None and (left := start + (number - first) / rate - time.monotonic()) > 0:
            pump(min(left, _PUMP))
        columns = view_of(scan, number)
        while len(link.waiting) >= sender._most:
            pump(_PUMP)
        sender._push(columns)
        if rate is not None:
            pump(0.0)
    sender._push_end()
    while link.waiting:
        pump(_PUMP)
    sender.finish()


def check_sending(
    address: str, *, rate: float | None, timeout: float, key: str | Path | None = None
) -> ClientKeys | None:
    """Refuse what `send_scan` would refuse for any scan, before there is one; returns the keys."""
    zmq_module()
    check_address(address, remote=True)
    if re.search(r":(\*|0+)$", address):
        raise InputError(f"{address} names no port to send to; give the one that 'plugstream acquire' listens on")
    if rate is not None and not rate > 0:
        raise InputError(f"the rate must be a number of views a second > 0, not {rate}")
    if not timeout > 0:
        raise InputError(f"the timeout must be a number of seconds > 0, not {timeout}")
    return None if key is None else ClientKeys.load(key)
