"""areaDetector's NTNDArray from a real p4p server on this machine: what is taken is what a file of the frames gives."""

import sys
import time

import numpy as np
import pytest

pytest.importorskip("p4p", reason="p4p is not installed; it compiles for half an hour where PyPI has no wheel")

import plugstream.instruments.ct_counts  # before anybody waits for it
import plugstream.scans.importers.ct  # noqa: F401
from area_detector import AreaDetector, ntndarray, pack
from growing_files import COLUMNS, DARK, FLAT, ROWS, angle, field, frame
from live_import import CT, LIMIT, Live, assert_imported
from plugstream.base.errors import InputError
from plugstream.scans.importers.following import follow_file
from plugstream.scans.streams import pva
from plugstream.scans.streams.ntndarray import read_attributes, read_picture
from waiting import wait_until


@pytest.fixture(scope="module")
def detector():
    with AreaDetector() as one:
        yield one


class Connected(Live):
    """An import that has found its PV; `stop_at` views it ends as if it were killed."""

    def __init__(self, detector, out, values=None, *, stop_at=None, **limits):
        self.stop_at = stop_at
        super().__init__(detector.address, out, values, **({"expect": 20} | limits))
        wait_until(lambda: self.error or f"{detector.address} is connected" in self.said)
        assert self.error is None, self.error
        detector.number = 100

    def note(self, views):
        super().note(views)
        if self.stop_at is not None and views >= self.stop_at:
            raise KeyboardInterrupt


def assert_same(live, written, **more):
    """The scan equals that of the file of the same frames; arguments: more options of the importer."""
    assert_imported(live, {"map": (), **more}, path=written)


@pytest.mark.parametrize("codec", ["", "bslz4"])
def test_a_scan_equals_that_of_a_file(detector, written, tmp_path, codec):
    live = Connected(detector, tmp_path / "live.zarr")
    detector.fields()
    detector.views(range(20), codec=codec)
    assert live.end().views == 20
    assert_same(live, written)


def test_dropped_repeated_and_reordered(detector, written, tmp_path):
    """And frames that lie about their size, are coloured or have no angle: each keeps its place."""
    live = Connected(detector, tmp_path / "live.zarr", grace=0.3)
    detector.fields()
    detector.views([0, 1, 1, 3, 2, 4, 6, 7, 7, 8])
    detector.send(frame(9), {"angle": 81.0}, 116, dimension=[{"size": 5}, {"size": 1000}])
    detector.send(frame(10), {"angle": 90.0}, 117, codec__name="h264")
    detector.send(np.zeros((ROWS, COLUMNS, 3), np.uint8), {"angle": 99.0}, 118)
    detector.send(frame(12), {}, 119)
    detector.views(range(13, 20))
    result = live.end()
    assert result.views == 15
    assert "5 views are left out: 5,9,10,11,12" in result.remarks
    assert "not used of the stream: 1 lost, 2 repeated" in result.remarks
    assert_same(live, written, omit="5,9,10,11,12")


def test_a_detector_that_counts_anew(detector, written, tmp_path):
    """As after a restart of its program, or a reset of its counter."""
    live = Connected(detector, tmp_path / "live.zarr")
    detector.fields()
    detector.views(range(12))
    live.wait_for(12)
    detector.views(range(12, 16), first=-10)
    detector.views(range(16, 20), first=10**6)
    live.end()
    assert "the detector counts anew, from 2" in live.said
    assert f"the detector counts anew, from {10**6 + 16}" in live.said
    assert_same(live, written)


@pytest.mark.parametrize(("odd", "times"), [(0, 1), (9000, 1), (0, 2), (9000, 4)])
def test_a_number_that_is_wrong_moves_no_other_frame(detector, written, tmp_path, odd, times):
    """Neither one of before, nor one far ahead: it is left out, and all views are in their places."""
    live = Connected(detector, tmp_path / "live.zarr")
    detector.fields()
    detector.views(range(7))
    for n in range(times):
        detector.send(frame(3) + 1 + n, {"angle": 1.0}, odd)
    detector.views(range(7, 20))
    result = live.end()
    assert result.views == 20
    assert f"frame {odd} is left out: its number does not follow those before it" in live.said
    assert f"not used of the stream: {times} impossible" in result.remarks
    assert_same(live, written)


def test_a_last_frame_counts_though_its_number_does_not_follow(detector, written, tmp_path):
    """As of a detector that counts anew with each frame: no other one will tell."""
    live = Connected(detector, tmp_path / "live.zarr", grace=0.2)
    detector.fields()
    for n in range(20):
        detector.send(frame(n), {"angle": angle(n)}, 1)
    assert live.end().views == 20
    assert_same(live, written)


def test_the_angle_of_another_pv(detector, written, tmp_path):
    """It is that at the time of the frame, whichever comes first."""
    live = Connected(detector, tmp_path / "live.zarr", {**CT, "map": (f"angles={detector.angle}",)})
    detector.fields()
    for n in range(20):
        detector.turn_to(angle(n))
        time.sleep(0.002)
        detector.send(frame(n))
        time.sleep(0.002)
        if n > 2:
            live.wait_for(n - 2)  # a reader that is too far behind gets the last angle alone
    live.end()
    assert_same(live, written)


