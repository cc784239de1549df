"""`kvtune capture` as a user runs it: a process that is told to end by a signal."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

import kvtune
from kvtune.cli.app import main

BODY = {"model": "m", "messages": [{"role": "user", "content": "A secret of the prompt"}]}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "Hello"}
        answer = json.dumps(
            {"choices": [{"index": 0, "message": message}], "usage": {"prompt_tokens": 5}}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()


def start(*arguments):
    environment = os.environ | {"PYTHONPATH": str(Path(kvtune.__file__).parent.parent)}
    command = [sys.executable, "-m", "kvtune", "capture", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def ask(url):
    head = {"Content-Type": "application/json", "Authorization": "Bearer sk-1"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(BODY).encode(), head)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_capture_from_start_to_signal(tmp_path, server, number):
    path = tmp_path / "trace.jsonl.gz"
    with start("--listen", "127.0.0.1:0", "--to", server, "-o", str(path)) as process:
        told = process.stderr.readline()
        url = re.match(r"kvtune: (http://127\.0\.0\.1:\d+) -> ", told)[1]
        assert ask(url)["choices"][0]["message"]["content"] == "Hello"
        process.send_signal(number)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert errors.splitlines()[-1] == f"kvtune: {path}: 1 requests written"
    assert "secret" not in told + errors and "sk-1" not in told + errors
    with gzip.open(path, "rt") as file:
        (line,) = map(json.loads, file)
    assert (line["body"], line["response"]["content"], line["usage"]) == (BODY, "Hello", {"prompt_tokens": 5})


def test_a_request_that_did_not_fit_is_said_by_count_and_code(tmp_path, server, monkeypatch):
    monkeypatch.setitem(BODY, "padding", "x" * (1 << 20))
    path = tmp_path / "trace.jsonl"
    with start("--listen", "127.0.0.1:0", "--to", server, "-o", str(path), "--max-held-mib", "1") as process:
        ask(re.match(r"kvtune: (\S+) -> ", process.stderr.readline())[1])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "kvtune: 1 LOST: memory bound reached" in errors.splitlines()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("listen", ["8001", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", ":8001"])
def test_an_address_that_is_none(tmp_path, listen, capsys):
    assert main(["capture", "--to", "http://127.0.0.1:9", "--listen", listen, "-o", str(tmp_path / "t")]) == 2
    assert capsys.readouterr().err.startswith("kvtune: --listen: no address")


def test_a_port_that_is_taken(tmp_path, server, capsys):
    taken = server.removeprefix("http://")
    assert main(["capture", "--to", "http://127.0.0.1:9", "--listen", taken, "-o", str(tmp_path / "t")]) == 2
    assert "cannot listen there" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_without_the_extra_the_way_out_is_named(tmp_path, capsys, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("kvtune.tokenization.capture")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert main(["capture", "--to", "http://127.0.0.1:9", "-o", str(tmp_path / "t")]) == 4
    assert "pip install 'kvtune[live]'" in capsys.readouterr().err
