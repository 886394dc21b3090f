"""Pages that show runs, made from their folders: a report in one file, and a page that follows a run."""

from __future__ import annotations

from importlib.resources import files

# Scripts and styles in the order in which they are loaded; what each is for stands at its top.
# Classic scripts, since a page that was opened from a disk cannot import modules; each adds to window.plugstream.
SCRIPTS = (
    "uPlot.iife.min.js",
    "dom.js",
    "picture.js",
    "pointer.js",
    "frame.js",
    "view.js",
    "viewer.js",
    "curves.js",
    "usage.js",
    "head.js",
    "page.js",
    "compare.js",
)
STYLES = ("uPlot.min.css", "page.css")


def read_asset(name: str) -> str:
    """The text of a file in static/, by its name there."""
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")
