"""What a file of settings names is run only if the person at the command line says so."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from plugstream.base.errors import InputError
from plugstream.runs.parts import build_denoiser
from plugstream.settings import DenoiserSettings, Settings, resolve, to_toml
from small_run import content, main

RUN = ["--sigma", "0.02", "--batch", "4", "--threads", "1", "--iterations", "3"]
NET = """
from pathlib import Path
import torch

Path(__file__).with_name("ran").touch()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.weight * x
"""


class Bomb:
    """Unpickling this makes a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return (Path.touch, (self.place,))


@pytest.fixture
def net(tmp_path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path}/net.py:Net"


def ran(tmp_path: Path) -> bool:
    """Whether the file was run since the last question."""
    there = (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink(missing_ok=True)
    return there


def said(capsys) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


def commands(scan: Path, tmp_path: Path) -> list[list[str]]:
    np.save(tmp_path / "z.npy", np.random.default_rng(0).random((24, 24)))
    out = str(tmp_path / "out")
    small = ["--size", "24", "--views", "4", "--receivers", "9", "--radius", "0.4", "--wavelength", "0.03"]
    return [
        ["reconstruct", str(scan), "--out", out, *RUN],
        ["demo", "--instrument", "born-2d", "--out", out, *small, *RUN],
        ["tune", str(scan), "--out", f"{out}.toml", "--evaluations", "3", "--iterations", "2"],
        ["denoise", str(tmp_path / "z.npy"), f"{out}.npy", "--sigma", "0.1"],
        ["certify", "--sigma", "0.1", "--out", out, "--size", "8", "--products", "3"],
    ]


@pytest.mark.parametrize("number", range(5))
def test_every_command_asks_before_it_runs_what_a_settings_file_names(scan, tmp_path, net, capsys, number):
    file = tmp_path / "theirs.toml"
    file.write_text(f'[denoiser]\nname = "{net}"\n')
    words = commands(scan, tmp_path)[number]
    before = content(tmp_path)
    assert main([*words, "--settings", str(file)]) == 2
    line = said(capsys)
    assert "Net of" in line
    assert str(tmp_path / "net.py") in line
    assert hashlib.sha256((tmp_path / "net.py").read_bytes()).hexdigest() in line
    assert "--trust" in line
    assert not ran(tmp_path)
    assert content(tmp_path) == before
    if number in (0, 3):  # one that leaves a run, and one that does not
        assert main([*words, "--settings", str(file), "--trust"]) == 0
        assert ran(tmp_path)


def test_what_is_typed_is_consent(scan, tmp_path, net):
    file = tmp_path / "theirs.toml"
    file.write_text('[denoiser]\nname = "/nowhere/evil.py:Net"\n')
    np.save(tmp_path / "z.npy", np.random.default_rng(0).random((24, 24)))
    words = ["denoise", str(tmp_path / "z.npy"), "--sigma", "0.1"]
    for number, typed in enumerate((["--denoiser", net], ["--set", f"denoiser.name={net}"])):
        for settings in ([], ["--settings", str(file)]):  # typed over what the file says
            out = tmp_path / f"o{number}{len(settings)}.npy"
            assert main([*words[:2], str(out), *words[2:], *typed, *settings]) == 0
            assert ran(tmp_path)


def test_a_run_with_a_network_is_resumed_with_consent_only(scan, tmp_path, net, capsys):
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--denoiser", net]
    assert main(words) == 0
    assert ran(tmp_path)
    assert "--trust" in (tmp_path / "run" / "settings.toml").read_text().splitlines()[1]  # the command that repeats it
    before = content(tmp_path / "run")
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "run"), "--iterations", "5"]) == 2
    line = said(capsys)
    assert "run Net of" in line
    assert "unpickle" not in line  # there are no weights
    assert "--trust" in line
    assert not ran(tmp_path)
    assert content(tmp_path / "run") == before
    assert main(["resume", str(tmp_path / "run"), "--iterations", "5", "--trust"]) == 0
    assert ran(tmp_path)


