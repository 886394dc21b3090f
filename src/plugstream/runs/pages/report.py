"""The report of a run as one HTML file that needs nothing else: it opens from a disk, and can load nothing.

Its Content-Security-Policy names the very script and style that are in it, by their hashes, and allows nothing besides.
What it shows stands in it as JSON, which is no script; everything that comes from a run becomes text, never HTML.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugstream.algorithms.sampling import OnceEach, Sampler
from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import write_whole
from plugstream.images.space import ImageSpace
from plugstream.runs.folder import check_plain
from plugstream.runs.measuring import usable_views
from plugstream.runs.pages import SCRIPTS, STYLES, read_asset
from plugstream.runs.pages.content import read_settings, run_content
from plugstream.runs.pages.pictures import run_picture
from plugstream.runs.replay import History, replay
from plugstream.runs.report import FIGURES, draw_run
from plugstream.runs.results import METHODS
from plugstream.settings import Settings
from plugstream.solver.monitors import snr

# Measurements of a run that its report has at most.
_MEASUREMENTS = 20_000

_SHOW = """
plugstream.showReport(document.querySelector("main"), JSON.parse(document.getElementById("content").textContent));
"""


def write_report(folder: Path, out: Path | None = None, settings: Settings | None = None) -> Path:
    """Write the report of the run in a folder, by default as report.html there, and return its path.

    Arguments: folder; out, of which the ending .png, .pdf or .svg asks for a figure instead of a page; settings, those
    of its settings.toml if not given.
    """
    out = folder / "report.html" if out is None else out
    if out.suffix in FIGURES:
        settings = read_settings(folder) if settings is None else settings
        _write(out, draw_run(folder, out.suffix.removeprefix("."), settings))
    else:
        _write(out, _page([_collect(folder, settings)]).encode())
    return out


def compare_reports(folders: Sequence[Path], out: Path) -> Path:
    """Write a page with two runs or more side by side, and their curves in common charts; return its path."""
    if len(folders) < 2:
        raise InputError("a comparison needs two runs or more")
    if out.suffix in FIGURES:
        raise InputError(f"{out} would be a figure, which is of one run; of several there is a page, such as both.html")
    if out.exists():
        raise InputError(f"{out} exists already; remove it or choose another name with --out")
    if not out.parent.is_dir():
        raise InputError(f"the folder {out.parent} does not exist; make it first")
    _write(out, _page([_collect(folder) for folder in folders]).encode())
    return out


def _collect(folder: Path, settings: Settings | None = None) -> dict[str, Any]:
    """What a report has of a run: its content and its pictures; one that is damaged is left out, and named."""
    check_plain(folder)
    history = replay(folder / "events.jsonl")
    settings = read_settings(folder) if settings is None else settings
    content = run_content(folder, history, most=_MEASUREMENTS, settings=settings)
    pictures = {}
    for role in content["roles"]:
        try:
            pictures[role] = run_picture(folder, role, history.space)
        except InputError as error:
            content["notes"].append({"at": history.last_at or 0.0, "text": f"warning: {error}"})
    content["roles"] = list(pictures)
    content["views"]["usage"] = None if settings is None else _usage(history, settings)
    content["scores"] = _scores(folder, pictures, history.space)
    content["about"] = _about_demo(history, settings, content)
    return {"content": content, "pictures": pictures}


def _about_demo(history: History, settings: Settings | None, content: Mapping[str, Any]) -> str:
    """What a demo has done, in at most 80 words; nothing of runs on scans that were there, or that have no result."""
    stop, simulated = history.stop, content["settings"].get("simulate")
    if stop is None or not stop.answers or simulated is None or settings is None:
        return ""
    views = max((record.views for record in history.views), default=0)
    title = settings.instrument.entry.help.partition(":")[0]
    picture, scores = Path(str(simulated.get("picture", "an object"))).name, content["scores"]
    both = "the prior and its strength" if history.chosen else "its strength"
    how = f"Views that no step used chose {both}" if history.trials else "Its strength was given"
    others = [f"that of {label} {scores[role]}" for role, label in METHODS.items() if scores.get(role)]
    near = f" The SNR of the image is {', '.join([scores['result'], *others])}." if scores.get("result") else ""
    trusted = "trusts this image" if stop.trusted else "does not trust this image yet"
    return (
        f"plugstream simulated {views} noisy views ({title}) of {picture}, and formed the image from them alone, in "
        f"{stop.step} steps with {Path(settings.denoiser.name).name} as the prior. {how}.{near} The verdict {trusted}. "
        "Next, reconstruct a scan of your own: plugstream import."
    )


def _usage(history: History, settings: Settings) -> dict[str, Any] | None:
    with contextlib.suppress(InputError):
        return view_usage(history, settings)
    return None


def _scores(folder: Path, roles: Collection[str], space: ImageSpace | None) -> dict[str, str]:
    """How close each image is to the truth, in words, where that is known."""
    if space is None or "truth" not in roles:
        return {}
    scores = {}
    with contextlib.suppress(OSError, ValueError, InputError):
        truth = np.load(folder / "truth.npy", allow_pickle=False)
        for role in roles:
            if role in ("result", "filtered", "gridding", "backprojection"):
                image = np.load(folder / f"{role}.npy", allow_pickle=False)
                value = float(snr(image, truth, space.ndim, phase=space.phase))
                scores[role] = f"{value:.2f} dB" if math.isfinite(value) else ""
    return scores


def _write(out: Path, content: bytes) -> None:
    try:
        write_whole(out, [content])
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error


def _page(runs: Sequence[Mapping[str, Any]]) -> str:
    style = "\n".join(map(read_asset, STYLES))
    # uPlot's licence asks that it goes along with every copy.
    script = "\n".join([f"/*\n{read_asset('uPlot.LICENSE')}*/", *map(read_asset, SCRIPTS), _SHOW])
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = html.escape(" and ".join(run["content"]["name"] for run in runs))
    # In JSON "<" stands in texts only, and written like this it cannot end the element.
    content = json.dumps(runs, allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title} - plugstream</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main><noscript>This report is drawn by a script inside it; allow it to run.</noscript></main>
<script type="application/json" id="content">{content}</script>
<script>{script}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


# Samplers that need no more than the number of views, and no code but ours.
_SIMPLE_SAMPLERS = ("uniform", "epochs", "shifted", "fixed", "all")
# Steps whose views are drawn again at most, which takes a second, and views and bars of the chart.
_MOST_STEPS, _MOST_VIEWS, _MOST_BARS = 20_000, 1_000_000, 300


def view_usage(history: History, settings: Settings) -> dict[str, Any] | None:
    """How often views were drawn: {"size", "counts", "unused"}; None where that takes long, or cannot be known.

    A count is the mean over `size` consecutive views, 1 where there are few; `unused` is how many views were never
    drawn, damaged and held-out ones included.
    """
    if history.trials or history.stages:  # sides of a search draw the same views, and the log has no views of stages
        return None
    if not history.views or history.step > _MOST_STEPS or settings.sampler.name not in _SIMPLE_SAMPLERS:
        return None
    total = max(record.views for record in history.views)
    if not 0 < total <= _MOST_VIEWS:
        return None
    counts = _count(history, settings, total)
    size = -(-total // _MOST_BARS)
    starts = np.arange(0, total, size)
    means = np.add.reduceat(counts, starts) / np.diff([*starts, total])
    return {"size": size, "counts": [round(float(mean), 3) for mean in means], "unused": int((counts == 0).sum())}


def _count(history: History, settings: Settings, total: int) -> NDArray[np.int64]:
    sampler: Sampler = settings.sampler.build(SimpleNamespace(n_views=history.views[0].views))
    if settings.sampler.views is not None:
        sampler = OnceEach(sampler, settings.sampler.views)  # as a run does whose scan still grows
    counts = np.zeros(total, np.int64)
    for number, record in enumerate(history.views):
        later = history.views[number + 1 :]
        end = min([history.step, *(other.step for other in later[:1])])
        available = usable_views(record, settings.monitor.hold_out)
        for step in range(record.step, end):
            drawn = sampler.draw(step, available).views
            if drawn is None:  # all of them, in this and every step of this kind
                counts[available.numpy()] += end - step
                break
            np.add.at(counts, drawn.numpy(), 1)
    return counts
