"""The files of examples/deployment: systemd takes the units, and the command line what they start."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from page_server import serving
from plugstream.cli import _parse

FOLDER = Path(__file__).parents[2] / "examples" / "deployment"
UNITS = sorted(FOLDER.glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    """With a program that is there, and a user that is."""
    text = unit.read_text().replace("/opt/plugstream/bin/plugstream", sys.executable)
    place = tmp_path / unit.name.replace("@", "@one")
    place.write_text(text.replace("User=plugstream", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", str(place)], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if place.name in line] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_what_a_unit_starts_is_a_command(unit: Path) -> None:
    line = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    assert line is not None
    program, *words = shlex.split(line[1])
    assert program == "/opt/plugstream/bin/plugstream"
    assert _parse(words).command == words[0]


def test_the_container_starts_a_command_with_extras_that_exist() -> None:
    import json
    import tomllib

    text = (FOLDER / "Containerfile").read_text()
    words = json.loads(re.search(r"^CMD (.*)$", text, re.MULTILINE)[1])
    assert _parse(words).command == "serve"
    extras = re.search(r"/src\[(.*?)\]", text)[1].split(",")
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"])


def test_a_proxys_name_is_served_once_it_is_allowed(tmp_path: Path) -> None:
    """As nginx.conf passes it on: the name of the proxy as the host, from a page that was loaded by https."""
    assert "proxy_set_header Host $host;" in (FOLDER / "nginx.conf").read_text()
    name = "beamline.example.org"
    head = {"Host": name, "Origin": f"https://{name}", "Sec_Fetch_Site": "same-origin"}
    with serving(tmp_path, allowed=[name]) as site:
        assert site.ask("/api/runs", **head)[0] == 200
    with serving(tmp_path) as site:
        assert site.ask("/api/runs", **head)[0] >= 400
