"""Write the result of a run into a Tiled catalogue."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.cli.common import say, say_next


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of a run that has ended")
    parser.add_argument(
        "address", help="of a container of Tiled, such as http://127.0.0.1:8000/api/v1/metadata/results"
    )
    parser.add_argument("--key", metavar="NAME", help="what to call it there, as the folder if not given")


def run(parsed: argparse.Namespace) -> int:
    from plugstream.runs.tiled import publish_run

    say(f"wrote {publish_run(parsed.folder, parsed.address, parsed.key)}")
    say_next("info", parsed.folder)
    return 0
