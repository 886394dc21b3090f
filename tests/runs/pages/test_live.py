"""The page of a run that goes on, in a real browser: it shows what happens, and what it asks for is done and kept."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warm
from chromium import Visit, open_browser
from page_server import Site, serving
from plugstream.runs.commands import Command, send_command
from plugstream.runs.liveness import is_running
from plugstream.runs.pages import feed, server
from plugstream.runs.replay import replay
from small_run import RUN, main
from waiting import wait_until

ENDLESS = [*RUN, "--iterations", "1000000", "--every", "50", "--checkpoint", "1000", "--preview", "0.5"]
# What a screen reader has no name for.
NAMELESS = """[...document.querySelectorAll("input, select, button, a, img, canvas.ps-view")]
  .filter((one) => !(one.ariaLabel || one.alt || one.labels?.length || one.textContent.trim()))
  .map((one) => one.outerHTML)"""
SOON = 60.0  # seconds, for anything that a page is to show


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks more often than it would."""
    monkeypatch.setattr(feed, "_LOOK", 0.1)
    monkeypatch.setattr(server, "_LOOK", 0.3)


class Watched(Visit):
    """The page of runs that go on."""

    def close(self, site: Site) -> None:
        """Nothing went wrong, and nothing was asked of anybody else."""
        self.context.close()
        assert self.wrong == []
        assert all(url.startswith((site.origin, "blob:", "data:")) for url in self.requests)

    def told(self, text: str) -> None:
        self.page.locator(".ps-asked", has_text=text).wait_for()

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """As `wait_for_function`, which the page's policy does not allow."""
        until = time.monotonic() + SOON
        while not condition():
            assert time.monotonic() < until
            self.page.wait_for_timeout(50)

    def step(self) -> int:
        return int(self.page.locator(".ps-facts dd").first.inner_text().split()[0])


