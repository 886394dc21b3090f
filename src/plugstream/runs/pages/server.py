"""The pages of runs while they go on, as a Starlette application: it reads the folders of runs, and writes commands.

    GET  /                       the page: a list of runs, or with ?run=NAME one of them
    GET  /static/NAME            its scripts and styles
    GET  /api/runs               which runs there are
    GET  /api/content?run=NAME   all that the page shows of a run but its images
    GET  /api/picture?run=NAME&role=ROLE[&stamp=STAMP],  /api/thumbnail?run=NAME
    GET  /api/events[?run=NAME]  server-sent events: what changed, of a run or of the list
    POST /api/commands?run=NAME  what a person asks of the run (`plugstream.runs.commands`)

A run is looked up by its name among those on the shelf; no part of a request becomes a path.
"""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from plugstream.base.errors import InputError
from plugstream.runs.commands import parse_command, send_command
from plugstream.runs.describe import is_run
from plugstream.runs.pages import SCRIPTS, STYLES
from plugstream.runs.pages.access import Access, Guard
from plugstream.runs.pages.feed import SHARE, Channel, RunFeed

# Folders below one of runs that are looked into; runs lie in it, or in folders of it.
_DEPTH = 2
# Seconds between two looks for new runs, pages that may be open at once, and bytes of a command.
_LOOK, _MOST_PAGES, _MOST_BYTES = 3.0, 400, 4096
_SCRIPTS = ("stream.js", "steer.js", "live.js")  # besides those of a report
_TYPES = {".js": "text/javascript", ".css": "text/css"}


