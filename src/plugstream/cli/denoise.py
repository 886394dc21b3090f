"""Remove noise from a picture or a volume."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugstream.base.errors import InputError
from plugstream.cli.common import add_max_read, say, say_next, settings_of

if TYPE_CHECKING:
    from plugstream.denoisers.base import Denoiser
    from plugstream.settings import Settings

# A picture may hold any values, so nothing is clipped unless asked for.
PRESETS = (("denoiser", "name", "bm3d"), ("denoiser", "low", None))
SECTIONS = ("denoiser", "compute")
_WORK = 64  # bytes that denoising takes for each value of a picture: TV 58, BM3D 72


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "picture",
        type=Path,
        help="the noisy picture, .png, .tif or .npy; or a volume: a stack in a .tif, an .npy of three axes, or an "
        "OME-Zarr; an .npy may be complex",
    )
    parser.add_argument("out", type=Path, help="what to make, of the same bits: .png, .tif or .npy, or .zarr")
    add_max_read(parser)
    parser.add_argument(
        "--sigma",
        help="the noise's standard deviation, such as 15/255 or 0.06; 8 and 16-bit pictures have values from 0 to 1; "
        "needed unless the denoiser does not use it",
    )
    parser.add_argument(
        "--channels",
        choices=("opp", "principal"),
        help="the pictures of a stack, (C, H, W), are energies, coils or times of one: they share the groups that BM3D "
        "finds in their mean (opp) or in their strongest principal component",
    )
    parser.add_argument("--large-sigma", action="store_true", help="use a sigma above 1 for an 8 or 16-bit picture")
    parser.add_argument(
        "--counts",
        action="store_true",
        help="the values are counts, with Poisson noise: no --sigma is needed, or its factor (Anscombe's transform)",
    )
    parser.add_argument("--gain", type=float, default=1.0, help="with --counts, the value of one count")
    parser.add_argument(
        "--read-noise", type=float, default=0.0, help="with --counts, Gaussian noise in the values, too"
    )


def run(parsed: argparse.Namespace) -> int:
    import logging

    from plugstream.images.volumes import volume_header
    from plugstream.settings import needs_sigma, parse_sigma

    logging.getLogger("tifffile").disabled = True  # what is wrong with a file is said in one line
    axes, shape = volume_header(parsed.picture)
    thick = "z" in axes and min(length for axis, length in zip(axes, shape, strict=True) if axis in "zyx") >= 4
    solid = thick and vars(parsed).get("denoiser.along") is None and parsed.channels is None
    settings = settings_of(parsed, (*PRESETS, ("denoiser", "name", "bm4d")) if solid else PRESETS)
    if settings.compute.memory is not None:
        raise InputError("--memory is for a volume that is reconstructed; use --tile here")
    if parsed.channels is not None and not axes:
        raise InputError(f"--channels is for a stack of pictures, and {parsed.picture} is not one; leave it out")
    if not parsed.counts and (parsed.gain != 1 or parsed.read_noise != 0):
        raise InputError("--gain and --read-noise are for counts; add --counts")
    if parsed.sigma is None and needs_sigma(settings.denoiser.name) and not parsed.counts:
        raise InputError("the noise level is missing; give --sigma, such as 15/255 or 0.06")
    sigma = float(parsed.counts) if parsed.sigma is None else parse_sigma(parsed.sigma, zero=True)
    (_denoise_volume if axes else _denoise_picture)(parsed, settings, sigma)
    say(f"wrote {parsed.out}")
    say_next("denoisers")
    return 0


def _denoise_picture(parsed: argparse.Namespace, settings: Settings, sigma: float) -> None:
    import numpy as np

    from plugstream.base.capacity import check_memory
    from plugstream.denoisers.pictures import denoise_picture
    from plugstream.denoisers.shapes import adapt, describe
    from plugstream.images.pictures import check_writable, read_picture, write_picture
    from plugstream.runs.checks import prepare_device
    from plugstream.runs.parts import build_denoiser, complex_parts, in_tiles

    device, dtype = prepare_device(settings.compute)
    denoiser = in_tiles(build_denoiser(settings.denoiser), settings.compute)
    pixels, stored = read_picture(parsed.picture, waves=True)
    advice = "cut it, let --tile denoise it in parts, or use a machine with more"
    check_memory(_WORK * pixels.size, f"denoising {pixels.size:.3g} values", advice)
    check_writable(parsed.out, pixels.ndim, stored)
    most = np.iinfo(stored).max if parsed.counts and stored.kind in "iu" else 1
    if parsed.counts and (pixels.ndim != 2 or np.iscomplexobj(pixels)):
        raise InputError(f"{parsed.picture} is not a grey picture of real numbers, as counts are; leave --counts out")
    denoiser = _for_counts(parsed, denoiser)
    how = complex_parts(settings.denoiser, waves=np.iscomplexobj(pixels))
    if how["complex"] and pixels.ndim == 2:  # `denoise_picture` refuses any other
        denoiser = adapt(denoiser, pixels.shape, **how)
        say(f"the picture is complex: {describe(denoiser)}")
    _check(parsed, settings, sigma, pixels, stored)
    clean = denoise_picture(pixels * most, denoiser, sigma, device=device, dtype=dtype)
    write_picture(parsed.out, clean / most, stored)


def _denoise_volume(parsed: argparse.Namespace, settings: Settings, sigma: float) -> None:
    from dataclasses import replace
    from functools import partial

    import numpy as np

    from plugstream.denoisers.pictures import denoise_volume
    from plugstream.denoisers.shapes import describe
    from plugstream.images.volumes import check_volume_place, read_volume, write_volume
    from plugstream.runs.checks import prepare_device
    from plugstream.runs.parts import build_denoiser, complex_parts, in_tiles

    device, dtype = prepare_device(settings.compute)
    along = settings.denoiser.along
    by: Any = None if along is None else "mean" if along == "all" else "zyx".index(along)
    denoiser = _for_counts(parsed, build_denoiser(settings.denoiser.model_copy(update={"along": None})))
    check_volume_place(parsed.out)
    volume = read_volume(parsed.picture)
    values, stored = volume.values, volume.values.dtype
    how = complex_parts(settings.denoiser, waves=stored.kind == "c")
    check_volume_place(parsed.out, complex=how.pop("complex"))
    if parsed.counts and stored.kind == "c":
        raise InputError(f"{parsed.picture} holds complex numbers, and counts are real; leave --counts out")
    if parsed.channels is not None and volume.axes != "zyx" and volume.ndim == 3:
        raise InputError("the channels of volumes are denoised each on its own; leave --channels out")
    if parsed.channels is not None and along is not None:
        raise InputError("--along is for the slices of a volume, not for --channels; leave one of them out")
    most = np.iinfo(stored).max if stored.kind in "iu" else 1
    if stored.kind in "iu" and not parsed.counts:
        values = (values / most).astype(np.float32)
    _check(parsed, settings, sigma, values, stored)
    clean, adapted = denoise_volume(
        values,
        denoiser,
        sigma,
        ndim=volume.ndim,
        rotation=parsed.channels,
        tiles=partial(in_tiles, compute=settings.compute),
        volume=by,
        device=device,
        dtype=dtype,
        **how,
    )
    if stored.kind in "iu":
        clean = np.rint(np.clip(clean * (1 if parsed.counts else most), 0, most))
    shape = " x ".join(map(str, values.shape))
    say(f"{shape if parsed.channels is None else f'channels x rows x columns {shape}'}: {describe(adapted)}")
    write_volume(parsed.out, replace(volume, values=clean.astype(stored if stored != np.float16 else np.float32)))


def _for_counts(parsed: argparse.Namespace, denoiser: Denoiser) -> Denoiser:
    from plugstream.denoisers.stabilized import Anscombe

    return Anscombe(denoiser, parsed.gain, parsed.read_noise) if parsed.counts else denoiser


def _check(parsed: argparse.Namespace, settings: Settings, sigma: float, values: Any, stored: Any) -> None:
    """Refuse a sigma on another scale than the values, or doubt it."""
    from plugstream.denoisers.pictures import check_sigma
    from plugstream.settings.checks import check_precision

    doubt = None if parsed.large_sigma or parsed.counts else check_sigma(sigma, values, stored, parsed.sigma)
    if doubt is not None:
        say(f"warning: {doubt}; is it on their scale?")
    check_precision(settings, sigma=sigma)
