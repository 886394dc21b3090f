"""Where a stream comes from: dectris://HOST:PORT or pva://PV, in the place of a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from plugstream.base.errors import InputError

# What an address looks like, by its scheme; its last group is the port, which may be empty.
_FORMS = {
    "dectris": (re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?"), "dectris://HOST or dectris://HOST:31001"),
    "pva": (re.compile(r"[\w:.\-\[\]<>;{}$()/]{1,200}()"), "pva://PV, such as pva://13SIM1:Pva1:Image"),
}


@dataclass(frozen=True)
class Address:
    """A stream. Arguments: scheme; place, what comes after `://`."""

    scheme: str
    place: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}"

    @property
    def name(self) -> str:
        """What a scan says it is from."""
        return str(self)

    @property
    def stem(self) -> str:
        """What a scan of it is called."""
        return re.sub(r"[^\w.]+", "-", self.place).strip("-.") or self.scheme

    @property
    def suffix(self) -> str:
        """None, as that of a file without one."""
        return ""

    def host_and_port(self, port: int) -> tuple[str, int]:
        """The host, and its port, which is `port` where the address has none."""
        match = _FORMS[self.scheme][0].fullmatch(self.place)
        assert match is not None
        return match[1], int(match[2] or port)


def read_place(text: str | Path) -> Path | Address:
    """A file, or an address; one of no known scheme, or of the wrong form, is refused."""
    scheme, mark, place = str(text).partition("://")
    if not mark or isinstance(text, Path):
        return Path(text)
    forms = ", ".join(form for _, form in _FORMS.values())
    if scheme not in _FORMS:
        raise InputError(f"there is no stream {scheme}://; streams are {forms}")
    match = _FORMS[scheme][0].fullmatch(place)
    if match is None or int(match[match.re.groups] or 1) > 65535:
        raise InputError(f"cannot read the address {str(text)[:200]!r}; write {_FORMS[scheme][1]}")
    return Address(scheme, place)
