"""Remove noise from a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.base.errors import InputError
from plugstream.cli.common import say, settings_of

# A picture may hold any values, so nothing is clipped unless asked for.
PRESETS = (("denoiser", "name", "bm3d"), ("denoiser", "low", None))
SECTIONS = ("denoiser", "compute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("picture", type=Path, help="the noisy picture; an .npy may be complex")
    parser.add_argument("out", type=Path, help="the picture to make, of the same bits: .png, .tif or .npy")
    parser.add_argument(
        "--sigma",
        help="the noise's standard deviation, such as 15/255 or 0.06; 8 and 16-bit pictures have values from 0 to 1; "
        "needed unless the denoiser does not use it",
    )
    parser.add_argument("--large-sigma", action="store_true", help="use a sigma above 1 for an 8 or 16-bit picture")


def run(parsed: argparse.Namespace) -> int:
    from plugstream.settings import needs_sigma, parse_sigma

    settings = settings_of(parsed, PRESETS)
    if parsed.sigma is None and needs_sigma(settings.denoiser.name):
        raise InputError("how strong the noise is is not given; give --sigma, such as 15/255 or 0.06")
    sigma = 0.0 if parsed.sigma is None else parse_sigma(parsed.sigma, zero=True)
    import numpy as np

    from plugstream.denoisers.pictures import check_sigma, denoise_picture
    from plugstream.denoisers.shapes import adapt, describe
    from plugstream.images.pictures import check_writable, read_picture, write_picture
    from plugstream.runs.checks import check_precision, prepare_device
    from plugstream.runs.parts import build_denoiser, complex_parts

    device, dtype = prepare_device(settings.compute)
    denoiser = build_denoiser(settings.denoiser)
    pixels, stored = read_picture(parsed.picture, waves=True)
    check_writable(parsed.out, pixels.ndim, stored)
    how = complex_parts(settings.denoiser, waves=np.iscomplexobj(pixels))
    if how["complex"] and pixels.ndim == 2:  # `denoise_picture` refuses any other
        denoiser = adapt(denoiser, pixels.shape, **how)
        say(f"the picture is complex: {describe(denoiser)}")
    doubt = None if parsed.large_sigma else check_sigma(sigma, pixels, stored, parsed.sigma)
    if doubt is not None:
        say(f"warning: {doubt}; is it on their scale?")
    check_precision(settings, sigma=sigma)
    write_picture(parsed.out, denoise_picture(pixels, denoiser, sigma, device=device, dtype=dtype), stored)
    say(f"wrote {parsed.out}")
    return 0
