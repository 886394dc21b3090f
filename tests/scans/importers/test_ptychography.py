"""Recordings of ptychography become scans of the same counts and positions, whatever file they come in."""

from __future__ import annotations

import bz2
import struct

import numpy as np
import pytest
import torch

from plugstream import InputError, open_scan
from plugstream.instruments.ptychography import Ptychography
from plugstream.scans.importers import npz
from plugstream.scans.importers.base import describe_file, import_file

N, WAVE, DISTANCE, DETECTOR = 8, 1e-10, 2.0, 1e-4
PIXEL = WAVE * DISTANCE / (N * DETECTOR)


def recording():
    """Counts with zero frequency at the corner, positions in pixels from somewhere, and a beam."""
    draw = np.random.default_rng(0)
    counts = draw.poisson(40, (6, N, N))
    places = draw.uniform(-10, 10, (6, 2))
    probe = draw.standard_normal((N, N)) + 1j * draw.standard_normal((N, N))
    return counts, places, probe


def write_tike(path):
    counts, places, probe = recording()
    np.savez(
        path,
        data=counts[None].astype(np.float32),
        scan=places[None].astype(np.float32),
        probe=probe[None, None, None, None].astype(np.complex64),
    )
    return path


def write_cxi(path, **also):
    h5py = pytest.importorskip("h5py")
    counts, places, _ = recording()
    with h5py.File(path, "w") as file:
        file["entry_1/data_1/data"] = np.fft.fftshift(counts, axes=(1, 2))
        metres = places * PIXEL
        file["entry_1/sample_1/geometry_1/translation"] = np.stack([metres[:, 1], metres[:, 0], 0 * metres[:, 0]], 1)
        file["entry_1/instrument_1/source_1/energy"] = 1.98644586e-25 / WAVE
        file["entry_1/instrument_1/detector_1/distance"] = DISTANCE
        file["entry_1/instrument_1/detector_1/x_pixel_size"] = DETECTOR
        for name, value in also.items():
            file[f"entry_1/instrument_1/detector_1/{name}"] = value
    return path


def check(scan, thinned=False):
    counts, places, _ = recording()
    assert isinstance(scan.instrument, Ptychography)
    assert scan.dtype == np.uint16
    if not thinned:
        assert np.array_equal(scan.read().numpy(), counts)
    found = scan.columns["positions"][:]
    assert np.allclose(found - found[0], places - places[0], atol=1e-4)
    assert found.min() == pytest.approx(2, abs=1e-4)
    mean = float(scan.read().double().sum((1, 2)).mean())
    assert float((np.abs(scan.instrument.probe) ** 2).sum()) == pytest.approx(mean, rel=1e-5)
    model = scan.instrument.build_model(scan.columns, scan.n_views, device=torch.device("cpu"), dtype=torch.float32)
    assert model.n_views == 6


def test_tikes_npz_packed_or_not(tmp_path):
    plain = write_tike(tmp_path / "small.npz")
    packed = tmp_path / "small.npz.bz2"
    packed.write_bytes(bz2.compress(plain.read_bytes()))
    for file in (plain, packed):
        out, made = import_file("ptychography", file, tmp_path / f"{file.name}.zarr")
        assert made.views == 6
        check(open_scan(out))
        outlook, lines = describe_file(file)
        assert "import ptychography" in outlook
        assert "6 frames of 8 x 8" in lines[0]


def zip_head(size: int, *, told: bool = True) -> bytes:
    """What a ZIP archive has before a member of so many bytes."""
    about = struct.pack("<HHQQ", 1, 16, size, size)
    return (
        struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0 if told else 8, 0, 0, 0, 0, *[2**32 - 1] * 2, 8, 20)
        + b"data.npy"
        + about
    )


BOMBS = {
    "zeros": (b"", "is no NPZ"),
    "claims": (zip_head(10**13), "tells of 1e\\+04 GB"),
    "claims within the ratio": (zip_head(1 << 29), "tells of 0.537 GB"),
    "says nothing": (zip_head(0, told=False), "more than"),
    "goes on after its end": (zip_head(0) + b"PK\1\2", "more than"),
}


