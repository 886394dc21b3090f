"""Certify every denoiser that plugstream ships, by the command, and write the tables of docs/theory.md.

    python examples/theory/certificates.py                     all of them (some take minutes)
    python examples/theory/certificates.py --only tv bm3d      these; the others' rows stay as they are
    python examples/theory/certificates.py --tables            no measuring, just the tables from docs/certificates

Each leaves its certificate.json in docs/certificates. `--tnrd FILE.mat` certifies the authors' TNRD too, which is
not ours to ship.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "certificates"
PICTURES = ("tv", "bm3d", "tnrd")

# TNRD is differentiated through 63 exponentials for each response, so that its pictures are smaller.
_SMALL = ["--size", "32", "--products", "18", "--dtype", "float32"]
COMMANDS: dict[str, list[str]] = {
    "tv": ["--denoiser", "tv", "--sigma", "0.15"],
    "tv-anisotropic": ["--denoiser", "tv-anisotropic", "--sigma", "0.15"],
    "ridge": ["--denoiser", "ridge", "--sigma", "15/255"],
    "ridge, fast": ["--denoiser", "ridge", "--profile", "fast", "--sigma", "15/255"],
    "nlm with a guide": ["--denoiser", "nlm", "--nlm-guide", "camera", "--sigma", "15/255"],
    "soft": ["--denoiser", "soft", "--sigma", "0.5"],
    "box": ["--denoiser", "box", "--low", "0", "--high", "1", "--sigma", "0.5"],
    "nlm": ["--denoiser", "nlm", "--sigma", "15/255"],
    "tnrd": ["--denoiser", "tnrd", "--sigma", "15/255", *_SMALL],
    "bm3d": ["--denoiser", "bm3d", "--sigma", "15/255", "--dtype", "float32"],
    "bm3d, fast": ["--denoiser", "bm3d", "--profile", "fast", "--sigma", "15/255", "--dtype", "float32"],
    "bm4d": ["--denoiser", "bm4d", "--sigma", "15/255", "--dtype", "float32"],
}


def certify(name: str, words: list[str]) -> None:
    """Run the command, and keep its JSON and for some its picture."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "certificate"
        command = [sys.executable, "-m", "plugstream", "certify", *words, "--out", str(out)]
        print("plugstream", *command[3:-2], flush=True)
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads((out / "certificate.json").read_text())
        found["command"] = " ".join(["plugstream certify", *(Path(w).name if ".mat" in w else w for w in words)])
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name.replace(', ', '-').replace(' ', '-')}.json").write_text(json.dumps(found, indent=1) + "\n")
        if name in PICTURES:
            shutil.copy(out / "certificate.png", DOCS / "images" / f"certificate-{name}.png")


def tables() -> str:
    """The tables of all certificates that are there, proved ones first."""
    found = [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
    found.sort(key=lambda one: (one["proved"]["averaged"] is None, one["denoiser"]))
    lines = [
        "| denoiser, sigma | proved: theta | Lipschitz constant of D | of I - D | smallest theta | asymmetry | c |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        m, theta = one["measured"], one["proved"]["averaged"]
        asymmetry = m["asymmetry"]
        below = asymmetry["estimate"] <= 3 * asymmetry["rounding"]
        skew = f"< {3 * asymmetry['rounding']:.1g}" if below else f"{asymmetry['estimate']:.2g}"
        cells = [
            f"{one['denoiser']}, {one['sigma']:.3g}",
            "nothing" if theta is None else f"**{theta:g}**",
            *(_at_least(m[key]) for key in ("lipschitz", "residual_lipschitz", "theta")),
            skew,
            _at_least(m["boundedness"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| denoiser | refuted by a pair of images | open | made by |", "| --- | --- | --- | --- |"]
    for one in found:
        said = ["; ".join(one[key]) or "nothing" for key in ("refuted", "open")]
        lines.append(f"| {one['denoiser']} | {said[0]} | {said[1]} | `{one['command']}` |")
    return "\n".join(lines)


def _at_least(measured: dict[str, Any]) -> str:
    return "none will do" if measured.get("infinite") else f">= {_number(measured['at_least'])}"


def _number(value: float) -> str:
    """Cut off, not rounded: a lower bound must not grow by being printed."""
    return f"{math.floor(value * 1e3 + 1e-6) / 1e3:.3f}" if value >= 1e-3 else f"{value:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(COMMANDS), help="certify these")
    parser.add_argument("--tables", action="store_true", help="certify none")
    parser.add_argument("--tnrd", metavar="FILE.mat", help="certify the authors' TNRD for sigma = 5 too")
    parsed = parser.parse_args()
    names = [] if parsed.tables else list(COMMANDS) if parsed.only is None else parsed.only
    for name in names:
        certify(name, COMMANDS[name])
    if parsed.tnrd:
        words = ["--denoiser", "tnrd", "--weights", parsed.tnrd, "--sigma", "5/255", *_SMALL]
        certify("tnrd of the authors", words)
    page = DOCS / "theory.md"
    text = page.read_text()
    begin, end = "<!-- certificates -->", "<!-- /certificates -->"
    head, rest = text.split(begin)
    page.write_text(f"{head}{begin}\n{tables()}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
