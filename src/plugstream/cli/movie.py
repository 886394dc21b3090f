"""Make a movie of a run's image as it forms."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugstream.cli.common import say, say_next
from plugstream.cli.values import number, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of a run, which may still go on")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the movie: .gif, or .mp4 where ffmpeg is installed (FOLDER/movie.gif)"
    )
    parser.add_argument(
        "--fps", type=number(60, 0.1), metavar="X", help="frames a second; for about six seconds if not given"
    )
    parser.add_argument(
        "--size", type=whole_number(4096), default=420, metavar="N", help="pixels of the image's longer side (420)"
    )
    parser.add_argument("--title", metavar="TEXT", help="what stands above it, what the run does if not given")


def run(parsed: argparse.Namespace) -> int:
    from plugstream.runs.movie import make_movie

    out = parsed.out or parsed.folder / "movie.gif"
    movie = make_movie(parsed.folder, out, fps=parsed.fps, size=parsed.size, title=parsed.title)
    size = movie.path.stat().st_size / 1e6
    steps = f"steps {movie.first} to {movie.last}"
    say(f"wrote {movie.path}: {movie.frames} frames of {steps}, {movie.seconds:.1f} s, {size:.2f} MB")
    say_next("serve", parsed.folder)
    return 0
