"""Damaged and hostile messages and files, through our readers: none may crash, hang, take memory, or show a bug.

    python benchmarks/fuzz.py --cases 2000 --seed 0 --kind pva dectris tiff cbf hdf5 npz matlab
    python benchmarks/fuzz.py --kind hdf5 --seed 0 --only 1234          that case alone, with its traceback

Each case is a valid message or file with a few changes: bits, bytes, lengths and dimensions that are extreme, pieces
that are cut, repeated or nested, text and opaque data in place of numbers. It goes through the reader that a command
uses, in a process with limits on memory and time. The counts: accepted; left out, of a stream, with a reason; refused,
in one line; FAILED. Cases that fail stay in --out. Needs what `pip install -e '.[dev]'` brings.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import io
import json
import re
import resource
import select
import shutil
import struct
import subprocess
import sys
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

Draw = np.random.Generator
Content = bytes
EXTREMES = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
MAX_READ, MOST_MEMORY = 32 << 20, 768 << 20  # bytes: of the readers' own limit, and of what a case may take
SECONDS = 30.0
CT = {"center": "11.5", "rows": "1", "arc": 180.0}


class Example(NamedTuple):
    """A valid file. Arguments: name; suffix; importer and its options; content."""

    name: str
    suffix: str
    importer: str
    values: dict[str, Any]
    content: Content


def pick(draw: Draw, values: Any) -> Any:
    """One of a sequence, as it is."""
    return values[int(draw.integers(len(values)))]


def change_bytes(draw: Draw, content: Content) -> Content:
    """One to four changes of any bytes, most of them near the beginning, where lengths stand."""
    data = bytearray(content)
    for _ in range(int(draw.integers(1, 5))):
        size = max(1, len(data))
        at = int(draw.integers(min(size, pick(draw, (24, 512, size)))))
        kind = int(draw.integers(7))
        if kind == 0 and data:
            data[at] ^= 1 << int(draw.integers(8))
        elif kind == 1 and data:
            data[at] = int(draw.integers(256))
        elif kind == 2:
            data = data[: int(draw.integers(size))]
        elif kind == 3:
            wide = pick(draw, (2, 4, 8))
            number = (pick(draw, EXTREMES) % 256**wide).to_bytes(wide, pick(draw, ("little", "big")))
            data[at // wide * wide : at // wide * wide + wide] = number
        elif kind == 4:
            del data[at : at + int(draw.integers(1, 40))]
        elif kind == 5:
            data[at:at] = draw.bytes(int(draw.integers(1, 40)))
        else:
            data[at:at] = bytes(data[at : at + pick(draw, (1, 2, 16))]) * pick(draw, (2, 30, 3000))
    return bytes(data)


def odd_value(draw: Draw) -> Any:
    """What may stand where something else is expected."""
    deep: Any = 1
    for _ in range(int(draw.integers(1, 40))):
        deep = [deep]
    odd = [*EXTREMES, -1, -(2**63), 0.5, float("nan"), float("inf"), 1e300, "", "text", "9" * 400, b"", b"\xff" * 9]
    odd += [None, True, [], {}, {"a": 1}, [1, 2], [1] * 3000 + [47], deep]
    return pick(draw, odd)


def change_tree(draw: Draw, tree: Any, value: Callable[[Draw], Any] = odd_value) -> Any:
    """A tree of dicts and lists, somewhere in which another value stands, or a part is missing."""
    if isinstance(tree, dict | list) and tree and draw.random() < 0.9:
        places = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        place, copy = pick(draw, places), tree.copy()
        if draw.random() < 0.1:
            del copy[place]
        else:
            copy[place] = change_tree(draw, copy[place], value)
        return copy
    if isinstance(tree, bytes) and draw.random() < 0.8:
        return change_bytes(draw, tree)
    return value(draw)


# Streams: a case is a line of JSON, or a message in base 64, for each message.


def make_pva(draw: Draw, folder: Path) -> tuple[str, Content]:
    """Thirty frames of one codec, of which a few are changed."""
    pack = importlib.import_module("area_detector").pack
    types = importlib.import_module("area_detector").TYPES
    codec = pick(draw, ("", "blosc", "lz4", "bslz4", "zlib", "jpeg"))
    dtype = "uint8" if codec == "jpeg" else pick(draw, ("uint8", "uint16", "int32", "float32"))
    lines = []
    for n in range(12):
        array = draw.poisson(9, (16, 24)).astype(dtype)
        content = pack(array, codec) if codec else array.tobytes()
        stamp = {"secondsPastEpoch": 1 + n, "nanoseconds": 0}
        value: dict[str, Any] = {
            "uniqueId": 10 + n,
            "codec": {"name": codec, "parameters": types[dtype] if codec else None},
            "dimension": [{"size": 24}, {"size": 16}],
            "value": content,
            "attribute": [{"name": "angle", "value": 7.0 * n}, {"name": "image_key", "value": 0}],
            "dataTimeStamp": stamp,
            "timeStamp": stamp,
        }
        if n and draw.random() < 0.3:
            changed = change_tree(draw, value)
            value = changed if isinstance(changed, dict) else {"value": changed}
        number = np.uint8 if codec else dtype
        value["dtype"] = np.dtype(number).str
        lines.append(json.dumps(value, default=lambda one: {"b64": base64.b64encode(one).decode()}))
    return ".jsonl", "\n".join(lines).encode()


def read_pva(content: Content, path: Path, work: Path) -> Counter[str]:
    from plugstream.scans.streams import pva
    from plugstream.scans.streams.address import Address

    class Client:
        """p4p's client, which gives what it is told to."""

        Context = None

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def monitor(self, *_: Any, **__: Any) -> Any:
            return Client()

        def close(self) -> None:
            pass

    class Module:
        Context = Client

    def restore(one: dict[str, Any]) -> Any:
        return base64.b64decode(one["b64"]) if one.keys() == {"b64"} else one

    pva.p4p_module = Module
    frames = open_frames(work)
    feed = pva.PvaFeed(Address("pva", "fuzz"), frames)
    feed._arrive({})  # what was there before
    for line in content.decode().splitlines():
        value = json.loads(line, object_hook=restore)
        dtype, data = np.dtype(value.pop("dtype")), value.get("value")
        if isinstance(data, bytes):
            value["value"] = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
        feed._arrive(value)
    feed.receive(0)
    feed.receive(0)
    return close_frames(frames)


