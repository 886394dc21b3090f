"""Scans in an S3 bucket: a real server that speaks S3, on loopback.

Needs s3fs (`pip install 'plugstream[remote]'`) and `moto[server]`, and is skipped where they are absent. They may be
in a folder of their own:

    pip install --target /tmp/s3site 'moto[server]' s3fs
    PYTHONPATH=/tmp/s3site python -m pytest tests/scans/test_s3.py
"""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

from plugstream import (
    BornGeometry,
    BornModel,
    DamagedError,
    Grid,
    InputError,
    MemoryScan,
    ScanWriter,
    open_scan,
    save_scan,
    simulate,
)
from plugstream.instruments.born import born_geometry
from small_run import main

pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")


@pytest.fixture(scope="module")
def bucket():
    """A bucket, as fsspec sees it."""
    import fsspec

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # which writes a line for every request
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    options = {
        "key": "k",
        "secret": "s",
        "endpoint_url": f"http://{host}:{port}",
        "client_kwargs": {"region_name": "eu-west-1"},
    }
    fsspec.config.conf["s3"] = options
    files = fsspec.filesystem("s3")
    files.mkdir("scans")
    yield files
    fsspec.config.conf.pop("s3")
    running.stop()


@pytest.fixture
def made() -> MemoryScan:
    geometry = BornGeometry.rings(Grid((12, 10), 0.01), 0.05, views=23, receivers=9, radius=0.3)
    return simulate(BornModel(geometry), torch.rand(12, 10, generator=torch.Generator().manual_seed(0)), snr=30)


def test_a_scan_in_a_bucket_is_read_and_reconstructed(bucket, made, tmp_path, capsys):
    save_scan(made, tmp_path / "scan.zarr")
    bucket.put(str(tmp_path / "scan.zarr"), "scans/scan.zarr", recursive=True)
    where = "s3://scans/scan.zarr"
    scan = open_scan(where)
    assert scan.complete
    for views in (None, torch.tensor([17, 3, 3, 22, 4])):
        assert torch.equal(scan.read(views), made.read(views))
    assert np.array_equal(born_geometry(scan).transmitters, born_geometry(made).transmitters)
    assert main(["info", where]) == 0
    assert main(["verify", where]) == 0
    words = ["--sigma", "0.02", "--batch", "3", "--iterations", "4"]
    assert main(["reconstruct", where, "--out", str(tmp_path / "far"), *words, "--in-memory", "0"]) == 0
    assert main(["reconstruct", str(tmp_path / "scan.zarr"), "--out", str(tmp_path / "near"), *words]) == 0
    assert np.array_equal(np.load(tmp_path / "far" / "result.npy"), np.load(tmp_path / "near" / "result.npy"))
    assert json.loads((tmp_path / "far" / "run.json").read_text())["scan"] == where
    assert main(["resume", str(tmp_path / "far"), "--iterations", "6", "--trust"]) == 0


def test_damage_in_a_bucket_is_named(bucket, made, tmp_path):
    save_scan(made, tmp_path / "scan.zarr")
    bucket.put(str(tmp_path / "scan.zarr"), "scans/bad.zarr", recursive=True)
    content = bytearray(bucket.cat_file("scans/bad.zarr/data/c/0/0"))
    content[5 * (20 + 9 * 8 + 4) + 40] ^= 1  # inside the chunk of view 5
    bucket.pipe_file("scans/bad.zarr/data/c/0/0", bytes(content))
    with pytest.raises(DamagedError, match=r"view 5 of s3://scans/bad.zarr.*checksum"):
        open_scan("s3://scans/bad.zarr").read()
    assert torch.equal(open_scan("s3://scans/bad.zarr").read(torch.tensor([4, 6])), made.data[[4, 6]])
    bucket.rm_file("scans/bad.zarr/data/c/0/0")
    with pytest.raises(DamagedError, match="is missing"):
        open_scan("s3://scans/bad.zarr").read()


def test_a_growing_scan_in_a_bucket_is_followed(bucket, made, tmp_path):
    """Whoever copies a scan there in the order in which it was written, commit.json last, may be followed."""
    local = tmp_path / "scan.zarr"
    with ScanWriter(local, born_geometry(made)) as writer:
        writer.append(made.data[:8], born_geometry(made).transmitters[:8])
        writer.commit()
        bucket.put(str(local), "scans/live.zarr", recursive=True)
        far = open_scan("s3://scans/live.zarr")
        assert (far.n_views, far.complete) == (8, False)
        writer.append(made.data[8:], born_geometry(made).transmitters[8:])
        writer.finish()
    for path in sorted(local.rglob("*"), key=lambda path: path.name == "commit.json"):
        if path.is_file():
            bucket.put_file(str(path), f"scans/live.zarr/{path.relative_to(local)}")
    assert far.refresh()
    assert (far.n_views, far.complete) == (23, True)
    assert torch.equal(far.read(), made.data)


def test_mistakes_are_one_line(bucket):
    with pytest.raises(InputError, match=r"s3://scans/none.zarr is not a scan"):
        open_scan("s3://scans/none.zarr")
    with pytest.raises(InputError, match=r"s3://nobucket/none.zarr") as caught:
        open_scan("s3://nobucket/none.zarr")
    assert "\n" not in str(caught.value)
