"""The files of examples/deployment: systemd takes the units, and the command line what they start."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path

import pytest

from page_runs import ball, write_run
from page_server import TOKEN, serving
from plugstream import ImageSpace
from plugstream.cli import _parse
from ports import reserved_port

FOLDER = Path(__file__).parents[2] / "examples" / "deployment"
UNITS = sorted(FOLDER.glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    """With a program that is there, and a user that is."""
    text = unit.read_text().replace("/opt/plugstream/bin/plugstream", sys.executable)
    place = tmp_path / unit.name.replace("@", "@one")
    place.write_text(text.replace("User=plugstream", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", str(place)], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if place.name in line] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_what_a_unit_starts_is_a_command(unit: Path) -> None:
    line = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    assert line is not None
    program, *words = shlex.split(line[1])
    assert program == "/opt/plugstream/bin/plugstream"
    assert _parse(words).command == words[0]


def test_the_container_starts_a_command_with_extras_that_exist() -> None:
    import tomllib

    text = (FOLDER / "Containerfile").read_text()
    words = json.loads(re.search(r"^CMD (.*)$", text, re.MULTILINE)[1])
    assert _parse(words).command == "serve"
    extras = re.search(r"/src\[(.*?)\]", text)[1].split(",")
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(project["optional-dependencies"])


def test_a_proxys_name_is_served_once_it_is_allowed(tmp_path: Path) -> None:
    """As nginx.conf passes it on: the name of the proxy as the host, from a page that was loaded by https."""
    assert "proxy_set_header Host $host;" in (FOLDER / "nginx.conf").read_text()
    name = "beamline.example.org"
    head = {"Host": name, "Origin": f"https://{name}", "Sec_Fetch_Site": "same-origin"}
    with serving(tmp_path, allowed=[name]) as site:
        assert site.ask("/api/runs", **head)[0] == 200
    with serving(tmp_path) as site:
        assert site.ask("/api/runs", **head)[0] >= 400


@pytest.mark.skipif(None in map(shutil.which, ("nginx", "openssl")), reason="nginx or openssl is not installed")
def test_pages_are_served_behind_nginx(tmp_path: Path) -> None:
    """The file as it is, but for its places and its port: a password, the page, events as they come, commands."""
    name, runs = "beamline.example.org", tmp_path / "runs"
    write_run(runs / "one", ImageSpace((8, 8)), ball((8, 8)))
    key, certificate, words = (tmp_path / part for part in ("key", "certificate", "words"))
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"]
    made += [f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    hashed = subprocess.run(["openssl", "passwd", "-apr1", "secret"], check=True, capture_output=True, text=True)
    words.write_text(f"visitor:{hashed.stdout}")
    with serving(runs, allowed=[name]) as site, reserved_port() as port:
        server = (FOLDER / "nginx.conf").read_text()
        for old, new in {
            "/etc/ssl/beamline.pem": str(certificate),
            "/etc/ssl/beamline.key": str(key),
            "/etc/nginx/plugstream.htpasswd": str(words),
            "listen 443": f"listen 127.0.0.1:{port}",
            "127.0.0.1:8765": f"127.0.0.1:{site.port}",
        }.items():
            assert old in server
            server = server.replace(old, new)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
        user = "user root;" if os.geteuid() == 0 else ""  # its workers read files of this test's folder
        whole = f"daemon off; {user} pid {tmp_path}/pid; error_log stderr; events {{}}"
        (tmp_path / "nginx.conf").write_text(f"{whole} http {{ access_log off; {places} {server} }}")
        nginx = subprocess.Popen(["nginx", "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"])
        try:
            context = ssl.create_default_context(cafile=certificate)
            head = {"Authorization": f"Basic {b64encode(b'visitor:secret').decode()}", "Host": name}

            def ask(path: str, method: str = "GET", body: bytes | None = None, **more: str) -> http.client.HTTPResponse:
                raw = socket.create_connection(("127.0.0.1", port), 30)
                connection = http.client.HTTPSConnection(name, timeout=30)
                connection.sock = context.wrap_socket(raw, server_hostname=name)
                headers = {part.replace("_", "-"): text for part, text in (head | more).items() if text}
                connection.request(method, path, body, headers)
                return connection.getresponse()

            until = time.monotonic() + 30
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                assert time.monotonic() < until
                assert nginx.poll() is None
                time.sleep(0.05)
            assert ask("/", Authorization="").status == 401
            assert ask("/").status == 200
            assert set(json.loads(ask("/api/runs").read())) == {"one"}
            events = ask("/api/events?run=one")
            assert events.readline().startswith(b"event: content")  # at once, since nothing is buffered
            body, origin = json.dumps({"action": "pause"}).encode(), f"https://{name}"
            sent = {"Content_Type": "application/json", "Origin": origin, "Sec_Fetch_Site": "same-origin"}
            assert ask("/api/commands?run=one", "POST", body, **sent).status in (401, 403)  # without the token
            told = ask("/api/commands?run=one", "POST", body, X_Plugstream_Token=TOKEN, **sent)
            assert told.status == 409, told.read()  # the run is over, which is for the server to say
            events.close()
        finally:
            nginx.terminate()
            nginx.wait(30)