def make_dectris(draw: Draw, folder: Path) -> tuple[str, Content]:
    """A series of one compression, of which a few messages are changed before or after they are encoded."""
    import cbor2

    eiger = importlib.import_module("eiger")
    algorithm = pick(draw, (None, "bslz4", "bszstd", "lz4"))
    array = draw.poisson(9, (eiger.ROWS, eiger.COLUMNS)).astype(np.uint16)
    mask = {"threshold_1": eiger.typed(np.zeros(array.shape, np.uint32), algorithm)}
    messages: list[Any] = [eiger.start(images=10, pixel_mask=mask, user_data={"image_key": 0})]
    messages += [eiger.image(n, eiger.typed(array, algorithm)) for n in range(10)] + [eiger.end()]

    def open_tags(tree: Any) -> Any:  # so that they are changed, too
        if isinstance(tree, cbor2.CBORTag):
            return {"tag": tree.tag, "of": open_tags(tree.value)}
        if isinstance(tree, dict):
            return {key: open_tags(value) for key, value in tree.items()}
        return [open_tags(one) for one in tree] if isinstance(tree, list) else tree

    def close_tags(tree: Any) -> Any:
        if isinstance(tree, dict):
            closed = {key: close_tags(value) for key, value in tree.items()}
            return cbor2.CBORTag(tree["tag"], closed["of"]) if tree.keys() == {"tag", "of"} else closed
        return [close_tags(one) for one in tree] if isinstance(tree, list) else tree

    lines = []
    for message in messages:
        if draw.random() < 0.2:
            with suppress(Exception):
                message = close_tags(change_tree(draw, open_tags(message)))
        try:
            encoded = cbor2.dumps(message)
        except Exception:
            encoded = draw.bytes(30)
        lines.append(change_bytes(draw, encoded) if draw.random() < 0.1 else encoded)
    return ".b64", b"\n".join(base64.b64encode(line) for line in lines)


