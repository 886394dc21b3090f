"""`resume` fetches nothing from where a file says, unless the person at the command line says so."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from small_run import content, main

RUN = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "3"]


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine, and what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *words: object) -> None:
            pass

    running = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{running.server_port}", asked
    running.shutdown()
    thread.join(150)
    running.server_close()


@pytest.fixture
def run(scan, tmp_path) -> Path:
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN]) == 0
    return tmp_path / "run"


@pytest.mark.parametrize(
    "address",
    ["http://{}/scan.zarr", "simplecache::http://{}/scan.zarr", "zip://x::http://{}/s.zip", "file:///etc", "s3://b/s"],
)
def test_an_address_in_run_json_is_not_fetched(run, server, capsys, address):
    where, asked = server
    (run / "run.json").write_text(json.dumps({"scan": address.format(where), "command": "x"}))
    before = content(run)
    capsys.readouterr()
    assert main(["resume", str(run), "--iterations", "5"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert address.format(where) in line
    assert "--trust" in line
    assert "--scan" in line
    assert asked == []
    assert content(run) == before


def test_with_consent_it_is_read(run, scan, tmp_path, capsys):
    copy = shutil.copytree(scan, tmp_path / "copy.zarr")
    (run / "run.json").write_text(json.dumps({"scan": f"file://{copy}", "command": "x"}))
    assert main(["resume", str(run), "--iterations", "4"]) == 2
    assert main(["resume", str(run), "--iterations", "4", "--trust"]) == 0
    assert main(["resume", str(run), "--iterations", "5", "--scan", f"file://{copy}"]) == 0
    assert main(["resume", str(run), "--iterations", "6", "--scan", str(scan)]) == 0  # a path of this machine
    assert main(["resume", str(run), "--iterations", "7"]) == 0
