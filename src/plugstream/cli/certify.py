"""Say what is proved of a denoiser, what was measured and what a pair of images refutes; or what steps of a run do."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.base.text import printable
from plugstream.cli.common import say, say_next, settings_of
from plugstream.cli.values import SEEDS, whole_number

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from torch import Tensor

    from plugstream.denoisers import Denoiser
    from plugstream.settings import Settings

# The denoiser itself, without a projection before it, and TV as exact as its constants require.
PRESETS = (
    ("denoiser", "low", None),
    ("denoiser", "tol", 1e-5),
    ("denoiser", "max_iterations", 20_000),
    ("compute", "dtype", "float64"),
)
_PICTURES = ("camera", "coins", "moon")
_SIDE, _VOXELS, _STEPS = 48, 16, 20
_KINDS = (".png", ".tif", ".tiff", ".npy", ".jpg", ".jpeg", ".bmp", ".pgm")
SECTIONS = ("denoiser", "compute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sigma", help="the noise level to certify it for, such as 15/255 or 0.06")
    parser.add_argument(
        "--run",
        type=Path,
        metavar="RUN",
        help="certify steps of this run, repeated from its last checkpoint",
    )
    parser.add_argument("--steps", type=whole_number(10**6), help=f"steps of --run ({_STEPS})")
    parser.add_argument(
        "--images", type=Path, metavar="FOLDER", help=f"pictures ({', '.join(_PICTURES)} if not given); not for volumes"
    )
    parser.add_argument(
        "--size", type=whole_number(4096), help=f"pixels a side of pictures ({_SIDE}), or of volumes ({_VOXELS})"
    )
    parser.add_argument(
        "--products", type=whole_number(10**9), default=36, help="products of the Jacobian in a search (36)"
    )
    parser.add_argument("--seed", type=whole_number(SEEDS), default=0, help="of the noise and the directions (0)")
    parser.add_argument(
        "--out", type=Path, help="the folder to make for certificate.json, .png, .txt and witnesses.npz"
    )


def run(parsed: argparse.Namespace) -> int:
    if parsed.run is not None:
        return _certify_run(parsed)
    from plugstream.settings import parse_sigma

    if parsed.sigma is None:
        raise InputError("there is nothing to certify; give --sigma for a denoiser, such as 15/255, or --run RUN")
    if parsed.steps is not None:
        raise InputError("--steps is for --run RUN; leave it out")
    settings, sigma = settings_of(parsed, PRESETS), parse_sigma(parsed.sigma, zero=False)
    if parsed.products < 3 or (parsed.size is not None and parsed.size < 8) or parsed.seed < 0:
        raise InputError("--products must be at least 3, --size at least 8 and --seed at least 0")
    if settings.denoiser.parts is not None:
        raise InputError("--parts is for complex images, and pictures are real; leave it out")
    import numpy as np

    from plugstream.runs.checks import prepare_device
    from plugstream.runs.folder import free_folder, whole_folder
    from plugstream.settings.checks import check_precision
    from plugstream.studies.certificates import certify
    from plugstream.studies.certificates.drawing import draw_certificate

    device, dtype = prepare_device(settings.compute)
    check_precision(settings, sigma=sigma)
    denoiser = _denoiser(settings, parsed.size or _SIDE)
    size = parsed.size or (_VOXELS if denoiser.ndim == 3 else _SIDE)
    if size < (least := max(denoiser.min_shape)):
        raise InputError(f"{settings.denoiser.name} needs at least {least} pixels a side; use --size")
    if denoiser.ndim == 3 and parsed.images is not None:
        raise InputError(f"{settings.denoiser.name} is for volumes, and --images are pictures; leave --images out")
    pictures = _volumes(size) if denoiser.ndim == 3 else _pictures(parsed.images, size)
    images = {name: picture.to(device=device, dtype=dtype) for name, picture in pictures.items()}
    folder = parsed.out or free_folder(f"certificate-{Path(settings.denoiser.name).name.replace(':', '-')}")
    with whole_folder(folder) as partial:
        certificate = certify(denoiser, float(sigma), images, products=parsed.products, seed=parsed.seed, tell=say)
        certificate = replace(certificate, denoiser=_title(settings))
        text = json.dumps(certificate.as_json(), indent=1, allow_nan=False)
        (partial / "certificate.json").write_text(f"{text}\n", encoding="utf-8")
        (partial / "certificate.txt").write_text(f"{certificate.text()}\n", encoding="utf-8")
        np.savez_compressed(partial / "witnesses.npz", **certificate.witnesses())  # type: ignore[arg-type]
        draw_certificate(certificate, partial / "certificate.png")
    print(certificate.text())
    say(f"wrote certificate.json, .txt, .png and witnesses.npz to {folder}")
    say_next("denoisers", "--facts")
    return 0


def _certify_run(parsed: argparse.Namespace) -> int:
    """Print what steps from the last checkpoint of a run say about the assumptions of the paper."""
    from plugstream.cli.resume import reopen_run
    from plugstream.runs.run import at_checkpoint
    from plugstream.studies.certificates.run_steps import certify_steps

    typed = [getattr(parsed, key) for key in ("sigma", "images", "size", "out", "settings")]
    if any(value is not None for value in typed) or parsed.set or any("." in place for place in vars(parsed)):
        raise InputError("--run goes by the settings of the run; give only --steps and --trust beside it")
    if parsed.steps == 0:
        raise InputError("--steps must be at least 1")
    scan, planned, _, _ = reopen_run(parsed.run, trust=parsed.trust)
    with at_checkpoint(scan, planned, parsed.run) as (settings, algorithm, state):
        print("\n".join(certify_steps(algorithm, state, settings, parsed.steps or _STEPS)))
    say_next("info", parsed.run)
    return 0


def _pictures(folder: Path | None, size: int) -> dict[str, Tensor]:
    from plugstream.images.pictures import load_picture

    if folder is None:
        return {name: load_picture(name, size) for name in _PICTURES}
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give one with pictures")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _KINDS)
    if not files:
        raise InputError(f"there is no picture in {folder}; PNG, TIFF, NPY and JPEG are read")
    return {printable(file.stem): load_picture(file, size) for file in files}


def _volumes(size: int) -> dict[str, Tensor]:
    """The head of Shepp and Logan and a cell of balls, from 0 to 1: (size, size, size) each."""
    import torch

    from plugstream.images.simulated import shepp_logan
    from plugstream.instruments.odt import ball_cell

    cell = torch.from_numpy(ball_cell(size, 1.36, 1.335)).double()
    return {"head": torch.from_numpy(shepp_logan((size,) * 3)), "cell": (cell / cell.max()).clamp(min=0)}


def _denoiser(settings: Settings, size: int) -> Denoiser:
    """The denoiser of the settings; a guide is brought to the pictures' size."""
    from plugstream.denoisers import NLM
    from plugstream.images.pictures import load_picture
    from plugstream.runs.parts import build_denoiser, check_for_pictures

    s = settings.denoiser
    check_for_pictures(s)
    if not s.entry.facts.get("guided", False) or s.guide is None:
        return build_denoiser(s)
    if s.least is not None or s.upper is not None or s.damping is not None or s.equivariant is not None:
        raise InputError("only nlm by itself takes a guide; leave out low, high, damping and equivariant")
    return NLM(load_picture(s.guide, size))


def _note(key: str, info: FieldInfo, value: Any) -> str:
    """An option of a denoiser in words; for a file, its name."""
    from plugstream.settings.fields import marks_of

    marks = marks_of(info)
    if marks.get("file"):
        value = Path(value).stem if "note" in marks else Path(value).name
    return str(marks.get("note", f"{key} {{}}")).format(value)


def _title(settings: Settings) -> str:
    """The name of a denoiser in its certificate, with every option that makes it differ from the default one."""
    from plugstream.settings.choices import is_marked

    s = settings.denoiser
    options = s.options.model_dump(mode="json", exclude_defaults=True)
    fields = s.entry.options.model_fields
    keys = [key for key in options if ("denoiser", key, options[key]) not in PRESETS]
    notes = [_note(key, fields[key], options[key]) for key in keys if not is_marked(fields[key], "consent")]
    notes += [] if s.least is None and s.upper is None else [f"within [{s.least}, {s.upper}]"]
    notes += [] if s.damping is None else [f"damped with theta {s.damping:g}"]
    notes += [] if s.equivariant is None else ["the mean over turns and mirror images"]
    return ", ".join([s.name, *notes])