def read_dectris(content: Content, path: Path, work: Path) -> Counter[str]:
    from plugstream.scans.streams.address import Address
    from plugstream.scans.streams.dectris import DectrisFeed

    frames = open_frames(work)
    feed = DectrisFeed(Address("dectris", "127.0.0.1:9"), frames)
    try:
        for line in content.split(b"\n"):
            feed._take(memoryview(base64.b64decode(line)))
    finally:
        feed.close()
    return close_frames(frames)


def open_frames(work: Path) -> Any:
    from plugstream.scans.streams.frames import LiveFrames, Names

    LiveFrames.guarding = lambda self: nullcontext()  # type: ignore[method-assign, assignment, return-value] # shows what it would hide
    return LiveFrames(Names("angle"), 0.0, work / "keep", lambda text: None)


def close_frames(frames: Any) -> Counter[str]:
    frames.settle(now=True)
    counts = Counter({"left out": sum(frames.counts.values())})
    for number in range(frames.next):
        try:
            assert np.isfinite(float(frames.read(number).sum(dtype=float))) or frames.dtype.kind == "f"
            counts["accepted"] += 1
        except ValueError:
            counts["left out"] += 1
    return counts


# Files: an example is imported as a command does it, and described.


def examples_tiff(folder: Path) -> Iterator[Example]:
    import tifffile

    array = np.random.default_rng(0).poisson(50, (4, 16, 24))
    for name, how in {
        "plain": {}, "deflate": {"compression": "zlib"}, "imagej": {"imagej": True}, "tiles": {"tile": (16, 16)},
        "big": {"bigtiff": True}, "ome": {"ome": True},
    }.items():  # fmt: skip
        file = io.BytesIO()
        tifffile.imwrite(file, array.astype(np.uint16), photometric="minisblack", **how)  # type: ignore[arg-type]
        yield Example(name, ".tif", "", {}, file.getvalue())


def change_tiff(draw: Draw, one: Example, folder: Path) -> Content:
    """Bytes, or the entries of the first directory: counts and values."""
    data = bytearray(one.content)
    if one.name == "big" or draw.random() < 0.4:
        return change_bytes(draw, one.content)
    order = "<" if data[:2] == b"II" else ">"
    (start,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, start)
    for _ in range(int(draw.integers(1, 4))):
        entry = start + 2 + 12 * int(draw.integers(count))
        at, value = pick(draw, ((2, "H"), (4, "I"), (8, "I"), (8, "I"), (8, "I")))
        number = pick(draw, (*EXTREMES, 2, 3, 8, 65000, len(data), int(draw.integers(70000))))
        struct.pack_into(order + value, data, entry + at, number % (2**16 if value == "H" else 2**32))
    return bytes(data)


def read_tiff(content: Content, path: Path, work: Path) -> Counter[str]:
    """As projections in a folder that fills, as a picture, and as a volume."""
    from plugstream.images.pictures import load_picture
    from plugstream.images.volumes import read_volume, volume_header
    from plugstream.scans.importers.growth import Growth
    from plugstream.scans.importers.picture_stack import Stack

    counts = Counter[str]()
    growth = Growth(closed=True, final=True)
    stack = lambda: Stack(path.parent, path.name, "it", growth, numbered=True).read  # noqa: E731
    alone = lambda: Stack(path.parent, path.name, "it").read()  # noqa: E731
    for read in (stack, alone, lambda: load_picture(path), lambda: volume_header(path)[0] and read_volume(path)):
        try:
            counts["accepted"] += not isinstance(read(), str)
        except ValueError as error:
            check_refusal(error)
            counts["refused"] += 1
    return counts


def examples_cbf(folder: Path) -> Iterator[Example]:
    picture = np.random.default_rng(0).poisson(300, (16, 24)).astype(np.int32)
    yield Example("cbf", ".cbf", "", {}, importlib.import_module("cbf_files").encode_cbf(picture))


