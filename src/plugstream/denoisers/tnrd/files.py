"""Models of TNRD on disk: the authors' MATLAB files, and ours in safetensors. Nothing is unpickled."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugstream.denoisers.tnrd.influence import BUMPS
from plugstream.denoisers.tnrd.model import ReactionDiffusion
from plugstream.errors import InputError
from plugstream.files import write_whole

__all__ = ["load_card", "load_models", "save_model"]

_FORMAT = "plugstream-tnrd"
_NAMES = ("coefficients", "log_reaction", "weights")


def load_models(path: str | Path, sigma: float | None = None) -> list[ReactionDiffusion]:
    """The models of a file, or of all .safetensors and .mat files in a folder: without gradients, by noise level.

    Arguments:
        sigma: the noise level of a .mat file whose name does not say it, on the scale 0 .. 255.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in _READERS)
        if not files:
            raise InputError(f"the folder {path} holds no TNRD models (.safetensors or .mat)")
        if sigma is not None and len(files) > 1:
            raise InputError(f"sigma = {sigma} was given for the {len(files)} models of {path}; name one file")
    else:
        files = [path]
    models = [_load(file, sigma) for file in files]
    return sorted(models, key=lambda model: model.sigma)


def save_model(model: ReactionDiffusion, path: str | Path, card: Mapping[str, Any] | None = None) -> None:
    """Write one model as safetensors, in its own precision, with its noise level and a model card.

    Written beside its place and renamed, so that a reader never sees half a file.
    """
    from safetensors.torch import save

    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"a TNRD model is saved as .safetensors, not as {path.name!r}")
    tensors = {name: getattr(model, name).detach().cpu().contiguous() for name in _NAMES}
    about = {
        "format": _FORMAT,
        "sigma": repr(model.sigma),
        "scale": repr(model.scale),
        "card": json.dumps(dict(card or {}), sort_keys=True),
    }
    try:
        write_whole(path, [save(tensors, about)])
    except OSError as error:
        raise InputError(f"cannot write the TNRD model {path}: {error.strerror}") from error


def load_card(path: str | Path) -> dict[str, Any]:
    """What a .safetensors model says of itself: data, seed, command, results; empty if it says nothing."""
    try:
        about, _ = _read_safetensors(Path(path))
        card: dict[str, Any] = json.loads(about.get("card", "{}"))
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from None
    except ValueError as error:
        raise InputError(f"the model card of {path} is not JSON ({error})") from error
    return card


def _load(file: Path, sigma: float | None) -> ReactionDiffusion:
    if file.suffix not in _READERS:
        raise InputError(f"{file} is neither .safetensors nor .mat, so it is no TNRD model")
    if not file.is_file():
        raise InputError(f"there is no TNRD model at {file}")
    try:
        return _READERS[file.suffix](file, sigma).requires_grad_(False)
    except InputError as error:
        raise InputError(f"{file} cannot be used: {error}") from None


def _load_safetensors(file: Path, sigma: float | None) -> ReactionDiffusion:
    about, tensors = _read_safetensors(file)
    if about.get("format") != _FORMAT or set(tensors) != set(_NAMES):
        raise InputError("it holds other weights than those of TNRD")
    try:
        trained_for, scale = float(about["sigma"]), float(about.get("scale", "1"))
    except (KeyError, ValueError):
        raise InputError("it does not say which noise level it is for") from None
    coefficients, log_reaction, weights = (tensors[name] for name in _NAMES)
    return ReactionDiffusion(coefficients, log_reaction, weights, trained_for if sigma is None else sigma, scale)


def _read_safetensors(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), "pt") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is not a dict
    except (SafetensorError, OSError) as error:
        raise InputError(f"it is not safetensors ({error})") from error
    return about, tensors


def _load_mat(file: Path, sigma: float | None) -> ReactionDiffusion:
    """The authors' files: a column of `cof` is a stage, with m filters of m coefficients, log p, m times 63 weights."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(file)
    # NotImplementedError is scipy's for files of MATLAB 7.3; the others are what its reader meets in damaged ones.
    except (MatReadError, ValueError, TypeError, NotImplementedError, OSError, EOFError, KeyError, IndexError) as error:
        raise InputError(f"it is not a MATLAB file that can be read ({error})") from error
    cof = content.get("cof")
    if not isinstance(cof, np.ndarray) or cof.ndim != 2 or cof.dtype.kind != "f":
        raise InputError("it has no matrix 'cof', as the authors' models have")
    filters = next((m for m in (n * n - 1 for n in (3, 5, 7, 9, 11)) if m * m + 1 + BUMPS * m == len(cof)), None)
    if filters is None:
        raise InputError(f"its 'cof' has {len(cof)} rows, which no filter size accounts for (5329 for 7 x 7)")
    _check_bumps(content)
    if sigma is None:
        found = re.search(r"sigma=(\d+(?:\.\d+)?)(?=\D*$)", file.stem)
        if found is None:
            raise InputError("its name does not say 'sigma=5' or such; give the noise level it is for")
        sigma = float(found[1])
    columns = torch.from_numpy(np.ascontiguousarray(cof.T, dtype=np.float64))
    coefficients, log_reaction, weights = columns.split([filters * filters, 1, BUMPS * filters], dim=1)
    return ReactionDiffusion(
        coefficients.reshape(-1, filters, filters), log_reaction[:, 0], weights.reshape(-1, filters, BUMPS), sigma
    )


def _check_bumps(content: Mapping[str, Any]) -> None:
    """Refuse a model whose bumps stand elsewhere than ours; a file that does not say is taken at its word."""
    try:
        means, precision = (np.ravel(content["MFS"][name][0, 0]) for name in ("means", "precision"))
    except (KeyError, ValueError, IndexError):
        return
    expected = np.linspace(-310, 310, BUMPS)
    if means.shape != expected.shape or not np.allclose(means, expected) or not np.allclose(precision, 0.01):
        raise InputError("its bumps are not the 63 at -310, -300 .. 310 of precision 0.01")


_READERS = {".safetensors": _load_safetensors, ".mat": _load_mat}
