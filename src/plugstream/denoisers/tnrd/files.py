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

from plugstream.base.errors import InputError, StorageError
from plugstream.base.matlab import check_matlab
from plugstream.base.tensors import load_tensors, save_tensors
from plugstream.denoisers.tnrd.model import ReactionDiffusion
from plugstream.denoisers.tnrd.tables import BUMPS, CENTRES, PRECISION

_FORMAT = "plugstream-tnrd"
_NAMES = ("coefficients", "log_reaction", "weights")
_MOST_BYTES = 64 << 20  # of a MATLAB file; the authors' have 2 and 3 MB


def load_models(path: str | Path, sigma: float | None = None) -> list[ReactionDiffusion]:
    """The models of a file, or of all .safetensors and .mat files in a folder, without gradients, by noise level.

    Arguments: sigma, the noise level of a .mat file whose name does not say it, on the scale 0 .. 255.
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
    """Write one model as safetensors, in its precision, atomically, with its noise level, a card and a checksum."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"a TNRD model is saved as .safetensors, not as {path.name!r}")
    tensors = {name: getattr(model, name) for name in _NAMES}
    about = {
        "format": _FORMAT,
        "sigma": repr(model.sigma),
        "scale": repr(model.scale),
        "card": json.dumps(dict(card or {}), sort_keys=True),
    }
    try:
        save_tensors(path, tensors, about)
    except OSError as error:
        raise StorageError(f"cannot write the TNRD model {path}: {error.strerror}") from error


def load_card(path: str | Path) -> dict[str, Any]:
    """What a .safetensors model says of itself: data, seed, command, results; empty if it says nothing."""
    try:
        about, _ = load_tensors(Path(path), _FORMAT)
        card: dict[str, Any] = json.loads(about.get("card", "{}"))
    except InputError as error:
        raise InputError(f"{path} cannot be used: {error}") from None
    except ValueError as error:
        raise InputError(f"the model card of {path} is not JSON ({error})") from error
    return card


def _load(file: Path, sigma: float | None) -> ReactionDiffusion:
    if file.suffix not in _READERS:
        raise InputError(f"{file} is neither .safetensors nor .mat, so it is not a TNRD model")
    if not file.is_file():
        raise InputError(f"there is no TNRD model at {file}")
    try:
        return _READERS[file.suffix](file, sigma).requires_grad_(False)
    except InputError as error:
        raise InputError(f"{file} cannot be used: {error}") from None


def _load_safetensors(file: Path, sigma: float | None) -> ReactionDiffusion:
    about, tensors = load_tensors(file, _FORMAT)
    if set(tensors) != set(_NAMES):
        raise InputError("it holds other weights than those of TNRD")
    try:
        trained_for, scale = float(about["sigma"]), float(about.get("scale", "1"))
    except (KeyError, ValueError):
        raise InputError("it does not say which noise level it is for") from None
    coefficients, log_reaction, weights = (tensors[name] for name in _NAMES)
    return ReactionDiffusion(coefficients, log_reaction, weights, trained_for if sigma is None else sigma, scale)


def _load_mat(file: Path, sigma: float | None) -> ReactionDiffusion:
    """The authors' files: a column of `cof` is a stage, with m filters of m coefficients, log p, m times 63 weights."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    if file.is_file() and file.stat().st_size > _MOST_BYTES:
        raise InputError("it has more than 64 MB, as no TNRD model has")
    check_matlab(file)
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
    scale = _bump_scale(content)
    if sigma is None:
        level = re.search(r"sigma=(\d+(?:\.\d+)?)(?=\D*$)", file.stem)
        if level is None:
            raise InputError("its name does not say 'sigma=5' or such; give the noise level it is for")
        sigma = float(level[1])
    columns = torch.from_numpy(np.ascontiguousarray(cof.T, dtype=np.float64))
    coefficients, log_reaction, weights = columns.split([filters * filters, 1, BUMPS * filters], dim=1)
    coefficients, weights = coefficients.reshape(-1, filters, filters), weights.reshape(-1, filters, BUMPS)
    model = ReactionDiffusion(coefficients, log_reaction[:, 0], scale * weights, sigma, scale)
    _check_plausible(coefficients, log_reaction, weights)
    return model


def _check_plausible(coefficients: Tensor, log_reaction: Tensor, weights: Tensor) -> None:
    """Refuse values that no training gives, for files without a checksum.

    The authors' filters have norms of 1 to 6 before scaling, their log p lie between -5 and 0, their weights within 6.
    """
    norms = torch.linalg.vector_norm(coefficients, dim=-1)
    for name, values, low, high in (
        ("norms of filters", norms, 1e-2, 1e2),
        ("logarithms of p", log_reaction, -20.0, 5.0),
        ("weights of bumps", weights, -1e2, 1e2),
    ):
        if not bool(((values >= low) & (values <= high)).all()):
            raise InputError(f"its {name} are not all between {low:g} and {high:g}, so it is damaged, or not a model")


def _bump_scale(content: Mapping[str, Any]) -> float:
    """c, if the file's bumps are ours stretched by 1/c: at -310/c, -300/c .. 310/c, with the precision 0.01 c^2.

    Then phi(x) = phi_ours(c x). With v = c u a stage is v - [p (v - c f) + sum_i rot180(k_i) * c phi_ours(k_i * v)],
    ours on c f with c times the weights. The authors' model for noise of 50 has c = 0.8. A file without bumps has ours.
    """
    try:
        means, precision = (np.ravel(content["MFS"][name][0, 0]) for name in ("means", "precision"))
    except (KeyError, ValueError, IndexError):
        return 1.0
    ours = np.array(CENTRES)
    numbers = means.dtype.kind in "fiu" and precision.dtype.kind in "fiu"
    if numbers and means.shape == ours.shape and precision.shape == (1,) and 0 < means[-1] < np.inf:
        scale = float(ours[-1] / means[-1])
        if np.allclose(scale * means, ours, atol=1e-6) and np.isclose(precision[0], PRECISION * scale**2, rtol=1e-6):
            return scale
    raise InputError(
        f"its bumps are not {BUMPS}, evenly spaced about zero, whose precision is the inverse square of their distance "
        "(-310, -300 .. 310 and 0.01, or all of that stretched)"
    )


_READERS = {".safetensors": _load_safetensors, ".mat": _load_mat}