def examples_hdf5(folder: Path) -> Iterator[Example]:
    fields, growing = importlib.import_module("field_files"), importlib.import_module("growing_files")
    pty: dict[str, Any] = {"pixel": 1e-8}
    for name, importer, values in (
        ("nexus", "ct", CT), ("ismrmrd", "mri", {}), ("cxi", "ptychography", pty), ("ptyd", "ptychography", pty),
    ):  # fmt: skip
        path = folder / f"{name}.h5"
        small = {"nexus": {"views": 8}, "ismrmrd": {"size": 16}}.get(name, {})
        getattr(fields, f"write_{name}")(path, **small)
        yield Example(name, ".h5", importer, values, path.read_bytes())
    for layout in ("exchange", "exchange-chunks", "nexus-planned", "exchange-bslz4", "exchange-blosc", "exchange-lz4"):
        path = folder / f"{layout}.h5"
        writer = growing.Writer(path, layout)
        writer.fields("darks")
        writer.fields("flats")
        for n in range(8):
            writer.view(n)
        writer.file.close()
        yield Example(layout, ".h5", "ct", CT, path.read_bytes())
    fields.write_series(folder / "series", views=6, size=16)
    yield Example("series", ".h5", "odt", {"arc": 360.0}, (folder / "series" / "series.h5").read_bytes())
    fields.write_own_hdf5(folder / "own.h5")
    mapping = {"map": ("data=/scan/frames", "positions=/scan/corner"), "instrument": "ptychography"}
    yield Example("own", ".h5", "hdf5", mapping, (folder / "own.h5").read_bytes())


def odd_array(draw: Draw, array: Any) -> Any:
    """An array in place of another: of another kind, shape or content."""
    array = np.asarray(array)
    plain = array if array.dtype.kind in "fiu" else np.arange(6.0)
    bad = plain.astype(np.float64).copy()
    if bad.size:
        bad.flat[int(draw.integers(bad.size))] = pick(draw, (np.nan, np.inf, -1e300, 0.0))
    record = np.zeros(max(1, array.size), [("r", "f4"), ("x", "S3")])
    odd: list[Any] = [record, bad, plain[..., None], plain.reshape(-1), np.atleast_1d(plain)[:0], np.array(3.0)]
    odd += [np.frombuffer(bytes(8 * len(record)), "V8"), np.array(b"text"), np.array([b"ab"] * len(record))]
    odd += [plain.astype(np.complex64)]
    odd += [plain.astype(bool), plain.astype(np.uint8), -plain.astype(np.int64), plain[:-1] if plain.ndim else plain]
    return pick(draw, odd)


def change_hdf5(draw: Draw, one: Example, folder: Path) -> Content:
    """Bytes, or datasets and attributes by their names."""
    import h5py

    if draw.random() < 0.35:
        return change_bytes(draw, one.content)
    path = folder / "changed.h5"
    path.write_bytes(one.content)
    with h5py.File(path, "r+") as file:
        names = list[str]()
        file.visititems(lambda name, item: names.append(name) if hasattr(item, "dtype") else None)
        for _ in range(min(len(names), int(draw.integers(1, 4)))):
            # Each once: HDF5 itself, which reads it here, crashes on some chunks that were changed.
            name = names.pop(int(draw.integers(len(names))))
            with suppress(Exception):  # what h5py itself refuses to write
                _change_dataset(draw, file, name)
    return path.read_bytes()


