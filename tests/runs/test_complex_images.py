"""Complex images keep both parts: in checkpoints, in files, in the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from plugstream import (
    SNR,
    InputError,
    LeastSquares,
    MatrixModel,
    ProximalGradient,
    SoftThreshold,
    load_picture,
    save_image,
)
from plugstream.images.space import ImageSpace
from plugstream.runs.checkpoints import Checkpoints
from plugstream.runs.replay import History
from plugstream.runs.report import draw_report
from plugstream.runs.results import _single
from plugstream.solver.result import Snapshot


@dataclass(frozen=True)
class Wave:
    """A state with complex parts of several kinds."""

    k: int
    image: Tensor
    warm: Tensor | None = None
    kept: Tensor | None = None
    mean: Tensor | None = None


def _noise(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=dtype)


def _snapshot() -> Snapshot[Wave]:
    state = Wave(7, _noise(4, 5), _noise(2, 4, 5), _noise(3, 6, dtype=torch.complex128), _noise(4, 5).real.clone())
    best = Wave(3, (2 * _noise(4, 5)).conj())  # a view that torch conjugates when it is read
    rows = {"distance": [(0, 0.0, np.float64(1.0)), (7, 0.1, np.float64(0.5))]}
    return Snapshot(state, 0, 0.1, 0.2, None, (1.5, best), rows, [7])


def test_a_checkpoint_gives_back_every_complex_part(tmp_path: Path) -> None:
    snapshot = _snapshot()
    assert snapshot.best is not None
    folder = Checkpoints(tmp_path / "checkpoints", {})
    folder.save(snapshot)
    saved = folder.load()
    assert saved is not None
    again = saved.snapshot(Wave(0, torch.zeros(4, 5, dtype=torch.complex64)))
    assert again.best is not None
    assert (again.best[0], again.best[1].k) == (1.5, 3)
    pairs = [(again.best[1].image, snapshot.best[1].image)]
    pairs += [(getattr(again.state, name), getattr(snapshot.state, name)) for name in ("image", "warm", "kept", "mean")]
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_image_is_saved_whole(tmp_path: Path, dtype: torch.dtype) -> None:
    image = _noise(6, 7, dtype=dtype)
    low, high = save_image(image, tmp_path / "wave")
    names = {"wave.npy", *(f"wave-{part}{kind}" for part in ("magnitude", "phase") for kind in (".tif", ".png"))}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert np.array_equal(np.load(tmp_path / "wave.npy"), image.to(torch.complex64).numpy())
    magnitude, phase = (load_picture(tmp_path / f"wave-{part}.tif") for part in ("magnitude", "phase"))
    assert torch.allclose(torch.polar(magnitude, phase), image.to(torch.complex64), atol=1e-6)
    assert (low, high) == (0.0, pytest.approx(float(image.abs().max())))
    with pytest.raises(InputError, match=r"shows phases as colours; read the \.tif or \.npy"):
        load_picture(tmp_path / "wave-phase.png")
    with pytest.raises(InputError, match="holds complex numbers; write their magnitude"):
        load_picture(tmp_path / "wave.npy")


def test_a_real_image_is_saved_as_ever(tmp_path: Path) -> None:
    image = torch.tensor([[-1.0, 0.0], [0.5, 3.0]])
    assert save_image(image, tmp_path / "x") == (-1.0, 3.0)
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "x.tif", "x.png"}
    assert np.load(tmp_path / "x.npy").dtype == np.float32


def test_images_that_are_several_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must be \(H, W\), not \(3, 4, 4\)"):
        save_image(torch.zeros(3, 4, 4), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_the_report_draws_the_magnitude_and_says_so(recwarn: pytest.WarningsRecorder) -> None:
    image = _noise(8, 8, dtype=torch.complex128)
    content = draw_report(
        title="",
        space=ImageSpace((8, 8), is_complex=True),
        result=_single(image),
        compared=("first back-projection", _single(image)),
        truth=_single(2 * image),
        history=History(),
    )
    assert content.startswith(b"\x89PNG")
    assert not [w for w in recwarn if "imaginary" in str(w.message) or "complex" in str(w.message).lower()]


def test_the_snr_counts_the_imaginary_part() -> None:
    truth = _noise(8, 8)
    real = Wave(0, truth.real.clone())
    wanted = 20 * torch.log10(truth.norm() / truth.imag.norm())
    fidelity = LeastSquares(MatrixModel([np.eye(64, dtype=np.float32)], (8, 8)), torch.zeros(1, 64))
    algorithm = ProximalGradient(fidelity, SoftThreshold(), sigma=0.1)
    assert torch.allclose(SNR(truth).begin(algorithm, real, {})(algorithm, real)["snr"], wanted)
