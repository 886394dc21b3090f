"""Frames in the order of their numbers, each once: whatever happens on their way, what counts only ever grows."""

import numpy as np
import pytest

from plugstream.base.errors import InputError
from plugstream.scans.streams.frames import DARK, FLAT, NOTHING, PROJECTION, LiveFrames, LostError, Names, TakenError


def make(tmp_path, grace=0.0, resume=False, angles="angle"):
    return LiveFrames(Names(angles), grace, tmp_path / "keep", lambda text: None, resume=resume)


def add(frames, *numbers, key=PROJECTION):
    for n in numbers:
        frames.add(n, np.full((2, 3), n, np.uint16), {"angle": 10.0 * n, "image_key": key})


@pytest.mark.parametrize("seed", range(5))
def test_any_order_gives_the_same(tmp_path, seed):
    """With repeats among them."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(np.repeat(np.arange(12), 2))
    frames, seen = make(tmp_path, grace=60), 0
    for n in order:
        add(frames, int(n))
        frames.settle()
        assert frames.next >= seen
        seen = frames.next
    assert frames.keys == [PROJECTION] * 12
    assert frames.angles == [10.0 * n for n in range(12)]
    assert [int(frames.read(n)[0, 0]) for n in range(12)] == list(range(12))
    assert frames.counts == {"repeated": 12}


def test_what_is_missing_keeps_its_place(tmp_path):
    """And what comes too late does not change what was there."""
    frames = make(tmp_path)
    add(frames, 0, 3)
    assert frames.next == 1
    assert frames.pending
    frames.settle()
    assert frames.next == 4
    assert frames.counts == {"lost": 2}
    add(frames, 1)
    assert frames.counts == {"lost": 2, "late": 1}
    with pytest.raises(LostError, match="frame 1 was lost"):
        frames.read(1)


def test_a_frame_that_differs_is_not_taken_twice(tmp_path):
    frames = make(tmp_path)
    add(frames, 0)
    frames.add(0, np.zeros((2, 3), np.uint16) + 7, {"angle": 0.0})
    assert frames.counts == {"conflicting": 1}
    assert (frames.read(0) == 0).all()


@pytest.mark.parametrize("number", [-1, 10**6, 2**63])
def test_numbers_that_cannot_be(tmp_path, number):
    frames = make(tmp_path)
    add(frames, 0)
    frames.add(number, np.zeros((2, 3), np.uint16), {"angle": 0.0})
    assert frames.counts == {"impossible": 1}
    assert frames.next == 1


def test_frames_that_cannot_be_used_keep_their_place(tmp_path):
    """Of another size or type, with no angle, or no picture at all; they hold up nothing."""
    frames = make(tmp_path, grace=60)
    add(frames, 0)
    frames.add(1, np.zeros((3, 3), np.uint16), {"angle": 0.0})
    frames.add(2, np.zeros((2, 3), np.uint32), {"angle": 0.0})
    frames.add(3, np.zeros((2, 3), np.uint16), {"angle": float("nan")})
    frames.add(4, np.zeros((2, 3), np.uint16), {"theta": 1.0})
    frames.add(5, np.zeros((2, 3, 3), np.uint16), {"angle": 0.0})
    frames.add(6, np.zeros((2, 3), np.uint16), {"angle": 0.0, "image_key": []})
    frames.add_lost(7, "cannot be used")
    add(frames, 8)
    assert frames.next == 9
    for n in range(1, 8):
        with pytest.raises(LostError, match=f"frame {n} "):
            frames.read(n)
    assert np.isfinite(frames.angles).all()


def test_the_first_frame_tells_a_wrong_name(tmp_path):
    frames = make(tmp_path, angles="theta")
    with pytest.raises(InputError, match="its first frame has no theta to take the angle from; it has angle,"):
        add(frames, 0)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("/exchange/data_white", FLAT), ("/exchange/data_dark", DARK), ("/exchange/data", PROJECTION),
        ("FlatField", FLAT), ("1", FLAT), (2.0, DARK), (0, PROJECTION), (17, NOTHING), ("align", NOTHING),
    ],
)  # fmt: skip
def test_kinds_by_numbers_and_words(tmp_path, word, key):
    frames = make(tmp_path)
    frames.add(0, np.zeros((2, 3), np.uint16), {"angle": 0.0, "image_key": word})
    assert frames.keys == [key]


def test_memory_is_let_go_and_limited(tmp_path):
    frames = make(tmp_path, grace=60)
    frames.most = 60
    add(frames, *range(4))
    assert not frames.full
    add(frames, 4)
    assert frames.full
    frames.release()
    assert not frames.full
    with pytest.raises(TakenError):
        frames.read(2)


def test_a_later_process_has_the_fields(tmp_path):
    """And the places of frames that were taken, or came between the two."""
    first = make(tmp_path)
    add(first, 0, 1, key=DARK)
    add(first, 2, key=PROJECTION)
    add(first, 3, 4, key=FLAT)
    add(first, 5, 6)
    first.remember(series=3)
    second = make(tmp_path, resume=True)
    assert second.memory["series"] == 3
    assert second.keys == [DARK, DARK, PROJECTION, FLAT, FLAT]
    assert [int(second.read(n)[0, 0]) for n in (0, 1, 3, 4)] == [0, 1, 3, 4]
    add(second, 9)
    assert second.keys[5:] == [PROJECTION] * 5
    for n in (2, 5, 8):
        with pytest.raises(TakenError):
            second.read(n)
    assert not second.counts
    other = make(tmp_path, resume=True)
    other.add(10**12, np.zeros((2, 3), np.uint16), {"angle": 0.0})  # which would be as many empty places
    assert (other.next, other.counts) == (5, {"impossible": 1})
    third = make(tmp_path)  # a scan that begins anew
    assert third.keys == []
    assert not list((tmp_path / "keep").glob("*.npy"))
