"""An instrument and a denoiser of one file each, through the command line: simulated, sent, followed, killed, resumed.

`toy_holograph.py` has integer data of shape (3, 5), two columns, a fixed array, a complex volume for its image, and a
model that is not linear, so that no L and no back-projection is known. Nothing in plugstream knows of either file.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import warm
from plugstream import open_scan, snr
from plugstream.cli import main
from plugstream.instruments.base import find_instrument
from plugstream.runs.replay import replay
from plugstream.scans.store import StoredScan

HELPERS = Path(__file__).with_name("helpers")
TOY = f"{HELPERS / 'toy_holograph.py'}:ToyHolograph"
NEIGHBOURS = f"{HELPERS / 'toy_denoiser.py'}:build"
VIEWS, STEPS = 40, 100
RUN = ["--instrument", TOY, "--denoiser", NEIGHBOURS, "--reach", "1", "--sigma", "0.01", "--batch", "8"]
PLAIN = [*RUN, "--threads", "1", "--every", "50"]  # for algorithms without momentum
RUN = [*PLAIN, "--momentum", "bounded"]


# Half of the views are sent when the run that follows them has begun, however slow it is.
SENT_IN_HALVES = """
import time
from pathlib import Path
import plugstream.scans.send as module

view_of, log, end = module.view_of, Path({log!r}), time.monotonic() + 90

def later(scan, number):
    while number == scan.n_views // 2 and time.monotonic() < end:
        if log.exists() and '"event": "views"' in log.read_text():
            break
        time.sleep(0.01)
    return view_of(scan, number)

module.view_of = later
"""
# Killed with the checkpoint of step 60.
KILLED = """
import os, signal
from plugstream.runs.checkpoints import Checkpoints

save = Checkpoints.save

def save_and_die(checkpoints, snapshot, *words, **named):
    save(checkpoints, snapshot, *words, **named)
    if snapshot.state.k == 60:
        os.kill(os.getpid(), signal.SIGKILL)

