"""The flags of what shows a run while it goes on, for the commands that run one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plugstream.runs.terminal import Viewers

__all__ = ["add_viewers", "viewers_of"]


def add_viewers(parser: argparse.ArgumentParser) -> None:
    """Give a command the flags."""
    group = parser.add_argument_group("other viewers")
    group.add_argument(
        "--live-zarr",
        type=Path,
        metavar="PLACE",
        help="keep the current image here as OME-Zarr 0.5, which napari and vizarr open and read again",
    )
    group.add_argument(
        "--tensorboard", action="store_true", help="write what TensorBoard reads, into the run's folder tensorboard"
    )


def viewers_of(parsed: argparse.Namespace) -> Viewers:
    """What was asked for; what cannot be done is refused."""
    from plugstream.runs.terminal import Viewers

    viewers = Viewers(parsed.live_zarr, parsed.tensorboard)
    viewers.check()
    return viewers
