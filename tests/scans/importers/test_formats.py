"""The one reader of recordings: a file is known by its first bytes, a format by the names in it."""

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from plugstream import InputError
from plugstream.scans.importers import import_file
from plugstream.scans.importers.formats import Format, Formats, open_source

KNOWN = Formats(
    Format("NPZ", lambda source: "frames" in source.name_set(), lambda source: source.read("frames")),
    Format("HDF5", lambda source: source.find("a") is not None, lambda source: source.read_number("a")),
    Format("HDF5", lambda source: source.find("b") is not None, lambda source: source.read_complex("b")),
    unknown="nothing that is known here",
)


def make(path, kind):
    if kind == "MATLAB":
        savemat(path, {"a": 1.0})
    elif kind == "NPZ":
        np.savez(path, frames=np.arange(3.0))
    elif kind:
        with h5py.File(path, "w", userblock_size=512 if kind == "MATLAB 7.3" else 0) as file:
            file["a"] = 1.0
            file["a"].attrs["text"] = "words"
    else:
        path.write_text("text")
    return path


@pytest.mark.parametrize("kind", ["HDF5", "NPZ", "MATLAB", "MATLAB 7.3", ""])
def test_a_file_is_opened_by_its_first_bytes(kind, tmp_path):
    with open_source(make(tmp_path / ("f.npz" if kind == "NPZ" else "f"), kind)) as source:
        assert source.container == kind
        assert {name.lstrip("/") for name in source.name_set() if "@" not in name} == (
            {"frames"} if kind == "NPZ" else {"a"} if kind else set()
        )
        assert source.read_number("a") == (1.0 if "a" in str(source.name_set()) and kind != "NPZ" else None)


def test_formats_of_a_container_are_told_apart_by_names(tmp_path):
    with KNOWN.open(make(tmp_path / "f.h5", "HDF5")) as found:
        assert found == 1.0
    with KNOWN.open(make(tmp_path / "f.npz", "NPZ")) as found:
        np.testing.assert_array_equal(found, np.arange(3.0))
    assert KNOWN.has(tmp_path / "f.npz")
    assert not KNOWN.has(make(tmp_path / "f.mat", "MATLAB"))
    with pytest.raises(InputError, match=r"f\.mat is nothing that is known here"), KNOWN.open(tmp_path / "f.mat"):
        pass
    with pytest.raises(InputError, match="there is no file"), KNOWN.open(tmp_path / "none.h5"):
        pass


def test_errors_name_the_file_once(tmp_path):
    file = make(tmp_path / "f.h5", "HDF5")
    with pytest.raises(InputError, match=f"^cannot import {file}: too dark$"), KNOWN.open(file):
        raise InputError("too dark")
    with pytest.raises(InputError, match=f"^{file} is too dark$"), KNOWN.open(file):
        raise InputError(f"{file} is too dark")


def test_what_cannot_be_read_is_left_to_others_unless_the_importer_is_strict(tmp_path):
    (tmp_path / "f.npz").write_bytes(b"PK nonsense")
    assert not KNOWN.has(tmp_path / "f.npz")
    with pytest.raises(InputError, match="cannot be read as NPZ"):
        Formats(*KNOWN.formats, unknown="", strict=True).has(tmp_path / "f.npz")


def test_texts_of_an_hdf5_file_without_pictures_are_no_bug(tmp_path):
    with pytest.raises(InputError, match=r"f\.mat has a, and no pictures"):
        import_file("fpm", make(tmp_path / "f.mat", "HDF5"), tmp_path / "s.zarr")
