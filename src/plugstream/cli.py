"""The command line: it parses, calls the library and shows progress. torch is imported only once work begins."""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from plugstream import __version__
from plugstream.errors import InputError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from torch import Tensor

    from plugstream.scans import Scan
    from plugstream.settings import Settings

__all__ = ["main"]

_RECONSTRUCTION = ("algorithm", "sampler", "denoiser", "monitor", "compute")
_COMMANDS = {
    "demo": ("simulate a scan of a picture and reconstruct it online", ("simulate", *_RECONSTRUCTION)),
    "simulate": ("make a scan of a picture, with noise, as a Zarr folder", ("simulate", "compute")),
    "reconstruct": ("form the image of a scan, a few views at a time", _RECONSTRUCTION),
    "info": ("describe a scan", ()),
    "denoise": ("remove noise from a picture: PNG, TIFF or NPY, grey or colour", ("denoiser", "compute")),
}
# A picture may hold any values, so nothing is clipped unless asked for.
_DENOISE = (("denoiser", "name", "bm3d"), ("denoiser", "low", None))
# What the demo changes of the defaults; TV at this strength suits a photograph with values from 0 to 1.
_DEMO = (("algorithm", "sigma", 0.016), ("sampler", "name", "shifted"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 diverged, 2 a mistake in the input, 130 interrupted."""
    try:
        parsed = _parse(list(sys.argv[1:] if arguments is None else arguments))
        return int(_RUN[parsed.command](parsed))
    except InputError as error:
        print(f"plugstream: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("plugstream: interrupted before there was a result", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="plugstream",
        description="Online plug-and-play image reconstruction: a few views per iteration, any denoiser as the prior.",
        epilog="'plugstream COMMAND --help' lists a command's settings.",
    )
    parser.add_argument("--version", action="version", version=f"plugstream {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, (text, sections) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == wanted:  # describing settings needs pydantic, so only for the command that is used
            _add_arguments(command, name, sections)
    parsed: argparse.Namespace = parser.parse_args(arguments)
    return parsed


def _add_arguments(parser: argparse.ArgumentParser, command: str, sections: Sequence[str]) -> None:
    if command in ("reconstruct", "info"):
        parser.add_argument("scan", type=Path, help="a scan, a Zarr folder")
    if command == "simulate":
        parser.add_argument("out", type=Path, help="the scan to make, by custom ending in .zarr")
    if command == "denoise":
        parser.add_argument("picture", type=Path, help="the noisy picture")
        parser.add_argument("out", type=Path, help="the picture to make, of the same bits: .png, .tif or .npy")
        parser.add_argument("--sigma", required=True, help="the noise's standard deviation, such as 15/255 or 0.06")
    if command in ("demo", "reconstruct"):
        parser.add_argument("--out", type=Path, help="the folder to make for the results")
    if not sections:
        return
    from plugstream.settings import leaves

    parser.add_argument("--settings", type=Path, metavar="FILE.toml", help="read settings from this file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change one setting, by its full name"
    )
    groups = {section: parser.add_argument_group(f"[{section}]") for section in sections}
    for section, key, info in leaves(sections):
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        flag = str(extra.get("flag", key)).replace("_", "-")
        groups[section].add_argument(
            f"--{flag}",
            dest=f"{section}.{key}",
            metavar="X",
            default=argparse.SUPPRESS,
            help=_help(info).replace("%", "%%"),
        )


def _help(info: FieldInfo) -> str:
    """What a setting is, what it may be where that is a choice, and its default."""
    choices = [str(choice) for choice in get_args(info.annotation) if isinstance(choice, str)]
    text = f"{info.description}: {', '.join(choices)}" if choices else f"{info.description}"
    return text if info.default is None else f"{text} ({info.default})"


def _settings(parsed: argparse.Namespace, presets: Sequence[tuple[str, str, Any]] = ()) -> Settings:
    from plugstream.settings import parse_assignment, parse_value, resolve

    flags = [(*name.split("."), parse_value(value)) for name, value in vars(parsed).items() if "." in name]
    assignments = [*flags, *(parse_assignment(text) for text in parsed.set)]
    if parsed.settings is None:  # a file says everything, so that it repeats the run it came from
        assignments = [*presets, *assignments]
    return resolve(parsed.settings, assignments)


def _demo(parsed: argparse.Namespace) -> int:
    settings = _settings(parsed, _DEMO)
    from plugstream.recipes import check, make_geometry
    from plugstream.runs.run import free_folder, make_folder

    check(settings, make_geometry(settings))
    picture = _load_picture(settings)
    folder = make_folder(parsed.out or free_folder("plugstream-demo"))
    scan = _simulate_scan(settings, picture, folder / "scan.zarr")
    again = f"plugstream demo --settings {shlex.quote(str(folder / 'settings.toml'))}"
    return _reconstruct_scan(scan, settings, folder, again)


def _simulate(parsed: argparse.Namespace) -> int:
    settings = _settings(parsed)
    _simulate_scan(settings, _load_picture(settings), parsed.out)
    return 0


def _reconstruct(parsed: argparse.Namespace) -> int:
    settings = _settings(parsed)
    from plugstream.recipes import check
    from plugstream.runs.run import free_folder, make_folder
    from plugstream.scans.store import open_scan

    stored = open_scan(parsed.scan)
    check(settings, stored.geometry)
    scan = stored.load()  # every chunk is read and checked here, before a folder is made
    folder = make_folder(parsed.out or free_folder(f"{parsed.scan.resolve().stem}-run"))
    where, saved = (shlex.quote(str(path)) for path in (parsed.scan, folder / "settings.toml"))
    return _reconstruct_scan(scan, settings, folder, f"plugstream reconstruct {where} --settings {saved}")


def _denoise(parsed: argparse.Namespace) -> int:
    from plugstream.settings import parse_value

    settings, sigma = _settings(parsed, _DENOISE), parse_value(parsed.sigma)
    if not isinstance(sigma, int | float) or not 0 <= sigma < float("inf"):
        raise InputError(f"sigma must be a number >= 0 such as 15/255, not {parsed.sigma}")
    from plugstream.denoising import denoise_picture
    from plugstream.recipes import make_denoiser, prepare_device
    from plugstream.runs.images import check_writable, read_picture, write_picture

    device, dtype = prepare_device(settings.compute)
    denoiser = make_denoiser(settings.denoiser)
    pixels, stored = read_picture(parsed.picture)
    check_writable(parsed.out, pixels.ndim, stored)
    write_picture(parsed.out, denoise_picture(pixels, denoiser, float(sigma), device=device, dtype=dtype), stored)
    _say(f"wrote {parsed.out}")
    return 0


def _info(parsed: argparse.Namespace) -> int:
    import math

    from plugstream.scans.store import open_scan

    scan = open_scan(parsed.scan)
    g = scan.geometry
    height, width = g.grid.shape
    covered = "all" if g.mask is None else f"{g.mask.mean():.1%} of all"
    rows = {
        "scan": f"{scan.path} ({'complete' if scan.complete else 'still running'})",
        "views": f"{scan.n_views}, {'fields given' if g.fields is not None else 'line sources'}",
        "receivers": f"{g.n_receivers}, {covered} recorded",
        "data": f"{scan.n_views * g.n_receivers * 8 / 1e6:.2f} MB of complex64",
        "wavelength": f"{g.wavelength:.6g} m in vacuum, background permittivity {g.background:g}",
        "image": f"{height} x {width} pixels of {g.grid.pixel:.6g} m, {g.wavelength / g.grid.pixel:.3g} a wavelength",
        "distance": f"receivers {_range(g.receivers)}"
        + (f", transmitters {_range(g.transmitters)}" if g.transmitters is not None else ""),
        "size": f"{math.hypot(height, width) * g.grid.pixel / g.wavelength:.4g} wavelengths across the diagonal",
        "truth": "known" if scan.truth is not None else "not known",
        "provenance": ", ".join(f"{key} {value}" for key, value in scan.provenance.items()) or "unknown",
    }
    for name, text in rows.items():
        print(f"{name:<12}{text}")
    return 0


def _range(points: Any) -> str:
    import numpy as np

    radii = np.hypot(*points.T)
    low, high = radii.min(), radii.max()
    return f"{low:.4g} m" if np.isclose(low, high) else f"{low:.4g} to {high:.4g} m"


def _load_picture(settings: Settings) -> Tensor:
    from plugstream.runs.images import load_picture

    return settings.simulate.contrast * load_picture(settings.simulate.picture, settings.simulate.size)


def _simulate_scan(settings: Settings, image: Tensor, path: Path) -> Scan:
    from plugstream.recipes import make_geometry, make_model
    from plugstream.scans.store import save_scan
    from plugstream.simulation import simulate

    s = settings.simulate
    if path.exists():
        raise InputError(f"{path} exists already; remove it or choose another name")
    geometry = make_geometry(settings)
    _say(f"simulating {s.views} views of {s.receivers} receivers of {s.picture}, {s.size} x {s.size}, at {s.snr:g} dB")
    scan = simulate(make_model(geometry, settings.compute), image, snr=s.snr, seed=s.seed)
    save_scan(scan, path)
    _say(f"wrote {path}")
    return scan


def _reconstruct_scan(scan: Scan, settings: Settings, folder: Path, command: str) -> int:
    from plugstream.runs.run import reconstruct
    from plugstream.runs.terminal import Terminal
    from plugstream.solver import Stop

    result = reconstruct(scan, settings, folder, command=command, terminal=Terminal())
    if "snr" in result.history:
        value = float(result.history["snr"].value[result.history["snr"].step == result.image_step][-1])
        _say(f"SNR {value:.2f} dB at step {result.image_step}")
    _say(f"results are in {folder}: report.png shows them, settings.toml repeats them")
    return 130 if result.reason is Stop.INTERRUPTED else int(result.reason.failed)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Parser(argparse.ArgumentParser):
    """argparse that answers a mistake in one line, with the nearest right flag or command."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags = [flag for flag in self._known_flags(parsed.command) if flag.startswith("--")]
            near = difflib.get_close_matches(unknown[0].split("=")[0], flags, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; see 'plugstream {parsed.command} --help'"
            raise InputError(f"there is no argument {unknown[0]}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        raise InputError(message)

    def _known_flags(self, command: str) -> list[str]:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return list(action.choices[command]._option_string_actions)
        return []


_RUN = {"demo": _demo, "simulate": _simulate, "reconstruct": _reconstruct, "info": _info, "denoise": _denoise}

if __name__ == "__main__":
    sys.exit(main())
