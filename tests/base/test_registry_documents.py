"""The examples of docs/extending.md work as they stand, as files of a person's own and as files of the house."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plugstream.base.registry import KINDS
from small_run import main

TEXT = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = re.findall(r"```python\n# (\w+\.py): .*?\n(.*?)```\n\n    plugstream (.*?)\n", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize(("name", "code", "command"), FILES, ids=[name for name, _, _ in FILES])
def test_an_example_runs_as_it_stands(scan, tmp_path, monkeypatch, name, code, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(code)
    np.save("noisy.npy", np.random.default_rng(0).random((24, 24)))
    words = [word.replace("scan.zarr", str(scan)).replace(".png", ".npy") for word in shlex.split(command)]
    extra = ["--iterations", "4", "--threads", "1", "--out", "run"] if words[0] == "reconstruct" else []
    assert main([*words, *extra]) == 0
    kind, option = re.search(rf"--(\w+) {re.escape(name)}:\w+ --([\w-]+) ", command).groups()
    if words[0] == "reconstruct":
        settings = Path("run/settings.toml").read_text()
        assert f"{option.replace('-', '_')} = {float(words[-1]):g}" in settings.replace(".0\n", "\n")
        assert main(["resume", "run", "--iterations", "6", "--trust"]) == 0
        assert np.isfinite(np.load("run/result.npy")).all()
    with pytest.raises(SystemExit, match="0"):
        main([*words[:1], f"--{kind}", words[words.index(f"--{kind}") + 1], "--help"])


def test_there_is_an_example_of_each():
    files = ["median.py", "sweep.py", "relaxed.py", "roughness.py", "charbonnier.py", "lazy.py", "capped.py"]
    assert [name for name, _, _ in FILES] == files


def test_the_first_command_works_too(scan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "median.py").write_text(FILES[0][1])
    command = re.search(r"    plugstream (reconstruct .* --denoiser median.py:median.*)\n", TEXT)[1]
    words = [word.replace("scan.zarr", str(scan)) for word in shlex.split(command)]
    assert main([*words, "--iterations", "3", "--threads", "1", "--out", "run"]) == 0
    assert "size = 5\n" in Path("run/settings.toml").read_text()
    image = np.load("run/result.npy")
    assert len(np.unique(image)) < 0.8 * image.size  # pixels near each other share their median


# What is written into the folder given becomes a file of the package that CONTRIBUTING.md names for the kind.
AS_OURS = """
import importlib, sys
from pathlib import Path
from plugstream.base.registry import KINDS, entries

for word in sys.argv[2:]:
    kind, name = word.split(":")
    importlib.import_module(KINDS[kind].package).__path__.append(str(Path(sys.argv[1]) / kind))
    assert name in entries(kind), sorted(entries(kind))
    assert "torch" not in sys.modules, f"the {kind} {name} makes lists wait for torch"
"""
DECLARED = [(name, code, *re.search(r'@register\("(\w+)", "(\w+)"', code).groups()) for name, code, _ in FILES[:-1]]


def test_the_examples_in_the_house_are_listed_without_torch(tmp_path):
    places = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name, code, kind, _ in DECLARED:
        folder = KINDS[kind].package.removeprefix("plugstream.").replace(".", "/")
        assert f"`{folder}/`" in places
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / kind / name).write_text(code)
    words = [sys.executable, "-c", AS_OURS, str(tmp_path), *(f"{kind}:{entry}" for _, _, kind, entry in DECLARED)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