@pytest.mark.parametrize("name", list(BOMBS))
def test_a_file_that_unpacks_to_far_more_than_it_is_is_refused_early(tmp_path, monkeypatch, name):
    head, reason = BOMBS[name]
    packer, file = bz2.BZ2Compressor(), tmp_path / "bomb.npz.bz2"
    parts = [packer.compress(part) for part in (head, *[bytes(1 << 20)] * 4)]
    file.write_bytes(b"".join([*parts, packer.flush()]) * 64)  # a quarter of a gigabyte in a few kilobytes
    unpacked, read = 0, bz2.BZ2File.read

    def count(self, size=-1):
        nonlocal unpacked
        block = read(self, size)
        unpacked += len(block)
        return block

    monkeypatch.setattr(bz2.BZ2File, "read", count)
    monkeypatch.setattr(npz, "_LEAST_UNPACKED", 1 << 23)
    with pytest.raises(InputError, match=reason):
        import_file("ptychography", file, tmp_path / "bomb.zarr")
    assert unpacked <= (10 << 20 if "more" in reason else 1000)
    assert not (tmp_path / "bomb.zarr").exists()


def test_an_npz_is_unpacked_however_it_was_written(tmp_path):
    """In one go, compressed, or into a pipe, where no member tells its size beforehand."""
    arrays = dict(np.load(write_tike(tmp_path / "plain.npz")))
    for kind, write in {"stored": np.savez, "packed": np.savez_compressed, "piped": None}.items():
        file = tmp_path / f"{kind}.npz.bz2"
        with bz2.open(file, "wb") as out:
            if write is None:
                np.savez(out, **arrays)
            else:
                write(tmp_path / f"{kind}.npz", **arrays)
                out.write((tmp_path / f"{kind}.npz").read_bytes())
        made = npz.unpack_npz(file, tmp_path)
        assert made.read_bytes() == bz2.decompress(file.read_bytes())
        assert all(np.array_equal(values, arrays[name]) for name, values in np.load(made).items())


def test_cxi_is_centred_in_metres_and_masked(tmp_path):
    mask = np.zeros((N, N), dtype=np.uint32)
    mask[3, 4] = 1
    out, made = import_file("ptychography", write_cxi(tmp_path / "a.cxi"), tmp_path / "a.zarr")
    assert "no probe" in made.remarks[0]
    scan = open_scan(out)
    check(scan)
    assert scan.instrument.pixel == pytest.approx(PIXEL)
    out, _ = import_file("ptychography", write_cxi(tmp_path / "b.cxi", mask=mask), tmp_path / "b.zarr")
    good = open_scan(out).instrument.good
    assert not good[np.unravel_index(np.fft.ifftshift(mask).argmax(), mask.shape)]
    assert good.sum() == N * N - 1


def test_ptychoshelves_with_its_parameters_beside_it_and_ptypy(tmp_path):
    h5py = pytest.importorskip("h5py")
    counts, places, probe = recording()
    centred = np.fft.fftshift(counts, axes=(1, 2))
    with h5py.File(tmp_path / "data_roi0_dp.hdf5", "w") as file:
        file["dp"] = centred
    with pytest.raises(InputError, match="ppX"):
        import_file("ptychography", tmp_path / "data_roi0_dp.hdf5", tmp_path / "no.zarr")
    with h5py.File(tmp_path / "data_roi0_para.hdf5", "w") as file:
        file["ppX"], file["ppY"], file["dx"] = places[:, 1] * PIXEL, places[:, 0] * PIXEL, PIXEL
        file["probe"] = probe
    out, made = import_file("ptychography", tmp_path / "data_roi0_dp.hdf5", tmp_path / "a.zarr")
    assert made.remarks == ()
    check(open_scan(out))
    with h5py.File(tmp_path / "b.ptyd", "w") as file:
        for chunk, rows in enumerate((slice(0, 4), slice(4, 6))):
            file[f"chunks/{chunk}/data"], file[f"chunks/{chunk}/positions"] = centred[rows], places[rows] * PIXEL
        file["meta/energy"], file["meta/distance"], file["meta/psize"] = 12.3984198, DISTANCE, [DETECTOR, DETECTOR]
    out, _ = import_file("ptychography", tmp_path / "b.ptyd", tmp_path / "b.zarr")
    check(open_scan(out))


