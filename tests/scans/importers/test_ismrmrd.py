"""ISMRMRD files as scanners write them: every sample that is taken lies where it was measured."""

import numpy as np
import pytest

from ismrmrd_files import FLAGS, WRITERS, header, official_is_here, write
from plugstream import InputError
from plugstream.models.kspace import centered_voxels
from plugstream.scans.importers.mri_recordings import FORMATS, read_recording

pytest.importorskip("h5py")

SHAPE, STEP, COILS = (12, 10), (2e-3, 1.5e-3), 2
ENCODED, WIDE = (20, 12, 1), (30, 24, 5)  # x, y and z: lines are read twice as fine, in a field of view twice as wide
MATRIX, FIELD = (10, 12, 1), (15, 24, 5)


@pytest.fixture(params=WRITERS)
def writer(request):
    if request.param == "official" and not official_is_here():
        pytest.skip("the package ismrmrd is not installed")
    return request.param


def scene(slices=1, shape=SHAPE):
    """Coil images (slices, coils, *shape)."""
    draw = np.random.default_rng(0)
    return draw.standard_normal((slices, COILS, *shape)) + 1j * draw.standard_normal((slices, COILS, *shape))


def measure(images, path, spacing=STEP):
    """What coils receive of (coils, *shape) at (samples, axes), 1/m: the sum over pixels."""
    shape = images.shape[1:]
    axes = [(np.arange(n) - n // 2) * d for n, d in zip(shape, spacing, strict=True)]
    places = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(shape))
    waves = np.exp(-2j * np.pi * path @ places.T) / np.sqrt(len(places))
    return images.reshape(len(images), -1) @ waves.T


def line(step, samples=20, center=10, middle=6):
    """A phase-encode line, (samples, 2), 1/m."""
    along = (np.arange(samples) - center) / (1e-3 * WIDE[0])
    return np.stack([np.full(samples, (step - middle) / (1e-3 * WIDE[1])), along], 1)


def check(found, images):
    """All data are those of the images where the trajectory says."""
    assert found.shape is not None
    assert np.allclose(found.spacing[-2:], STEP)
    data = found.data if found.stack else found.data[:, None]
    for path, view in zip(found.trajectory, data, strict=True):
        for values, image in zip(view, images, strict=True):
            want = measure(image, path)
            assert np.abs(values - want).max() < 1e-4 * np.abs(want).max()


def test_a_file_with_all_that_scanners_write(tmp_path, writer):
    """Noise, navigators, another encoding, repetitions, contrasts, and slices whose lines come in another order."""
    images = scene(2)
    rubbish = np.full((COILS, 20), 77.0 + 3j)
    rows = [({"flags": ["noise"]}, None, np.ones((COILS, 64))) for _ in range(3)]
    rows += [({"flags": ["navigation"]}, None, rubbish), ({"flags": ["stabilization"]}, None, rubbish)]
    rows += [({"encoding_space_ref": 1, "kspace_encode_step_1": 3}, None, rubbish)]
    rows += [({"flags": ["calibration"], "kspace_encode_step_1": 3}, None, rubbish)]
    for repetition in range(2):
        for z, order in enumerate((range(12), range(11, -1, -1))):
            for step in order:
                place = {"kspace_encode_step_1": step, "slice": z, "repetition": repetition}
                data = measure(images[z], line(step)) * (1 + repetition)
                rows += [(place, None, data), (place | {"contrast": 1}, None, rubbish)]
    write(tmp_path / "k.h5", rows, header(ENCODED, WIDE, MATRIX, FIELD, centers=(6, 0), again=True), writer=writer)
    assert FORMATS.has(tmp_path / "k.h5")
    found = read_recording(tmp_path / "k.h5")
    assert found.stack
    assert found.data.shape == (12, 2, COILS, 20)
    check(found, images)
    check(read_recording(tmp_path / "k.h5", repetition=1), 2 * images)
    assert found.noise is not None
    assert found.noise.shape == (COILS, 3 * 64)
    said = " ".join(found.remarks)
    for words in (
        "3 acquisitions of noise",
        "1 acquisitions of navigation",
        "of phase stabilization",
        "of calibration",
    ):
        assert words in said
    for words in ("1 acquisitions of other encodings", "other contrasts", "24 acquisitions of other repetitions"):
        assert words in said
    with pytest.raises(InputError, match="repetition 2"):
        read_recording(tmp_path / "k.h5", repetition=2)


def test_lines_read_backwards_in_part_and_off_the_middle(tmp_path, writer):
    """Every other line backwards, less than half of the echo before its middle, samples discarded, partial Fourier."""
    images = scene()
    rows = []
    for step in range(8):  # of twelve lines, of which the middle is the third
        whole = measure(images[0], line(step, 16, 5, middle=2))
        values = {"kspace_encode_step_1": step, "center_sample": 5, "discard_pre": 2, "discard_post": 1}
        if step % 2:
            values |= {"flags": ["reverse"], "discard_pre": 1, "discard_post": 2}
            whole = whole[:, ::-1]
        rows.append((values, None, whole))
    write(tmp_path / "k.h5", rows, header(ENCODED, WIDE, MATRIX, FIELD, centers=(2, 0)), writer=writer)
    found = read_recording(tmp_path / "k.h5")
    assert found.data.shape == (8, COILS, 13)
    assert np.allclose(found.trajectory[:, :, 1], line(0, 16, 5)[2:15, 1])
    check(found, images)


@pytest.mark.parametrize("mode", ["embedded", "separate"])
def test_calibration_lines_count_where_they_are_embedded(tmp_path, mode):
    images = scene()
    rows = []
    for step in range(12):
        words = ["both"] if step % 2 == 0 and 4 <= step < 8 else ["calibration"] if 4 <= step < 8 else []
        if step % 2 == 0 or words:
            rows.append(({"kspace_encode_step_1": step, "flags": words}, None, measure(images[0], line(step))))
    write(tmp_path / "k.h5", rows, header(ENCODED, WIDE, MATRIX, FIELD, calibration=mode))
    found = read_recording(tmp_path / "k.h5")
    assert len(found.data) == (8 if mode == "embedded" else 6)
    check(found, images)


@pytest.mark.parametrize("unit", ["parts", "steps"])
def test_paths_that_acquisitions_tell(tmp_path, writer, unit):
    """Spokes in parts of the encoded matrix or its steps, x first, with their density; backwards ones as they are."""
    images = scene()
    rows = []
    for n in range(5):
        radius, angle = (np.arange(20) - 10) / 20 * 0.98, 0.7 * n
        spoke = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)  # x, y
        path = (spoke * ENCODED[:2] / (1e-3 * np.array(WIDE[:2])))[:, ::-1]
        told = np.concatenate([spoke * (1 if unit == "parts" else np.array(ENCODED[:2])), np.abs(radius)[:, None]], 1)
        rows.append(({"flags": ["reverse"] if n == 2 else []}, told, measure(images[0], path)))
    name = "dataset" if unit == "parts" else "scan_7"
    write(tmp_path / "k.h5", rows, header(ENCODED, WIDE, MATRIX, FIELD, kind="radial"), writer=writer, group=name)
    found = read_recording(tmp_path / "k.h5")
    check(found, images)
    assert found.density is not None
    assert np.allclose(found.density, np.abs((np.arange(20) - 10) / 20 * 0.98))