def test_an_angle_that_comes_late_is_told(detector, tmp_path):
    """Since its frame has got the one before."""
    live = Connected(detector, tmp_path / "live.zarr", {**CT, "map": (f"angles={detector.angle}",)}, expect=2)
    detector.fields()
    for n in range(2):
        before = time.time()
        detector.send(frame(n))
        live.wait_for(1)
        detector.motor.post(angle(n + 5), timestamp=before)
    assert any("come after the frames of their time" in remark for remark in live.end().remarks)


def test_a_pv_that_is_not_there_is_told(detector, tmp_path, monkeypatch):
    monkeypatch.setattr(pva, "_SILENT", 0.1)
    live = Connected(detector, tmp_path / "live.zarr", {**CT, "map": ("angles=pva://test:nobody",)}, patience=1)
    detector.send(frame(0))
    with pytest.raises(InputError, match="no frame has come"):
        live.end()
    assert "frames wait for pva://test:nobody, which has no value; is that its name, and is it on?" in live.said


def test_words_for_the_kinds_of_frames(detector, written, tmp_path):
    """As the scans of the APS have them."""
    live = Connected(detector, tmp_path / "live.zarr", {**CT, "map": ("angles=theta", "image_key=SaveDest")})
    for level, word, first in ((DARK, "/exchange/data_dark", 0), (FLAT, "/exchange/data_white", 3)):
        for n in range(3):
            detector.send(field(level, n + first), {"SaveDest": word})
    for n in range(20):
        detector.send(frame(n), {"SaveDest": "/exchange/data", "theta": angle(n)})
    live.end()
    assert_same(live, written)


def test_a_server_that_dies_and_comes_back(written, tmp_path):
    with AreaDetector() as first:
        live = Connected(first, tmp_path / "live.zarr")
        first.fields()
        first.views(range(8))
        live.wait_for(8)
        conf = first.conf
    with AreaDetector(first.prefix, conf) as second:
        wait_until(lambda: live.said.count(f"{first.address} is connected") == 2)
        second.views(range(8, 20), first=-7)
        live.end()
    assert f"{first.address} is gone; waiting for it" in live.said
    assert_same(live, written)


def test_an_import_goes_on_after_it_was_ended(detector, written, tmp_path):
    """With the fields of the process before, the places of its frames, and without a frame that comes again."""
    first = Connected(detector, tmp_path / "live.zarr", stop_at=8)
    detector.fields()
    detector.views(range(8))
    first.thread.join(LIMIT)
    assert isinstance(first.error, KeyboardInterrupt)
    live = Connected(detector, tmp_path / "live.zarr")
    detector.views(range(7, 20))
    live.end()
    assert_same(live, written)


def test_a_flood_loses_nothing_unnoticed(detector, tmp_path):
    """Whatever does not come through is counted, and all else is there, in order."""
    live = Connected(detector, tmp_path / "live.zarr", expect=700, grace=0.1, patience=3)
    detector.fields()
    time.sleep(0.1)
    noise = np.random.default_rng(0).integers(500, 900, (700, ROWS, COLUMNS)).astype(np.uint16)
    for n in range(700):
        detector.send(noise[n], {"angle": 0.25 * n}, 107 + n)
    result = live.end()
    left_out = [text for text in result.remarks if "left out" in text]
    assert result.views + (int(left_out[0].split()[0]) if left_out else 0) == 700


@pytest.mark.slow
def test_a_pv_that_is_no_picture(detector, tmp_path):
    live = Live(detector.angle, tmp_path / "live.zarr", patience=1)
    for n in range(20):
        detector.turn_to(float(n))
        time.sleep(0.05)
    with pytest.raises(InputError, match=r"no frame .*has come from pva://test-"):
        live.end()


def test_a_pv_without_a_value(detector, tmp_path):
    """A structure of anybody's is counted, and no more."""
    live = Live(detector.odd_address, tmp_path / "live.zarr", patience=1)
    for n in range(20):
        detector.odd.post(n)
        time.sleep(0.05)
    with pytest.raises(InputError, match=r"no frame that is a picture, but \d+ others, has come"):
        live.end()


def test_a_name_that_is_wrong(detector, tmp_path):
    live = Connected(detector, tmp_path / "live.zarr", {**CT, "map": ("angles=Theta",)})
    detector.send(frame(0), {"theta": 0.0, "image_key": 0})
    with pytest.raises(
        InputError, match="its first frame has no Theta to take the angle from; it has theta, image_key"
    ):
        live.end()


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "p4p.client", None)
    with pytest.raises(InputError, match=r"EPICS needs p4p; install it with: pip install 'plugstream\[epics\]'"):
        follow_file("ct", "pva://some:Image", tmp_path / "scan.zarr", CT)


