"""The package as a whole: public names, lazy imports, and the README's code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plugstream
import warm

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there():
    for name in plugstream.__all__:
        assert getattr(plugstream, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        plugstream.nonsense  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(plugstream.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname for block in blocks for node in block.body for alias in node.names}
    assert seen == set(plugstream.__all__) - {"__version__"}


def test_every_public_thing_has_a_docstring():
    bare = [n for n in plugstream.__all__ if n != "__version__" and not getattr(plugstream, n).__doc__]
    assert bare == []


def test_help_imports_neither_torch_nor_pydantic():
    code = "import sys; from plugstream.cli import _parse\ntry: _parse(['--help'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'pydantic', 'numpy', 'zarr'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_the_library_needs_none_of_the_command_lines_packages():
    """As on our GPU machine: no Zarr, pydantic, Matplotlib, scikit-image, Pillow or native kernels."""
    code = """
import sys
for name in ("zarr", "pydantic", "matplotlib", "skimage", "PIL", "tifffile", "plugstream._native._kernels"):
    sys.modules[name] = None
import torch, plugstream as ps
model = ps.BornModel(ps.BornGeometry.rings(ps.Grid((8, 8), 0.01), 0.05, views=4, receivers=6, radius=0.3))
scan = ps.simulate(model, torch.rand(8, 8))
fidelity = ps.LeastSquares(model, scan.data)
algorithm = ps.ProximalGradient(fidelity, ps.TV(low=0.0), sigma=0.1, sampler=ps.Uniform(2))
print(ps.solve(algorithm, iterations=3, monitors=[ps.Distance()]).reason.name)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.stdout.strip() == "ITERATIONS", out.stderr


def readme_code() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_the_readme_has_a_short_example():
    (example,) = readme_code()
    assert 5 <= len([line for line in example.splitlines() if line.strip()]) <= 15


def test_the_readmes_code_runs_as_it_is(tmp_path):
    (example,) = readme_code()
    environment = {**os.environ, "MPLBACKEND": "agg"}
    strict = "import warnings; warnings.filterwarnings('error', category=UserWarning, module=r'plugstream\\Z')\n"
    done = warm.run(
        [sys.executable, "-c", strict + example],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"([\d.]+) dB", done.stdout)[1]) > 20


def test_the_version_is_one_everywhere():
    """Of the package, of the citation, and at the head of the changelog."""
    version = plugstream.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())[1] == version
