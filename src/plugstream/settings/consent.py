"""What only the person at the keyboard may allow: running code, unpickling, fetching and reading what a file names.

Settings come from defaults, from a file and from what was typed. A file may come from anybody: one's own run, a
colleague's folder, a download. So what a file names is never run because the file says so; a setting that was typed
(`--denoiser net.py:Net`, `--set denoiser.name=...`, `--unpickle`), an argument of a function, or `--trust` allows it.
This is decided here, from where each setting came from, and nowhere else. Consent is never written to a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from plugstream.base.errors import InputError
from plugstream.base.registry import OWN, pattern_of
from plugstream.base.text import printable
from plugstream.base.trust import TRUST
from plugstream.base.user_code import allow
from plugstream.settings.choices import Choice

if TYPE_CHECKING:
    from plugstream.settings.sections import Settings


def allow_code(
    values: Mapping[str, Mapping[str, Any]], from_file: Collection[tuple[str, str]], file: Path | None, *, trust: bool
) -> None:
    """Let the Python files that settings name be run, from now on; what the file names is refused unless trusted.

    To be called before anything is looked up by these names: only the files know their options.

    Arguments: values, by section and key; from_file, the (section, key) whose values are the file's and were not typed
    over; file, for messages; trust, whether the person typed --trust.
    """
    places = [(section, key, place) for section, table in values.items() for key, place in _code(table)]
    requests = [_run_request(place) for section, key, place in places if (section, key) in from_file]
    if requests and not trust:
        weights = values.get("denoiser", {}).get("weights")
        # "none" is how a file says that there are none.
        pickled = isinstance(weights, str) and weights != "none" and not weights.endswith(".safetensors")
        if pickled and ("denoiser", "weights") in from_file and any(True for _ in _code(values["denoiser"])):
            requests.append(f"unpickle {_file_text(str(weights))}")
        _refuse(file, requests)
    for _, _, place in places:
        allow(place)


def apply_consent(
    settings: Settings, from_file: Collection[tuple[str, str]], file: Path | None, *, trust: bool
) -> Settings:
    """The settings, with consent to unpickle what was typed or is trusted; what the file asks for is else refused.

    Arguments: settings, resolved; the others as for `allow_code`.
    """
    d = settings.denoiser
    unpickle = getattr(d, "unpickle", False) and ("denoiser", "unpickle") not in from_file
    if _is_pickle(d) and not unpickle and {("denoiser", "weights"), ("denoiser", "unpickle")} & set(from_file):
        if not trust:
            _refuse(file, [f"unpickle {_file_text(str(d.weights))}"])
        unpickle = True
    if unpickle == getattr(d, "unpickle", False):
        return settings
    return settings.model_copy(update={"denoiser": d.model_copy(update={"unpickle": unpickle})})


def _refuse(file: Path | None, requests: list[str]) -> NoReturn:
    raise InputError(
        f"{file} asks to {' and to '.join(requests)}, which can do anything that you can; if you trust whoever wrote "
        f"these, add {TRUST}"
    )


def _code(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of a section that choose code of one's own, with FILE.py:NAME, which may be the key itself.

    One that is switched off again is not chosen.
    """
    for key, value in table.items():
        for name in [key, *(value if isinstance(value, list | tuple) else [value] if key == "name" else [])]:
            if isinstance(name, str) and pattern_of(name) == OWN and table.get(name) is not False:
                yield key, name


def _run_request(where: str) -> str:
    path, _, name = where.rpartition(":")
    return f"run {name} of {_file_text(path)}"


def needs_trust(settings: Settings) -> bool:
    """Whether these settings, read from a file, need --trust."""
    return _is_pickle(settings.denoiser) or any(True for _, section in settings for _ in _code(dict(section or {})))


def check_address(address: str, file: Path, *, trust: bool) -> None:
    """Refuse to fetch a scan from an address in a file, which can be anywhere, unless the file is trusted."""
    if not trust:
        raise InputError(
            f"{file} says that the scan lies at {printable(address)}, which would be fetched; if you trust whoever "
            f"wrote that, add {TRUST}, or type where the scan lies: --scan ADDRESS"
        )


def _is_pickle(choice: Choice) -> bool:
    """Whether the weights of a network are in a file that is opened by unpickling."""
    weights = getattr(choice, "weights", None)
    return hasattr(choice, "unpickle") and weights is not None and not weights.endswith(".safetensors")


def _file_text(text: str) -> str:
    """A file with its SHA-256, so that a person can tell which one it is."""
    path = Path(text)
    try:
        digest = f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" if path.is_file() else "not there"
    except (OSError, ValueError):
        digest = "cannot be read"
    return f"{printable(str(path.absolute()))} ({digest})"
