"""Simulate a scan, of X-rays unless another instrument is named, and reconstruct it online."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from plugstream.base.errors import InputError, PlugstreamWarning, is_refusal
from plugstream.base.text import shell_quote
from plugstream.cli.common import RECONSTRUCTION, draft_of, make_experiment, reconstruct_scan, simulate_scan, trust_flag
from plugstream.cli.serve import add_viewers, open_page, viewers_of

PRESETS = (("instrument", "name", "ct"),)
# What the demo changes of the defaults of some instruments. Of ct, a scan that is reconstructed in a quarter of a
# minute, with everything chosen by its data. Of the paper's case, TV at a strength that suits a photograph with values
# from 0 to 1, whose image has arrived after this many steps.
_PRESETS_OF: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "ct": (("simulate", "size", 128), ("simulate", "views", 60)),
    "born-2d": (("algorithm", "sigma", 0.016), ("algorithm", "iterations", 160), ("sampler", "name", "shifted")),
}
TOLD = {"--size": "pixels of the image, one number or rows,columns; 128 of ct, of others as in simulate"}
SECTIONS = ("simulate", *RECONSTRUCTION)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="the folder to make for the results")
    add_viewers(parser)


def run(parsed: argparse.Namespace) -> int:
    instrument = draft_of(parsed, PRESETS).settings.instrument.name
    draft, viewers = draft_of(parsed, (*PRESETS, *_PRESETS_OF.get(instrument, ()))), viewers_of(parsed)
    page = open_page(parsed)
    from plugstream.runs.folder import free_folder, remove_unbegun, whole_folder, write_down
    from plugstream.runs.identity import absolute
    from plugstream.runs.parts import prepare
    from plugstream.runs.plan import advised_plan, plan

    settings = absolute(draft.settings)
    experiment = make_experiment(settings)
    a, early = settings.algorithm, None
    if a.sigma is not None or a.lam is not None:  # what is refused is refused before the scan is simulated
        early = prepare(settings)
        plan(early, experiment)
    folder = parsed.out or free_folder("plugstream-demo")
    place = folder / "scan.zarr"
    again = f"plugstream demo --settings {shell_quote(folder / 'settings.toml')}{trust_flag(settings)}"
    with whole_folder(folder) as partial:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlugstreamWarning)  # of what the run warns of, too
            scan, model = simulate_scan(settings, partial / place.name, name=place, experiment=experiment)
        planned = advised_plan(draft, scan, early, divide=False)
        write_down(partial, planned.settings, again, Path(place.name))
    if page is not None:
        page.start(folder)
    try:
        # Columns that were found with the data, such as gains, make another model.
        same = model if scan.columns.keys() == experiment.columns.keys() else None
        return reconstruct_scan(scan, replace(planned, known_model=same), folder, again, place, viewers=viewers)
    except InputError as error:
        if is_refusal(error):
            remove_unbegun(folder, place.name)
        raise