Checkpoints.save = save_and_die
"""


def start(*words: object, before: str = "") -> subprocess.Popen[str]:
    """A command as a process of its own, which runs this code first."""
    code = f"{before}\nimport sys\nfrom plugstream.cli import main\nsys.exit(main())"
    words = (sys.executable, *(("-c", code) if before else ("-m", "plugstream")), *words)
    return warm.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def plugstream(*words: object, before: str = "") -> str:
    """A command that goes well, as a process of its own, and what it says."""
    process = start(*words, before=before)
    shown, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    return shown + said


@contextmanager
def stopping(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlast the test."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=100)


def open_toy(path: Path) -> StoredScan:
    find_instrument(TOY, trust=True)
    return open_scan(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """sent.zarr, which was simulated; live.zarr, what acquire received of it; follow, a run that followed that."""
    folder = tmp_path_factory.mktemp("toy")
    live = folder / "live.zarr"
    listen = ["--listen", "tcp://127.0.0.1:*", "--timeout", "90"]
    follow = ["--follow", "--patience", "90", "--iterations", "60", "--report", "none"]
    with (
        stopping(start("acquire", live, *listen, "--instrument", TOY)) as acquire,
        stopping(start("reconstruct", live, *RUN, *follow, "--out", folder / "follow")) as run,
    ):
        assert acquire.stderr is not None
        address = re.search(r"listening on (\S+)", acquire.stderr.readline())[1]
        words = ["--instrument", TOY, "--views", VIEWS, "--gain", "200", "--noise-seed", "3"]
        code = SENT_IN_HALVES.format(log=str(folder / "follow" / "events.jsonl"))
        said = plugstream("simulate", folder / "sent.zarr", *words, "--stream", address, "--rate", "400", before=code)
        assert f"all {VIEWS} views are acknowledged" in said
        for process in (acquire, run):
            _, said = process.communicate(timeout=100)
            assert process.returncode == 0, said
    return folder


def test_what_was_sent_is_what_was_simulated(home, capsys):
    sent, live = open_toy(home / "sent.zarr"), open_toy(home / "live.zarr")
    assert live.complete
    assert sent.dtype == np.uint16
    assert sent.read().shape == (VIEWS, 3, 5)
    assert np.array_equal(live.read(), sent.read())
    assert live.instrument.difference(sent.instrument) == ""
    assert sorted(live.columns) == ["corner", "tilt"]
    for name, rows in sent.columns.items():
        assert np.array_equal(live.columns[name], rows)
    counts = sent.read().numpy().astype(float)
    model = sent.instrument.build_model(sent.columns, VIEWS, device=torch.device("cpu"), dtype=torch.float32)
    clean = model.forward(torch.from_numpy(sent.truth)).numpy()
    chi = ((counts - clean) ** 2 / clean).mean()  # 1 for counts whose variance is their mean
    assert 0.8 < chi < 1.2
    assert "scattering" in sent.instrument.image.quantity
    assert main(["verify", str(home / "live.zarr"), "--instrument", TOY]) == 0
    assert f"all {VIEWS} views" in capsys.readouterr().out


def test_a_run_that_follows_it_uses_every_view(home):
    history = replay(home / "follow" / "events.jsonl")
    assert history.views[0].views < VIEWS == history.views[-1].views
    assert history.stop is not None
    assert not history.stop.failed
    image, truth = np.load(home / "follow" / "result.npy"), open_toy(home / "sent.zarr").truth
    assert image.shape == (2, 8, 9)
    assert image.dtype == np.complex64
    assert snr(image, truth, ndim=3) > 6


def test_a_killed_run_is_resumed_to_the_bit_and_has_a_report(home):
    words = ["reconstruct", str(home / "sent.zarr"), *RUN, "--background", "0.5", "--iterations", str(STEPS)]
    assert main([*words, "--checkpoint", "100", "--report", "none", "--out", str(home / "whole")]) == 0
    killed = home / "killed"
    words += ["--checkpoint", "0", "--report", "png", "--out", str(killed)]
    with stopping(start(*words, before=KILLED)) as process:
        assert process.wait(100) == -signal.SIGKILL
    steps = [int(path.stem.removeprefix("step-")) for path in (killed / "checkpoints").glob("step-*")]
    assert max(steps) == 60, "it was not killed in its middle"
    assert not (killed / "result.npy").exists()
    assert main(["resume", str(killed)]) == 2  # its settings name code, which a person has to trust
    assert main(["resume", str(killed), "--trust"]) == 0
    for name in ("result.npy", "truth.npy"):
        assert (killed / name).read_bytes() == (home / "whole" / name).read_bytes()
    before, after = replay(home / "whole" / "events.jsonl"), replay(killed / "events.jsonl")
    assert [e.values for e in before.measured] == [e.values for e in after.measured if e.step % 50 == 0]
    assert before.measured[-1].values["snr"] > 9
    # Of a model that is not linear, the back-projection is that of its derivative at zero.
    assert np.load(killed / "backprojection.npy").any()
    settings = (killed / "settings.toml").read_text()
    assert f'name = "{TOY}"\nbackground = 0.5' in settings
    assert "reach = 1" in settings
    with Image.open(killed / "report.png") as report:
        assert min(report.size) > 1000
        grey = np.asarray(report.convert("L"))
    assert 0.02 < (grey < 128).mean() < 0.5  # the pictures of size and phase, three slices each, and the curves


def test_it_is_imported_by_its_declaration(home, tmp_path, capsys):
    sent = open_toy(home / "sent.zarr")
    arrays = {name: rows[:] for name, rows in sent.columns.items()}
    arrays |= {"probe": sent.instrument.probe, "truth": sent.truth, "strength": np.array(200.0)}
    np.savez(tmp_path / "t.npz", counts=sent.read().numpy(), **arrays)
    words = ["import", "npz", str(tmp_path / "t.npz"), str(tmp_path / "t.zarr"), "--instrument", TOY]
    assert main([*words, "--map", "data=counts", "gain=strength", "slices=2"]) == 0
    capsys.readouterr()
    made, sent = open_toy(tmp_path / "t.zarr"), open_toy(home / "sent.zarr")  # of the same class: the file was run anew
    assert np.array_equal(made.read(), sent.read())
    assert made.dtype == np.uint16
    assert made.instrument.difference(sent.instrument) == ""
    assert np.array_equal(made.truth, sent.truth)
    for name, rows in sent.columns.items():
        assert np.array_equal(made.columns[name], rows)
    words[3] = str(tmp_path / "no.zarr")
    for more, message in (
        ([], "gain is missing: of a unit of intensity; --map says where in it everything is"),
        (["--map", "gain=strength"], "has no data; say where it is with --map data=PATH"),
        (["--map", "data=corner", "gain=1"], "has views of 3 rows x 5 columns: it must be (views, 3, 5)"),
        (["--map", "data=counts", "gain=1", "tilt=truth"], "tilt of"),
        (["--map", "data=counts", "gain=1", "corner=tilt"], "corner"),
        (["--map", "data=counts", "angle=tilt"], "there is no 'angle' to map"),
        (["--unit", "mm"], "has no use for unit; leave it out, or choose --instrument born-2d"),
    ):
        assert main([*words, *more]) == 2, more
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
        assert not (tmp_path / "no.zarr").exists()


@pytest.mark.parametrize("by", ["snr", "held-out"])
def test_its_sigma_is_tuned(home, tmp_path, by, capsys):
    words = ["tune", str(home / "sent.zarr"), *RUN[: RUN.index("--sigma")], "--batch", "8", "--iterations", "15"]
    out = tmp_path / "tuned.toml"
    assert main([*words, "--by", by, "--evaluations", "5", "--widenings", "0", "--out", str(out)]) == 0
    assert float(re.search(r"sigma (\S+), step 1/L.* dB by", capsys.readouterr().err)[1]) > 0
    assert f'name = "{TOY}"' in out.read_text()


def test_help_mistakes_and_damage_are_told(home, tmp_path, capsys):
    place = shutil.copytree(home / "sent.zarr", tmp_path / "sent.zarr")  # others read it after this test, too
    scan = str(place)
    for words, shown, hidden in (
        (["reconstruct", scan, "--instrument", TOY, "--help"], "--background", "--method"),
        (["simulate", "--instrument", TOY, "--help"], "--gain", "--receivers"),
        (["simulate", "--help"], "--receivers", "--gain"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        text = capsys.readouterr().out
        assert shown in text
        assert hidden not in text
    unknown = "there is no instrument 'toy-holograph'; "
    for words, message in (
        (["verify", scan], unknown),
        (["info", scan], unknown),
        (["reconstruct", scan, "--sigma", "1"], "or give its --instrument FILE.py:NAME"),
        (["reconstruct", scan, *RUN, "--method", "dense"], "has no use for method; leave it out, or choose born-2d"),
        (["reconstruct", scan, *PLAIN, "--algorithm", "admm"], "for linear models only"),
        (["simulate", str(home / "no.zarr"), "--instrument", TOY, "--receivers", "3"], "has no use for receivers"),
        (["simulate", str(home / "no.zarr"), "--instrument", TOY, "--views", "0"], "simulate.views = 0"),
        (["simulate", str(home / "no.zarr"), "--instrument", NEIGHBOURS], "is declared as a denoiser, not as an instr"),
    ):
        assert main([str(word) for word in words]) == 2, words
        assert message in capsys.readouterr().err
    assert main(["info", scan, "--instrument", TOY]) == 0
    assert "2 x 8 x 9, complex scattering" in capsys.readouterr().out
    (shard,) = (path for path in (place / "data" / "c").rglob("*") if path.is_file())
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert main(["verify", scan, "--instrument", TOY]) == 1
    assert re.search(r"^view \d+: ", capsys.readouterr().out, re.M)
