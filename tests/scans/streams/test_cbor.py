"""CBOR and compressions of detectors: as the reference packages have them, and one line for what is wrong."""

import contextlib

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from effort import effort, thorough
from eiger import compress, typed
from plugstream.base.capacity import reading_at_most
from plugstream.base.errors import InputError
from plugstream.scans.streams.cbor import Tag, as_array, decode
from plugstream.scans.streams.compression import decompress

MOST = 1 << 20
# Characters of one byte to four; a table of all there are takes seconds to make.
TEXT = st.text(effort("a\0é€😀", st.characters(exclude_categories=["Cs"])))
LEAVES = st.one_of(
    st.integers(-(2**64), 2**64 - 1), st.floats(allow_nan=False), st.booleans(), st.none(), TEXT, st.binary()
)
ITEMS = st.recursive(LEAVES, lambda items: st.lists(items) | st.dictionaries(TEXT, items), max_leaves=20)


def plain(item):
    """With bytes in place of memoryviews."""
    if isinstance(item, list):
        return [plain(one) for one in item]
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    return bytes(item) if isinstance(item, memoryview) else item


@thorough
@settings(max_examples=effort(12, 30), deadline=None)
@given(ITEMS)
def test_items_are_those_of_cbor2(item):
    assert plain(decode(memoryview(cbor2.dumps(item)))) == item


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_an_item_or_refused(message):
    """And never another error, whatever they are taken for."""
    try:
        item = decode(memoryview(message))
    except InputError:
        return
    with contextlib.suppress(InputError):
        as_array(item, MOST)


def test_items_of_unknown_length():
    """As streaming encoders write them."""
    message = bytes.fromhex(
        "bf6474797065 65696d616765 616c 9f0102ff 6162 5f41014102ff 6174 7f61616162ff ff".replace(" ", "")
    )
    assert plain(decode(memoryview(message))) == {"type": "image", "l": [1, 2], "b": b"\1\2", "t": "ab"}


@pytest.mark.parametrize(
    "message",
    [
        b"\x81" * 100 + b"\x01",  # deep
        b"\xc1" * 100 + b"\x01",  # tags of tags
        b"\x7f" * 1_000_000,  # pieces of text in pieces
        b"\x5f" * 200_000 + b"\xff" * 200_000,
        b"\x9b" + b"\xff" * 8,  # a list of 2^64 items
        b"\x5b" + b"\xff" * 8,  # as many bytes
        b"\xff",
        b"\x82\x01\xff",
        b"\xbf\x61a\xff",
        b"\x01\x01",
        b"\xa1\x80\x01",
        b"\x1f",
        b"",
    ],
    ids=range(13),
)
def test_lies_are_refused(message):
    with pytest.raises(InputError):
        decode(memoryview(message))


def test_a_message_cut_off_anywhere_is_refused():
    message = cbor2.dumps({"type": "image", "data": {"a": typed(np.arange(6, dtype=np.uint16).reshape(2, 3))}})
    for stop in range(len(message)):
        with pytest.raises(InputError):
            decode(memoryview(message)[:stop])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", ">u2"])
def test_typed_arrays(dtype):
    array = np.arange(12).astype(dtype).reshape(3, 4)
    again = as_array(decode(memoryview(cbor2.dumps(typed(array)))), MOST)
    assert again.shape == (3, 4)
    assert (again == array).all()


@pytest.mark.parametrize(
    "item",
    [
        Tag(40, [[2, 3], Tag(69, memoryview(bytes(10)))]),  # five numbers
        Tag(40, [[2**40, 2**40], Tag(69, memoryview(bytes(12)))]),
        Tag(40, [[-1, -6], Tag(69, memoryview(bytes(12)))]),
        Tag(40, [6, Tag(69, memoryview(bytes(12)))]),
        Tag(40, [[1] * 60000 + [6], Tag(69, memoryview(bytes(12)))]),
        Tag(69, memoryview(bytes(3))),
        Tag(69, memoryview(bytes(MOST + 2))),
        Tag(69, "text"),
        Tag(1, memoryview(b"")),
        Tag(70, Tag(56500, ["bslz4", 4])),
        Tag(70, Tag(56500, ["trpx", 4, memoryview(bytes(40))])),
        [1, 2],
    ],
)
def test_arrays_that_are_none_are_refused(item):
    with pytest.raises(InputError):
        as_array(item, MOST)


@pytest.mark.parametrize("algorithm", ["bslz4", "bszstd", "lz4"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("shape", [(3, 24), (131, 97), (64, 128), (1, 5)])
def test_decompression_is_that_of_the_hdf5_filters(algorithm, dtype, shape):
    """Whole blocks, a shorter last one, and numbers that are left over."""
    array = np.random.default_rng(0).poisson(5, shape).astype(dtype)
    name, size, content = compress(array, algorithm).value
    again = decompress(name, size, memoryview(content), array.nbytes)
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize("algorithm", ["bslz4", "bszstd", "lz4"])
def test_decompression_is_that_of_dectris(algorithm):
    reference = pytest.importorskip("dectris.compression", reason="the package dectris-compression is not installed")
    array = np.random.default_rng(1).poisson(50, (300, 333)).astype(np.uint32)
    name, size, content = compress(array, algorithm).value
    theirs = reference.decompress(content, name, elem_size=size or 4)
    assert decompress(name, size, memoryview(content), array.nbytes).tobytes() == theirs


@pytest.mark.parametrize("algorithm", ["bslz4", "bszstd", "lz4"])
def test_damaged_bytes_are_refused_or_of_the_right_size(algorithm):
    """LZ4 has no checksum; what it makes of other bytes must not be larger than they say."""
    array = np.random.default_rng(2).poisson(5, (64, 128)).astype(np.uint16)
    name, size, content = compress(array, algorithm).value
    for stop in range(0, len(content), 37):
        with pytest.raises(InputError):
            decompress(name, size, memoryview(content)[:stop], array.nbytes)
    draw = np.random.default_rng(3)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[draw.integers(len(content))] ^= 1 << int(draw.integers(8))
        with contextlib.suppress(InputError):
            assert decompress(name, size, memoryview(damaged), array.nbytes).nbytes <= array.nbytes


def test_a_few_bytes_unpack_to_no_more_than_the_limit():
    """Within what their series says, too."""
    name, size, content = compress(np.zeros((256, 256), np.uint32), "bslz4").value
    with reading_at_most(1 << 16), pytest.raises(InputError, match=r"it claims 262 kB, and .* hold it"):
        decompress(name, size, memoryview(content), 1 << 40)
    assert decompress(name, size, memoryview(content), 1 << 40).nbytes == 1 << 18


@pytest.mark.parametrize("size", [0, 3, 2**70, "2", None, True])
def test_sizes_of_numbers_that_are_none(size):
    content = compress(np.zeros((8, 8), np.uint16), "bslz4").value[2]
    with pytest.raises(InputError):
        decompress("bslz4", size, memoryview(content), MOST)
