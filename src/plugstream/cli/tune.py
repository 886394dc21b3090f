"""Find the best sigma, step and momentum for a scan, with a truth or without one."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from plugstream.base.errors import InputError, PlugstreamWarning
from plugstream.base.text import shell_join
from plugstream.cli.common import ALGORITHM, check_new, draft_of, say, say_next, scan_place, trust_flag
from plugstream.cli.values import number, whole_number

SECTIONS = (*ALGORITHM, "compute")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scan", type=scan_place, help="a scan: a Zarr folder, a zip file of one, or an fsspec address")
    parser.add_argument("--out", type=Path, default=Path("tuned.toml"), help="the settings to write (tuned.toml)")
    parser.add_argument(
        "--by", help="snr, held-out, race or discrepancy; snr where the scan has its truth, and held-out where not"
    )
    parser.add_argument("--over", default="sigma", help="what to search, of sigma,step_size,momentum (sigma)")
    parser.add_argument(
        "--sigma-low", type=number(1e100), help="least sigma (0.0005; of ct 0.05%% of the image's range)"
    )
    parser.add_argument("--sigma-high", type=number(1e100), help="largest sigma (0.1; of ct 10%% of the image's range)")
    parser.add_argument(
        "--evaluations", type=whole_number(10**6), default=12, help="reconstructions to find sigma with (12)"
    )
    parser.add_argument(
        "--widenings",
        type=whole_number(1000),
        default=4,
        help="how often to go beyond that range where the best is at its end (4)",
    )
    parser.add_argument("--held", type=number(1e9), default=0.1, help="part of the views to judge by (0.1)")
    parser.add_argument(
        "--noise", type=number(1e3), metavar="DB", help="input SNR of the data, for the discrepancy principle"
    )


def run(parsed: argparse.Namespace) -> int:
    """Search, with every evaluation in a journal beside OUT; the same command goes on from there after a stop."""
    draft = draft_of(parsed)
    draft.for_range(None)  # refuses a share of the image's range
    if parsed.out.suffix != ".toml":
        raise InputError(f"settings are written as .toml, not as {parsed.out.name!r}")
    check_new(parsed.out)
    from plugstream.base.files import write_whole
    from plugstream.base.version import __version__
    from plugstream.runs.advice import advised_settings
    from plugstream.runs.search import sigma_limits
    from plugstream.scans.store import open_scan
    from plugstream.settings import to_toml
    from plugstream.studies.tuning.scan import Search, tune_scan

    scan = open_scan(parsed.scan).load()
    settings, notes = advised_settings(draft, scan, strength=False)
    for note in notes:
        say(note)
    low, high = sigma_limits(scan, parsed.sigma_low, parsed.sigma_high, settings.denoiser.name)
    usual = "held-out" if scan.truth is None else "snr"
    over = tuple(name.strip() for name in parsed.over.split(","))
    limits = {name: getattr(parsed, name) for name in ("evaluations", "held", "noise", "widenings")}
    search = Search(by=usual if parsed.by is None else parsed.by, over=over, low=low, high=high, **limits)
    journal = parsed.out.with_suffix(".jsonl")
    say(f"searching {', '.join(search.over)} by {search.by}; {journal} keeps what was tried")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PlugstreamWarning)
            best, score = tune_scan(scan, settings, search, journal, say)
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on from {journal}")
        return 130
    words = ["reconstruct", parsed.scan, "--settings", parsed.out, *trust_flag(best).split()]
    command = shell_join(["plugstream", *words])
    remarks = list(dict.fromkeys(str(warning.message) for warning in caught))
    header = f"plugstream {__version__} tune, by {search.by}: {score:.3f} dB\nuse with: {command}"
    header = "\n".join([header, *(f"warning: {remark}" for remark in remarks)])
    write_whole(parsed.out, [to_toml(best, header).encode()])
    a = best.algorithm
    say(f"sigma {a.sigma:.5g}, step {a.step_size}, momentum {best.momentum.name}: {score:.2f} dB by {search.by}")
    for remark in remarks:
        say(f"warning: {remark}")
    say(f"wrote {parsed.out}")
    say_next(*words)
    return 0
