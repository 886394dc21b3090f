"""The command line as a person uses it: real processes, real files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import warm
from plugstream.cli import COMMANDS, command_parser, main
from plugstream.cli.flags import join_values
from plugstream.runs.event_log import EventLog, read_events
from plugstream.runs.events import Note
from small_run import SMALL
from waiting import wait_until

UNDRAWN = ["--report", "none"]  # which takes a second or two; the demo and `importance` below are drawn


def plugstream(*arguments: object, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "plugstream", *map(str, arguments)]
    return warm.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    done = plugstream("demo", *SMALL, "--iterations", "25", "--batch", "4", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "plugstream-demo", done.stderr


def test_the_demo_leaves_everything_it_promises(demo):
    folder, said = demo
    for stem in ("result", "truth", "backprojection"):
        pixels = np.load(folder / f"{stem}.npy")
        assert pixels.shape == (24, 24)
        assert np.array_equal(tifffile.imread(folder / f"{stem}.tif"), pixels)
        with Image.open(folder / f"{stem}.png") as picture:
            low, high = map(float, picture.text["plugstream:range"].split())
            grey = np.asarray(picture)
        assert np.abs(low + grey / 255 * (high - low) - pixels).max() <= (high - low) / 255
    assert "report.html shows them" in said
    assert {path.name for path in folder.glob("report.*")} == {"report.html"}
    assert "SNR" in said
    assert "step 25/25" in said
    assert (folder / "scan.zarr" / "commit.json").exists()


def test_the_events_tell_the_run(demo):
    folder, said = demo
    events = list(read_events(folder / "events.jsonl"))
    kinds = [event.kind for event in events]
    assert kinds[0] == "start"
    assert kinds[-1] == "stop"
    measured = [event for event in events if event.kind == "measured"]
    assert [event.step for event in measured] == [0, 10, 20, 25]
    assert measured[0].values["relative_distance"] == 1.0
    last = measured[-1].values["snr"]
    truth, result = np.load(folder / "truth.npy"), np.load(folder / "result.npy")
    assert last == pytest.approx(20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(truth - result)), abs=1e-3)
    assert f"SNR {last:.2f} dB at step 25" in said
    assert events[0].settings["sampler"]["batch"] == 4
    rows = (folder / "history.csv").read_text().splitlines()
    assert rows[0] == "quantity,step,time,value"
    assert len(rows) == 1 + 3 * 4 + 2  # and how far it has to go, from the sixteenth step on


def test_the_demos_settings_repeat_it_to_the_bit(demo, tmp_path):
    folder, _ = demo
    command = re.search(r"# repeat with: plugstream (.*)", (folder / "settings.toml").read_text())[1]
    done = plugstream(*command.split(), "--out", tmp_path / "again", *UNDRAWN, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "again" / "result.npy"), np.load(folder / "result.npy"))


@pytest.mark.slow
def test_a_second_demo_does_not_touch_the_first(demo):
    folder, _ = demo
    before = (folder / "result.npy").stat().st_mtime_ns
    done = plugstream("demo", *SMALL, "--iterations", "2", cwd=folder.parent)
    assert done.returncode == 0
    assert (folder.parent / "plugstream-demo-2" / "result.npy").exists()
    assert (folder / "result.npy").stat().st_mtime_ns == before


PLAIN = ["--sigma", "0.05", "--iterations", "6"]


@pytest.fixture(scope="module")
def plain(scan, tmp_path_factory) -> np.ndarray:
    """The image that is found where nothing else is asked for."""
    out = tmp_path_factory.mktemp("plain") / "r"
    assert main(["reconstruct", str(scan), *PLAIN, "--out", str(out), *UNDRAWN]) == 0
    return np.load(out / "result.npy")


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (["--sampler", "all", "--momentum", "none"], {"sampler.name": "all", "momentum.name": "none"}),
        (["--sampler", "fixed", "--batch", "6"], {"sampler.name": "fixed", "sampler.batch": 6}),
        (["--sampler", "epochs", "--sigma-end", "0.01"], {"sampler.name": "epochs", "algorithm.sigma_end": 0.01}),
        (
            ["--sampler", "importance", "--damping", "0.8", "--cost", "true"],
            {"sampler.name": "importance", "denoiser.damping": 0.8},
        ),
        (
            ["--algorithm", "admm", "--sampler", "all", "--step", "10/L"],
            {"algorithm.name": "admm", "sampler.name": "all", "algorithm.step_size": "10/L"},
        ),
        (["--denoiser", "soft", "--low", "none"], {"denoiser.name": "soft", "denoiser.low": None}),
        (
            ["--denoiser", "tv-anisotropic", "--dtype", "float64", "--threads", "1"],
            {"denoiser.name": "tv-anisotropic", "compute.dtype": "float64", "compute.threads": 1},
        ),
        (
            ["--denoiser", "box", "--high", "0.3", "--distance-limit", "0.5", "--every", "1"],
            {"denoiser.name": "box", "denoiser.high": 0.3, "algorithm.distance_limit": 0.5},
        ),
        (["--set", "algorithm.time_limit=0.001", "--set", "monitor.distance=false"], {"algorithm.time_limit": 0.001}),
    ],
)
def test_reconstruct_with(scan, plain, tmp_path, flags, settings):
    drawn = "importance" in flags  # with costs, the most that a report shows
    words = ["reconstruct", str(scan), *PLAIN, "--out", str(tmp_path / "r"), *flags]
    assert main([*words, *(["--report", "png"] if drawn else UNDRAWN)]) == 0
    image, events = np.load(tmp_path / "r" / "result.npy"), list(read_events(tmp_path / "r" / "events.jsonl"))
    assert np.isfinite(image).all()
    assert not np.array_equal(image, plain)
    assert {name: events[0].settings[name.split(".")[0]][name.split(".")[1]] for name in settings} == settings
    assert ("--low" in flags or "--damping" in flags) == bool(image.min() < 0)
    assert ("--high" in flags) == bool(image.max() <= np.float32(0.3))
    measured = [event.values for event in events if event.kind == "measured"][-1]
    assert ("fidelity" in measured) == ("--cost" in flags)
    assert ("distance" in measured) == ("monitor.distance=false" not in flags)
    assert (events[-1].step < 6) == ("--distance-limit" in flags or "algorithm.time_limit=0.001" in flags)
    assert not drawn or (tmp_path / "r" / "report.png").stat().st_size > 10_000


def test_settings_from_a_file(scan, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('[algorithm]\nlam = 1e-3\niterations = 3\n[sampler]\nname = "epochs"\nbatch = 3\n')
    words = ["reconstruct", str(scan), "--settings", str(file), "--batch", "2", *UNDRAWN]
    assert main([*words, "--out", str(tmp_path / "r")]) == 0
    start = next(read_events(tmp_path / "r" / "events.jsonl"))
    assert start.settings["sampler"] == {"name": "epochs", "batch": 2, "seed": 0}
    assert start.iterations == 3


@pytest.mark.parametrize("words", [["--help"], ["--help", "reconstruct"]])
def test_help_names_every_command(capsys, words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    shown = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")}
    assert set(COMMANDS) <= shown


def test_info_describes_a_scan(scan, capsys):
    assert main(["info", str(scan)]) == 0
    out = capsys.readouterr().out
    for part in ("complete", "12, line sources", "30, all recorded", "0.03 m in vacuum", "24 x 24", "snr_db 40.0"):
        assert part in out


def test_a_diverging_run_says_so_and_keeps_the_best(scan, tmp_path, capsys):
    words = ["reconstruct", str(scan), "--sigma", "0", "--denoiser", "identity", "--low", "none", "--step", "60/L"]
    assert main([*words, "--iterations", "200", "--every", "1", *UNDRAWN, "--out", str(tmp_path / "r")]) == 1
    said = capsys.readouterr().err
    assert "warning: the step" in said
    assert "beyond 2 / L" in said
    assert "grew without bound; use a smaller step" in said
    truth, image = (np.load(tmp_path / "r" / f"{name}.npy") for name in ("truth", "result"))
    stop = list(read_events(tmp_path / "r" / "events.jsonl"))[-1]
    assert stop.failed is True
    # What is told of the image is measured at its own step, which is not the last.
    assert stop.image_step < stop.step
    assert f"; the image is that of step {stop.image_step}" in said
    reached = f"SNR {20 * np.log10(np.linalg.norm(truth) / np.linalg.norm(truth - image)):.2f} dB"
    assert f"{reached} at step {stop.image_step}" in said
    assert main(["info", str(tmp_path / "r")]) == 0
    (measured,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("measured"))
    assert reached in measured
    assert measured.endswith(f"at step {stop.image_step}")


def test_ctrl_c_saves_the_best_so_far(scan, tmp_path):
    words = ["reconstruct", scan, "--sigma", "0.05", "--iterations", "10000000", "--out", tmp_path / "r"]
    process = warm.Popen([sys.executable, "-m", "plugstream", *map(str, words)], stderr=subprocess.PIPE, text=True)
    log = tmp_path / "r" / "events.jsonl"
    wait_until(lambda: log.exists() and '"measured", "at"' in log.read_text() and '"step": 20' in log.read_text())
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=150)[1]
    assert process.returncode == 130
    assert "it was interrupted" in said
    assert "Traceback" not in said
    assert np.isfinite(np.load(tmp_path / "r" / "result.npy")).all()
    assert (tmp_path / "r" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reconstruct", "{scan}", "--search", "none"], "it is not clear how strongly to denoise; use --sigma"),
        (["reconstruct", "{scan}", "--sigma", "1", "--lam", "1"], "both sigma and lam"),
        (["reconstruct", "{scan}", "--sigma", "-1"], "setting algorithm.sigma = -1 cannot be used"),
        (["reconstruct", "{scan}", "--sgima", "1"], "there is no argument --sgima; did you mean --sigma?"),
        (["reconstruct", "{scan}", "--set", "sampler.bach=1"], "did you mean 'sampler.batch'"),
        (["reconstruct", "{scan}", "--sigma", "1", "--batch", "99"], "99 views was asked for, but the scan has 12"),
        (["reconstruct", "{scan}", "--sigma", "1", "--step", "one"], "cannot read the step 'one'"),
        (["reconstruct", "{scan}", "--sigma", "1", "--low", "2", "--high", "1"], "must be below denoiser.high"),
        (["reconstruct", "{scan}", "--sigma", "1", "--out", "{tmp}"], "exists already"),
        (["reconstruct", "{scan}", "--sigma", "1", "--out", "{tmp}/a/b"], "a does not exist; make it first"),
        (["reconstruct", "{tmp}/none.zarr", "--sigma", "1"], "there is no scan at"),
        (["reconstruct", "{tmp}", "--sigma", "1"], "is not a scan"),
        (["reconstruct", "{scan}", "--sigma", "1", "--device", "toaster"], "no device 'toaster'"),
        (["simulate", "{scan}"], "exists already"),
        (["simulate", "{tmp}/s.zarr", "--picture", "nobody"], "there is no picture nobody"),
        (["simulate", "{tmp}/s.zarr", "--radius", "0.1"], "cuts the image, whose corners are at"),
        (["simulate", "{tmp}/s.zarr", "--size", "2"], "--size must be from 8 to 8192, not 2"),
        (["info", "{tmp}"], "is not a scan"),
        (["imagine"], "there is no command 'imagine'"),
    ],
)
def test_mistakes_are_answered_in_one_line_and_nothing_is_written(scan, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert main([word.format(scan=scan, tmp=tmp_path) for word in words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("plugstream: ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_said(scan, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reconstruct", str(scan), "--sigma", "1", "--device", "cuda"]) == 2
    assert "torch sees no GPU on this machine; use --device cpu" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
def test_a_gpu_gives_the_cpus_image(scan, tmp_path):
    for device in ("cpu", "cuda"):
        words = ["reconstruct", str(scan), "--sigma", "0.05", "--iterations", "20", "--device", device]
        assert main([*words, "--out", str(tmp_path / device)]) == 0
    cpu, cuda = (np.load(tmp_path / device / "result.npy") for device in ("cpu", "cuda"))
    assert np.abs(cpu - cuda).max() < 1e-3 * np.abs(cpu).max()


def test_pictures_of_many_kinds(tmp_path):
    from plugstream import PlugstreamWarning, load_picture
    from plugstream.base.errors import InputError

    ramp = np.linspace(0, 1, 48).reshape(6, 8)
    Image.fromarray((ramp * 255).astype(np.uint8)).save(tmp_path / "8.png")
    tifffile.imwrite(tmp_path / "16.tif", (ramp * 65535).astype(np.uint16))
    tifffile.imwrite(tmp_path / "32.tif", (ramp * 7 - 3).astype(np.float32))
    np.save(tmp_path / "a.npy", ramp)
    Image.fromarray(np.stack([(ramp * 255).astype(np.uint8)] * 3, -1)).save(tmp_path / "rgb.png")
    assert np.allclose(load_picture(tmp_path / "8.png").numpy(), ramp, atol=1 / 255)
    assert np.allclose(load_picture(tmp_path / "16.tif").numpy(), ramp, atol=1e-4)
    assert np.allclose(load_picture(tmp_path / "32.tif").numpy(), ramp * 7 - 3, atol=1e-5)
    assert np.allclose(load_picture(tmp_path / "a.npy").numpy(), ramp, atol=1e-6)
    assert np.allclose(load_picture(tmp_path / "rgb.png").numpy(), ramp, atol=1 / 255)
    with pytest.warns(PlugstreamWarning, match="its middle 6 x 6"):
        assert load_picture(tmp_path / "8.png", 4).shape == (4, 4)
    (tmp_path / "bad.png").write_text("not a picture")
    with pytest.raises(InputError, match="cannot read the picture"):
        load_picture(tmp_path / "bad.png")
    np.save(tmp_path / "nan.npy", np.full((3, 3), np.nan))
    with pytest.raises(InputError, match="NaN or infinity"):
        load_picture(tmp_path / "nan.npy")
    np.save(tmp_path / "cube.npy", np.zeros((3, 3, 3, 3)))
    with pytest.raises(InputError, match="grey or colour"):
        load_picture(tmp_path / "cube.npy")


def test_a_cut_last_line_of_the_log_is_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.add(Note("hello"))
    log.close()
    with path.open("a") as file:
        file.write('{"event": "meas')
    assert [event.kind for event in read_events(path)] == ["note"]


def test_a_reader_that_goes_away_is_no_error():
    """A list, which imports no torch: `head` goes away after its first line, the other reader before it."""
    words = f"{sys.executable} -m plugstream samplers"
    done = subprocess.run(f"{words} | head -1", shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("name ")
    reader, writer = os.pipe()
    os.close(reader)
    gone = subprocess.run(words.split(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (gone.returncode, gone.stderr) == (0, "")


def test_a_value_may_begin_with_a_minus_sign():
    typed = ["import", "ptychography", "a.cxi", "a.zarr", "--axes", "-y,x", "--transpose", "--center", "-3,4"]
    parser = command_parser("import", typed)
    joined = join_values(parser, typed)
    assert joined[4:] == ["--axes=-y,x", "--transpose", "--center=-3,4"]
    assert "-y,x" in vars(parser.parse_args(joined[1:])).values()
    assert join_values(parser, ["--axes", "-h"]) == ["--axes", "-h"]
