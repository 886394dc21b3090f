"""Help: commands by what they are for, an example of each that works, and first the flags that most people need."""

from __future__ import annotations

import pytest

from plugstream import cli
from plugstream.cli.help import EXAMPLES, FIRST, GROUPS


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, match="0"):
        cli.main(list(words))
    return capsys.readouterr().out


def test_every_command_is_in_one_group_and_fits_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(cli.COMMANDS)
    text = shown(capsys, "--help")
    assert [line[:-1] for line in text.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_example_of_a_command_is_one_that_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(cli, "check_place", lambda arguments: None)  # the files are examples, too
    text = shown(capsys, name, "--help")
    assert f"Example: {EXAMPLES[name]}" in text
    assert len(text.splitlines()) < 45
    assert name in FIRST or shown(capsys, name, "--help", "all") == text


@pytest.mark.parametrize("name", FIRST)
def test_the_flags_that_matter_come_first_and_all_on_request(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    short, full = shown(capsys, name, "--help"), shown(capsys, name, "--help-all")
    assert shown(capsys, name, "--help", "all") == full
    places = [short.index(f"\n  --{flag} ") for flag in FIRST[name]]
    assert places == sorted(places)
    assert len(places) <= 10
    assert all(f"\n  --{flag}" in full for flag in (*FIRST[name], "progress"))
    assert "\n  --progress" not in short


def test_nothing_typed_shows_help_and_too_little_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == shown(capsys, "--help")
    assert cli.main(["verify"]) == 2
    example = "the following arguments are required: scan; for example: plugstream verify scan.zarr"
    assert capsys.readouterr().err == f"plugstream: {example}\n"


def test_what_was_chosen_brings_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--nlm-guide" in shown(capsys, "reconstruct", "--denoiser", "nlm", "--help")
    assert "--nlm-guide" not in shown(capsys, "reconstruct", "--help")
    assert "--photons" in shown(capsys, "simulate", "--instrument", "ct", "--help")
    assert "FILE.py:NAME (ct)" in shown(capsys, "demo", "--help")  # what the command changes of the defaults
    assert "128 of ct" in " ".join(shown(capsys, "demo", "--help").split())
    assert "finds it" not in shown(capsys, "follow", "--help")


def test_no_line_of_help_ends_within_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert not any(line.endswith("-") for line in shown(capsys, "reconstruct", "--help").splitlines())