def test_axes_and_frames_are_turned_as_asked(tmp_path):
    file = write_cxi(tmp_path / "a.cxi")
    _, places, _ = recording()
    out, _ = import_file("ptychography", file, tmp_path / "a.zarr", {"axes": "-x,y", "transpose": True})
    scan = open_scan(out)
    found = scan.columns["positions"][:]
    assert np.allclose(np.diff(found[:, 0]), -np.diff(places[:, 1]), atol=1e-6)
    assert np.allclose(np.diff(found[:, 1]), np.diff(places[:, 0]), atol=1e-6)
    assert np.array_equal(scan.read().numpy(), recording()[0].transpose(0, 2, 1))
    out, _ = import_file("ptychography", file, tmp_path / "b.zarr", {"crop": 4, "center": "4,4", "pixel": PIXEL})
    cropped = np.fft.ifftshift(np.fft.fftshift(recording()[0], axes=(1, 2))[:, 2:6, 2:6], axes=(1, 2))
    assert np.array_equal(open_scan(out).read().numpy(), cropped)


def test_thinning_keeps_a_part_of_the_photons_the_same_every_time_and_says_so(tmp_path):
    file = write_tike(tmp_path / "small.npz")
    wanted = {"thin": 0.25, "thin_seed": 3}
    first, made = import_file("ptychography", file, tmp_path / "a.zarr", wanted)
    second, _ = import_file("ptychography", file, tmp_path / "b.zarr", wanted | {"select": "2:"})
    scan, counts = open_scan(first), recording()[0]
    thinned = scan.read().numpy().astype(int)
    assert (thinned <= counts).all()
    expected, deviation = 0.25 * counts.sum(), np.sqrt(0.25 * 0.75 * counts.sum())
    assert abs(thinned.sum() - expected) < 4 * deviation
    assert np.array_equal(open_scan(second).read().numpy(), thinned[2:])
    assert np.allclose(open_scan(second).columns["positions"][:], scan.columns["positions"][2:])
    assert scan.provenance["thin"] == {"part": 0.25, "seed": 3}
    assert "photons a frame are left" in made.remarks[0]
    check(scan, thinned=True)


def test_what_cannot_be_imported_is_refused(tmp_path):
    counts, places, probe = recording()
    np.savez(tmp_path / "dark.npz", data=0 * counts, scan=places, probe=probe)
    np.savez(tmp_path / "parts.npz", data=counts + 0.5, scan=places, probe=probe)
    np.savez(tmp_path / "few.npz", data=counts, scan=places[:3], probe=probe)
    np.savez(tmp_path / "other.npz", data=counts, scan=places, probe=probe[:4, :4])
    (tmp_path / "text.txt").write_text("no recording")
    for name, options, message in (
        ("dark.npz", {}, "dark"),
        ("parts.npz", {"thin": 0.5}, "whole numbers"),
        ("few.npz", {}, "6 frames, but positions"),
        ("other.npz", {}, "the probe has shape"),
        ("text.txt", {}, "not a recording of ptychography"),
        ("none.npz", {}, "no file"),
    ):
        with pytest.raises(InputError, match=message):
            import_file("ptychography", tmp_path / name, tmp_path / "x.zarr", options)
        assert not (tmp_path / "x.zarr").exists()
    cxi = write_cxi(tmp_path / "a.cxi")
    for options, message in (({"crop": 20}, "not within frames"), ({"center": "1"}, "a row and a column")):
        with pytest.raises(InputError, match=message):
            import_file("ptychography", cxi, tmp_path / "x.zarr", options)


