"""The package as a whole: public names, lazy imports, and the README's code."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import plugstream
from plugstream.base.lazy import read_names

ROOT = Path(__file__).parents[1]
HOME = Path(plugstream.__file__).parent


def test_every_public_name_is_there():
    for name in plugstream.__all__:
        assert getattr(plugstream, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        plugstream.nonsense  # noqa: B018


def test_the_names_of_every_room_are_those_of_the_package():
    """Each stands once, in its room; what is of a room alone is known here and not listed."""
    rooms = re.findall(r"from plugstream\.(\w+) import \*", (HOME / "__init__.py").read_text())
    lazy = [path.parent.name for path in HOME.glob("*/__init__.py") if "= lazy_names(" in path.read_text()]
    assert sorted(rooms) == sorted(lazy)
    places = {room: read_names(f"plugstream.{room}") for room in rooms}
    listed = [name for names in places.values() for name, place in names.items() if not place.inner]
    assert sorted([*listed, "__version__"]) == dir(plugstream) == plugstream.__all__
    inner = [(room, name) for room, names in places.items() for name, place in names.items() if place.inner]
    assert ("denoisers", "as_denoiser") in inner
    for room, name in inner:
        assert getattr(plugstream, name) is getattr(importlib.import_module(f"plugstream.{room}"), name)


@pytest.mark.slow
def test_type_checkers_see_the_names(tmp_path):
    names = [name for name in plugstream.__all__ if name != "__version__"]
    lines = ["import plugstream as ps", *(f"reveal_type(ps.{name})" for name in names)]
    (tmp_path / "use.py").write_text("\n".join(lines) + "\n")
    words = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(tmp_path / "use.py")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    shown = re.findall(r'use\.py:(\d+): note: Revealed type is "(.*)"', done.stdout)
    assert len(shown) == len(names)
    assert [names[int(line) - 2] for line, kind in shown if kind == "Any"] == []


def test_every_public_thing_has_a_docstring():
    bare = [n for n in plugstream.__all__ if n != "__version__" and not getattr(plugstream, n).__doc__]
    assert bare == []


def test_help_imports_neither_torch_nor_pydantic():
    code = "import sys; from plugstream.cli import _parse\ntry: _parse(['--help'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'pydantic', 'numpy', 'zarr'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_the_library_needs_none_of_the_command_lines_packages():
    """As on our GPU machine: no Zarr, pydantic, Matplotlib, Pillow or native kernels; on the CPU nor Triton."""
    code = """
import sys
import tomllib
for name in ("zarr", "pydantic", "matplotlib", "skimage", "PIL", "tifffile", "plugstream._native._kernels", "triton"):
    sys.modules[name] = None
import torch, plugstream as ps
model = ps.BornModel(ps.BornGeometry.rings(ps.Grid((8, 8), 0.01), 0.05, views=4, receivers=6, radius=0.3))
scan = ps.simulate(model, torch.rand(8, 8))
fidelity = ps.LeastSquares(model, scan.data)
algorithm = ps.ProximalGradient(fidelity, ps.TV(low=0.0), sigma=0.1, sampler=ps.Uniform(2))
print(ps.solve(algorithm, iterations=3, monitors=[ps.Distance()]).reason.name)
print([len(make()(torch.ones(9, 9), 0.1)) for make in (ps.BM3D, ps.NLM, ps.TNRD, ps.TV)])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.stdout.splitlines() == ["ITERATIONS", "[9, 9, 9, 9]"], out.stderr


def test_the_readmes_example_is_short_and_runs_as_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert 5 <= len([line for line in example.splitlines() if line.strip()]) <= 15
    exec(compile(example, "README.md", "exec"), {})
    assert float(re.search(r"([\d.]+) dB", capsys.readouterr().out)[1]) > 20


def test_the_release_names_files_that_are_there_and_this_python():
    """The workflows cannot be run here, so what can be wrong in them without GitHub is looked for."""
    yaml = pytest.importorskip("yaml")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    first = tools["build"][0].removeprefix("cp3").removesuffix("-*")
    assert f">=3.{first}" in (ROOT / "pyproject.toml").read_text()
    commands = [tools["test-command"].replace("{project}/", "")]
    for name in ("test", "release"):
        content = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
        assert all("timeout-minutes" in job and "runs-on" in job for job in content["jobs"].values())
        commands += [step["run"] for job in content["jobs"].values() for step in job["steps"] if "run" in step]
    scripts = {word for command in commands for word in command.split() if word.startswith(("release/", "src/"))}
    assert scripts == {"release/smoke.py", "src/plugstream/base/version.py"}
    assert all((ROOT / script).is_file() for script in scripts)
    targets = {command.split()[1] for command in commands if command.startswith("make ")}
    assert targets <= set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))


def test_the_version_is_one_everywhere():
    """Of the package, of the citation, and at the head of the changelog."""
    version = plugstream.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())[1] == version
