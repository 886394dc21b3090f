"""Folders that fill with pictures: half-written, renamed into place, of wrong sizes, doubled and missing."""

import numpy as np
import pytest
import tifffile

import plugstream.scans.importers.ct  # noqa: F401 - before anybody waits for it
from cbf_files import encode_cbf
from growing_files import DARK, FLAT, angle, field, frame
from live_import import Live, assert_imported
from plugstream.base.errors import InputError
from plugstream.scans.importers import following, picture_stack
from plugstream.scans.importers.cbf import read_cbf
from plugstream.scans.store import open_scan


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(following, "_LOOK", 0.05)
    monkeypatch.setattr(following, "_LONGEST_LOOK", 0.05)
    monkeypatch.setattr(picture_stack, "_SETTLED", 0.1)
    monkeypatch.setattr(picture_stack, "_OVERTAKEN", 0.4)


def begin(folder, suffix="tif", **more):
    """The description, and flat and dark fields."""
    for n in range(2):
        put(folder / f"flat_{n}.{suffix}", field(FLAT, n))
        put(folder / f"dark_{n}.{suffix}", field(DARK, n))
    table = {"projections": f"proj_*.{suffix}", "flats": f"flat_*.{suffix}", "darks": f"dark_*.{suffix}", **more}
    table = {"angles": [angle(n) for n in range(20)]} | table
    lines = (f"{name} = {value!r}" for name, value in table.items() if value is not None)
    (folder / "scan.toml").write_text("\n".join(lines))
    return folder / "scan.toml"


def put(path, picture):
    if path.suffix == ".cbf":
        path.write_bytes(encode_cbf(picture))
    else:
        tifffile.imwrite(path, picture, photometric="minisblack", compression="zlib")