def write_own(path, **also):
    """A file of ours as people write it, by the names of the instrument."""
    h5py = pytest.importorskip("h5py")
    counts, places, _ = recording()
    with h5py.File(path, "w") as file:
        file["data"], file["positions"] = counts.astype(np.uint16), places - places.min(0) + 2
        file.attrs["image_rows"], file.attrs["image_columns"] = (np.ptp(places, axis=0).round() + N + 5).astype(int)
        for name, value in also.items():
            file[name] = value
    return path


@pytest.mark.filterwarnings("ignore:positions are")  # of frames without any structure
def test_a_missing_probe_is_made_alike_by_every_importer(tmp_path):
    tike = write_tike(tmp_path / "a.npz")
    with np.load(tike) as content:
        np.savez(tmp_path / "b.npz", data=content["data"], scan=content["scan"])
    found = {}
    for kind, file, values in (
        ("ptychography", write_cxi(tmp_path / "a.cxi"), {}),
        ("ptychography", tmp_path / "b.npz", {}),
        ("hdf5", write_own(tmp_path / "own.h5"), {"instrument": "ptychography"}),
    ):
        out, made = import_file(kind, file, tmp_path / f"{file.name}.zarr", values)
        assert any("it has no probe" in remark for remark in made.remarks)
        scan = open_scan(out)
        check(scan)
        found[file.name] = scan.instrument.probe
    first, *others = found.values()
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-5, atol=1e-5 * np.abs(first).max())
    _, _, probe = recording()
    own = write_own(tmp_path / "with.h5", probe=probe[None].astype(np.complex64))
    out, made = import_file("hdf5", own, tmp_path / "with.zarr", {"instrument": "ptychography"})
    assert made.remarks == ()
    np.testing.assert_allclose(open_scan(out).instrument.probe[0], probe, rtol=1e-6)


def test_info_of_own_files_speaks_of_their_instrument(tmp_path):
    outlook, _ = describe_file(write_own(tmp_path / "own.h5"))
    assert "import hdf5" in outlook
    assert "--instrument ptychography' makes a scan of it" in outlook
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "own.h5", "a") as file:
        del file.attrs["image_rows"]
    outlook, _ = describe_file(tmp_path / "own.h5")
    assert "--instrument ptychography' makes a scan of it if --map says" in outlook
    assert "image_rows" in outlook
    assert "scattered" not in outlook


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("info/propagation", "nearfield"),
        ("meta/propagation", b"Near-Field"),
        ("near_field", True),
        ("@propagator", "fresnel"),
    ],
)
def test_near_field_recordings_are_refused(tmp_path, name, value):
    h5py = pytest.importorskip("h5py")
    counts, places, _ = recording()

    def write(path, value):
        with h5py.File(path, "w") as file:
            file["chunks/0/data"], file["chunks/0/positions"] = np.fft.fftshift(counts, axes=(1, 2)), places * PIXEL
            file["meta/energy"], file["meta/distance"], file["meta/psize"] = 12.3984198, DISTANCE, [DETECTOR, DETECTOR]
            if name.startswith("@"):
                file.attrs[name[1:]] = value
            else:
                file[name] = value
        return path

    with pytest.raises(InputError, match="recorded in the near field"):
        import_file("ptychography", write(tmp_path / "a.ptyd", value), tmp_path / "a.zarr")
    far = False if value is True else "farfield"
    import_file("ptychography", write(tmp_path / "b.ptyd", far), tmp_path / "b.zarr")


def test_frames_that_cannot_overlap_in_the_far_field_are_refused(tmp_path):
    """As of a near-field recording that does not say so: its frames would be far narrower than its steps."""
    with pytest.raises(InputError, match="nothing overlaps: recordings in the near field"):
        import_file("ptychography", write_cxi(tmp_path / "a.cxi"), tmp_path / "a.zarr", {"distance": DISTANCE / 100})
