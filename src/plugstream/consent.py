"""What only the person at the keyboard may allow: running code, unpickling, and fetching what a file names.

Settings come from defaults, from a file and from what was typed. A file may come from anybody: one's own run, a
colleague's folder, a download. So what a file names is never run because the file says so; a setting that was typed
(`--denoiser net.py:Net`, `--set denoiser.name=...`, `--unpickle`), an argument of a function, or `--trust` allows it.
This is decided here, from where each setting came from, and nowhere else. Consent is never written to a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from plugstream.choices import Choice
from plugstream.errors import InputError

if TYPE_CHECKING:
    from plugstream.settings import Settings

__all__ = ["TRUST", "check_address", "consented", "needs_trust"]

TRUST = "--trust"
"""The flag by which a person says that what a file names may be run, opened and fetched."""


def consented(
    settings: Settings, from_file: Collection[tuple[str, str]], file: Path | None, *, trust: bool
) -> Settings:
    """The settings as they may be used: what the file asks to run is refused, unless it is trusted.

    Arguments: settings, resolved; from_file, the (section, key) whose values are the file's and were not typed over;
    file, for messages; trust, whether the person typed --trust.
    """
    d, asked = settings.denoiser, []
    unpickle = getattr(d, "unpickle", False) and ("denoiser", "unpickle") not in from_file
    for section, choice in _choices(settings):
        if _runs_code(choice) and (section, "name") in from_file:
            path, _, name = choice.name.rpartition(":")
            asked.append(f"run {name} of {_shown(path)}")
    if _is_pickle(d) and not unpickle and {("denoiser", "weights"), ("denoiser", "unpickle")} & set(from_file):
        asked.append(f"unpickle {_shown(str(d.weights))}")
        unpickle = trust
    if asked and not trust:
        raise InputError(
            f"{file} asks to {' and to '.join(asked)}, which can do anything that you can; if you trust whoever wrote "
            f"these, add {TRUST}"
        )
    if unpickle == getattr(d, "unpickle", False):
        return settings
    return settings.model_copy(update={"denoiser": d.model_copy(update={"unpickle": unpickle})})


def needs_trust(settings: Settings) -> bool:
    """Whether these settings, read from a file, would be used with --trust only."""
    return _is_pickle(settings.denoiser) or any(_runs_code(choice) for _, choice in _choices(settings))


def check_address(address: str, file: Path, *, trust: bool) -> None:
    """Refuse to fetch from where a file says that a scan lies, unless it is trusted: an address can be anywhere."""
    if not trust:
        raise InputError(
            f"{file} says that the scan lies at {_printable(address)}, which would be fetched; if you trust whoever "
            f"wrote that, add {TRUST}, or type where the scan lies: --scan ADDRESS"
        )


def _choices(settings: Settings) -> list[tuple[str, Choice]]:
    """The sections that choose something by name, whatever its kind."""
    return [(section, value) for section, value in settings if isinstance(value, Choice)]


def _runs_code(choice: Choice) -> bool:
    return ".py:" in choice.name


def _is_pickle(denoiser: Choice) -> bool:
    """Whether the weights of a network are in a file that is opened by unpickling."""
    weights = getattr(denoiser, "weights", None)
    return hasattr(denoiser, "unpickle") and weights is not None and not weights.endswith(".safetensors")


def _shown(text: str) -> str:
    """A file with its SHA-256, so that a person can tell which one it is."""
    path = Path(text)
    try:
        digest = f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else "not there"
    except (OSError, ValueError):
        digest = "cannot be read"
    return f"{_printable(str(path.absolute()))} ({digest})"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
