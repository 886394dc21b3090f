"""A file of weights that was changed anywhere is refused, or is exactly what it was."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import scipy.io
import torch

from effort import effort, thorough
from plugstream.base.capacity import reading_at_most
from plugstream.base.errors import InputError
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.denoisers import ConvexRidge, ridge, tnrd
from plugstream.denoisers.adapters import from_file
from plugstream.denoisers.ridge import load_ridge, save_ridge
from plugstream.denoisers.ridge_prior import Ridges
from plugstream.denoisers.tnrd.files import load_card, load_models, save_model
from plugstream.runs.event_log import read_events
from plugstream.studies.training.fit import Training
from small_run import main
from tnrd_models import random_model

FORMATS = {"tnrd": "plugstream-tnrd", "ridg": "plugstream-ridge-2"}
SHIPPED = sorted(Path(tnrd.__file__).parent.glob("weights/*.safetensors"))


def mutations(content: bytes, count: int, seed: int) -> list[bytes]:
    """Flipped bits, changed bytes, lost and added bytes, swapped parts: all different from the content."""
    rng = random.Random(seed)
    header = 8 + int.from_bytes(content[:8], "little")
    out = []
    for number in range(count):
        changed = bytearray(content)
        at = rng.randrange(header if number % 2 else len(content))  # half of them in the header
        kind = rng.choice(["flip", "flip", "byte", "cut", "lose", "zero", "swap"])
        if kind == "flip":
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            changed[at] = rng.randrange(256)
        elif kind == "cut":
            del changed[at:]
        elif kind == "lose":
            del changed[at : at + 4]
        elif kind == "zero":
            changed[at : at + 16] = bytes(len(changed[at : at + 16]))
        else:
            other = rng.randrange(len(content) - 8)
            changed[at : at + 8], changed[other : other + 8] = changed[other : other + 8], changed[at : at + 8]
        out.append(bytes(changed))
    return [changed for changed in out if changed != content]


def silent(file: Path, contents: list[bytes], read: Callable[[Path], list[torch.Tensor]]) -> int:
    """How many of the mutated contents are read as other tensors than the file's own; refusals must be one line."""
    true, wrong = [tensor.clone() for tensor in read(file)], 0
    damaged = file.with_name(f"damaged-{file.name}")
    for content in contents:
        damaged.write_bytes(content)
        try:
            got = read(damaged)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either is right
        else:
            wrong += not all(torch.equal(a, b) for a, b in zip(got, true, strict=True))
    return wrong


def tnrd_tensors(file: Path) -> list[torch.Tensor]:
    (model,) = load_models(file)
    load_card(file)
    return [*model.parameters(), torch.tensor([model.sigma, model.scale])]


@thorough
def test_no_mutated_tnrd_file_is_used_silently(tmp_path):
    file = tmp_path / "model.safetensors"
    save_model(random_model(stages=1, sigma=25.0), file, {"seed": 1})
    assert silent(file, mutations(file.read_bytes(), effort(100, 300), 0), tnrd_tensors) == 0


def test_no_mutated_ridge_file_is_used_silently(tmp_path):
    file = tmp_path / "r.safetensors"
    save_ridge(file, Ridges.initial(), {"seed": 1})
    assert (
        silent(file, mutations(file.read_bytes(), 200, 1), lambda f: list(load_ridge(f)[0].state_dict().values())) == 0
    )


def test_no_mutated_checkpoint_of_a_training_is_used_silently(tmp_path):
    file = tmp_path / "c.safetensors"
    Training({"p": torch.randn(40)}, {"seed": 1}).save(file)

    def read(path: Path) -> list[torch.Tensor]:
        training = Training({"p": torch.zeros(40)}, {"seed": 1})
        training.load(path)
        return [training.parameters["p"], *training.moments["p"], torch.tensor(training.step)]

    assert silent(file, mutations(file.read_bytes(), 200, 2), read) == 0


