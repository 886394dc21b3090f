"""Scans of others. Links, pipes, devices and claims of sizes are refused at once, with little memory.

They are opened by a process apart, which may have 1.5 GB of addresses beyond what it has when it begins, and a time
limit for each: a pipe that is waited for, or an array that is allocated because a file says so, fails the test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import warm
from effort import cases
from plugstream import InputError, open_scan
from plugstream.cli import main
from plugstream.images.grid import Grid
from plugstream.scans.layout import checksum
from plugstream.scans.places import MOST_JSON, ZipFiles

LIMITED = """
import json, os, resource, signal, sys, time, traceback
import plugstream.cli, torch, zarr, plugstream.scans.store, plugstream.scans.importers, plugstream.models.born
import plugstream.cli.info, plugstream.cli.verify, plugstream._native as native, plugstream.base.registry as registry
import numpy.ma, plugstream.scans.blocks

for kind in registry.KINDS:
    registry.entries(kind)  # once, and not by the first command
have = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (have + (3 << 29), have + (3 << 29)))
peak, answers = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]), sys.stdout
for line in sys.stdin:
    words, out, os.environ["PLUGSTREAM_NATIVE"] = json.loads(line)
    native.load.cache_clear()
    signal.alarm(100)
    open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
    before, begin, status = peak(), time.process_time(), -1
    with open(out, "w") as sys.stdout:
        sys.stderr = sys.stdout
        try:
            status = plugstream.cli.main(words)
        except BaseException:
            traceback.print_exc()
        print("measured", time.process_time() - begin, peak() - before)
    print(status, file=answers, flush=True)
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory) -> Iterator[Callable[..., str]]:
    """The one line with which a command refuses a scan, in a second or two and without much memory."""
    server = warm.Popen([sys.executable, "-c", LIMITED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    out = tmp_path_factory.mktemp("out") / "said"

    def refuse(scan: Path, *, command: str = "verify", native: str = "1", megabytes: float = 200) -> str:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([[command, str(scan)], str(out), native]) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "it waits, or was killed; was the extension built from these sources?"
        status = int(answer)
        text = out.read_text()
        assert "Traceback" not in text, text
        assert status in (1, 2), text
        *lines, last = text.strip().splitlines()
        seconds, grown = map(float, last.split()[1:])
        assert seconds < 5  # of the processor, whoever else has it; a second is usual
        assert grown / 1024 < megabytes
        assert all(len(line) < 1500 for line in lines)
        return lines[0]

    yield refuse
    assert server.stdin is not None
    server.stdin.close()
    server.wait(150)


@pytest.fixture
def bad(scan, tmp_path) -> Path:
    return shutil.copytree(scan, tmp_path / "bad.zarr")


def plant(path: Path, what: str) -> None:
    """Put something else in the place of a file."""
    content = path.read_bytes()
    path.unlink()
    if what == "link":
        other = Path(str(path) + ".elsewhere")
        other.write_bytes(content)  # a link that leads to the right content is refused as well
        path.symlink_to(other)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            here = Path.cwd()
            try:
                os.chdir(path.parent)
                end.bind(path.name)
            finally:
                os.chdir(here)
    else:
        path.mkdir()


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("what", ["link", "device", "pipe", "socket", "folder"])
def test_what_is_no_plain_file_is_refused_wherever_it_lies(bad, refused, what, native):
    names = ["data/c/0/0", "zarr.json"] if native == "1" else ["transmitters/c/0/0", "data/zarr.json"]
    for name in names:
        scan = shutil.copytree(bad, bad.with_name(f"{what}.zarr"), symlinks=True)
        plant(scan / name, what)
        said = refused(scan, native=native)
        assert "instead of a plain file" in said, said
        shutil.rmtree(scan)


@pytest.mark.parametrize("name", ["data", "data/c", "data/c/0", "receivers"])
def test_a_link_to_a_folder_within_a_scan_is_refused(bad, name, refused):
    (bad / name).rename(bad.with_name("elsewhere"))
    (bad / name).symlink_to(bad.with_name("elsewhere"), target_is_directory=True)
    assert "a link instead of a folder" in refused(bad)


def test_a_link_to_the_scan_itself_is_the_person_s_own(bad):
    bad.with_name("link.zarr").symlink_to(bad)
    assert main(["verify", str(bad.with_name("link.zarr"))]) == 0


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_scan_that_is_a_pipe_or_a_device_is_refused(tmp_path, kind, refused):
    os.mkfifo(tmp_path / "pipe")
    assert "neither a folder nor a zip" in refused(tmp_path / "pipe" if kind == "pipe" else Path("/dev/zero"))


def rewrite(scan: Path, name: str, change: Callable[[dict], None]) -> None:
    """Change a JSON file of a scan, with the checksum that belongs to it."""
    content = json.loads((scan / name).read_bytes())
    change(content)
    if name == "commit.json":
        content.pop("crc32c")
        content["crc32c"] = checksum(content)
    elif "attributes" in content and "crc32c" in content["attributes"]:
        content["attributes"].pop("crc32c")
        content["attributes"]["crc32c"] = checksum(content["attributes"])
    (scan / name).write_text(json.dumps(content))


def test_a_grid_of_65536_is_refused(bad, refused):
    rewrite(bad, "zarr.json", lambda c: c["attributes"]["attributes"]["grid"].update(shape=[65536, 65536]))
    for command in ("verify", "info"):
        assert "65536 x 65536" in refused(bad, command=command)
    with pytest.raises(InputError, match="larger than any"):
        Grid((65536, 65536), 0.01)
    Grid((16384, 16384), 0.01)


@pytest.mark.parametrize(
    ("member", "digits"), cases(["wavelength", "provenance", "version", "grid"], ["1" * 10**6, "0." + "1" * 10**6])
)
def test_a_number_of_a_million_digits_is_refused(bad, member, digits, refused):
    text = (bad / "zarr.json").read_text()
    content = json.loads(text)
    content["attributes"].pop("crc32c")
    content["attributes"][member] = "HERE"
    (bad / "zarr.json").write_text(json.dumps(content).replace('"HERE"', digits))
    assert "digits" in refused(bad)


def test_attributes_without_end_are_refused(bad, refused):
    for text in ('{"attributes": ' + "[" * 100_000, '{"attributes": ' * 100_000, " " * (MOST_JSON + 1)):
        (bad / "zarr.json").write_text(text)
        assert "its zarr.json cannot be read" in refused(bad)
    with (bad / "zarr.json").open("wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no space
    assert "at most 17 MB are read" in refused(bad)


def claim(scan: Path, views: int, names: tuple[str, ...]) -> None:
    rewrite(scan, "commit.json", lambda c: c.update(views=views))
    for name in names:
        rewrite(scan, f"{name}/zarr.json", lambda c: c.update(shape=[views, *c["shape"][1:]]))


@pytest.mark.parametrize(
    ("views", "names"), cases([10**7, 10**9, 10**12, 10**15, 10**30], [("data",), ("data", "transmitters")])
)
def test_views_that_no_file_holds_are_refused(bad, views, names, refused):
    claim(bad, views, names)
    said = refused(bad).replace(str(bad), "")
    assert re.search(rf"\bdata\b.*\b{views}\b", said), said


SIZES = [10**9, 10**12, 2**62, 1e300, -1, "9" * 5000]


@pytest.mark.parametrize(
    ("name", "size"),
    [*(("data", size) for size in SIZES), *(("receivers", size) for size in SIZES[::2]), ("truth", 10**12)],
)
def test_arrays_that_no_file_holds_are_refused(bad, name, size, refused):
    def change(content: dict) -> None:
        axis = 1 if name == "data" else 0
        content["shape"][axis] = size
        content["chunk_grid"]["configuration"]["chunk_shape"][axis] = size
        content["codecs"][0]["configuration"]["chunk_shape"][axis] = size

    rewrite(bad, f"{name}/zarr.json", change)
    said = refused(bad).replace(str(bad), "")
    assert f"{name} cannot be read" in said, said
    assert ("larger than any" if size in (10**9, 10**12) else f"size {str(size)[:40]}") in said


def test_shards_of_endless_chunks_are_refused(bad, refused):
    for size in (10**7, 10**12):
        rewrite(
            bad,
            "data/zarr.json",
            lambda c, size=size: c["chunk_grid"]["configuration"].update(chunk_shape=[size, c["shape"][1]]),
        )
        assert "larger than any" in refused(bad)


@pytest.mark.parametrize("kind", ["object", "O", "S1000000000", "V8", "<U9", "datetime64"])
def test_types_that_are_no_numbers_are_refused(bad, kind, refused):
    rewrite(bad, "truth/zarr.json", lambda c: c.update(data_type=kind))
    assert "not known" in refused(bad)


def zipped(scan: Path, out: Path, replace: dict[str, int] | None = None) -> Path:
    """A compressed zip of a scan, in which some files have zeros for their content."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(scan.rglob("*")):
            name = str(path.relative_to(scan))
            if path.is_file() and name not in (replace or {}):
                archive.write(path, name)
        for name, size in (replace or {}).items():
            with archive.open(name, "w", force_zip64=True) as file:
                for _ in range(size >> 20):
                    file.write(bytes(1 << 20))
    return out


@pytest.fixture(scope="module")
def bomb(scan, tmp_path_factory) -> Path:
    """An eighth of a gigabyte of zeros for the data; packing more takes seconds."""
    return zipped(scan, tmp_path_factory.mktemp("bomb") / "bomb.zip", {"data/c/0/0": 128 << 20})


def test_a_zip_that_unpacks_to_gigabytes_is_refused(bad, bomb, tmp_path, refused):
    """An eighth of a gigabyte stands for six, which would take a minute to pack; then its header says six."""
    out = Path(shutil.copy(bomb, tmp_path / "bomb.zip"))
    assert out.stat().st_size < 1 << 20
    assert "unpacks to" in refused(out)
    whole = zipped(bad, tmp_path / "says.zip", {"data/c/0/0": 1 << 20})
    content = bytearray(whole.read_bytes())
    at = content.rfind(b"PK\x01\x02", 0, content.rfind(b"data/c/0/0"))
    content[at + 24 : at + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    whole.write_bytes(content)
    assert "unpacks to" in refused(whole)


def test_a_file_of_a_zip_that_claims_less_than_it_unpacks_to_takes_no_more(bomb, tmp_path, refused):
    out = tmp_path / "less.zip"
    content = bytearray(bomb.read_bytes())
    at = content.rfind(b"PK\x01\x02", 0, content.rfind(b"data/c/0/0"))
    content[at + 24 : at + 28] = (4096).to_bytes(4, "little")
    out.write_bytes(content)
    assert "fails its checksum" in refused(out, megabytes=100)


def test_attributes_of_a_zip_are_bounded(bad, tmp_path, refused):
    assert "MB are read" in refused(zipped(bad, tmp_path / "z.zip", {"zarr.json": 20 << 20}))


def test_a_large_file_of_a_zip_is_read_in_parts_and_right(tmp_path, monkeypatch):
    """A compressed shard too large to be kept unpacked: what is asked for is what was packed, wherever it lies."""
    from plugstream.scans import places

    content = np.random.default_rng(0).integers(0, 4, 3 << 18, dtype=np.uint8).tobytes()
    with zipfile.ZipFile(tmp_path / "z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zarr.json", "{}")
        archive.writestr("x", content)
    files = ZipFiles(tmp_path / "z.zip")
    for kept in (64 << 20, 1 << 18):
        monkeypatch.setattr(places, "_UNPACKED", kept)
        files._unpacked = ("", b"")
        for offset, count in ((0, 10), (500_000, 375_000), (3 << 18, 5), ((3 << 18) - 7, 100), (-9, 9)):
            start = offset if offset >= 0 else len(content) + offset
            assert files.part("x", offset, count) == content[start : start + count]
        assert (len(files._unpacked[1]) == len(content)) == (kept > len(content))


def test_scans_in_zips_are_read_as_before(scan, tmp_path):
    want = open_scan(scan).read().numpy()
    assert open_scan(zipped(scan, tmp_path / "s.zip")).read().numpy().tobytes() == want.tobytes()


def test_a_scan_may_not_bring_codecs_that_unpack(tmp_path, refused):
    import zarr

    from plugstream.scans.layout import Commit

    group = zarr.create_group(tmp_path / "s.zarr")
    group.attrs.update({"format": "plugstream-scan", "version": 4, "instrument": "born-2d"})
    receivers = group.create_array("receivers", shape=(4, 2), dtype="float64", compressors=zarr.codecs.ZstdCodec())
    receivers[...] = 1.0
    (tmp_path / "s.zarr" / "commit.json").write_bytes(Commit(1, True, ("data", "receivers")).encode())
    assert "bytes with crc32c and nothing else" in refused(tmp_path / "s.zarr")


def test_an_npz_that_claims_more_than_the_memory_is_refused(tmp_path, capsys):
    header = b"{'descr': '<c16', 'fortran_order': False, 'shape': (100000000000, 8)}"
    npy = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("data.npy", npy)
    assert main(["import", "npz", str(tmp_path / "x.npz"), str(tmp_path / "o.zarr")]) == 2
    assert "it claims 1.28e+04 GB" in capsys.readouterr().err
