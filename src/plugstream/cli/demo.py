"""Simulate a scan of a picture and reconstruct it online."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from plugstream.base.errors import InputError, is_refusal
from plugstream.base.text import shell_quote
from plugstream.cli.common import (
    RECONSTRUCTION,
    make_experiment,
    reconstruct_scan,
    settings_of,
    simulate_scan,
    trust_flag,
)
from plugstream.cli.serve import add_viewers, open_page, viewers_of

# What the demo changes of the defaults; TV at this strength suits a photograph with values from 0 to 1, and its image
# has arrived after this many steps.
PRESETS = (("algorithm", "sigma", 0.016), ("algorithm", "iterations", 160), ("sampler", "name", "shifted"))
SECTIONS = ("simulate", *RECONSTRUCTION)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="the folder to make for the results")
    add_viewers(parser)


def run(parsed: argparse.Namespace) -> int:
    settings, viewers = settings_of(parsed, PRESETS), viewers_of(parsed)
    page = open_page(parsed)
    from plugstream.runs.folder import free_folder, remove_unbegun, whole_folder, write_down
    from plugstream.runs.identity import absolute
    from plugstream.runs.plan import plan

    settings = absolute(settings)
    experiment = make_experiment(settings)
    planned = plan(settings, experiment)
    folder = parsed.out or free_folder("plugstream-demo")
    place = folder / "scan.zarr"
    again = f"plugstream demo --settings {shell_quote(folder / 'settings.toml')}{trust_flag(settings)}"
    with whole_folder(folder) as partial:
        model = planned.model(experiment.columns, experiment.n_views)
        scan = simulate_scan(settings, partial / place.name, name=place, experiment=experiment, model=model)
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