def _change_dataset(draw: Draw, file: Any, name: str) -> None:
    import h5py

    item, kind = file[name], int(draw.integers(11))
    if kind == 0 and item.attrs:
        item.attrs[pick(draw, list(item.attrs))] = pick(draw, ("text", b"\xff", np.nan, 2**40, np.zeros(3)))
        return
    if kind == 1:
        item.attrs[pick(draw, ("units", "axes", "description"))] = pick(draw, ("furlong", b"\xff", 7, np.arange(3)))
        return
    if kind in (2, 9, 10) and item.chunks is not None:  # a chunk of other bytes
        place = (0,) * item.ndim
        mask, content = item.id.read_direct_chunk(place)
        item.id.write_direct_chunk(place, change_bytes(draw, content), mask)
        return
    shape, dtype = item.shape, item.dtype
    content = odd_array(draw, item[()] if dtype.kind != "O" and dtype.names is None else np.arange(5.0))
    old = item[()] if dtype.names else None
    del file[name]
    if kind == 3:
        return
    if kind == 4:  # a claim
        large = tuple(pick(draw, (n, 10**5, 4 * 10**8)) for n in shape)
        chunks = [min(n, pick(draw, (1, 100, 10**4, n))) for n in large]
        for axis in np.argsort(large)[::-1]:  # no more than HDF5 writes a list of
            while np.prod([-(-n // size) for n, size in zip(large, chunks, strict=True)], dtype=float) > 10**5:
                chunks[axis] = min(large[axis], 10 * chunks[axis])
                if chunks[axis] == large[axis]:
                    break
        new = file.create_dataset(name, large, dtype, chunks=tuple(chunks), compression=pick(draw, (None, "gzip")))
        new.id.write_direct_chunk((0,) * len(large), zlib.compress(bytes(10**6)))
    elif kind == 5:
        layout = h5py.VirtualLayout(tuple(pick(draw, (n, 10**5, 4 * 10**8)) for n in shape), dtype)
        layout[...] = h5py.VirtualSource(pick(draw, (".", "other.h5")), pick(draw, (name, "x")), shape=layout.shape)
        file.create_virtual_dataset(name, layout)
    elif kind == 6:
        file[name] = h5py.SoftLink(pick(draw, (f"/{name}", "/", "/nowhere")))
    elif kind == 7 and old is not None:  # records with fields that are missing, or of another kind
        kept = [n for n in old.dtype.names if draw.random() < 0.7] or list(old.dtype.names[:1])
        file[name] = old[kept] if draw.random() < 0.5 else np.zeros(len(old), [(n, "S4") for n in old.dtype.names])
    else:
        file[name] = content


def examples_npz(folder: Path) -> Iterator[Example]:
    fields = importlib.import_module("field_files")
    fields.write_scattering(folder / "waves.npz")
    mapping: dict[str, Any] = {
        "map": ("total=E_tot", "incident=E_inc", "receivers=rx", "transmitters=tx"),
        "size": (8,),
    }
    mapping |= {"wavelength": 0.03, "width": 0.1}
    yield Example("waves", ".npz", "npz", mapping, (folder / "waves.npz").read_bytes())
    for name, importer, arrays in (
        ("kspace", "mri", {"kspace": np.ones((2, 16, 16), np.complex64), "mask": np.ones((16, 16)), "pixel": 1e-3}),
        ("leds", "fpm", {"images": np.ones((9, 16, 16)), "wavelength": 6e-7, "leds": np.arange(18.0).reshape(9, 2)}),
        ("phases", "odt", {"phase": np.zeros((6, 16, 16)), "angles": np.arange(6.0), "wavelength": 6e-7}),
    ):  # fmt: skip
        file = io.BytesIO()
        (np.savez_compressed if name == "kspace" else np.savez)(file, **arrays)  # type: ignore[arg-type]
        yield Example(name, ".npz", importer, {}, file.getvalue())


def change_npz(draw: Draw, one: Example, folder: Path) -> Content:
    """Bytes, arrays, or the shape that an array's header claims."""
    if draw.random() < 0.3:
        return change_bytes(draw, one.content)
    arrays = dict(np.load(io.BytesIO(one.content)))
    for _ in range(int(draw.integers(1, 3))):
        name = pick(draw, list(arrays))
        arrays[name] = odd_array(draw, arrays[name])
    if draw.random() < 0.1:
        arrays.pop(pick(draw, list(arrays)))
    file = io.BytesIO()
    pick(draw, (np.savez, np.savez_compressed))(file, **arrays)
    content = file.getvalue()
    if draw.random() < 0.2:  # as long as the text was
        content = content.replace(b"(9, 16, 16), }      ", b"(90000, 16000, 16), }").replace(b"(16, 48)", b"(16, 4e8)")
    return content


def examples_matlab(folder: Path) -> Iterator[Example]:
    fields = importlib.import_module("field_files")
    fields.write_leds(folder / "leds.mat", camera=16, across=3)
    yield Example("leds", ".mat", "fpm", {}, (folder / "leds.mat").read_bytes())
    from scipy.io import savemat

    lengths = {"distanceSourceOrigin": 410.0, "distanceSourceDetector": 553.0, "pixelSize": 0.2}
    parameters = lengths | {"angles": np.arange(0.0, 360, 10)}
    savemat(folder / "ct.mat", {"CtDataFull": {"sinogram": np.ones((36, 24)), "parameters": parameters}})
    yield Example("helsinki", ".mat", "ct", {"center": "11.5"}, (folder / "ct.mat").read_bytes())


def change_matlab(draw: Draw, one: Example, folder: Path) -> Content:
    """Bytes, also of what is compressed, or values."""
    from scipy.io import loadmat, savemat

    if draw.random() < 0.4:
        return change_bytes(draw, one.content)
    tree: Any = loadmat(io.BytesIO(one.content), simplify_cells=True)
    tree = {name: value for name, value in tree.items() if not name.startswith("__")}
    odd: list[Any] = [np.nan, "text", {}, [], np.array([], object), np.zeros((3, 0))]
    for _ in range(int(draw.integers(1, 3))):
        with suppress(Exception):
            tree = change_tree(draw, tree, lambda draw: pick(draw, [*odd, odd_array(draw, [1])]))
    file = io.BytesIO()
    try:
        savemat(file, tree, do_compression=bool(draw.random() < 0.5))
    except Exception:
        return change_bytes(draw, one.content)
    content = file.getvalue()
    return change_bytes(draw, content) if draw.random() < 0.3 else content


def read_file(one: Example, path: Path, work: Path) -> Counter[str]:
    """Import and describe it; HDF5 for a tomograph also as a file that may still grow."""
    from plugstream.scans.importers import describe_file, import_file
    from plugstream.scans.importers.ct import CTImport, open_reading
    from plugstream.scans.importers.growth import Growth

    def follow() -> tuple[()] | None:
        if one.importer == "ct" and one.suffix == ".h5":
            with open_reading(CTImport(**CT), path, Growth(expected=8, closed=True, final=True)) as reading:
                reading.read(slice(0, 2))
                return ()
        return None

    counts = Counter[str]()
    scan = work / "out.zarr"
    for read in (lambda: import_file(one.importer, path, scan, one.values), lambda: describe_file(path), follow):
        try:
            counts["accepted"] += isinstance(read(), tuple)
        except ValueError as error:
            check_refusal(error)
            counts["refused"] += 1
        shutil.rmtree(scan, ignore_errors=True)
    return counts


def check_refusal(error: Exception) -> None:
    """Raise an error that no command would tell in one line, or that was for want of memory."""
    from plugstream.base.errors import InputError

    link: BaseException | None = error
    seen = list[BaseException]()
    while link is not None and link not in seen:
        if isinstance(link, MemoryError):
            raise MemoryError("asked for more memory than the limit")
        seen.append(link)
        link = link.__cause__ or link.__context__
    if not isinstance(error, InputError):
        raise error


Change = Callable[[Draw, Example, Path], Content]
FILES: dict[str, tuple[Callable[[Path], Iterator[Example]], Change]] = {
    "tiff": (examples_tiff, change_tiff),
    "cbf": (examples_cbf, lambda draw, one, folder: change_bytes(draw, one.content)),
    "hdf5": (examples_hdf5, change_hdf5),
    "npz": (examples_npz, change_npz),
    "matlab": (examples_matlab, change_matlab),
}
STREAMS = {"pva": (make_pva, read_pva), "dectris": (make_dectris, read_dectris)}
KINDS = (*STREAMS, *FILES)


def run_cases(kind: str, seed: int, numbers: range, out: Path, *, alone: bool = False) -> None:
    """The cases of a kind, one after another, in this process: a line of JSON before and after each."""
    from plugstream.base.capacity import reading_at_most

    warnings.simplefilter("ignore")
    with TemporaryDirectory() as name, reading_at_most(MAX_READ):
        folder = Path(name)
        examples = list(FILES[kind][0](folder)) if kind in FILES else []
        work = folder / "work"
        for n in [-1, *numbers]:  # the first, which is not changed, loads what is needed
            draw = np.random.default_rng([seed, zlib.crc32(kind.encode()), n + 1])
            one = pick(draw, examples) if examples else None
            if one is None:
                suffix, content = STREAMS[kind][0](draw, folder)
            else:
                suffix, content = one.suffix, one.content if n < 0 else FILES[kind][1](draw, one, folder)
            work.mkdir()
            path = out / f"{kind}-{seed}-{n}-{one.name if one else 'messages'}_0{suffix}"
            path.write_bytes(content)
            if n == 0 or (n > 0 and n == numbers.start):
                size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (size + 4 * MOST_MEMORY, resource.RLIM_INFINITY))
            print(json.dumps({"case": n, "file": path.name}), flush=True)
            before, why = _peak(reset=True), ""
            try:
                read = STREAMS[kind][1] if one is None else read_tiff if not one.importer else None
                counts = read_file(one, path, work) if read is None and one else read(content, path, work)  # type: ignore[misc]
                outcome = next((word for word in ("left out", "accepted", "refused") if counts[word]), "refused")
            except BaseException as error:
                outcome, why = "refused", ""
                try:
                    check_refusal(error)  # type: ignore[arg-type]
                except BaseException:
                    outcome, why = "FAILED", "".join(traceback.format_exception(error)[-1:]).strip()[:300]
                    frames = [one for one in traceback.extract_tb(error.__traceback__) if "plugstream" in one.filename]
                    why += f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
                    if alone:
                        traceback.print_exc()
            if (taken := _peak() - before) > MOST_MEMORY:
                outcome, why = "FAILED", f"took {taken / 1e6:.0f} MB"
            if outcome != "FAILED":
                path.unlink()
            shutil.rmtree(work)
            print(json.dumps({"case": n, "outcome": outcome, "why": why}), flush=True)


def _peak(*, reset: bool = False) -> int:
    """The most memory that this process had since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(words["VmHWM"].split()[0])


def watch_cases(kind: str, seed: int, cases: int, out: Path) -> tuple[Counter[str], list[str]]:
    """Counts of outcomes, and a line for each failure; a process that ends or hangs is started anew behind its case."""
    counts, failures, begin, starts = Counter[str](), list[str](), 0, 0
    while begin < cases:
        words = [sys.executable, __file__, "--kind", kind, "--seed", str(seed), "--out", str(out)]
        process = subprocess.Popen(
            [*words, "--worker", str(begin), str(cases)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        case, file, why = begin, "", ""
        begun = -1  # what is needed is loaded before the first case of a process, on a busy machine for long
        assert process.stdout is not None
        while True:
            if not select.select([process.stdout], [], [], patience := SECONDS * (4 if begun < 0 else 1))[0]:
                why = f"took more than {patience:g} s"
                process.kill()
                break
            line = process.stdout.readline()
            if not line:
                status = process.wait()
                why = "" if status == 0 else f"the process ended with {status}"
                break
            event = json.loads(line)
            case = event["case"]
            file = event.get("file", file)
            if "outcome" in event:
                begun += 1
            if case >= 0 and "outcome" in event:
                counts[event["outcome"]] += 1
                if event["outcome"] == "FAILED":
                    failures.append(f"{file}: {event['why']}")
                begin = case + 1
        process.wait()
        process.stdout.close()
        if why:
            if case < 0 or not file:
                starts += 1
                print(f"{kind}: the examples fail before case {begin}: {why}; --only {begin} shows it", flush=True)
                if starts > 2:  # the other kinds are tried all the same
                    failures.append(f"{kind}: cases from {begin} on were not tried: {why}")
                    break
                continue
            counts["FAILED"] += 1
            failures.append(f"{file}: {why}")
            begin = case + 1
        elif begin < cases:
            failures.append(f"{kind}: cases from {begin} on were not tried: the process ended")
            break
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--cases", type=int, default=200, help="of each kind (200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="N", help="this case of a kind and seed alone, with its traceback")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where cases that fail are kept")
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    parsed.out.mkdir(parents=True, exist_ok=True)
    if parsed.worker or parsed.only is not None:
        numbers = range(*(parsed.worker or (parsed.only, parsed.only + 1)))
        run_cases(parsed.kind[0], parsed.seed, numbers, parsed.out, alone=parsed.only is not None)
        return 0
    failed = 0
    for kind in parsed.kind:
        began = time.monotonic()
        counts, failures = watch_cases(kind, parsed.seed, parsed.cases, parsed.out)
        failed += len(failures)
        words = ", ".join(f"{counts[word]} {word}" for word in ("accepted", "left out", "refused", "FAILED"))
        took = time.monotonic() - began
        print(f"{kind:8} seed {parsed.seed}, {parsed.cases} cases: {words}; {took:.0f} s", flush=True)
        groups: dict[str, list[str]] = {}
        for line in failures:
            file, _, why = line.partition(": ")
            groups.setdefault(re.sub(r"\d+(?!\d*$)", "N", why), []).append(file)
        for why, files in groups.items():
            print(f"  {len(files)} x {why}; {parsed.out}/{files[0]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
