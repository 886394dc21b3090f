"""`follow_file` in a thread, for tests of files and folders that grow."""

import threading
import time

from plugstream.scans.importers import import_file
from plugstream.scans.importers.following import Following, follow_file
from plugstream.scans.store import open_scan

CT = {"center": 11.5, "rows": "1"}
LIMIT = 15  # seconds for what takes a second on a quiet machine


class Live:
    """`follow_file` in a thread."""

    def __init__(self, path, out, values=None, *, kind="ct", **limits):
        self.path, self.out, self.said, self.error, self.result = path, out, [], None, None
        self.views = self.looks = 0
        limits = {"grace": 0.4, "patience": LIMIT} | limits

        def run():
            try:
                _, self.result = follow_file(
                    kind, path, out, CT if values is None else values, following=Following(**limits),
                    say=self.said.append, progress=self.note,
                )  # fmt: skip
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def note(self, views):
        self.views, self.looks = views, self.looks + 1

    def look(self, times=1):
        """Wait until the recording was looked at again, and what was there had time to settle."""
        for _ in range(times):
            time.sleep(0.11)
            looks = self.looks
            while self.looks < looks + 2 and self.thread.is_alive():
                time.sleep(0.01)

    def wait_for(self, views):
        until = time.monotonic() + LIMIT
        while self.views < views and self.thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        assert self.views >= views, (self.views, self.said, self.error)

    def end(self):
        self.thread.join(LIMIT)
        assert not self.thread.is_alive(), self.said
        if self.error is not None:
            raise self.error
        assert open_scan(self.out).complete
        return self.result


def assert_imported(live, values=None, kind="ct", path=None):
    """The scan equals what the importer makes of the file now, or of another, to the bit."""
    scan = open_scan(live.out)
    other = live.out.parent / "again.zarr"
    import_file(kind, path or live.path, other, {**scan.provenance.get("options", {}), **(values or {})})
    again = open_scan(other)
    assert scan.complete
    assert scan.n_views == again.n_views
    assert scan.read().numpy().tobytes() == again.read().numpy().tobytes()
    assert set(scan.columns) == set(again.columns)
    for name in scan.columns:
        assert scan.columns[name][:].tobytes() == again.columns[name][:].tobytes()
    assert not scan.instrument.difference(again.instrument)
