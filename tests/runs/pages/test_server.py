"""The server of pages: who is let in, what is refused, and that it tells what the folders of runs hold."""

from __future__ import annotations

import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

import warm
from page_server import LIMIT, TOKEN, Site, serving
from plugstream.base.errors import InputError
from plugstream.runs.event_log import EventLog
from plugstream.runs.events import Measurement
from plugstream.runs.pages import access, feed, listening, server
from plugstream.runs.pages.access import HEADERS, Access
from plugstream.runs.pages.content import run_content
from plugstream.runs.pages.feed import changes_of, decode_values
from plugstream.runs.pages.listening import open_socket
from plugstream.runs.replay import HistoryReader, replay
from small_run import main
from steering_numbers import HUGE

PAUSE = {"action": "pause"}
READS = ["/", "/static/live.js", "/api/runs", "/api/content?run=one", "/api/events", "/api/thumbnail?run=one"]


@pytest.fixture(scope="module")
def runs(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, one of them deeper, beside what nobody may see."""
    base = tmp_path_factory.mktemp("pages")
    for name in ("secret", "runs/one", "runs/group/two"):
        shutil.copytree(whole, base / name)
    (base / "runs" / "link").symlink_to(base / "secret")
    (base / "runs" / "one" / "private.txt").write_text("nobody's business")
    return base / "runs"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is refused is read to its end, however long it takes to come."""
    monkeypatch.setattr(access, "_LONGEST_UNHEARD", LIMIT)


@pytest.fixture(scope="module")
def site(runs: Path) -> Iterator[Site]:
    with serving(runs) as made:
        yield made


def test_every_answer_forbids_what_a_page_could_load_or_do(site):
    for path in [*READS[:4], "/nowhere", "/api/content?run=none"]:
        _, headers, _ = site.ask(path)
        assert {name.lower(): text for name, text in HEADERS.items()}.items() <= headers.items()
    _, refused, _ = site.ask("/", Host="evil.example")
    assert refused["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    page = site.ask("/")[2].decode()
    assert "style=" not in page
    assert "<script>" not in page


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost@evil", ",", "[::1"]
)
def test_another_name_is_refused(site, host):
    """As where somebody has a name point to this machine, to have his page read ours."""
    assert site.ask("/api/runs", Host=host)[0] in (400, 403)
    assert site.command(PAUSE, "one", Host=host, Origin="") in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:80", "LOCALHOST."])
def test_a_tunnel_may_have_another_port(site, host):
    assert site.ask("/api/runs", Host=host)[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", "http://localhost:1", "file://"])
def test_pages_of_others_are_refused(site, origin):
    assert site.ask("/api/content?run=one", Origin=origin)[0] == 403
    assert site.command(PAUSE, "one", Origin=origin) == 403


def test_a_refusal_arrives_whole_whenever_the_command_comes(site):
    """Headers and body are often sent by themselves: closing while the body is unread would reset the connection."""
    head = f"POST /api/commands?run=one HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nOrigin: null\r\n"
    for turn in range(60):
        with socket.create_connection(("127.0.0.1", site.port), timeout=LIMIT) as connection:
            connection.sendall(f"{head}Content-Length: 19\r\n\r\n".encode())
            time.sleep(1e-4 * (turn % 6))  # a server that does not wait answers after about 3e-4 s
            connection.sendall(b'{"action": "pause"}')
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"requests of other pages are refused" in answer


def test_a_refusal_waits_for_no_body_that_never_comes_or_never_ends(site, monkeypatch):
    monkeypatch.setattr(access, "_LONGEST_UNHEARD", 0.5)
    head = f"POST /api/commands?run=one HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nOrigin: null\r\n"
    for body in (b"", b"x" * 2**17):
        with socket.create_connection(("127.0.0.1", site.port), timeout=LIMIT) as connection:
            with suppress(ConnectionError):  # it is refused before it has sent all, and the reason lies there
                connection.sendall(f"{head}Content-Length: 10000000\r\n\r\n".encode() + body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 403 ")


ENDLESS = {
    "a command": f"POST /api/commands?run=one HTTP/1.1\r\nX-Plugstream-Token: {TOKEN}\r\n",
    "one of no run": f"POST /api/commands?run=none HTTP/1.1\r\nX-Plugstream-Token: {TOKEN}\r\n",
    "a page": "GET / HTTP/1.1\r\n",
    "events": "GET /api/events HTTP/1.1\r\n",
}


@pytest.mark.parametrize("what", list(ENDLESS))
def test_a_body_is_read_up_to_a_size_whatever_it_says_of_itself(site, what):
    """In chunks, whose number nobody tells beforehand: the connection is closed, and what more is sent goes nowhere."""
    head = f"{ENDLESS[what]}Host: 127.0.0.1:{site.port}\r\nContent-Type: application/json\r\n"
    chunk, sent = b"10000\r\n" + b" " * 2**16 + b"\r\n", 0
    with socket.create_connection(("127.0.0.1", site.port), timeout=LIMIT) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        with suppress(ConnectionError):
            while sent < 200 * 2**20:
                connection.sendall(chunk)
                sent += 2**16
    assert sent < 16 * 2**20  # most of which lies in buffers of the system


def test_a_body_that_does_not_come_is_not_waited_for(site, monkeypatch):
    monkeypatch.setattr(access, "_LONGEST_BODY", 0.3)
    head = f"{ENDLESS['a command']}Host: 127.0.0.1:{site.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", site.port), timeout=LIMIT) as connection:
        connection.sendall(f'{head}Content-Length: 19\r\n\r\n{{"action"'.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: local",
        ASKED := b"GET /static/live.js HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_connection_that_asks_for_nothing_is_closed(runs, monkeypatch, sent):
    """Whether it says nothing at all, begins a request, or has had an answer; a page that listens stays."""
    monkeypatch.setattr(listening, "_LONGEST_HEAD", 0.5)
    with serving(runs) as site, site.events("?run=one") as events:
        next(events)
        crowd = [socket.create_connection(("127.0.0.1", site.port), timeout=LIMIT) for _ in range(50)]
        begun = time.monotonic()
        for one in crowd:
            one.sendall(sent)
        for one in crowd:
            with one:
                while one.recv(2**16):
                    pass
        assert time.monotonic() - begun < 30  # uvicorn's own limit of 5 s after an answer, and a busy machine
        with (runs / "one" / "settings.toml").open("a") as settings:
            settings.write("\n")
        assert site.ask("/api/runs")[0] == 200


def test_pages_of_others_are_refused_by_what_the_browser_says(site):
    assert site.ask("/api/runs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors")[0] == 403
    assert site.ask("/api/runs", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert site.ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200  # a link
    assert site.ask("/api/runs", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", Access(TOKEN).cookie])
def test_changes_need_the_token(site, token):
    assert site.command(PAUSE, "one", X_Plugstream_Token=token) == 401
    assert site.ask(f"/api/commands?run=one&token={TOKEN}", "POST", json.dumps(PAUSE).encode())[0] == 401


def test_what_is_no_command_is_refused(site, runs):
    assert site.command(PAUSE, "one") == 409  # which has ended
    assert site.command(PAUSE, "none") == 404
    assert site.command({"action": "dance"}, "one") == 400
    assert site.command(b"[" * 4000, "one") == 400
    assert site.command(b" " * 5000, "one") == 413
    for text in HUGE:
        status, _, body = site.ask(
            "/api/commands?run=one", "POST", text.encode(), Content_Type="application/json", X_Plugstream_Token=TOKEN
        )
        assert (status, len(body.splitlines())) == (400, 1), text[:60]
    assert site.command(PAUSE, "one", Content_Type="text/plain") == 415
    assert site.ask("/api/commands?run=one")[0] == 405
    assert not (runs / "one" / "commands").exists()


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2fserver.py", "/static/../server.py", "/static/%2e%2e/server.py", "/..%2f..%2fetc/passwd",
        "//etc/passwd", "/runs/..%2f..%2fsecret/run.json", "/api/content?run=..%2fsecret", "/api/content?run=link",
        "/api/content?run=%2fetc", "/api/content?run=one%2f..%2f..%2fsecret",
        "/api/picture?run=one&role=..%2f..%2fsecret%2fresult", "/api/picture?run=one&role=private.txt",
        "/api/thumbnail?run=..%2f..%2fsecret", "/api/events?run=..%2fsecret", "/one/private.txt",
    ],
)  # fmt: skip
def test_paths_out_of_the_runs_folder_are_refused(site, path):
    status, _, body = site.ask(path)
    assert status == 404
    assert b"root:" not in body
    assert b"nobody's business" not in body


def test_beyond_this_machine_every_read_needs_the_token(runs):
    with serving(runs, host="0.0.0.0") as site:
        for path in READS:
            assert site.ask(path)[0] == 401, path
            assert site.ask(path, Cookie="plugstream-1=x; a=b")[0] == 401
            assert site.ask(f"{path}{'&' if '?' in path else '?'}token=wrong")[0] == 401
        status, headers, _ = site.ask(f"/?token={TOKEN}")
        cookie = headers["set-cookie"]
        assert status == 200
        assert TOKEN not in cookie
        assert "HttpOnly; SameSite=Strict" in cookie
        assert site.ask("/api/runs", Cookie=cookie.partition(";")[0])[0] == 200
        assert site.ask("/api/runs", X_Plugstream_Token=TOKEN)[0] == 200
        assert site.command(PAUSE, "one", X_Plugstream_Token="", Cookie=cookie.partition(";")[0]) == 401
        assert site.command(PAUSE, "one") == 409
        assert site.ask("/api/runs", Host="evil.example", X_Plugstream_Token=TOKEN)[0] == 403


def test_it_tells_what_the_folders_hold(site, runs):
    told = json.loads(site.ask("/api/runs")[2])
    assert set(told) == {"one", "group/two"}
    assert (told["one"]["state"], told["one"]["step"]) == ("ended", 30)
    content = json.loads(site.ask("/api/content?run=group%2ftwo")[2])
    assert content == json.loads(json.dumps(run_content(runs / "group" / "two")))
    picture = json.loads(site.ask("/api/picture?run=one&role=result")[2])
    # A page that heard of the checkpoint while the run went on may ask for it when there is a result.
    assert "checkpoint" not in json.loads(site.ask("/api/content?run=one")[2])["roles"]
    assert json.loads(site.ask("/api/picture?run=one&role=checkpoint")[2])["role"] == "checkpoint"
    values, result = decode_values(picture["panels"][0]), np.load(runs / "one" / "result.npy")
    assert np.abs(values - result).max() <= 1e-5 * np.ptp(result)
    from PIL import Image

    small = Image.open(io.BytesIO(site.ask("/api/thumbnail?run=one")[2]))
    assert max(small.size) <= 192
    assert np.asarray(small).max() == 255


def test_pages_are_sent_what_changes(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "_LOOK", 0.1)
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    with serving(folder) as site, site.events() as events:
        kind, content = next(events)
        assert (kind, content["step"]) == ("content", 30)
        log = EventLog(folder / "events.jsonl")
        log.add(Measurement(70, 1.5, {**replay(log.path).measured[-1].values, "snr": 3.25}))
        log.close()
        kind, change = next(events)
        assert kind == "change"
        assert change["rows"]["step"] == [70]
        assert change["rows"]["values"]["snr"] == [3.25]
        assert "settings" not in change["set"]
        assert change["set"]["step"] == 70


def test_many_pages_are_served_at_the_cost_of_one_and_more_are_refused(whole, monkeypatch):
    """All of a run takes 15 to 50 ms to encode: for each of 200 pages that would keep everybody waiting for seconds."""
    made: list[str] = []
    encode = feed.encode_message
    monkeypatch.setattr(feed, "encode_message", lambda kind, content: made.append(kind) or encode(kind, content))
    monkeypatch.setattr(server, "_MOST_PAGES", 200)
    request = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(whole) as site, ExitStack() as crowd:
        here = ("127.0.0.1", site.port)
        pages = [crowd.enter_context(socket.create_connection(here, timeout=LIMIT)) for _ in range(200)]
        for some in (pages[:1], pages[1:]):  # which stay, and leave most of what they are sent unread
            for page in some:
                page.sendall(request)
            for page in some:
                head = b""
                while b"event: content" not in head:
                    head += page.recv(4096) or pytest.fail(f"closed after {head!r}")
        assert made == ["content"]
        status, headers, text = site.ask("/api/events")
        assert (status, int(headers["retry-after"]) > 0, len(text.splitlines())) == (503, True, 1)
        for path in ("/", "/api/runs", "/api/content"):
            assert site.ask(path)[0] == 200
        pages[0].close()
        until, answer = time.monotonic() + LIMIT, b""
        while not answer.startswith(b"HTTP/1.1 200 "):  # once the server has heard that there is room
            assert time.monotonic() < until, answer
            with socket.create_connection(here, timeout=LIMIT) as late:
                late.sendall(request)
                answer = late.recv(4096)


def test_a_held_out_misfit_is_shown_only_while_it_is_measured():
    """After a search its last one is of another image; what is measured less often than the rest stays."""
    quantities = [{"name": name, "title": "", "unit": ""} for name in ("held_out", "distance")]
    for last, shown in ((2.0, [2.0, 1.0]), (None, [1.0])):
        measured = {"values": {"held_out": [3.0, last], "distance": [1.0, None]}}
        assert [v["value"] for v in feed._last_values({"quantities": quantities, "measured": measured})] == shown


def test_changes_make_what_there_is_of_what_there_was():
    before = {"a": 1, "gone": 2, "measured": {"step": [0, 5], "time": [0.0, 0.1], "values": {"x": [1.0, None]}}}
    now = {"a": 2, "b": [], "measured": {"step": [0, 5, 9], "time": [0.0, 0.1, 0.2], "values": {"x": [1.0, None, 3.0]}}}
    assert changes_of(before, now) == {
        "set": {"a": 2, "b": [], "gone": None},
        "rows": {"keep": 2, "step": [9], "time": [0.2], "values": {"x": [3.0]}},
    }
    assert changes_of(now, now) is None
    gone_back = {"step": [0, 4], "time": [0.0, 0.1], "values": {"x": [1.0, 7.0]}}
    rows = {"keep": 1, "step": [4], "time": [0.1], "values": {"x": [7.0]}}
    assert changes_of(now, {**now, "measured": gone_back}) == {"set": {}, "rows": rows}
    other = {"step": [0], "time": [0.0], "values": {"y": [1.0]}}
    assert changes_of(now, {**now, "measured": other}) == {"set": {"measured": other}}


def test_a_log_that_grows_is_read_on(whole, tmp_path):
    """Also where it grows by parts of lines, and where another takes its place."""
    content, path = (whole / "events.jsonl").read_bytes(), tmp_path / "events.jsonl"
    reader, cuts = HistoryReader(path), np.linspace(0, len(content), 23).astype(int)
    assert not reader.read()
    for begin, end in zip([0, *cuts], cuts, strict=False):
        with path.open("ab") as file:
            file.write(content[begin:end])
        reader.read()
        known = replay(path)
        assert (reader.history.step, reader.history.measured) == (known.step, known.measured)
    path.unlink()
    path.write_bytes(content[: content.index(b"\n", 4000) + 1])
    reader.read()
    assert reader.history.measured == replay(path).measured
    assert reader.history.stop is None


def test_where_it_cannot_listen_is_told_before_any_work(scan, tmp_path, capsys):
    with open_socket(port=0) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(InputError, match=f"cannot listen at 127.0.0.1:{port}"):
            open_socket(port=int(port))
        words = ["reconstruct", str(scan), "--sigma", "0.02", "--batch", "4", "--out", str(tmp_path / "run")]
        assert main([*words, "--serve", "--port", port]) == 2
        assert main([*words, "--serve", "--host", "192.0.2.7"]) == 2
        assert main([*words, "--port", port]) == 2
    assert main(["serve", str(tmp_path / "none")]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("plugstream: ")]
    assert len(told) == 4
    assert not (tmp_path / "run").exists()


def test_serve_is_a_command_that_ctrl_c_ends(runs):
    words = [sys.executable, "-m", "plugstream", "serve", str(runs), "--port", "0"]
    with warm.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().split()[-1]
            site = Site(address)
            assert site.ask(address.removeprefix(site.origin))[0] == 200
            assert set(json.loads(site.ask("/api/runs")[2])) == {"one", "group/two"}
            token = address.partition("token=")[2]
            assert site.command(PAUSE, "one", X_Plugstream_Token=token) == 409
            with site.events() as events:
                next(events)
                process.send_signal(signal.SIGINT)  # while a page is open
                said = process.communicate(timeout=LIMIT)[1]
        finally:
            process.kill()
    assert process.returncode == 0
    assert f"ssh -L {site.port}:127.0.0.1:{site.port}" in said
    assert said.splitlines()[-1] == "the pages are closed; runs go on"
