"""Scalars and texts of public functions that cannot be meant are refused in one line, not by a raw error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import plugstream as ps

GRID = ps.Grid((16, 16), pixel=0.01)
RINGS = {"grid": GRID, "wavelength": 0.05, "views": 6, "receivers": 9, "radius": 0.4}
GEOMETRY = ps.BornGeometry.rings(**RINGS)
MODEL = ps.BornModel(GEOMETRY)
IMAGE = ps.load_picture("camera", 16)
SCAN = ps.simulate(MODEL, IMAGE)
DATA = ps.LeastSquares(MODEL, SCAN.data)
STRENGTH: dict[str, Any] = {"fidelity": DATA, "denoiser": ps.TV(), "sigma": 0.02}
# What a call needs that is right; of each scalar and text of its signature it is then told what is wrong.
CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    ps.load_picture: {"source": "camera"},
    ps.ring: {"count": 5, "radius": 0.4},
    ps.BornGeometry.rings: RINGS,
    ps.BornModel: {"geometry": GEOMETRY},
    ps.simulate: {"model": MODEL, "image": IMAGE},
    ps.add_noise: {"data": SCAN.data, "snr": 30.0},
    ps.Huber: {"delta": 0.1},
    ps.ProximalGradient: STRENGTH,
    ps.solve: {"algorithm": ps.ProximalGradient(**STRENGTH), "iterations": 1},
    ps.Epochs: {"batch": 2},
    ps.Tiles: {"denoiser": ps.TV(), "tile": 8, "halo": 2},
    ps.snr: {"image": IMAGE, "truth": IMAGE},
    ps.save_scan: {"scan": SCAN, "path": "scan.zarr"},
    ps.open_scan: {"path": "no.zarr"},
    ps.import_file: {"kind": "npz", "file": "no.npz"},
    ps.reconstruct: {"scan": SCAN},
    ps.check_adjoint: {"model": MODEL},
    ps.certify: {"denoiser": ps.TV(), "sigma": 0.1, "images": {"a": IMAGE}},
    **{kind: {} for kind in (ps.TV, ps.NLM, ps.TNRD, ps.ConvexRidge, ps.Limits, ps.SVRG)},
}
KINDS = {"int", "float", "bool", "str", "Path", "None", "torch.device"}
CASES = [
    (call, name)
    for call in CALLS
    for name, one in inspect.signature(call).parameters.items()
    if set(str(one.annotation).split(" | ")) <= KINDS
]


@pytest.mark.parametrize(("call", "name"), CASES, ids=lambda one: getattr(one, "__name__", one))
def test_a_wrong_scalar_or_text_is_one_line(call, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "str" in str(inspect.signature(call).parameters[name].annotation)
    for wrong in (object(), [1], 2.5j, *(() if text else ("40", "abc"))):
        with pytest.raises(ps.InputError, match=rf"^{name} must be .*, not ") as refused:
            call(**{**CALLS[call], name: wrong})
        assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [None, "a", 3.5])
def test_a_wrong_object_is_one_line(wrong, tmp_path):
    """Not what the annotations name: arrays, functions, and objects, which may be a person's own."""
    functions = (ps.check_adjoint, ps.check_gradient, ps.solve, ps.advise, ps.born_geometry, ps.FromModule, ps.Clip)
    calls: list[Callable[[Any], Any]] = [*functions, ps.FromFunction, ps.MatrixModel, SCAN.read]
    calls += [lambda value: ps.save_scan(value, tmp_path / "scan.zarr"), lambda value: ps.simulate(value, IMAGE)]
    calls += [] if wrong == 3.5 else [ps.anscombe, ps.PSNR, lambda value: ps.snr(value, IMAGE)]
    for call in [call for call in calls if wrong is not None or call != SCAN.read]:
        with pytest.raises(ps.InputError, match=r" must be .*, not [^\n]*$"):
            call(wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_ones_own_passes():
    class Own:  # which need not derive from anything
        def __getattr__(self, name: str) -> Any:
            return getattr(MODEL, name)

    assert torch.equal(ps.simulate(Own(), IMAGE, instrument=GEOMETRY).data, SCAN.data)


def test_what_was_checked_is_what_it_was():
    """Numbers of NumPy are numbers; names, signatures and Python's own words stay."""
    noisy = ps.simulate(MODEL, IMAGE, snr=np.float64(30), seed=np.int64(3))
    assert torch.equal(noisy.data, ps.simulate(MODEL, IMAGE, snr=30, seed=3).data)
    assert list(inspect.signature(ps.simulate).parameters)[:3] == ["model", "image", "instrument"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'image'"):
        ps.simulate(MODEL)
    assert ps.advise(SCAN, "algorithm.sigma=0.02", "sampler.batch=2").settings.sampler.views == 2
    with pytest.raises(ps.InputError, match="seed must be at least 0, not -1"):
        ps.simulate(MODEL, IMAGE, seed=-1)
    with pytest.raises(ps.InputError, match="device must be cpu, cuda or cuda:N, not 'abc'"):
        ps.BornModel(GEOMETRY, device="abc")
