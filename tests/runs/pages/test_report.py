"""report.html in a real browser: it needs nothing but itself, and what a person does to it shows."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chromium import Visit, open_browser
from page_runs import write_channels, write_run, write_volume, write_wave
from plugstream import ImageSpace
from plugstream.runs.event_log import EventLog
from plugstream.runs.pages.report import compare_reports, write_report
from plugstream.runs.preview import Previews

pytestmark = pytest.mark.browser
CONTEXT = {"viewport": {"width": 1280, "height": 900}, "permissions": ["clipboard-read", "clipboard-write"]}
# `window.copied` becomes true when the page says so.
NOTE_COPIED = """() => {
    window.copied = new Promise((done) => new MutationObserver(
        () => [...document.querySelectorAll("main *")].some((e) => e.textContent === "copied") && done(true)
    ).observe(document.body, {subtree: true, childList: true, characterData: true}));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Path]:
    """Reports of images of every kind; of the flat one the result is all bright, and the truth all dark."""
    home = tmp_path_factory.mktemp("reports")
    space = ImageSpace((40, 40), spacing=(1e-3, 1e-3), origin=(-0.02, -0.02), quantity="contrast", value_unit="%")
    bright, dark = np.ones((40, 40), np.float32), np.full((40, 40), 0.2, np.float32)
    dark[0, 0] = 1.0  # so that both have the same range
    folders = {
        "flat": write_run(home / "flat", space, bright, dark),
        "volume": write_volume(home / "volume"),
        "wave": write_wave(home / "wave"),
        "channels": write_channels(home / "channels"),
    }
    return {name: write_report(folder) for name, folder in folders.items()}


def visit(browser: Any, report: Path) -> Visit:
    opened = Visit(browser, report.as_uri(), **CONTEXT)
    opened.page.wait_for_selector("canvas.ps-view[aria-label]")  # which it has once it is drawn
    return opened


def settled(page: Any) -> None:
    """Wait until what was asked for has been drawn."""
    page.evaluate(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20))))"
    )


def grey_at(page: Any, x: float, y: float, view: int = 0) -> int:
    """The red of a pixel of a view's canvas, at a part of its width and height."""
    settled(page)
    return page.evaluate(
        """([x, y, n]) => {
            const canvas = document.querySelectorAll('canvas.ps-view')[n];
            const pixel = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d');
            pixel.drawImage(canvas, x * canvas.width, y * canvas.height, 1, 1, 0, 0, 1, 1);
            return pixel.getImageData(0, 0, 1, 1).data[0];
        }""",
        [x, y, view],
    )


def pictures(page: Any) -> list[str]:
    settled(page)
    return page.evaluate("[...document.querySelectorAll('canvas.ps-view')].map((c) => c.toDataURL())")


def clean(opened: Visit) -> None:
    """Nothing went wrong, and nothing was asked for but the file itself and what it made."""
    assert opened.wrong == []
    assert [url for url in opened.requests if not url.startswith(("file:", "blob:", "data:"))] == []
    assert len([url for url in opened.requests if url.startswith("file:")]) == 1


def test_the_compare_slider_shows_the_truth_left_of_it_and_the_result_right(browser, reports):
    with visit(browser, reports["flat"]) as opened:
        page = opened.page
        page.get_by_label("How", exact=True).select_option("slider")
        assert grey_at(page, 0.4, 0.3) < 80
        assert grey_at(page, 0.6, 0.3) > 240
        page.get_by_label("Compare slider").fill("0")
        assert grey_at(page, 0.4, 0.3) > 240
        page.get_by_label("Compare slider").press("End")
        assert grey_at(page, 0.6, 0.3) < 80
        page.get_by_label("Compare slider").fill("500")
        box = page.locator("canvas.ps-view").bounding_box()
        middle = page.evaluate("document.querySelector('canvas.ps-view').width / 2 - 10") / box["width"]
        x, y = box["x"] + middle * box["width"], box["y"] + 0.4 * box["height"]
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 0.2 * box["width"], y, steps=3)
        page.mouse.up()
        settled(page)
        assert int(page.get_by_label("Compare slider").input_value()) < 400
        assert grey_at(page, 0.4, 0.3) > 240
        clean(opened)


