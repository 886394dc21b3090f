"""`reconstruct scan.zarr` says why it has the batch, momentum and denoiser that nobody chose."""

import pytest

from plugstream import open_scan
from plugstream.cli import command_parser
from plugstream.cli.common import draft_of
from plugstream.runs.advice import advised_settings
from small_run import main

SCANS = {
    "born-2d": ["--size", "16", "--views", "12", "--receivers", "12"],
    "ct": ["--size", "16", "--views", "40"],
    "mri": ["--size", "40"],  # 15 spokes, more than a usual batch
    "fpm": ["--size", "32", "--camera", "16", "--leds", "9"],
    "ptychography": ["--frame", "16", "--across", "4"],
    "odt-3d": ["--size", "8", "--views", "12"],
    "scattering-2d": ["--size", "12", "--views", "12", "--receivers", "12", "--width", "0.01"],
}


def reasons(place, name, *words):
    typed = [str(place), "--instrument", name, *words]
    return advised_settings(draft_of(command_parser("reconstruct", typed).parse_args(typed)), open_scan(place))


@pytest.mark.parametrize("name", SCANS)
def test_batch_momentum_and_denoiser_have_a_reason_each(name, tmp_path):
    place = tmp_path / "scan.zarr"
    assert main(["simulate", str(place), "--instrument", name, *SCANS[name]]) == 0
    settings, notes = reasons(place, name, "--fall", "none")
    for flag in ("--batch", "--momentum", "--denoiser"):
        (told,) = [note for note in notes if f"({flag}" in note]
        assert len(told) < 120
    (told,) = [note for note in notes if "--denoiser" in note]
    image = open_scan(place).instrument.image
    assert settings.denoiser.name == "tv"
    assert told.startswith("denoiser tv: it needs no training")
    assert ("bm3d" in told) == (len(image.spatial) == 2 and not image.is_complex)
    # What a person chose is not explained to him.
    _, notes = reasons(place, name, "--denoiser", "bm3d", "--momentum", "none", "--batch", "3")
    assert not [note for note in notes if "(--denoiser" in note or "(--batch" in note or "(--momentum" in note]


def test_a_denoiser_for_a_falling_sigma_is_named_with_its_reason_and_only_for_that(tmp_path):
    place = tmp_path / "scan.zarr"
    assert main(["simulate", str(place), "--instrument", "mri", *SCANS["mri"]]) == 0
    settings, notes = reasons(place, "mri")
    assert (settings.denoiser.name, settings.algorithm.fall) == ("unet", 12)
    (told,) = [note for note in notes if "(--denoiser" in note]
    assert "unet" in told
    for words in (["--fall", "none"], ["--batch", "4"], ["--iterations", "40"], ["--algorithm", "admm"]):
        settings, _ = reasons(place, "mri", *words)
        assert (settings.denoiser.name, settings.algorithm.fall) == ("tv", None)


def test_what_an_algorithm_does_not_have_is_not_explained(tmp_path):
    place = tmp_path / "scan.zarr"
    assert main(["simulate", str(place), *SCANS["born-2d"]]) == 0
    _, notes = reasons(place, "born-2d", "--sigma", "0.1", "--algorithm", "admm", "--sampler", "all")
    assert not [note for note in notes if "--momentum" in note or "--batch" in note]
    settings, notes = reasons(place, "born-2d", "--sigma", "0.1", "--algorithm", "ipa")
    assert not [note for note in notes if "--momentum" in note]
    settings, notes = reasons(place, "born-2d", "--sigma", "0.1", "--algorithm", "snore")
    assert settings.momentum.name == "none"  # as the algorithm prefers, whatever the instrument advises
    _, notes = reasons(place, "born-2d", "--sigma", "0.1", "--batch", "20")
    assert notes[0].startswith("the run ends when the image has arrived, after at most 500 steps")
    assert [note.split(":")[0] for note in notes[1:]] == ["momentum tapered", "denoiser tv"]
    _, notes = reasons(place, "born-2d", "--sigma", "0.1")
    assert [note.split(":")[0] for note in notes[2:]] == ["batch 10", "momentum tapered", "denoiser tv"]
    assert "every view is used once before any is repeated" in notes[0]
    assert "steps of 10 views take less time than steps of all 12" in notes[2]