def test_the_weights_that_are_shipped_have_a_checksum_and_are_refused_once_changed(tmp_path):
    files = [*SHIPPED, *ridge.PROFILES.values()]
    assert len(files) == 8
    for file in files:
        load_tensors(file, FORMATS[file.stem[:4]])
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        (tmp_path / "w.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="fails its checksum"):
            load_tensors(tmp_path / "w.safetensors", FORMATS[file.stem[:4]])
    with pytest.raises(InputError, match="cannot be used: it fails its checksum"):
        ConvexRidge(tmp_path / "w.safetensors")


def test_a_file_without_a_checksum_is_refused(tmp_path):
    from safetensors.torch import save_file

    _, tensors = load_tensors(SHIPPED[0])
    save_file(tensors, str(tmp_path / "w.safetensors"), {"format": "plugstream-tnrd", "sigma": "5.0"})
    with pytest.raises(InputError, match="no checksum"):
        load_models(tmp_path / "w.safetensors")


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 1, 3, padding=1, bias=False)

    def forward(self, x):
        return self.conv(x)
"""


def test_a_network_s_weights_are_checked_where_they_have_a_checksum(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    file = tmp_path / "w.safetensors"
    save_tensors(file, {"conv.weight": torch.randn(1, 1, 3, 3)})
    image = torch.randn(8, 8)

    def read(path: Path) -> list[torch.Tensor]:
        return [from_file(f"{tmp_path}/net.py:Net", path)(image, 0.1)]

    content = file.read_bytes()
    # A changed name of the checksum's own member leaves others' safetensors, with the same tensors.
    assert silent(file, mutations(content, 60, 3), read) == 0


@pytest.fixture(scope="module")
def authors() -> Path:
    folder = Path(__file__).parents[3] / "shared" / "data" / "tnrd"
    if not folder.is_dir():
        pytest.skip("the authors' models are not here")
    return folder


@thorough
def test_no_flip_in_the_authors_files_is_used_silently(authors, tmp_path):
    """Their variables are compressed, with an Adler-32 each."""
    file = tmp_path / "m sigma=5.mat"
    shutil.copy(authors / "TNRD_sigma=5.mat", file)
    content, rng = file.read_bytes(), random.Random(4)
    changed = []
    for place in [*rng.sample(range(128, len(content)), effort(12, 40)), *range(126, 138), len(content) - 1]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.randrange(8)
        changed.append(bytes(damaged))

    def read(path: Path) -> list[torch.Tensor]:
        (model,) = load_models(path, 5.0)
        return list(model.parameters())

    assert silent(file, changed, read) == 0


def test_a_matlab_file_that_unpacks_to_gigabytes_is_refused(tmp_path):
    import zlib

    pack = zlib.compressobj(1)
    packed = b"".join(pack.compress(bytes(1 << 20)) for _ in range(20)) + pack.flush()
    file = tmp_path / "sigma=5.mat"
    file.write_bytes(bytes(124) + b"\0\1IM" + (15).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed)
    with reading_at_most(1 << 20), pytest.raises(InputError, match="a variable of it claims"):
        load_models(file)


@pytest.mark.parametrize(("row", "value"), [(0, 1e6), (48 * 48, 60.0), (48 * 48 + 9, 1e5)])
def test_a_matlab_file_of_values_that_no_training_gives_is_refused(tmp_path, row, value):
    import numpy as np

    cof = np.random.default_rng(0).standard_normal((48 * 48 + 1 + 63 * 48, 1))
    file = tmp_path / "sigma=5.mat"
    scipy.io.savemat(file, {"cof": cof})
    load_models(file)
    cof[row] = value
    scipy.io.savemat(file, {"cof": cof})
    with pytest.raises(InputError, match="are not all between"):
        load_models(file)


def test_the_log_of_a_run_tells_the_hash_of_the_weights(scan, tmp_path):
    file = tmp_path / "model.safetensors"
    save_model(random_model(stages=1, sigma=25.0), file)
    words = ["reconstruct", str(scan), "--sigma", "0.05", "--denoiser", "tnrd", "--weights", str(file)]
    assert main([*words, "--iterations", "1", "--out", str(tmp_path / "run")]) == 0
    start = next(read_events(tmp_path / "run" / "events.jsonl"))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert start.files == {"denoiser.weights": {"path": str(file), "sha256": digest}}