def test_a_volume_is_cut_where_the_cursor_is(browser, reports):
    with visit(browser, reports["volume"]) as opened:
        page = opened.page
        page.get_by_label("How", exact=True).select_option("single")
        views = page.locator("canvas.ps-view")
        assert views.count() == 3
        before = pictures(page)
        depth = page.locator("input[data-axis=z]")
        depth.fill("3")
        after = pictures(page)
        assert all(a != b for a, b in zip(before, after, strict=True))  # a slice, and the cursor in two others
        assert re.search(r"z = 0\.6 mm", views.nth(0).get_attribute("aria-label"))
        box = views.nth(0).bounding_box()
        page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
        assert page.locator("input[data-axis=x]").input_value() != "18"
        assert pictures(page)[2] != after[2]
        views.nth(0).focus()
        was = int(page.locator("input[data-axis=x]").input_value())
        page.keyboard.press("ArrowRight")
        assert int(page.locator("input[data-axis=x]").input_value()) == was + 1
        clean(opened)


def test_the_preview_of_a_volume_is_compared_with_the_truth(browser, tmp_path):
    """A preview has three slices, and the truth is whole: it is cut where they are."""
    space = ImageSpace((12, 10, 8), spacing=(1.0, 1.0, 1.0))
    truth = np.zeros((12, 10, 8), np.float32)
    truth[6, 5, 4] = 1.0
    folder = write_run(tmp_path / "run", space, truth, truth, stopped=False)
    log = EventLog(folder / "events.jsonl")
    Previews(folder, space, log, 1.0).write(44, torch.from_numpy(truth))
    log.close()
    with visit(browser, write_report(folder)) as opened:
        page = opened.page
        assert page.locator("canvas.ps-view").count() == 3
        assert "image now, step 44, z = 6" in page.locator("canvas.ps-view").nth(0).get_attribute("aria-label")
        page.get_by_label("How", exact=True).select_option("difference")
        settled(page)
        assert grey_at(page, 0.45, 0.45) > 200  # no difference, which is the middle of the colours
        clean(opened)


@pytest.mark.slow
def test_the_preview_of_a_complex_volume_is_turned_to_the_truth(browser, tmp_path):
    """Both are shown by their own mean phase; these differ, since a corner of the result is wrong."""
    space = ImageSpace((12, 10, 8), is_complex=True, spacing=(1.0, 1.0, 1.0))
    rng = np.random.default_rng(0)
    truth = ((1 + rng.random((12, 10, 8))) * np.exp(1j * rng.uniform(-3, 3, (12, 10, 8)))).astype(np.complex64)
    image = (truth * np.exp(2j)).astype(np.complex64)
    image[7:, 6:, 5:] = 2.0  # which none of the slices has that a preview shows
    folder = write_run(tmp_path / "run", space, image, truth, stopped=False)
    log = EventLog(folder / "events.jsonl")
    Previews(folder, space, log, 1.0).write(44, torch.from_numpy(image))
    log.close()
    with visit(browser, write_report(folder)) as opened:
        page = opened.page
        assert page.locator("canvas.ps-view").count() == 6
        page.get_by_label("How", exact=True).select_option("difference")
        settled(page)
        label = page.locator("canvas.ps-view").nth(0).get_attribute("aria-label")
        assert "image now − truth, magnitude, z = 6" in label
        assert grey_at(page, 0.45, 0.45, 0) < 30
        clean(opened)


