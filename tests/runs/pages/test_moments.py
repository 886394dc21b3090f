"""What a page shows of a run that goes on is of one moment, and says at once what somebody has asked for."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import warm
from chromium import Visit, open_browser
from page_server import Site, serving
from plugstream.images.space import ImageSpace
from plugstream.runs.commands import Command, send_command
from plugstream.runs.event_log import EventLog, read_events
from plugstream.runs.events import Finishing, Heartbeat, Measurement, Note, Start, Steering, Stop
from plugstream.runs.folder import write_down
from plugstream.runs.liveness import this_process
from plugstream.runs.pages import content as page_content, feed as page_feed
from plugstream.runs.pages.feed import RunFeed
from plugstream.runs.preview import Previews
from plugstream.runs.replay import replay
from plugstream.settings import Settings
from small_run import RUN, main

SPACE = ImageSpace((8, 8))


class Goes:
    """The folder of a run that this process takes steps of."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        write_down(folder, Settings(), "plugstream reconstruct scan.zarr", "scan.zarr")
        self.folder, self.log = folder, EventLog(folder / "events.jsonl")
        me = this_process()
        process = {"pid": me.pid, "started": me.started, "machine": me.machine}
        self.log.add(Start(1000, Settings().model_dump(mode="json"), {}, "0.1", "2.9", "3.12", **process))
        self.process = process
        self.previews = Previews(folder, SPACE, self.log, 5.0)

    def measure(self, step: int) -> None:
        self.log.add(Measurement(step, 0.1 * step, {"snr": float(step)}))

    def show(self, step: int) -> None:
        """A preview whose values are the number of its step."""
        self.previews.write(step, torch.full(SPACE.shape, float(step)))

    def beat(self, step: int) -> None:
        self.log.add(Heartbeat(step, 1000, 0.2 * step, 5.0, **self.process))


@pytest.fixture
def goes(tmp_path: Path) -> Iterator[Goes]:
    run = Goes(tmp_path / "live")
    yield run
    run.log.close()


def steps_of(feed: RunFeed) -> tuple[int, int, int]:
    """The steps of the numbers, of the end of the curves, and of the image that a page which shows them is given."""
    shown = feed.content()
    picture = json.loads(feed.picture("preview", shown["stamps"]["preview"]))
    assert picture["panels"][0]["range"] == [picture["step"]] * 2
    return shown["step"], shown["measured"]["step"][-1], picture["step"]


def test_numbers_curves_and_image_are_of_one_step(goes):
    feed = RunFeed(goes.folder)
    for step in range(1, 60):
        goes.measure(step)
        if step % 7 == 0:
            goes.beat(step)
        if step % 5 == 0:
            goes.show(step)
        if step >= 5:
            assert steps_of(feed) == (step - step % 5,) * 3


def test_a_page_is_given_the_picture_it_was_told_of_while_newer_ones_come(goes):
    feed = RunFeed(goes.folder)
    goes.measure(47)
    goes.show(47)
    told = feed.content()
    for step in (194, 200):
        goes.measure(step)
        goes.show(step)
        assert feed.content()["step"] == step
        assert json.loads(feed.picture("preview", told["stamps"]["preview"]))["step"] == told["step"] == 47
    assert json.loads(feed.picture("preview"))["step"] == 200
    assert json.loads(feed.picture("preview", "unknown"))["step"] == 200


def test_time_never_goes_back(goes):
    feed, last = RunFeed(goes.folder), 0.0
    for step in range(40):
        goes.measure(step)
        if step % 3 == 0:
            goes.show(step)
        if step % 4 == 0:
            goes.beat(step)
        seconds = feed.content()["seconds"]
        assert seconds >= last - 1.0  # by as much as this machine may stop between an event and the next
        last = seconds


def test_numbers_go_on_where_there_are_no_more_images(goes, monkeypatch):
    feed = RunFeed(goes.folder)
    goes.measure(5)
    goes.show(5)
    goes.measure(9)
    assert steps_of(feed) == (5, 5, 5)
    monkeypatch.setattr(page_content, "_LATE", -1.0)  # as if the image were of long ago
    goes.measure(10)
    assert steps_of(feed) == (10, 10, 5)


def test_a_single_long_look_delays_no_picture(goes, monkeypatch):
    """The first, say, which loads modules: only what every look takes makes looks rarer."""
    used = iter((0.0, 0.5, 1.0, 1.004, 2.0, 2.01, 3.0, 3.01))
    monkeypatch.setattr(page_feed.time, "thread_time", lambda: next(used))
    feed, pauses = RunFeed(goes.folder), []
    for step in range(1, 5):
        goes.measure(step)
        feed.content()
        pauses.append(feed.pause)
    assert pauses == pytest.approx([0.0, 0.004 / 0.2, 0.004 / 0.2, 0.01 / 0.2])  # no end of the scan is known


