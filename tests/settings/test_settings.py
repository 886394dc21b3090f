"""Settings: where they come from, how mistakes in them are answered, and that they can be written and read back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings as hypothesis_settings, strategies as st

from effort import effort
from plugstream import open_scan
from plugstream.base.errors import InputError
from plugstream.settings import Settings, SettingsFile, leaves, parse_assignment, parse_setting, resolve, to_toml
from small_run import SMALL, main


def test_later_ones_win(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('[sampler]\nbatch = 5\nname = "epochs"\n[algorithm]\nsigma = 0.1\n')
    settings = resolve(file, [("sampler", "batch", 7)])
    assert settings.sampler.batch == 7
    assert settings.sampler.name == "epochs"
    assert settings.algorithm.sigma == 0.1
    assert settings.algorithm.iterations == Settings().algorithm.iterations


@given(
    batch=st.integers(1, 10**6),
    sigma=st.one_of(st.none(), st.floats(0, 1e6)),
    picture=st.text(effort("a= é€😀", st.characters(exclude_categories=["Cs"])), max_size=20),
    step=st.one_of(st.floats(1e-300, 1e300), st.just("1/4L")),
    cost=st.booleans(),
)
@hypothesis_settings(max_examples=6)
@example(batch=1, sigma=None, picture="".join(map(chr, range(0x20))) + '"\\\x7f\x80\u2028', step="1/4L", cost=True)
def test_what_is_written_is_read_back(tmp_path_factory, batch, sigma, picture, step, cost):
    settings = resolve(
        None,
        [
            ("sampler", "batch", batch),
            ("algorithm", "sigma", sigma),
            ("simulate", "picture", picture),
            ("algorithm", "step_size", step),
            ("monitor", "cost", cost),
        ],
    )
    file = tmp_path_factory.mktemp("toml") / "s.toml"
    file.write_text(to_toml(settings, "a comment\nof two lines"), encoding="utf-8")
    again = resolve(file)
    assert again == settings


def test_momentum_is_bounded_where_a_scan_is_followed_and_nothing_else_is_asked_for():
    follow = ("scan", "follow", True)
    assert resolve().momentum.name == "tapered"
    assert resolve(None, [follow]).momentum.name == "bounded"
    for asked in ("nesterov", "none"):
        assert resolve(None, [follow, ("momentum", "name", asked)]).momentum.name == asked


def test_momentum_is_tapered_where_steps_have_a_few_of_the_views_and_nesterovs_with_all():
    for name in ("uniform", "epochs", "shifted", "importance"):
        settings = resolve(None, [("sampler", "name", name)])
        assert (settings.momentum.name, settings.momentum.momentum_limit) == ("tapered", 20.0)
    for name in ("all", "fixed"):  # whose steps have no noise of batches
        assert resolve(None, [("sampler", "name", name)]).momentum.name == "nesterov"
    assert resolve(None, [("momentum", "name", "nesterov")]).momentum.name == "nesterov"
    limited = resolve(None, [("momentum", "name", "tapered"), ("momentum", "momentum_limit", 8)])
    assert limited.momentum.momentum_limit == 8
    assert resolve(None, [("algorithm", "name", "snore")]).momentum.name == "none"  # as it prefers


def test_none_is_nothing_only_where_that_can_be():
    settings = resolve(None, [("momentum", "name", "none"), ("denoiser", "low", "none")])
    assert settings.momentum.name == "none"
    assert settings.denoiser.low is None


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("sampler.batch=10", ("sampler", "batch", 10)),
        ("algorithm.sigma = 0.5", ("algorithm", "sigma", 0.5)),
        ("algorithm.step_size=1/4L", ("algorithm", "step_size", "1/4L")),
        ("denoiser.low=none", ("denoiser", "low", "none")),
        ("monitor.cost=true", ("monitor", "cost", True)),
    ],
)
def test_assignments_are_read(text, want):
    assert parse_assignment(text) == want


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (("algorithm", "sgima", 1), "no setting 'algorithm.sgima'; did you mean 'algorithm.sigma'"),
        (("algoritm", "sigma", 1), "did you mean 'algorithm.sigma'"),
        (("sampler", "batches", 1), "did you mean 'sampler.batch'"),
        (
            ("sampler", "batch", 0),
            "setting sampler.batch = 0 cannot be used: input should be greater than or equal to 1",
        ),
        (("algorithm", "sigma", True), "algorithm.sigma = True cannot be used: it is neither true nor false"),
        (("sampler", "batch", "many"), "sampler.batch = 'many' cannot be used"),
        (("sampler", "name", "nearest"), "sampler.name = 'nearest' cannot be used"),
        (("simulate", "radius", float("nan")), "simulate.radius = nan cannot be used"),
    ],
)
def test_mistakes_are_answered_in_one_line(assignment, message):
    with pytest.raises(InputError, match=message) as caught:
        resolve(None, [assignment])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[sampler]\nbtach = 3\n", "no setting 'sampler.btach'; did you mean 'sampler.batch'"),
        ("[smapler]\nbatch = 3\n", "no setting 'smapler'; did you mean 'sampler"),
        ("sampler = 3\n", "must be a section"),
        ("[sampler\n", "is not TOML"),
        (f"[{'.'.join(['sampler'] * 9999)}]\n", "line 1 of .* has tables in tables"),
        (f"[sampler]\nbatch = {'{a = ' * 400}1{'}' * 400}\n", "."),
    ],
)
def test_mistakes_in_a_file(tmp_path, content, message):
    file = tmp_path / "s.toml"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        resolve(file)
    with pytest.raises(InputError, match="cannot read the settings"):
        resolve(Path(tmp_path / "absent.toml"))


@pytest.fixture
def pipe():
    """Makes the path of a pipe with some text in it, which can be read once."""
    ends = []

    def fill(text: str) -> str:
        reader, writer = os.pipe()
        ends.append(reader)
        os.write(writer, text.encode())
        os.close(writer)
        return f"/dev/fd/{reader}"

    yield fill
    for end in ends:
        os.close(end)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no paths here")
def test_a_file_of_settings_is_read_once(pipe, capsys):
    file = SettingsFile(pipe("[sampler]\nbatch = 3\n"))
    settings = resolve(file, [("sampler", "batch", 4)])
    assert settings.sampler.batch == 4
    assert resolve(file).sampler.batch == 3  # what was typed is not kept
    broken = SettingsFile(pipe("[sampler\n"))
    for _ in range(2):  # the second time there is nothing in the pipe, which would be settings without a mistake
        with pytest.raises(InputError, match="is not TOML"):
            resolve(broken)
    # The sampler that it names is known before there is a parser, and again when the command runs.
    words = ["reconstruct", "absent.zarr", "--settings", pipe('[sampler]\nname = "all"\n[algorithm]\nsigma = 1\n')]
    assert main([*words, "--batch", "3"]) == 2
    assert "the sampler all has no use for batch" in capsys.readouterr().err


def test_every_setting_is_described_and_flags_are_unique():
    flags = []
    for _, key, info in leaves(Settings.model_fields):
        assert info.description, key
        extra = info.json_schema_extra or {}
        flags.append(extra.get("flag", key))
    assert len(flags) == len(set(flags))


def test_flags_are_read_as_their_field_wants_them():
    """A file may be called 10/20 and a picture 2024; numbers, fractions and switches are still read as such."""
    assert parse_setting("denoiser", "weights", "10/20") == "10/20"
    assert parse_setting("simulate", "picture", "2024") == "2024"
    assert parse_setting("algorithm", "sigma", "15/255") == 15 / 255
    assert parse_setting("algorithm", "step_size", "1/L") == "1/L"
    assert parse_setting("algorithm", "step_size", "0.5") == 0.5
    assert parse_setting("scan", "follow", "true") is True
    weights = parse_setting("denoiser", "weights", "none", {"denoiser": "tnrd"})
    settings = resolve(None, [("denoiser", "name", "tnrd"), ("denoiser", "weights", weights)])
    assert settings.denoiser.weights is None
    assert parse_assignment("simulate.picture=2024") == ("simulate", "picture", "2024")


def test_a_picture_may_be_named_by_a_number(tmp_path, monkeypatch, capsys):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("L", (24, 24), 90).save(tmp_path / "2024", format="PNG")
    assert main(["simulate", "s.zarr", "--picture", "2024", *SMALL]) == 0
    assert open_scan("s.zarr").truth == pytest.approx(np.full((24, 24), 90 / 255), rel=1e-6)


def test_a_section_has_the_options_of_its_entry_and_no_others():
    assert not hasattr(resolve(None, [("sampler", "name", "all")]).sampler, "batch")
    typed = [("sampler", "name", "all"), ("gradient", "name", "svrg"), ("sampler", "seed", 3)]  # which svrg goes by
    assert resolve(None, typed).sampler.seed == 3
    with pytest.raises(InputError, match=r"the sampler all has no use for batch; .* choose uniform or epochs"):
        resolve(None, [("sampler", "batch", 4), ("sampler", "name", "all")])
    with pytest.raises(ValueError, match="no use for batch"):
        Settings(sampler={"name": "all", "batch": 4})


def test_options_of_the_entry_in_a_file_are_left_out_where_another_is_typed(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('[sampler]\nname = "epochs"\nbatch = 5\nseed = 2\n')
    assert resolve(file, [("sampler", "name", "all")]).sampler.model_dump() == {"name": "all", "seed": 2}
    assert resolve(file, [("sampler", "name", "shifted")]).sampler.batch == 5
    with pytest.raises(InputError, match="no use for batch"):
        resolve(file, [("sampler", "name", "all"), ("sampler", "batch", 5)])
    file.write_text('[sampler]\nname = "all"\nbatch = 5\n')
    with pytest.raises(InputError, match="no use for batch"):
        resolve(file)


def test_presets_are_for_entries_that_have_them():
    presets = [("sampler", "batch", 3)]
    assert resolve(None, presets=presets).sampler.batch == 3
    assert resolve(None, [("sampler", "name", "all")], presets=presets).sampler.name == "all"


def test_flags_are_those_of_the_entry_that_is_chosen(capsys, tmp_path):
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit):
            main(["reconstruct", *words, "--help-all"])
        return capsys.readouterr().out

    file = tmp_path / "s.toml"
    file.write_text('[sampler]\nname = "all"\n')
    assert "--batch" in shown()
    for words in (["--sampler", "all"], ["--sampler=all"], ["--set", "sampler.name=all"], ["--settings", str(file)]):
        assert "--batch" not in shown(*words)
        assert "--seed" in shown(*words)
    assert "--batch" in shown("--settings", str(file), "--sampler", "epochs")
    text = shown("--denoiser", "nlm")
    assert "--nlm-guide" in text
    assert not any(flag in text for flag in ("--profile", "--tol", "--weights", "--channels"))
    assert main(["reconstruct", "s.zarr", "--sigma", "1", "--sampler", "all", "--batch", "3"]) == 2
    assert "the sampler all has no use for batch" in capsys.readouterr().err


def test_what_compute_said_of_the_born_model_is_the_instruments(tmp_path):
    file = tmp_path / "before.toml"
    file.write_text('[compute]\ndtype = "float64"\nmethod = "fast"\neps = 1e-6\n\n[simulate]\nviews = 7\n')
    settings = resolve(file)
    assert (settings.instrument.name, settings.instrument.method, settings.instrument.eps) == ("born-2d", "fast", 1e-6)
    assert (settings.compute.dtype, settings.simulate.views) == ("float64", 7)
    again = tmp_path / "again.toml"
    again.write_text(to_toml(settings))
    assert resolve(again) == settings
    assert "[instrument]" in again.read_text()
    assert not hasattr(settings.compute, "method")
    with pytest.raises(InputError, match=r"there is no setting 'compute.method'; did you mean 'instrument.method'"):
        resolve(None, [("compute", "method", "fast")])
    with pytest.raises(InputError, match=r"there is no setting 'simulate.name'"):
        resolve(None, [("simulate", "name", "born-2d")])


def test_a_small_limit_is_told_as_a_number_that_can_be_read():
    with pytest.raises(InputError, match=r"input should be greater than or equal to 1e-100$"):
        resolve(None, [("denoiser", "name", "unet"), ("denoiser", "white", -3)])