def test_complex_images_and_channels_are_shown_in_parts(browser, reports):
    with visit(browser, reports["wave"]) as opened:
        labels = [opened.page.locator("canvas.ps-view").nth(n).get_attribute("aria-label") for n in range(2)]
        assert "magnitude" in labels[0]
        assert "phase" in labels[1]
        opened.page.get_by_label("How", exact=True).select_option("difference")
        # The result is the truth turned by a phase that is free, and so no different from it.
        assert grey_at(opened.page, 0.45, 0.45, 0) < 30
        assert grey_at(opened.page, 0.45, 0.45, 1) > 200
        clean(opened)
    with visit(browser, reports["channels"]) as opened:
        before = pictures(opened.page)
        opened.page.get_by_label("Channel").select_option("2")
        assert pictures(opened.page) != before
        clean(opened)


def test_zoom_contrast_and_colours_change_the_picture_and_come_back(browser, reports):
    with visit(browser, reports["channels"]) as opened:
        page = opened.page
        page.get_by_label("How", exact=True).select_option("single")
        whole = pictures(page)
        for press in ("+", "ArrowLeft", "-"):
            page.locator("canvas.ps-view").focus()
            page.keyboard.press(press)
            assert pictures(page) != whole or press == "-"
        page.keyboard.press("0")
        assert pictures(page) == whole
        page.get_by_label("Zoom in").click()
        page.mouse.move(300, 500)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -200)
        page.keyboard.up("Control")
        assert pictures(page) != whole
        page.get_by_label("Show the whole image").click()
        assert pictures(page) == whole
        page.get_by_label("Value shown brightest").fill("300")
        assert pictures(page) != whole
        page.get_by_role("button", name="auto").click()
        assert pictures(page) == whole
        page.get_by_label("Colours").select_option("viridis")
        assert pictures(page) != whole
        box = page.locator("canvas.ps-view").bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
        settled(page)
        assert re.search(r"x \d+, y \d+ +result ", page.locator(".ps-readout").text_content())
        clean(opened)


def test_curves_have_log_axes_hover_and_downloads(browser, reports, tmp_path):
    with visit(browser, reports["flat"]) as opened:
        page = opened.page
        charts = page.locator("[data-chart]")
        assert [charts.nth(n).get_attribute("data-chart") for n in range(charts.count())] == [
            "distance", "snr", "seconds", "views", "usage",
        ]  # fmt: skip

        def axis(name: str) -> str:
            settled(page)
            return page.evaluate(f"document.querySelector('[data-chart={name}] canvas').toDataURL()")

        before = axis("distance")
        page.locator("[data-chart=distance]").get_by_label("log").uncheck()
        assert axis("distance") != before
        page.get_by_label("Against").select_option("time")
        page.locator("[data-chart=snr] .ps-plot").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        legend = page.locator("[data-chart=snr] .u-legend").text_content()
        assert "0.2" in legend  # seconds of the third measurement
        assert f"{24 * (1 - np.exp(-1)):.2f}" in legend
        with page.expect_download() as event:
            page.get_by_label("Download what was measured as CSV").click()
        rows = list(csv.reader(io.StringIO(Path(event.value.path()).read_text())))
        assert rows[0] == ["step", "time", "distance", "snr"]
        assert rows[3][:2] == ["10", "0.2"]
        assert float(rows[3][2]) == pytest.approx(10 ** (-10 / 12))
        for label in ("Download the images as PNG", "Download the curve of SNR (dB) as PNG"):
            with page.expect_download() as event:
                page.get_by_label(label).click()
            assert Path(event.value.path()).read_bytes().startswith(b"\x89PNG")
            assert event.value.suggested_filename.startswith("flat-")
        clean(opened)


def test_the_page_says_how_the_run_ended_and_copies_its_command(browser, reports):
    with visit(browser, reports["flat"]) as opened:
        page = opened.page
        text = page.locator("main").inner_text()
        for words in (
            "converged: it fell",
            "after step 50: all iterations were done",
            "a processor",
            "12",
            "1 left out: 3",
        ):
            assert words in text
        assert "<b>bold</b> & </script><script>alert(1)</script>" in text  # as it was written, and not obeyed
        page.evaluate(NOTE_COPIED)  # since it is shown for a moment only
        page.get_by_role("button", name="Copy the command").click()
        assert page.evaluate("window.copied")
        command = "plugstream reconstruct scan.zarr --settings run/settings.toml"
        assert page.evaluate("navigator.clipboard.readText()") == command
        clean(opened)


