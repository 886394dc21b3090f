"""Debian's Chromium for tests of pages: one browser for all of them, which sees no network but this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """The browser; the test is skipped where there is none."""
    sync = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS, timeout=60_000)
        yield browser
        browser.close()


class Visit:
    """A page that was opened, with what went wrong on it and what it asked for.

    A page of the same kind is opened once in a browser and leads to one address after another: to start a process that
    draws it takes longer than what a test does there. Whoever closes its context has it alone.
    """

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.kind = repr(sorted(context.items()))
        self.pages = browser.__dict__.setdefault("idle_pages", {})
        if self.kind in self.pages:
            self.page = self.pages.pop(self.kind)
            self.context = self.page.context
        else:
            self.context = browser.new_context(accept_downloads=True, **context)
            self.context.set_default_timeout(60_000)  # which only a page that is wrong takes
            self.page = self.context.new_page()
        self.size = self.page.viewport_size
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self.listeners = {
            "console": lambda message: message.type in ("error", "warning") and self.wrong.append(message.text),
            "pageerror": lambda error: self.wrong.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, listener in self.listeners.items():
            self.page.on(event, listener)
        self.page.goto(address)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.context.close()
            return
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        self.page.goto("about:blank")
        self.page.set_viewport_size(self.size)
        self.page.emulate_media(color_scheme="null")
        self.pages[self.kind] = self.page
