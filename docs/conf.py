"""How the site of docs/ is built: `make docs` writes it to build/site, and takes every warning for an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("COLUMNS", "100")

import plugstream  # noqa: E402

plugstream.BM3DProfile.__name__ = "BM3DProfile"  # else its page says no more than that it is another name

project = "plugstream"
author = "the plugstream developers"
copyright = "2026, the plugstream developers, Apache-2.0"
release = version = plugstream.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx_gallery.gen_gallery",
    "plain_docstrings",
    "command_help",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_ext", "_static", "_templates", "gallery", "results", "_gallery/sg_execution_times.rst"]
templates_path = ["_templates"]

# Pages are read on GitHub, too: plain Markdown, with the anchors that GitHub makes.
myst_heading_anchors = 4

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 70
add_module_names = False
# Names that differ in their letters' case alone would be one file on some systems.
autosummary_filename_map = {f"plugstream.{name}": f"plugstream.{name}-function" for name in ("snr", "psnr", "ssim")}

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "_gallery",
    "subsection_order": ["gallery/instruments", "gallery/algorithms", "gallery/parts"],
    "filename_pattern": "/plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "min_reported_time": 1000,
    "write_computation_times": False,
    "plot_gallery": "True",
    "image_srcset": ["2x"],
    "thumbnail_size": (600, 420),
}

html_theme = "furo"
html_title = "plugstream"
html_static_path = ["_static"]
html_logo = html_favicon = "_static/logo.svg"
html_css_files = ["site.css"]
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}

# `make docs` checks links within the site alone: nothing outside has to be reachable to build it.
linkcheck_ignore = [r"https?://.*"]