def test_it_fits_a_phone_a_tablet_and_a_screen_in_light_and_dark(browser, reports):
    """Nothing sticks out, everything that can be used has a name, and the text can be told from its ground."""
    with visit(browser, reports["flat"]) as opened:
        page = opened.page
        for width in (375, 768, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            settled(page)
            ends = page.evaluate(
                """[document.documentElement.scrollWidth,
                    ...[...document.querySelectorAll('canvas')].map((c) => c.getBoundingClientRect().right)]"""
            )
            assert max(ends) <= width
        nameless = page.evaluate(
            """[...document.querySelectorAll('button, select, input, canvas[tabindex], [tabindex]')].filter((e) =>
                !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
        )
        assert nameless == []
        before = pictures(page)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            paper, ink = page.evaluate(
                "['backgroundColor', 'color'].map((n) => getComputedStyle(document.body)[n].match(/\\d+/g).map(Number))"
            )
            assert abs(sum(paper) - sum(ink)) > 3 * 150
            assert (sum(paper) > sum(ink)) == (scheme == "light")
        assert pictures(page) != before  # axes have the other colour
        clean(opened)


def test_everything_can_be_reached_by_the_keyboard(browser, reports):
    with visit(browser, reports["volume"]) as opened:
        page, reached = opened.page, set()
        usable = page.evaluate(
            """[...document.querySelectorAll('button, select, input, canvas[tabindex]')].filter((e) => e.offsetParent)
               .map((e) => e.getAttribute('aria-label') || e.id)"""
        )
        for _ in range(80):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.id"))
            if set(filter(None, usable)) <= reached:
                break
        assert set(filter(None, usable)) <= reached
        clean(opened)


def test_several_runs_are_compared_on_one_page(browser, reports, tmp_path):
    one, other = (reports[name].parent for name in ("flat", "channels"))
    twin = Path(shutil.copytree(one, tmp_path / "twin"))
    text = (twin / "settings.toml").read_text()
    (twin / "settings.toml").write_text(text.replace('name = "tv"', 'name = "nlm"'))
    page_file = compare_reports([one, twin, other], tmp_path / "c.html")
    with visit(browser, page_file) as opened:
        page = opened.page
        assert page.locator("canvas.ps-view").count() == 3 + 1  # the runs, and the truth
        text = page.locator("main").inner_text()
        assert "3 runs compared" in text
        assert re.search(r"denoiser\.name\s+tv\s+nlm\s+tv", text)
        assert page.locator("[data-chart=snr] .u-series").count() == 1 + 3
        clean(opened)


def test_the_report_of_a_real_run_opens(browser, whole, tmp_path):
    with visit(browser, write_report(whole, tmp_path / "report.html")) as opened:
        assert "finished" in opened.page.locator(".ps-pill").inner_text()
        label = opened.page.locator("canvas.ps-view").nth(0).get_attribute("aria-label")
        assert re.search(r"result, \d+\.\d\d dB", label)
        clean(opened)


def test_a_run_without_images_or_measurements_has_a_page(browser, tmp_path):
    """What is not there is said, and nothing goes wrong for it; an image alone stands alone."""
    folder = write_run(tmp_path / "run", ImageSpace((8, 8)), np.eye(8, dtype=np.float32), stopped=False)
    with visit(browser, write_report(folder)) as opened:
        assert opened.page.get_by_label("How", exact=True).input_value() == "single"
        clean(opened)
    for name in ("result.npy", "start.npy", "settings.toml", "run.json"):
        (folder / name).unlink()
    lines = (folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "events.jsonl").write_bytes(b"".join(lines[:3]))
    with Visit(browser, write_report(folder).as_uri(), **CONTEXT) as opened:
        opened.page.get_by_text("There is no image yet.").wait_for()
        opened.page.get_by_text("Nothing has been measured yet.").wait_for()
        clean(opened)