@pytest.fixture
def endless(scan: Path, tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """The folder of a run that goes on until somebody ends it, and its process; it is paused after its first steps."""
    folder = tmp_path / "runs" / "live"
    folder.parent.mkdir()
    words = [sys.executable, "-m", "plugstream", "reconstruct", str(scan), "--out", str(folder), *ENDLESS]
    with (tmp_path / "said").open("w") as said, warm.Popen(words, stdout=said, stderr=said) as process:
        try:
            wait_for(lambda: replay(folder / "events.jsonl").measured, tmp_path / "said")
            send_command(folder, Command("pause"))
            wait_for(lambda: replay(folder / "events.jsonl").paused, tmp_path / "said")
            yield folder, process
        finally:
            process.kill()


def wait_for(condition: Callable[[], Any], said: Path) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, said.read_text()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.browser
def test_a_run_is_steered_from_its_page_and_repeats_to_the_bit(scan, endless, browser, tmp_path):
    folder, process = endless
    with serving(folder.parent) as site:
        watched = Watched(browser, f"{site.address}&run=live")
        page = watched.page
        page.get_by_role("button", name="Go on", exact=True).click()
        watched.told("It goes on")
        assert "token" not in page.url
        step = watched.step()
        watched.wait_until(lambda: watched.step() > step)
        page.get_by_role("button", name="Pause").click()
        watched.told("Paused at step")
        page.locator(".ps-pill", has_text="paused").wait_for()
        paused = replay(folder / "events.jsonl").step
        assert watched.step() == paused
        page.get_by_text(f"image now, step {paused}").or_(page.locator("canvas").first).first.wait_for()
        page.get_by_role("textbox", name="sigma").fill("0.05")
        page.get_by_role("textbox", name="step").fill("0.5/L")
        page.keyboard.press("Enter")
        watched.told(f"From step {paused + 1} on sigma is 0.05 and the step is 0.5/L.")
        page.get_by_role("button", name="Stop and keep").press("Enter")
        page.keyboard.press("Escape")  # which takes it back
        page.get_by_role("button", name="Go on", exact=True).press("Enter")
        watched.told("It goes on")
        watched.wait_until(lambda: watched.step() > paused)
        page.get_by_role("button", name="Stop and keep").click()
        page.get_by_role("button", name="End it").click()
        page.locator(".ps-pill", has_text="finished").wait_for()
        page.get_by_text("somebody asked it to stop").wait_for()
        assert page.get_by_role("button", name="Pause").count() == 0
        watched.close(site)
    assert process.wait(60) == 0
    history = replay(folder / "events.jsonl")
    assert [event.action for event in history.steering] == [
        *("pause", "resume"),
        *("pause", "change", "resume", "stop"),
    ]
    more = ["--iterations", str(history.stop.step + 50)]
    assert main(["resume", str(folder), *more]) == 0
    again = ["reconstruct", str(scan), "--settings", str(folder / "settings.toml"), "--out", str(tmp_path / "again")]
    assert main(again) == 0
    assert (tmp_path / "again" / "result.npy").read_bytes() == (folder / "result.npy").read_bytes()


@pytest.mark.slow
@pytest.mark.browser
def test_the_list_shows_runs_as_they_come_at_any_width(whole, browser, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(whole, runs / "first")
    with serving(runs) as site:
        watched = Watched(browser, site.address)
        page = watched.page
        page.get_by_role("link", name="first").wait_for()
        watched.wait_until(lambda: page.evaluate("[...document.images].some((image) => image.naturalWidth > 20)"))
        shutil.copytree(whole, tmp_path / "second")
        (tmp_path / "second").rename(runs / "second")
        page.get_by_role("link", name="second").wait_for()
        for part in ("list", "run"):
            for width, scheme in ((1280, "light"), (768, "dark"), (360, "dark")):
                page.set_viewport_size({"width": width, "height": 800})
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                page.screenshot(path=tmp_path / f"{part}-{width}.png")
            assert page.evaluate(NAMELESS) == []
            if part == "list":
                page.get_by_role("link", name="second").press("Enter")
                page.get_by_role("heading", name="second").wait_for()
        page.get_by_role("link", name="all runs").click()
        page.get_by_role("link", name="first").wait_for()
        watched.close(site)


@pytest.mark.browser
def test_who_has_no_token_sees_a_run_and_cannot_steer_it(endless, browser):
    folder, process = endless
    with serving(folder.parent) as site:
        watched = Watched(browser, f"{site.origin}/?run=live")
        watched.page.get_by_text("open the address that the server printed").wait_for()
        assert watched.page.get_by_role("button", name="Pause").count() == 0
        watched.close(site)
    assert process.poll() is None  # the page was closed and the server ended


@pytest.mark.slow
@pytest.mark.browser
def test_killing_the_server_never_touches_the_run(scan, browser, tmp_path):
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "plugstream", "reconstruct", str(scan), "--out", str(folder), *ENDLESS]
    said = tmp_path / "said"
    with said.open("w") as file, warm.Popen([*words, "--serve", "--port", "0"], stdout=file, stderr=file) as process:
        try:
            wait_for(lambda: "http://" in said.read_text() and (folder / "events.jsonl").exists(), said)
            address = next(word for word in said.read_text().split() if word.startswith("http://"))
            watched = Watched(browser, address)
            watched.page.get_by_role("button", name="Pause").wait_for()
            (server,) = servers_of(process.pid)
            assert os.getpriority(os.PRIO_PROCESS, server) == 15
            group = Path(f"/proc/{server}/autogroup")  # which counts instead, where there is one
            assert not group.exists() or group.read_text().split()[-1] == "15"
            assert os.getsid(server) != os.getsid(process.pid)
            assert address.partition("token=")[2] not in Path(f"/proc/{server}/cmdline").read_text()
            os.kill(server, signal.SIGKILL)
            watched.page.get_by_text("does not answer").wait_for()
            step = replay(folder / "events.jsonl").step
            time.sleep(0.5)
            assert replay(folder / "events.jsonl").step > step
            assert is_running(folder, replay(folder / "events.jsonl"))
            watched.context.close()
        finally:
            process.kill()


@pytest.mark.slow
def test_the_server_of_a_run_ends_by_itself(scan, tmp_path):
    """Once the run is over and nobody has looked at it for a while."""
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "plugstream", "reconstruct", str(scan), "--out", str(folder), *ENDLESS]
    words += ["--iterations", "20", "--serve", "--port", "0"]
    with warm.Popen(words, stdout=-3, stderr=-3) as process:
        servers: list[int] = []
        while process.poll() is None:
            servers = servers_of(process.pid) or servers
        assert process.wait(60) == 0
    wait_until(lambda: not any(Path(f"/proc/{server}").exists() for server in servers))
    assert servers


def servers_of(pid: int) -> list[int]:
    """The processes that this one started to serve its page."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            if parent == pid and "pages.listening" in (path / "cmdline").read_text():
                found.append(int(path.name))
        except (OSError, IndexError, ValueError):
            continue
    return found
