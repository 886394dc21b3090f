"""A tooth from 30, 60 and 163 views, by commands alone: TV and BM3D against the best filtered back-projection.

    python benchmarks/ct_tooth.py ../shared/data/ct/tooth.h5

Every tenth of the file's 181 views is left out, and the residual of those is what counts. The filtered back-projection
is the best of five filters and seven cutoffs on the same imported data. TV and BM3D have their default settings. Prints
a table, and of each promise whether it is kept.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

from plugstream.cli import main

FILTERS = ("ram-lak", "shepp-logan", "cosine", "hamming", "hann")
CUTOFFS = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
CHOICE = ("--rows", 0, "--size", 384, "--stripes", 21)
COUNTS = (30, 60, 163)
# The last per cent: the step falls tenfold, and sigma with its root, so that the prior weighs the same throughout.
FINE = ("--tol", 1e-4)
FALLING = ("--step-end", "0.1/L", "--sigma", "1%", "--sigma-end", "0.3162%", *FINE)


def run(*words: object) -> str:
    """What a command of plugstream prints; its progress is not shown."""
    told, progress = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(progress):
        if main([str(word) for word in words]) != 0:
            raise SystemExit(progress.getvalue())
    return told.getvalue() + progress.getvalue()


def residuals(folder: Path, *images: Path) -> list[float]:
    """Of the views left out, for each image, in this order."""
    lines = run("residual", folder / "held.zarr", *images).splitlines()
    found = {line.split()[1]: float(line.split()[0]) for line in lines if re.fullmatch(r"[\d.]+ +\S+", line)}
    return [found[str(image)] for image in images]


def import_views(file: Path, folder: Path, counts: tuple[int, ...] = COUNTS) -> None:
    """The views left out, and so many of the others."""
    run("import", "ct", file, folder / "held.zarr", *CHOICE, "--select", "5::10")
    for count in counts:
        run("import", "ct", file, folder / f"{count}.zarr", *CHOICE, "--omit", "5::10", "--count", count)


def best_filtered(folder: Path, count: int) -> tuple[float, str]:
    """The least residual of all filters and cutoffs, and which."""
    made = {}
    for name in FILTERS:
        for cutoff in CUTOFFS:
            out = folder / f"{count}-{name}-{cutoff}"
            run("baseline", folder / f"{count}.zarr", out, "--filter", name, "--cutoff", cutoff)
            made[out.with_name(out.name + ".npy")] = f"{name}, {cutoff:g}"
    found = residuals(folder, *made)
    least = min(range(len(found)), key=found.__getitem__)
    return found[least], list(made.values())[least]


def reconstruct(folder: Path, count: int, *words: object, steps: int = 300) -> tuple[float, float]:
    """The residual of a run, and the seconds of one of its steps."""
    out = folder / ("run-" + "-".join(str(word).strip("-").replace("/", "") for word in (count, steps, *words)))
    told = run("reconstruct", folder / f"{count}.zarr", "--iterations", steps, "--report", "none", *words, "--out", out)
    taken = re.search(r"stopped after (\d+) steps and ([\d.]+) s", told)
    assert taken is not None
    return residuals(folder, out)[0], float(taken[2]) / int(taken[1])


def compare(file: Path, folder: Path) -> None:
    """Print everything."""
    import_views(file, folder)
    kept = []
    print("| views | filtered back-projection | TV | less by | BM3D | less by |\n| --- | --- | --- | --- | --- | --- |")
    best, tv, bm3d = {}, {}, {}
    for count in COUNTS:
        best[count], which = best_filtered(folder, count)
        tv[count], _ = reconstruct(folder, count)
        bm3d[count], _ = reconstruct(folder, count, "--denoiser", "bm3d", steps=150)
        less = [f"{1 - found[count] / best[count]:.0%}" for found in (tv, bm3d)]
        figures = f"{tv[count]:.4f} | {less[0]} | {bm3d[count]:.4f} | {less[1]}"
        print(f"| {count} | {best[count]:.4f} ({which}) | {figures} |", flush=True)
    kept.append(("TV with 60 views at least 45 % below", 1 - tv[60] / best[60] >= 0.45))
    kept.append(("BM3D with 60 views at least 50 % below", 1 - bm3d[60] / best[60] >= 0.50))
    kept.append(("TV with 30 views below filtered back-projection with 163", tv[30] < best[163]))
    whole, long = reconstruct(folder, 163, "--sampler", "all", *FINE, steps=200)
    few, short = reconstruct(folder, 163, *FALLING, steps=200)
    bounded, _ = reconstruct(folder, 163, "--momentum", "bounded", steps=200)
    plain, _ = reconstruct(folder, 163, steps=200)
    print(
        f"163 views, 200 steps: all in each {whole:.5f}, {1e3 * long:.1f} ms a step; ten in each with a falling step "
        f"{few:.5f} ({few / whole - 1:+.1%}), {1e3 * short:.1f} ms; with a constant one {plain:.5f}; with bounded "
        f"momentum {bounded:.5f}"
    )
    kept.append(("ten views a step within 1 % of all", few < 1.01 * whole))
    kept.append((f"at least 4 times cheaper a step ({long / short:.1f})", long > 4 * short))
    for text, yes in kept:
        print(f"{'kept' if yes else 'NOT KEPT'}: {text}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as place:
        compare(Path(sys.argv[1]), Path(place))
