"""CONTRIBUTING.md describes what is there, and the files that it shows work as they stand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import warm

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
HOME = ROOT / "src" / "plugstream"

# What is written into the folder given becomes a file of `plugstream.denoisers.entries`, as if it were in the source
# tree.
RUN = """
import sys
from pathlib import Path

import numpy as np

import plugstream.denoisers.entries
from plugstream.cli import main

folder, test, *command = sys.argv[1:]
plugstream.denoisers.entries.__path__.append(folder)
spaces = {}
exec(Path(test).read_text(), spaces)
spaces["test_it_is_averaged"]()
np.save("noisy.npy", np.random.default_rng(0).random((24, 24)))
assert main(["denoisers"]) == 0
assert main(command) == 0
noisy, clean = np.load("noisy.npy"), np.load("clean.npy")
assert np.allclose(clean.mean(), noisy.mean()) and clean.std() < 0.9 * noisy.std()
"""


def test_the_denoiser_and_its_test_work_as_they_stand(tmp_path: Path) -> None:
    files = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", TEXT, re.DOTALL))
    assert list(files) == ["src/plugstream/denoisers/entries/average.py", "tests/denoisers/test_average.py"]
    for name, code in files.items():
        (tmp_path / Path(name).name).write_text(code)
    (command,) = re.findall(r"^    plugstream (denoise .*)$", TEXT, re.MULTILINE)
    words = [sys.executable, "-c", RUN, str(tmp_path), str(tmp_path / "test_average.py"), *command.split()]
    done = warm.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "average" in done.stdout


def test_every_room_target_and_folder_that_it_names_is_there() -> None:
    rooms = TEXT[TEXT.index("## The rooms") : TEXT.index("## Add a thing")]
    cells = re.findall(r"^\| \d \| (`.*?) \|", rooms, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([\w/]+)`", cell)]
    assert len(names) > 10
    for name in names:
        assert (HOME / name).is_dir() or (not name.endswith("/") and (HOME / f"{name}.py").exists()), name
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^    make ([\w-]+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_package_of_the_house_is_on_the_map() -> None:
    named = set(re.findall(r"`(\w+)/?`", TEXT))
    packages = {path.parent.name for path in HOME.glob("*/__init__.py")}
    assert packages - named == set()
