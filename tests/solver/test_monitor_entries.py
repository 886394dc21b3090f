"""Monitors are entries: several are chosen by name, by switch or by file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import plugstream as ps
from plugstream.base.errors import InputError
from plugstream.base.registry import entries
from plugstream.images.quality import WINDOW
from plugstream.instruments.born import born_geometry
from plugstream.settings import resolve, to_toml
from small_run import main

RUN = ["--sigma", "0.02", "--threads", "1", "--iterations", "3", "--every", "3"]
ROUGHNESS = '''
"""How much an image changes from pixel to pixel."""

from dataclasses import dataclass

from plugstream import Quantity
from plugstream.base.registry import Field, Options, register


class RoughnessOptions(Options):
    power: float = Field(1.0, gt=0, description="of the differences")


@dataclass(frozen=True)
class Roughness:
    power: float
    every: int | None = None
    measures = (Quantity("roughness", smaller_is_better=True),)

    def begin(self, algorithm, state, past):
        def measure(algorithm, state):
            return {"roughness": (state.image.diff(dim=-1).abs() ** self.power).mean((-2, -1))}

        return measure


@register("monitor", "roughness", "how much the image changes from pixel to pixel", options=RoughnessOptions)
def build(options: RoughnessOptions, truth, views):
    return Roughness(options.power)
'''


def measured(folder: Path) -> dict[str, list[float]]:
    """What history.csv holds."""
    rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()[1:]]
    return {name: [float(row[3]) for row in rows if row[0] == name] for name in dict.fromkeys(row[0] for row in rows)}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], ["distance", "snr"]),
        (["--psnr", "--cost"], ["distance", "snr", "psnr", "cost"]),
        (["--cost", "true", "--distance", "false"], ["snr", "cost"]),
        (["--monitor", "ssim", "--monitor", "psnr", "--snr=false"], ["distance", "psnr", "ssim"]),
        (["--set", 'monitor.names=["cost"]', "--psnr"], ["psnr", "cost"]),
        (["--set", "monitor.names=[]"], []),
    ],
)
def test_flags_choose_what_is_measured(scan, tmp_path, words, names):
    out = tmp_path / "run"
    assert main(["reconstruct", *words, str(scan), "--out", str(out), *RUN]) == 0
    settings = resolve(out / "settings.toml")
    assert list(settings.monitor.names) == names
    series = {"distance": {"distance", "relative_distance"}, "cost": {"cost", "fidelity"}}
    assert set(measured(out)) == set().union(*(series.get(name, {name}) for name in names))


def test_a_monitor_of_ones_own_is_one_file(scan, tmp_path, capsys):
    own = tmp_path / "roughness.py"
    own.write_text(ROUGHNESS)
    choice = ["--monitor", f"{own}:roughness"]
    with pytest.raises(SystemExit):
        main(["reconstruct", *choice, "--help"])
    assert "--roughness-power X" in capsys.readouterr().out
    out = tmp_path / "run"
    assert main(["reconstruct", str(scan), *choice, "--roughness-power", "2", "--out", str(out), *RUN]) == 0
    image = np.load(out / "result.npy")
    assert measured(out)["roughness"][-1] == pytest.approx(float((np.diff(image) ** 2).mean()), rel=1e-5)
    text = (out / "settings.toml").read_text()
    assert f'names = ["distance", "snr", "{own}:roughness"]' in text
    assert "roughness_power = 2.0" in text
    assert main(["resume", str(out), "--iterations", "6"]) == 2
    assert "run roughness of" in capsys.readouterr().err
    assert main(["info", str(out)]) == 0
    own.write_text(ROUGHNESS.replace("mean", "sum"))
    assert main(["resume", str(out), "--iterations", "6", "--trust"]) == 2
    assert "monitor.roughness was a file with the hash" in capsys.readouterr().err
    own.write_text(ROUGHNESS)
    assert main(["resume", str(out), "--iterations", "6", "--trust"]) == 0
    assert len(measured(out)["roughness"]) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--monitor", "psnrr"], "there is no monitor 'psnrr'; did you mean 'psnr'?"),
        (["--psnr-peak", "1"], "has use for psnr_peak; add --monitor psnr, or leave it out"),
        (["--psnr", "--psnr-peak", "0"], "setting monitor.psnr_peak = 0 cannot be used"),
        (["--psnr=maybe"], "true or false"),
        (["--set", "monitor.names=3"], "setting monitor.names cannot be used"),
        (["--set", 'monitor.names=["nothing"]'], "there is no monitor 'nothing'"),
        (["--set", "monitor.roughness=true"], "there is no setting 'monitor.roughness'"),
    ],
)
def test_mistakes_are_one_line(scan, tmp_path, capsys, words, message):
    assert main(["reconstruct", str(scan), "--out", str(tmp_path / "run"), *RUN, *words]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_what_needs_the_truth_is_left_out_or_refused(scan, tmp_path, capsys):
    stored = ps.open_scan(scan).load()
    bare = ps.MemoryScan(stored.data, born_geometry(stored))
    ps.save_scan(bare, tmp_path / "bare.zarr")
    assert main(["reconstruct", str(tmp_path / "bare.zarr"), "--out", str(tmp_path / "run"), *RUN]) == 0
    assert set(measured(tmp_path / "run")) == {"distance", "relative_distance"}
    assert main(["reconstruct", str(tmp_path / "bare.zarr"), "--out", str(tmp_path / "no"), *RUN, "--psnr"]) == 2
    assert "--psnr compares with the truth" in capsys.readouterr().err
    facts = {name: entry.facts for name, entry in entries("monitor").items()}
    assert facts["ssim"]["least"] == WINDOW
    with pytest.raises(InputError, match="--ssim needs an image of at least 11 x 11"):
        resolve(None, [("monitor", "ssim", True)]).monitor.check((10, 40), truth=True)
    with pytest.raises(InputError, match="--ssim is for images of 2 axes"):
        resolve(None, [("monitor", "ssim", True)]).monitor.check((30, 30, 40), truth=True)


def test_a_file_may_switch_each_on_or_off(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(
        '[monitor]\nevery = 10\ndistance = false\ncost = true\npsnr = true\nssim = false\nmeasured_views = "none"\n'
    )
    settings = resolve(file)
    assert settings.monitor.names == ("snr", "psnr", "cost")
    file.write_text(to_toml(settings))
    assert resolve(file) == settings
    assert resolve(file, [("monitor", "cost", False)]).monitor.names == ("snr", "psnr")


def test_what_is_taken_away_takes_its_options_along(tmp_path):
    own, file = tmp_path / "roughness.py", tmp_path / "settings.toml"
    own.write_text(ROUGHNESS)
    typed = [("monitor", f"{own}:roughness", True), ("monitor", "roughness_power", 2.0), ("monitor", "psnr", True)]
    settings = resolve(None, [*typed, ("monitor", "psnr_peak", 255.0)])
    file.write_text(to_toml(settings))
    assert resolve(file, trust=True) == settings
    assert resolve(file, [("monitor", "names", ["snr"])]).monitor.names == ("snr",)
    fewer = resolve(file, [("monitor", "psnr", False)], trust=True).monitor
    assert fewer.names == ("distance", "snr", f"{own}:roughness")
    assert fewer.options_of(f"{own}:roughness").power == 2.0
    assert resolve(file, [("monitor", f"{own}:roughness", False)]).monitor.psnr_peak == 255.0
    assert resolve(file, used=()).monitor.psnr_peak == 255.0
    with pytest.raises(InputError, match="psnr_peak"):
        resolve(None, [("monitor", "psnr_peak", 255.0)])


def test_the_list_tells_the_flags(capsys):
    assert main(["monitors", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["psnr"]["options"]["peak"]["flag"] == "--psnr-peak"