@pytest.mark.parametrize("codec", ["", "blosc", "lz4", "bslz4", "zlib"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float32"])
def test_pictures_by_codec(codec, dtype):
    array = np.random.default_rng(0).poisson(9, (33, 131)).astype(dtype)
    picture = read_picture(ntndarray(array, 0, codec=codec))
    assert picture.dtype == array.dtype
    assert (picture == array).all()


def test_a_jpeg_is_what_its_decoder_says():
    from PIL import Image

    array = np.add.outer(np.arange(40), np.arange(50)).astype(np.uint8)
    picture = read_picture(ntndarray(array, 0, codec="jpeg"))
    assert picture.shape == array.shape
    assert np.abs(picture.astype(int) - array).max() <= 4
    assert Image.fromarray(picture).size == (50, 40)


def test_lines_and_thin_volumes_are_pictures():
    assert read_picture(ntndarray(np.zeros((4, 5)), 0, dimension=[{"size": 20}])).shape == (1, 20)
    sides = [{"size": 5}, {"size": 1}, {"size": 4}]
    assert read_picture(ntndarray(np.zeros((4, 5)), 0, dimension=sides)).shape == (4, 5)
    assert read_picture(ntndarray(np.zeros((4, 5)), 0, dimension=[])) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"dimension": [{"size": 2**30}, {"size": 2**30}]},
        {"dimension": [{"size": -4}, {"size": -5}]},
        {"dimension": [{"size": 5}, {"size": 5}]},
        {"codec__name": "av1"},
        {"codec__name": "lz4", "codec__parameters": None},
        {"codec__name": "lz4", "codec__parameters": 77},
        {"codec__name": "lz4", "codec__parameters": 6},
        {"codec__name": "blosc", "codec__parameters": 6},
        {"codec__name": "bslz4", "codec__parameters": 10},
        {"codec__name": "zlib", "codec__parameters": 6},
        {"codec__name": "jpeg", "codec__parameters": 5},
    ],
)
def test_lies_are_refused(changes):
    with pytest.raises(InputError):
        read_picture(ntndarray(np.zeros((4, 5), np.uint16), 0, **changes))


@pytest.mark.parametrize("codec", ["blosc", "lz4", "bslz4", "zlib", "jpeg"])
def test_damaged_bytes_are_refused_or_of_the_right_size(codec):
    array = np.random.default_rng(1).poisson(9, (32, 64)).astype(np.uint8)
    content, draw = pack(array, codec), np.random.default_rng(2)
    for n in range(60):
        damaged = bytearray(content[: len(content) - 3 * n] if n % 2 else content)
        damaged[draw.integers(len(damaged))] ^= 1 << int(draw.integers(8))
        value = ntndarray(array, 0, codec=codec)
        value["value"] = ("ubyteValue", np.frombuffer(bytes(damaged), np.uint8))
        try:
            assert read_picture(value).shape == array.shape
        except InputError:
            continue


@pytest.mark.parametrize("stated", [0, 15, 117, 2**31 - 1, 2**31, 2**32 - 1])
def test_no_length_in_a_header_of_blosc_is_believed(stated):
    """The library reads as many bytes as the header says, and that ended the process."""
    for seed in range(40):
        content = bytes.fromhex("020121025e0000005e000000") + stated.to_bytes(4, "little")
        content += np.random.default_rng(seed).bytes(100)
        value = ntndarray(np.zeros((1, 47), np.uint16), 0, codec="blosc")
        value["value"] = ("ubyteValue", np.frombuffer(content, np.uint8))
        with pytest.raises(InputError, match="is damaged: its blosc header"):
            read_picture(value)


def test_pictures_that_claim_gigabytes_are_refused():
    """A JPEG of 65500 x 65500, and more sides than a picture has."""
    content = bytearray(pack(np.zeros((8, 8), np.uint8), "jpeg"))
    at = content.index(b"\xff\xc0") + 5
    content[at : at + 4] = (65500).to_bytes(2, "big") * 2
    sides = [{"size": 65500}, {"size": 65500}]
    value = ntndarray(np.zeros((8, 8), np.uint8), 0, codec="jpeg", dimension=[{"size": 8}, {"size": 8}])
    value["value"] = ("ubyteValue", np.frombuffer(bytes(content), np.uint8))
    with pytest.raises(InputError, match="cannot be undone from jpeg"):
        read_picture(value)
    value["dimension"] = sides
    with pytest.raises(InputError, match=r"is a picture that claims 4\.29 GB"):
        read_picture(value)
    with pytest.raises(InputError, match="has the sides"):
        read_picture(ntndarray(np.zeros((1, 47)), 0, dimension=[{"size": 1}] * 60000 + [{"size": 47}]))


def test_attributes_are_numbers_and_words():
    value = ntndarray(np.zeros((2, 2)), 0, {"a": 1.5, "b": "x", "c": 3, "d": ["x", "y"]})
    assert read_attributes(value) == {"a": 1.5, "b": "x", "c": 3}
