"""Whatever is done to the files of a scan, it reads as it was or is refused in one line; and where scans may lie."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import re
import shutil
import threading
import zipfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from effort import effort, thorough
from plugstream import BornModel, DamagedError, InputError, open_scan, save_scan, simulate
from plugstream.instruments.born import born_geometry
from plugstream.scans import MemoryScan
from small_run import main


@pytest.fixture(scope="module")
def scan(tmp_path_factory) -> tuple[Path, MemoryScan]:
    from plugstream import BornGeometry, Grid

    geometry = BornGeometry.rings(Grid((12, 10), 0.01), 0.05, views=7, receivers=9, radius=0.3)
    mask = np.random.default_rng(0).random((7, 9)) < 0.9
    geometry = BornGeometry(
        receivers=geometry.receivers, wavelength=0.05, grid=geometry.grid, transmitters=geometry.transmitters, mask=mask
    )
    made = simulate(BornModel(geometry), torch.rand(12, 10, generator=torch.Generator().manual_seed(0)), snr=30)
    path = tmp_path_factory.mktemp("scan") / "scan.zarr"
    save_scan(made, path)
    return path, made


@given(data=st.data())
@thorough
@settings(max_examples=effort(40, 250))
def test_files_that_are_cut_flipped_or_lost_give_clean_errors_only(scan, tmp_path_factory, data):
    source, made = scan
    path = tmp_path_factory.mktemp("fault") / "scan.zarr"
    shutil.copytree(source, path)
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != ".lock")
    for _ in range(data.draw(st.integers(1, 2))):
        file = data.draw(st.sampled_from(files))
        content = bytearray(file.read_bytes()) if file.exists() else bytearray()
        kind = data.draw(st.sampled_from(["flip", "cut", "lose", "zero", "grow", "swap"]))
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        if kind == "flip" and content:
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            content = content[:at]
        elif kind == "zero":
            content[at : at + 64] = bytes(len(content[at : at + 64]))
        elif kind == "grow":
            content += bytes(data.draw(st.integers(1, 100)))
        elif kind == "swap":
            content = bytearray((source / data.draw(st.sampled_from(files)).relative_to(path)).read_bytes())
        if kind == "lose":
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(content)
    try:
        stored = open_scan(path, direct=data.draw(st.booleans()))
        assert stored.damaged() is not None
        good = np.setdiff1d(np.arange(stored.n_views), list(stored.damaged()))
        rows, mask = stored.read(torch.from_numpy(good)), born_geometry(stored).mask
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right
    else:
        # What is still read is what was written: numbers, places, masks and the true image.
        assert torch.equal(rows, made.data[good])
        g, true = born_geometry(stored), born_geometry(made)
        assert stored.n_views == 7
        assert np.array_equal(g.receivers, true.receivers)
        assert np.array_equal(g.transmitters, true.transmitters)
        assert np.array_equal(mask[good], true.mask[good])
        assert (g.wavelength, g.background, g.grid) == (true.wavelength, true.background, true.grid)
        assert np.array_equal(stored.truth, made.truth)
    finally:
        shutil.rmtree(path.parent)


def test_verify_reads_every_byte_and_names_damaged_views(scan, tmp_path, capsys):
    path = shutil.copytree(scan[0], tmp_path / "scan.zarr")
    assert main(["verify", str(path)]) == 0
    assert "all 7 views" in capsys.readouterr().out
    file = path / "data" / "c" / "0" / "0"
    content = bytearray(file.read_bytes())
    for view in (2, 5):
        content[view * (20 + 9 * 8 + 4) + 30] ^= 4
    file.write_bytes(content)
    assert main(["verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines()] == ["view 2", "view 5"]
    assert "checksum" in out
    file.unlink()
    assert main(["verify", str(path)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 7
    shutil.copy(scan[0] / "data" / "c" / "0" / "0", file)
    flipped = bytearray((path / "mask" / "c" / "0" / "0").read_bytes())
    flipped[4 * (20 + 9 + 4) + 20] ^= 1
    (path / "mask" / "c" / "0" / "0").write_bytes(flipped)  # a mask that is damaged spoils its view, and no other
    assert main(["verify", str(path)]) == 1
    assert capsys.readouterr().out == "view 4: its mask is damaged: its chunk fails its checksum\n"
    with pytest.raises(DamagedError, match=r"view 4 of .*: its mask is damaged"):
        open_scan(path).read()
    (path / "receivers" / "c" / "0" / "0").write_bytes(b"")
    assert main(["verify", str(path)]) == 2
    assert "receivers cannot be read: the index of its shard fails its checksum" in capsys.readouterr().err


def same(stored, made: MemoryScan) -> None:
    assert torch.equal(stored.read(), made.data)
    assert torch.equal(stored.read(torch.tensor([6, 1])), made.data[[6, 1]])
    assert np.array_equal(born_geometry(stored).mask, born_geometry(made).mask)
    assert np.array_equal(stored.truth, made.truth)
    assert stored.damaged() == {}


@pytest.mark.parametrize("inside", [True, False])
def test_zip_files_are_read(scan, tmp_path, inside, capsys):
    """Zipped as a folder, or the contents of the folder."""
    source, made = scan
    name = shutil.make_archive(
        str(tmp_path / "scan"), "zip", source if inside else source.parent, None if inside else source.name
    )
    same(open_scan(name), made)
    assert main(["info", name]) == 0
    assert "7, line sources" in capsys.readouterr().out
    out = tmp_path / "run"
    assert main(["reconstruct", name, "--out", str(out), "--sigma", "0.02", "--batch", "3", "--iterations", "3"]) == 0
    content = bytearray(Path(name).read_bytes())
    with zipfile.ZipFile(name) as opened:
        (member,) = (info for info in opened.infolist() if info.filename.endswith("data/c/0/0"))
    content[member.header_offset + 30 + len(member.filename) + member.compress_size // 2] ^= 1
    broken = tmp_path / "broken.zip"
    broken.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):  # zip's own checksum covers the whole shard
        open_scan(broken).check()
    broken.write_bytes(content[:200])
    with pytest.raises(InputError, match="neither a folder nor a zip file"):
        open_scan(broken)


def test_what_fsspec_reaches_is_read(scan, tmp_path, capsys):
    source, made = scan
    memory = fsspec.filesystem("memory")
    memory.put(str(source), "/bucket/scan.zarr", recursive=True)
    same(open_scan("memory://bucket/scan.zarr"), made)
    assert main(["info", "memory://bucket/scan.zarr"]) == 0
    assert main(["verify", "memory://bucket/scan.zarr"]) == 0
    out = tmp_path / "run"
    words = ["reconstruct", "memory://bucket/scan.zarr", "--out", str(out), "--sigma", "0.02", "--batch", "3"]
    assert main([*words, "--iterations", "3", "--in-memory", "0"]) == 0
    assert json.loads((out / "run.json").read_text())["scan"] == "memory://bucket/scan.zarr"
    assert main(["resume", str(out), "--iterations", "5"]) == 2  # a file says where to fetch it from
    assert main(["resume", str(out), "--iterations", "5", "--trust"]) == 0
    memory.rm("/bucket/scan.zarr/data/c/0/0")
    with pytest.raises(DamagedError, match=r"view 0 of .* is missing"):
        open_scan("memory://bucket/scan.zarr").read()
    with pytest.raises(InputError, match="is not a scan"):
        open_scan("memory://nothing/here.zarr")
    with pytest.raises(InputError):
        open_scan("nosuchprotocol://x/y")


class _Server(http.server.SimpleHTTPRequestHandler):
    """Python's web server does not know byte ranges, which every real one does."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        first, last = 0, len(content) - 1
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first = int(asked[1]) if asked[1] else max(0, len(content) - int(asked[2]))
            last = min(last, int(asked[2])) if asked[1] and asked[2] else last
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(content[first : last + 1])

    def log_message(self, *words: object) -> None:
        pass


class _WebServer(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # of 5, as it is otherwise, those beyond try again after seconds


@pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="fsspec needs aiohttp for http://")
def test_a_web_server_is_read(scan):
    source, made = scan
    handler = functools.partial(_Server, directory=str(source.parent))
    with _WebServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            same(open_scan(f"http://127.0.0.1:{server.server_address[1]}/{source.name}"), made)
        finally:
            server.shutdown()
            thread.join()
