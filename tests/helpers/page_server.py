"""The pages of runs, served on this machine as `plugstream serve` does, and requests to them."""

from __future__ import annotations

import http.client
import importlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plugstream.runs.pages.listening import address_of, open_socket, serve_runs

TOKEN = "right-token"
LIMIT = 120  # seconds, for an answer that takes none on a quiet machine


class Site:
    """A server of runs: its address, and requests to it in which anything may be wrong."""

    def __init__(self, address: str) -> None:
        self.address, self.port = address, urlsplit(address).port
        self.origin = f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer; `Host` is the server's unless another is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            sent = {"Host": f"127.0.0.1:{self.port}"} | {key.replace("_", "-"): text for key, text in headers.items()}
            if body is not None:
                sent["Content-Length"] = str(len(body))
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def command(self, content: Any, run: str, **headers: str) -> int:
        """The status of a command that is right but for what is given otherwise."""
        sent = {"Content_Type": "application/json", "Origin": self.origin, "X_Plugstream_Token": TOKEN} | headers
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask(f"/api/commands?run={run}", "POST", body, **{k: v for k, v in sent.items() if v})[0]

    @contextmanager
    def events(self, query: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
        """Kinds and contents of server-sent events, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        connection.request("GET", f"/api/events{query}")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream"), answer.read()
        try:
            yield _messages(answer)
        finally:
            answer.close()
            connection.close()


def _messages(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    kind = ""
    while line := answer.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


@contextmanager
def serving(*folders: Path, host: str = "127.0.0.1", token: str = TOKEN, allowed: Sequence[str] = ()) -> Iterator[Site]:
    """Serve these folders in a thread of this process."""
    for name in ("uvicorn", "plugstream.runs.pages.server"):
        importlib.import_module(name)  # now, so that no request waits for it
    listener, over = open_socket(host, 0), threading.Event()
    site = Site(address_of(listener, token))
    thread = threading.Thread(
        target=serve_runs, args=(folders, listener, token, tuple(allowed), lambda pages: over.wait(0.05))
    )
    thread.start()
    try:
        yield site
    finally:
        over.set()
        thread.join(LIMIT)
        assert not thread.is_alive()