def test_what_is_asked_for_is_shown_before_the_run_has_it(goes):
    """As soon as it lies there, and until it is done; then by what the log says."""
    feed, at = RunFeed(goes.folder), [0]

    def doing() -> tuple[str, str | None]:
        shown = feed.content()
        return shown["state"], shown["doing"]

    def answer(action: str) -> None:
        at[0] += 1
        goes.log.add(Steering(at[0], action))
        shutil.rmtree(goes.folder / "commands")

    assert doing() == ("running", "starting")
    goes.measure(0)
    goes.measure(1)
    assert doing() == ("running", None)
    send_command(goes.folder, Command("change", sigma=0.1))
    assert doing() == ("running", None)
    send_command(goes.folder, Command("pause"))
    assert doing() == ("running", "pausing")
    answer("pause")
    assert doing() == ("paused", None)
    send_command(goes.folder, Command("resume"))
    assert doing() == ("paused", "going on")
    answer("resume")
    assert doing() == ("running", None)
    send_command(goes.folder, Command("pause"))
    send_command(goes.folder, Command("stop"))
    assert doing() == ("running", "stopping")
    answer("stop")
    assert doing() == ("running", "stopping")
    goes.log.add(Finishing(9))
    assert doing() == ("running", "writing results")
    goes.log.add(Note("forming the back-projection"))
    assert doing() == ("running", "writing results")
    goes.log.add(Stop(9, 9, 1.0, 1.0, "somebody asked it to stop", False, "hovering", False, ""))
    assert doing() == ("ended", None)


def test_a_run_says_when_it_has_taken_its_last_step(scan, tmp_path):
    folder = tmp_path / "run"
    assert main(["reconstruct", str(scan), "--out", str(folder), *RUN, "--iterations", "7"]) == 0
    kinds = [type(event) for event in read_events(folder / "events.jsonl")]
    assert kinds.count(Finishing) == 1
    after = kinds[kinds.index(Finishing) :]
    assert Measurement not in after
    assert after[-1] is Stop
    assert not replay(folder / "events.jsonl").finishing


STEPS = """() => {
  const text = (name) => document.querySelector(name)?.textContent || "";
  return [text(".ps-pill"), text(".ps-facts dd"), text(".ps-moment"), text(".ps-views ~ .ps-empty")];
}"""


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_shows_one_moment_and_what_was_asked_for_at_once(scan, tmp_path):
    """In a browser, as the server looks by default: from before the first step to the end of the results."""
    folder = tmp_path / "runs" / "live"
    folder.parent.mkdir()
    words = [sys.executable, "-m", "plugstream", "reconstruct", str(scan), "--out", str(folder), *RUN, "--report"]
    words += ["png,html", "--iterations", "1000000", "--every", "1", "--checkpoint", "1000"]
    with (
        serving(folder.parent) as site,
        open_browser() as browser,
        warm.Popen(words, stdout=-3, stderr=-3, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process,
    ):
        try:
            while not folder.exists():
                time.sleep(0.01)
            watch(browser, site)
            assert process.wait(120) == 0
        finally:
            process.kill()


def watch(browser: Any, site: Site) -> None:
    with Visit(browser, f"{site.address}&run=live") as visit:
        page, seen = visit.page, set()
        page.locator(".ps-pill").wait_for()
        until = time.monotonic() + 60
        while len(seen) < 4:
            assert time.monotonic() < until, seen
            _, step, moment, told = page.evaluate(STEPS)
            assert moment or told  # never a panel that is empty and does not say why
            if moment:
                assert moment == f"Image, numbers and curves are of step {step.split()[0]}."
                seen.add(moment)
            page.wait_for_timeout(20)
        page.get_by_role("button", name="Pause").click()
        assert page.evaluate(STEPS)[0] in ("pausing", "paused")
        page.locator(".ps-pill", has_text="paused").wait_for()
        page.get_by_role("button", name="Go on", exact=True).click()
        assert page.evaluate(STEPS)[0] in ("going on", "running")
        page.locator(".ps-pill", has_text="running").wait_for()
        page.get_by_role("button", name="Stop and keep").click()
        page.get_by_role("button", name="End it").click()
        pills = [page.evaluate(STEPS)[0]]
        while pills[-1] != "finished":
            assert time.monotonic() < until + 60
            pills.append(page.evaluate(STEPS)[0])
            page.wait_for_timeout(20)
        assert list(dict.fromkeys(pills)) == ["stopping", "writing results", "finished"]
        assert visit.wrong == []