def test_spokes_in_partitions(tmp_path):
    """A stack of stars: acquisitions tell of x and y, the partition of z; encoded along three axes."""
    draw = np.random.default_rng(1)
    image, steps = draw.standard_normal((COILS, 4, 6, 6)) + 0j, (5e-3, 2e-3, 2e-3)
    rows = []
    for part in range(4):
        for n in range(3):
            spoke = (np.arange(12) - 6)[:, None] / 12 * [np.cos(n), np.sin(n)]
            path = np.concatenate([np.full((12, 1), (part - 2) / 20e-3), spoke[:, ::-1] / 2e-3], 1)
            rows.append(({"kspace_encode_step_2": part}, spoke, measure(image, path, steps)))
    sizes, widths = (6, 6, 4), (12, 12, 20)
    write(tmp_path / "k.h5", rows, header(sizes, widths, sizes, widths, kind="radial", centers=(0, 2)))
    found = read_recording(tmp_path / "k.h5")
    assert found.shape == centered_voxels((4, 6, 6), steps).shape
    assert not found.stack
    for path, values in zip(found.trajectory, found.data, strict=True):
        want = measure(image, path, steps)
        assert np.abs(values - want).max() < 1e-4 * np.abs(want).max()


LINE = np.ones((COILS, 20))


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([({}, None, LINE)], {"kind": "epi"}, "path is epi"),
        ([({}, None, LINE), ({}, None, LINE[:, :10])], {}, "different numbers"),
        ([({}, None, LINE), ({}, np.zeros((20, 2)), LINE)], {}, "and others do not"),
        ([({}, None, LINE * np.nan)], {}, "NaN"),
        ([({"discard_pre": 12, "discard_post": 9}, None, LINE)], {}, "discards all"),
        ([({"flags": ["noise"]}, None, LINE)], {}, "no acquisitions of repetition 0"),
        ([({"slice": 0}, None, LINE), ({"slice": 1, "kspace_encode_step_1": 2}, None, LINE)], {}, "other paths"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_line(tmp_path, rows, words, said):
    write(tmp_path / "k.h5", rows, header(ENCODED, WIDE, MATRIX, FIELD, **words))
    with pytest.raises(InputError, match=said) as caught:
        read_recording(tmp_path / "k.h5")
    assert "\n" not in str(caught.value)


def test_flags_are_the_official_ones():
    ismrmrd = pytest.importorskip("ismrmrd")
    names = {"noise": "NOISE_MEASUREMENT", "calibration": "PARALLEL_CALIBRATION", "reverse": "REVERSE"}
    names |= {"both": "PARALLEL_CALIBRATION_AND_IMAGING", "navigation": "NAVIGATION_DATA"}
    names |= {"stabilization": "PHASE_STABILIZATION"}
    assert {word: getattr(ismrmrd, f"ACQ_IS_{name}") for word, name in names.items()} == FLAGS


@pytest.mark.parametrize("empty", [(0, 0, 0), (30, 24, 0), (0, 24, 5)])
def test_a_field_of_view_that_nobody_filled_in_is_that_of_pixel(tmp_path, empty):
    """The encoded field is wider than the image's by its pixels, as where it is told."""
    images, step = scene()[0], 1.5e-3
    path = [np.stack([np.full(20, (n - 6) / (12 * step)), (np.arange(20) - 10) / (20 * step)], 1) for n in range(12)]
    rows = [({"kspace_encode_step_1": n}, None, measure(images, p, (step, step))) for n, p in enumerate(path)]
    wide = tuple(1e3 * step * size if width else 0 for size, width in zip(ENCODED, empty, strict=True))
    field = tuple(1e3 * step * size if width else 0 for size, width in zip(MATRIX, empty, strict=True))
    write(tmp_path / "k.h5", rows, header(ENCODED, wide, MATRIX, field))
    with pytest.raises(InputError, match="give --pixel"):
        read_recording(tmp_path / "k.h5")
    found = read_recording(tmp_path / "k.h5", pixel=step)
    assert np.allclose(found.trajectory, np.stack(path), atol=1e-6 / step)
    assert np.allclose(found.spacing, step)


@pytest.mark.parametrize("lacking", ["encoding_space_ref", "idx", "flags", "traj"])
def test_acquisitions_that_lack_a_field_are_one_line(tmp_path, lacking):
    import h5py

    write(tmp_path / "k.h5", [({}, None, np.ones((COILS, 20)))] * 2, header(ENCODED, WIDE, MATRIX, FIELD))
    with h5py.File(tmp_path / "k.h5", "r+") as file:
        old = file["dataset/data"]
        head = [name for name in old.dtype["head"].names if name != lacking]
        parts = {"head": np.dtype([(name, old.dtype["head"][name]) for name in head])}
        parts |= {name: old.dtype[name] for name in ("traj", "data") if name != lacking}
        del file["dataset/data"]
        file.create_dataset("dataset/data", (2,), np.dtype(list(parts.items())))
        for n in range(2):
            record = np.zeros(1, file["dataset/data"].dtype)[0]
            for name in {"traj", "data"} - {lacking}:
                record[name] = np.zeros(0, np.float32)
            file["dataset/data"][n] = record
    with pytest.raises(InputError, match=f"lack {'contrast, idx' if lacking == 'idx' else lacking}"):
        read_recording(tmp_path / "k.h5")
