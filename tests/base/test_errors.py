"""Errors are of three kinds: what was asked is wrong, the disk or the network failed, data is damaged."""

import pytest

from plugstream import DamagedError, InputError, StorageError
from plugstream.base.checked_jsonl import LineWriter, read_lines
from plugstream.base.errors import is_refusal
from plugstream.base.files import name_target


def test_only_a_wrong_request_is_a_refusal():
    assert is_refusal(InputError("a step must be > 0"))
    assert not is_refusal(StorageError("the disk is full"))
    assert not is_refusal(DamagedError("the log is cut"))
    assert not is_refusal(OSError(28, "No space left on device"))
    caused = InputError("it cannot be read")
    caused.__cause__ = OSError(5, "Input/output error")
    assert not is_refusal(caused)


def test_every_kind_is_caught_as_an_input_error_and_is_one_line():
    for kind in (InputError, StorageError, DamagedError):
        with pytest.raises(InputError) as caught:
            raise kind("two\nlines")
        assert "\n" not in str(caught.value)


def test_damaged_views_are_named_and_other_damage_has_none():
    error = DamagedError("scan", {7: "is missing", 3: "fails its checksum"})
    assert str(error) == "view 3 of scan cannot be read: fails its checksum"
    assert error.views == {7: "is missing", 3: "fails its checksum"}
    assert DamagedError("line 2 is cut").views == {}


def test_a_disk_that_refuses_and_a_line_that_changed_are_told_apart(tmp_path):
    with pytest.raises(StorageError, match="cannot write the log"):
        LineWriter(tmp_path / "none" / "log.jsonl", "the log")
    with pytest.raises(StorageError, match="cannot read the log"):
        list(read_lines(tmp_path / "log.jsonl", "the log"))
    (tmp_path / "log.jsonl").write_text("{}\n")
    with pytest.raises(DamagedError, match="line 1 of the log"):
        list(read_lines(tmp_path / "log.jsonl", "the log"))


def test_an_error_of_a_hidden_place_keeps_its_kind(tmp_path):
    hidden, target = tmp_path / ".x.partial", tmp_path / "x"
    with pytest.raises(StorageError, match=f"cannot write {target}$"), name_target(hidden, target):
        raise StorageError(f"cannot write {hidden}")