class Shelf:
    """The runs in some folders, each of a run or of runs, by name, each with one feed for all of its pages."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)
        self.single = len(folders) == 1 and not (folders[0].is_dir() and not is_run(folders[0]))
        self._feeds: dict[str, RunFeed] = {}
        self._channels: dict[str, Channel] = {}
        self._looked = 0.0
        self._list = Channel(self._look)

    @property
    def listeners(self) -> int:
        """How many pages are open."""
        return sum(channel.listeners for channel in (*self._channels.values(), self._list))

    def find(self) -> dict[str, RunFeed]:
        """The present runs, by name."""
        if time.monotonic() - self._looked > _LOOK or not self._feeds:
            before = self._feeds
            self._feeds = {name: before.get(name) or RunFeed(folder) for name, folder in self._walk()}
            self._looked = time.monotonic()
        return self._feeds

    def feed(self, name: str | None) -> RunFeed | None:
        """The run of this name, None where there is none; without a name the only one."""
        feeds = self.find()
        if name is None:
            return next(iter(feeds.values())) if self.single and feeds else None
        return feeds.get(name)

    def channel(self, name: str | None, feed: RunFeed | None) -> Channel:
        """What sends the changes of a run, or of the list."""
        if feed is None:
            return self._list
        return self._channels.setdefault(name or "", Channel(lambda: (feed.content(), feed.pause)))

    def summaries(self) -> dict[str, Any]:
        """What the list of runs shows, by name; of a run that cannot be read why."""
        out: dict[str, Any] = {}
        for name, feed in self.find().items():
            try:
                out[name] = feed.summary()
            except InputError as error:
                out[name] = {"state": "unreadable", "reason": str(error)}
        return out

    def _look(self) -> tuple[dict[str, Any], float]:
        begun = time.thread_time()
        return self.summaries(), (time.thread_time() - begun) / SHARE

    def _walk(self) -> Iterator[tuple[str, Path]]:
        for folder in self.folders:
            if is_run(folder):
                yield folder.resolve().name, folder
                continue
            before = "" if len(self.folders) == 1 else f"{folder.resolve().name}/"
            for name, run in _runs_below(folder, _DEPTH):
                yield f"{before}{name}", run


def _runs_below(folder: Path, depth: int) -> Iterator[tuple[str, Path]]:
    """Runs in a folder; links are not followed, as they may lead out of it."""
    try:
        inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return
    for path in inner:
        if path.name.startswith("."):
            continue
        if is_run(path):
            yield path.name, path
        elif depth > 1:
            yield from ((f"{path.name}/{name}", run) for name, run in _runs_below(path, depth - 1))


def make_application(shelf: Shelf, access: Access) -> Guard:
    """The ASGI application that serves the runs of a shelf to those whom `access` lets in."""
    assets = _assets()
    page = _page(shelf).encode()

    async def show_page(request: Request) -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    async def show_asset(request: Request) -> Response:
        content, kind = assets.get(request.path_params["name"], (None, ""))
        return _absent("file") if content is None else Response(content, media_type=f"{kind}; charset=utf-8")

    async def list_runs(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(shelf.summaries))

    async def show_content(request: Request) -> Response:
        return await _answer(request, lambda feed: JSONResponse(feed.content()))

    async def show_picture(request: Request) -> Response:
        role, stamp = request.query_params.get("role", ""), request.query_params.get("stamp")
        return await _answer(request, lambda feed: Response(feed.picture(role, stamp), media_type="application/json"))

    async def show_thumbnail(request: Request) -> Response:
        return await _answer(request, lambda feed: Response(feed.thumbnail(), media_type="image/png"))

    async def _answer(request: Request, make: Callable[[RunFeed], Response]) -> Response:
        def find_and_make() -> Response:
            feed = shelf.feed(request.query_params.get("run"))
            return _absent("run") if feed is None else make(feed)

        try:
            return await asyncio.to_thread(find_and_make)
        except InputError as error:
            return PlainTextResponse(f"{error}\n", 404)

    async def send_events(request: Request) -> Response:
        name = request.query_params.get("run")
        feed = await asyncio.to_thread(shelf.feed, name)
        if feed is None and (name is not None or shelf.single):
            return _absent("run")
        if shelf.listeners >= _MOST_PAGES:
            text = f"{_MOST_PAGES} pages are open, and more are not served; close some\n"
            return PlainTextResponse(text, 503, {"Retry-After": "2"})
        events = shelf.channel(name, feed).listen()
        return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def take_command(request: Request) -> Response:
        name = request.query_params.get("run")
        feed = await asyncio.to_thread(shelf.feed, name)
        if feed is None:
            return _absent("run")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return PlainTextResponse("a command is JSON\n", 415)
        body = await request.body()
        if len(body) > _MOST_BYTES:
            return PlainTextResponse("a command is shorter\n", 413)
        try:
            command = parse_command(body)
            now = await asyncio.to_thread(feed.content)
            if now["state"] not in ("running", "paused") or now["doing"] == "writing results":
                return PlainTextResponse("the run does not go on, so nothing can be asked of it\n", 409)
            await asyncio.to_thread(send_command, feed.folder, command)
            shelf.channel(name, feed).hurry()
        except InputError as error:
            return PlainTextResponse(f"{error}\n", 400)
        return JSONResponse({"asked": command.action}, 202)

    routes = [
        Route("/", show_page),
        Route("/static/{name}", show_asset),
        Route("/api/runs", list_runs),
        Route("/api/content", show_content),
        Route("/api/picture", show_picture),
        Route("/api/thumbnail", show_thumbnail),
        Route("/api/events", send_events),
        Route("/api/commands", take_command, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), access)


def _absent(kind: str) -> Response:
    return PlainTextResponse(f"there is no such {kind}\n", 404)


def _assets() -> dict[str, tuple[bytes, str]]:
    """The scripts and styles by name, in memory."""
    kinds = [(path, _TYPES.get(Path(path.name).suffix)) for path in files(__package__).joinpath("static").iterdir()]
    return {path.name: (path.read_bytes(), kind) for path, kind in kinds if kind is not None}


def _page(shelf: Shelf) -> str:
    """The page, which its scripts fill."""
    styles = "\n".join(f'<link rel="stylesheet" href="/static/{name}">' for name in (*STYLES, "live.css"))
    scripts = "\n".join(f'<script src="/static/{name}"></script>' for name in (*SCRIPTS, *_SCRIPTS))
    only = ' data-single="yes"' if shelf.single else ""
    title = html.escape(shelf.folders[0].name if shelf.single else "Runs")
    return f"""<!doctype html>
<html lang="en"{only}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - plugstream</title>
<link rel="icon" href="data:,">
{styles}
</head>
<body>
<main><noscript>This page is drawn by scripts that come with it; allow them to run.</noscript></main>
{scripts}
</body>
</html>
"""
