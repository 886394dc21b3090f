"""The instrument of docs/instruments.md works as it stands, with every command below it."""

import re
import shlex
from pathlib import Path

import numpy as np

from plugstream import snr
from plugstream.cli import main

TEXT = (Path(__file__).parents[2] / "docs" / "instruments.md").read_text(encoding="utf-8")


def test_the_example_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ((name, code),) = re.findall(r"```python\n# (\w+\.py): .*?\n(.*?)```\n", TEXT, flags=re.DOTALL)
    Path(name).write_text(code)
    commands = [shlex.split(line) for line in re.findall(r"^    plugstream (.*)$", TEXT, flags=re.MULTILINE)]
    assert [words[0] for words in commands] == ["simulate", "verify", "reconstruct", "resume", "demo"]
    for words in commands:
        quick = ["--report", "none", "--threads", "1"] if words[0] in ("reconstruct", "demo") else []
        assert main([*words, *quick]) == 0, (words, capsys.readouterr())
    for run in ("run", "demo"):
        assert snr(np.load(f"{run}/result.npy"), np.load(f"{run}/truth.npy")) > 15
    assert 'name = "' in Path("run/settings.toml").read_text()
    assert "dark = 0.0" in Path("run/settings.toml").read_text()
    assert main(["reconstruct", "scan.zarr", "--sigma", "1"]) == 2
    assert "or give its --instrument FILE.py:NAME" in capsys.readouterr().err