@pytest.mark.parametrize("suffix", ["tif", pytest.param("cbf", marks=pytest.mark.slow)])
def test_a_folder_that_fills(tmp_path, suffix):
    """Out of order, renamed into place, or growing slowly: views are taken in order, each whole."""
    toml = begin(tmp_path, suffix)
    live = Live(toml, tmp_path / "live.zarr")
    put(tmp_path / f"proj_000.{suffix}", frame(0))
    live.look(4)  # so that flat and dark fields are seen to be done
    for n in (2, 1):
        put(tmp_path / f"proj_{n:03d}.{suffix}", frame(n))
    put(tmp_path / f"part_3.{suffix}", frame(3))
    content = (tmp_path / f"part_3.{suffix}").read_bytes()
    with (tmp_path / f"proj_003.{suffix}").open("wb") as slow:
        slow.write(content[: len(content) // 2])
        slow.flush()
        live.wait_for(3)
        live.look()
        assert open_scan(live.out).n_views == 3
        slow.write(content[len(content) // 2 :])
    live.wait_for(4)
    for n in range(4, 20):
        put(tmp_path / f"hidden.{suffix}", frame(n))
        (tmp_path / f"hidden.{suffix}").rename(tmp_path / f"proj_{n:03d}.{suffix}")
    live.end()  # as many as there are angles
    assert_imported(live)


def test_pictures_that_cannot_be_used_are_left_out(tmp_path):
    """One of another size, one that is cut off, and a missing number hold up later ones for a while."""
    toml = begin(tmp_path)
    live = Live(toml, tmp_path / "live.zarr")
    for n in range(4):
        put(tmp_path / f"proj_{n}.tif", frame(n))
        live.look(4 if n == 0 else 1)
    live.wait_for(4)
    put(tmp_path / "proj_4.tif", frame(4)[:, :-1])
    put(tmp_path / "whole.tif", frame(5))
    (tmp_path / "proj_5.tif").write_bytes((tmp_path / "whole.tif").read_bytes()[:-40])
    for n in range(7, 20):
        put(tmp_path / f"proj_{n}.tif", frame(n))
    result = live.end()
    assert "3 views are left out: 4,5,6" in result.remarks
    assert open_scan(live.out).n_views == 17
    said = " ".join(live.said)
    assert "proj_4.tif is" in said
    assert "proj_5.tif cannot be read as TIFF" in said
    assert "picture 6 of projections is missing" in said


@pytest.mark.parametrize("table", [True, False])
def test_a_folder_that_is_full_already(tmp_path, table):
    """Nobody waits for more flat fields; a picture too many, with any number, is not used, and said."""
    toml = begin(tmp_path, **({} if table else {"angles": None}))
    for n in (*range(20), 20261118):
        put(tmp_path / f"proj_{n}.tif", frame(n))
    values = {"rows": "1", "center": 11.5}
    if not table:
        np.savetxt(tmp_path / "angles.txt", [angle(n) for n in range(20)])
        values["angles"] = str(tmp_path / "angles.txt")
    live = Live(toml, tmp_path / "live.zarr", values)
    odd = "1 of projections left out, such as proj_20261118.tif: 100,000 numbers or more are missing before it"
    assert odd in live.end().remarks
    (tmp_path / "proj_20261118.tif").unlink()
    assert_imported(live)


def test_a_number_that_no_scan_has_is_left_out(tmp_path):
    """As of a date, or of twenty digits, of which no list can be made."""
    toml = begin(tmp_path)
    put(tmp_path / "proj_99999999999999999999.tif", frame(3))
    live = Live(toml, tmp_path / "live.zarr")
    for n in range(20):
        put(tmp_path / f"proj_{n}.tif", frame(n))
    result = live.end()
    assert result.views == 20
    assert "1 of projections left out, such as proj_99999999999999999999.tif" in " ".join(result.remarks)


def test_a_first_picture_that_comes_late_or_cannot_be_read(tmp_path, monkeypatch):
    """Number 0 may be overtaken by 1, and damaged: it is left out as any other."""
    monkeypatch.setattr(picture_stack, "_OVERTAKEN", 60.0)
    toml = begin(tmp_path)
    put(tmp_path / "proj_1.tif", frame(1))
    live = Live(toml, tmp_path / "live.zarr")
    live.look(2)
    (tmp_path / "proj_0.tif").write_bytes(b"no picture")
    live.look(4)
    for n in range(2, 20):
        put(tmp_path / f"proj_{n}.tif", frame(n))
    assert "1 views are left out: 0" in live.end().remarks
    put(tmp_path / "proj_0.tif", frame(0))
    assert_imported(live, {"omit": "0"})


@pytest.mark.slow
def test_numbers_must_be_told_apart(tmp_path):
    toml = begin(tmp_path)
    put(tmp_path / "proj_1.tif", frame(1))
    put(tmp_path / "proj_001.tif", frame(1))
    with pytest.raises(InputError, match=r"proj_1.tif and proj_001.tif of projections have the same number"):
        Live(toml, tmp_path / "live.zarr").end()
    (tmp_path / "proj_001.tif").unlink()
    live = Live(toml, tmp_path / "live.zarr")
    live.look(4)
    put(tmp_path / "proj_2.tif", frame(2))
    live.wait_for(2)
    put(tmp_path / "proj_0.tif", frame(0))
    with pytest.raises(InputError, match=r"came after number 1 .* say first = 0 in the TOML file"):
        live.end()


@pytest.mark.slow
def test_a_folder_that_begins_late_says_how_to_go_on(tmp_path):
    toml = begin(tmp_path)
    put(tmp_path / "proj_7.tif", frame(0))
    live = Live(toml, tmp_path / "live.zarr", patience=1.5)
    with pytest.raises(InputError, match="say first = 7 in the TOML file"):
        live.end()
    begin(tmp_path, first=7)
    live = Live(toml, tmp_path / "live.zarr", expect=2)
    live.look(4)
    put(tmp_path / "proj_8.tif", frame(1))
    live.end()
    assert open_scan(live.out).n_views == 2


@pytest.mark.slow
def test_an_arc_needs_the_number_of_pictures(tmp_path):
    toml = begin(tmp_path, angles=None, arc=180)
    put(tmp_path / "proj_0.tif", frame(0))
    with pytest.raises(InputError, match="--expect"):
        Live(toml, tmp_path / "live.zarr").end()
    live = Live(toml, tmp_path / "live.zarr", expect=20)
    live.look(4)
    for n in range(1, 20):
        put(tmp_path / f"proj_{n}.tif", frame(n))
    live.end()
    assert_imported(live)


def test_byte_offsets_of_every_size(tmp_path):
    """And what a file that is cut off, or changed, says."""
    picture = np.random.default_rng(0).poisson(3, (9, 30)).astype(np.int32)
    picture[2, ::3], picture[3, ::4], picture[4, ::5], picture[5, 3:5] = 128, -128, 40_000, (2**31 - 1, -(2**31))
    content = encode_cbf(picture)
    (tmp_path / "a.cbf").write_bytes(content)
    assert np.array_equal(read_cbf(tmp_path / "a.cbf"), picture)
    start = content.index(b"\x0c\x1a\x04\xd5")
    for wrong, words in (
        (content[: start + 50], "it has 46 of"),
        (content[:start], "no binary section"),
        (content.replace(b"BYTE_OFFSET", b"PACKED_DATA"), "only byte_offset"),
        (content[: start + 9] + b"\7" + content[start + 10 :], "MD5"),
        (content.replace(b"Second-Dimension: 9", b"Second-Dimension: 0"), "0 x 30"),
    ):
        (tmp_path / "b.cbf").write_bytes(wrong)
        with pytest.raises(InputError, match=words):
            read_cbf(tmp_path / "b.cbf")