def test_a_folder_cannot_bring_its_own_consent(scan, tmp_path, net, capsys):
    """A run of another's, whose settings were written by hand."""
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN]) == 0
    toml = tmp_path / "run" / "settings.toml"
    text = toml.read_text().replace('name = "tv"', f'name = "{net}"')
    toml.write_text(text)
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert not ran(tmp_path)
    for line in ("trust = true", "unpickle = true"):
        toml.write_text(text.replace("[denoiser]", f"[denoiser]\n{line}"))
        capsys.readouterr()
        assert main(["resume", str(tmp_path / "run")]) == 2
        assert not ran(tmp_path)
    toml.write_text(f"trust = true\n{text}")
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert not ran(tmp_path)


@pytest.fixture
def pickle(tmp_path) -> Path:
    torch.save({"weight": torch.ones(1), "bomb": Bomb(tmp_path / "exploded")}, tmp_path / "w.pt")
    return tmp_path / "w.pt"


def test_a_file_cannot_have_a_pickle_opened(scan, tmp_path, net, pickle, capsys):
    np.save(tmp_path / "z.npy", np.random.default_rng(0).random((24, 24)))
    file = tmp_path / "theirs.toml"
    words = ["denoise", str(tmp_path / "z.npy"), str(tmp_path / "o.npy"), "--sigma", "0.1", "--settings", str(file)]
    for text, typed in (
        (f'weights = "{pickle}"\nunpickle = true', ["--denoiser", net]),
        ("unpickle = true", ["--denoiser", net, "--weights", str(pickle)]),
        (f'weights = "{pickle}"', ["--denoiser", net]),
        (f'name = "deepinv:DnCNN"\nweights = "{pickle}"\nunpickle = true', []),
    ):
        file.write_text(f"[denoiser]\n{text}\n")
        assert main([*words, *typed]) == 2
        line = said(capsys)
        assert "unpickle" in line
        assert hashlib.sha256(pickle.read_bytes()).hexdigest() in line
        assert "--trust" in line
        assert not (tmp_path / "exploded").exists()
    file.write_text(f'[denoiser]\nweights = "{pickle}"\n')
    main([*words, "--denoiser", net, "--unpickle"])  # typed: the person's own risk
    assert (tmp_path / "exploded").exists()


def test_consent_is_never_written_and_a_run_by_consent_can_be_resumed_by_consent(scan, tmp_path, net, capsys):
    torch.save({"weight": torch.full((1,), 0.5)}, tmp_path / "w.pt")
    words = ["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--denoiser", net]
    assert main([*words, "--weights", str(tmp_path / "w.pt"), "--unpickle"]) == 0
    text = (tmp_path / "run" / "settings.toml").read_text()
    assert "unpickle" not in text
    assert resolve(tmp_path / "run" / "settings.toml", trust=True).denoiser.unpickle
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "run"), "--iterations", "5"]) == 2
    assert "unpickle" in said(capsys)
    assert main(["resume", str(tmp_path / "run"), "--iterations", "5", "--trust"]) == 0


def test_what_a_file_says_of_our_own_denoisers_needs_no_consent(scan, tmp_path):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, "--denoiser", "tnrd"]) == 0
    settings = tmp_path / "run" / "settings.toml"
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "again"), "--settings", str(settings)]) == 0
    shutil.rmtree(tmp_path / "again")
    assert main(["resume", str(tmp_path / "run")]) == 0


def test_simulate_runs_nothing_and_asks_for_nothing(tmp_path, net):
    file = tmp_path / "theirs.toml"
    file.write_text(f'[denoiser]\nname = "{net}"\n[simulate]\nsize = 16\nviews = 3\nreceivers = 5\n')
    assert main(["simulate", str(tmp_path / "s.zarr"), "--settings", str(file)]) == 0
    assert not ran(tmp_path)


def test_arguments_of_a_function_are_consent(tmp_path, net):
    assert isinstance(build_denoiser(DenoiserSettings.of(name=net))(torch.ones(4, 4), 0.1), torch.Tensor)
    assert ran(tmp_path)
    file = tmp_path / "s.toml"
    file.write_text(to_toml(Settings(denoiser=DenoiserSettings.of(name=net))))
    with pytest.raises(InputError, match="--trust"):
        resolve(file)
    assert resolve(file, trust=True).denoiser.name == net
    assert resolve(None, [("denoiser", "name", net)]).denoiser.name == net
