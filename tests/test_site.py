"""The site of docs/: every page can be reached, every public name has its place, and docstrings become pages."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plugstream
from plugstream.base.lazy import read_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def _extension(name: str):
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        return __import__(name)
    finally:
        sys.path.pop(0)


def test_every_page_is_in_the_contents() -> None:
    listed = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in listed for line in block.splitlines() if line and not line.startswith(":")]
    names = [line.rpartition("<")[2].rstrip(">") for line in lines]
    assert sorted([*names, "index"]) == sorted([*(page.stem for page in DOCS.glob("*.md")), "_gallery/index"])


def test_every_public_name_is_in_the_api_once() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"^   (\w+)$", text, re.MULTILINE)
    assert sorted([*names, "__version__"]) == sorted(plugstream.__all__)


def test_every_link_between_pages_leads_somewhere() -> None:
    """Links of pages and of what stands beside them, as GitHub resolves them; `make docs` checks anchors, too."""
    lost, count = [], 0
    for page in [*DOCS.glob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            name = target.partition("#")[0]
            if name and "://" not in target:
                count += 1
                if not (page.parent / name).exists():
                    lost.append(f"{page.name}: {target}")
    assert lost == []
    assert count > 50


# What an example says that shows a name of the registry; an instrument is shown by its command or in a title.
SHOWN_BY = {
    "algorithm": {
        "pgm": "ps.ProximalGradient(", "admm": "ps.ADMM(", "hqs": "dual=False",
        "red": "ps.RED(", "snore": "noise=1.0", "ipa": "ps.IncrementalADMM(", "inexact-admm": "ps.InexactADMM(",
        "block-admm": "ps.BlockADMM(",
    },
    "gradient": {
        "plain": "ps.ProximalGradient(fidelity, tv, sigma=0.04)",
        "saga": 'gradient="saga"',
        "svrg": "ps.SVRG(",
        "diagonal": "ps.Diagonal(",
    },
    "momentum": {name: f'"{name}"' for name in ("none", "bounded", "tapered", "nesterov", "chambolle-dossal")},
    "sampler": {
        "uniform": "ps.Uniform(",
        "epochs": "ps.Epochs(",
        "shifted": "ps.ShiftedViews(",
        "importance": "ps.Importance(",
        "fixed": "ps.FixedViews(",
        "all": "ps.All()",
    },
}  # fmt: skip


def test_the_gallery_has_every_instrument_and_algorithm() -> None:
    """And every gradient, momentum and sampler: a new one gets an example, and a line above that finds it."""
    from plugstream.base.registry import entries

    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "gallery").glob("*/plot_*.py"))
    names = {kind: [name for name in entries(kind) if ":" not in name] for kind in ("instrument", *SHOWN_BY)}
    instruments = names.pop("instrument")
    assert [name for name in instruments if f"({name})" not in text and f"--instrument {name}" not in text] == []
    assert {kind: set(those) for kind, those in names.items()} == {kind: set(SHOWN_BY[kind]) for kind in names}
    assert [name for shown in SHOWN_BY.values() for name, words in shown.items() if words not in text] == []
    kinds = ("sampling", "theory")  # which are no algorithms
    places = {name: place for name, place in read_names("plugstream.algorithms").items() if not place.inner}
    algorithms = {name for name, place in places.items() if not place.module.endswith(kinds)}
    algorithms -= {"Algorithm", "BoundedMomentum", "TaperedMomentum"}
    assert [name for name in sorted(algorithms) if f"ps.{name}(" not in text and f'"{name.lower()}"' not in text] == []


def test_examples_in_docstrings_give_what_they_show() -> None:
    """`make docs` runs them as well, as they stand on the site."""
    package = ROOT / "src" / "plugstream"
    files = [path for path in package.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")]
    assert len(files) >= 4
    for path in files:
        name = ".".join(("plugstream", *path.relative_to(package).with_suffix("").parts))
        found = doctest.testmod(importlib.import_module(name))
        assert found.attempted > 0
        assert found.failed == 0


def test_the_readme_is_short_and_its_example_is_that_of_the_site() -> None:
    readme, start = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/start.md"))
    assert len(readme.splitlines()) <= 95
    (example,) = re.findall(r"```python\n.*?```", readme, re.DOTALL)
    assert example in start


def test_a_docstring_keeps_its_formulas_and_lists_its_arguments() -> None:
    lines = """What `x` is: a*b and |c|_2.

    x = a * b

Arguments:
    first: of `them`,
        on two lines. more words
    low, high: bounds.
Reference: somebody.""".splitlines()
    text = "\n".join(_extension("plain_docstrings").to_rest(lines))
    assert r"a\*b and \|c\|\_2" in text
    assert ".. code-block:: none\n\n    x = a * b" in text
    assert "- **first**: of \\ ``them``\\ , on two lines. more words\n- **low, high**: bounds." in text
    assert text.rstrip().endswith("Reference: somebody.")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_site_is_built_without_a_warning() -> None:
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert (ROOT / "build" / "site" / "index.html").exists()
