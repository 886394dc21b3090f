"""The importer of docs/importing.md works as it stands."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from plugstream import open_scan, ring
from plugstream.cli import main

TEXT = (Path(__file__).parents[3] / "docs" / "importing.md").read_text(encoding="utf-8")


def test_the_example_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"```python\n# (\w+\.py): .*?\n(.*?)```\n\n    plugstream (.*?)\n", TEXT, flags=re.DOTALL)
    ((name, code, command),) = found
    Path(name).write_text(code)
    data = np.arange(24).reshape(4, 3, 2) / 7
    np.savetxt("table.txt", np.concatenate([ring(4, 0.6), data.reshape(4, 6)], axis=1))
    with pytest.raises(SystemExit):
        main([*shlex.split(command)[:2], "--help"])
    assert "--radius" in capsys.readouterr().out
    assert main(shlex.split(command)) == 0, capsys.readouterr()
    scan = open_scan("table.zarr")
    assert np.allclose(scan.read(), data[..., 0] + 1j * data[..., 1])
    assert np.allclose(np.hypot(*scan.instrument.receivers.T), 0.4)
    assert main([*shlex.split(command)[:-2], "--size", "4"]) == 2
    said = capsys.readouterr().err
    assert "lines.py:lines has no use for size; leave it out, or choose" in said
    assert said.strip().endswith("ct or fpm or hdf5 or mri or npz or odt or tiled")
