#!/usr/bin/env python3
"""A reverse proxy that serves a node below a path. With a folder of assets, it serves the page from there.

  tests/ui/proxy.py http://127.0.0.1:7101 [PREFIX] --assets     work on the page without a compiler

The proxy prints its address.
"""

import http.client
import json
import mimetypes
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cluster

ASSETS = Path(__file__).resolve().parent.parent.parent / "src/http/ui"
DOCUMENTATION = Path(__file__).resolve().parent.parent.parent / "docs/ui.md"
NO_LEADER = {"type": "about:blank", "title": "No leader", "status": 503, "detail": "no leader", "code": "no_leader"}
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Proxy:
    """Forwards requests below `prefix` to the node at `upstream`, which a test can change."""

    def __init__(self, upstream, prefix="", assets=None):
        self.upstream = upstream
        self.prefix = prefix
        self.assets = assets
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                proxy.handle(self)

            do_GET = do_POST = do_DELETE = do_PUT = do_HEAD = handle_any

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}{prefix}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def handle(self, handler):
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        if not handler.path.startswith(self.prefix + "/"):
            return answer(handler, 404, "text/plain", b"not below the path of the proxy")
        path = handler.path[len(self.prefix) :]
        if self.assets and re.match(r"/ui(/|\?|$)", path):
            return self.asset(handler, path)
        self.forward(handler, path, body)

    def asset(self, handler, path):
        name = path.split("?")[0].removeprefix("/ui").lstrip("/") or "index.html"
        file = self.assets / name
        if not file.is_file():
            return answer(handler, 404, "text/plain", b"no such file")
        source = (self.assets / "mod.rs").read_text()
        policy = re.search(r'POLICY: &str = "(.*?)";', source, re.DOTALL).group(1)
        kind = mimetypes.guess_type(name)[0] or "text/plain"
        headers = {"content-security-policy": re.sub(r"\\\n\s*", "", policy), "cache-control": "no-cache"}
        answer(handler, 200, kind, file.read_bytes(), headers)

    def forward(self, handler, path, body):
        host = self.upstream.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=30)
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP | {"host"}}
        if body:
            headers["content-length"] = str(len(body))
        try:
            connection.request(handler.command, path, body or None, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException):
            connection.close()
            return answer(handler, 502, "text/plain", b"the node does not answer")
        try:
            handler.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP:
                    handler.send_header(name, value)
            # The end of the connection is the end of the body: a watch has no length.
            handler.send_header("connection", "close")
            handler.close_connection = True
            handler.end_headers()
            while chunk := response.read1(65536):
                handler.wfile.write(chunk)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()


class Intercepted(Proxy):
    """Passes each request to `take` first, which returns whether it has answered the request."""

    def __init__(self, upstream, take):
        # With a path, no second proxy is between this one and the page: it would hide a broken connection.
        super().__init__(upstream, "/intercepted", ASSETS if os.environ.get("TENURE_UI_ASSETS") else None)
        self.take = take

    def forward(self, handler, path, body):
        if not self.take(handler, path):
            super().forward(handler, path, body)


class Nginx:
    """nginx with the block of docs/ui.md, in front of the node at `upstream`."""

    PROGRAM = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")

    def __init__(self, upstream):
        block = re.search(r"```nginx\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL).group(1)
        assert "http://127.0.0.1:7101" in block, block
        self.folder = tempfile.TemporaryDirectory()
        (port,) = cluster.free_ports(1)
        folders = "".join(
            f"{kind}_temp_path {self.folder.name}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        settings = Path(self.folder.name) / "nginx.conf"
        settings.write_text(
            f"daemon off;\nmaster_process off;\npid {self.folder.name}/pid;\nerror_log {self.folder.name}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{folders}server {{\nlisten 127.0.0.1:{port};\n"
            f"{block.replace('http://127.0.0.1:7101', upstream)}}}\n}}\n"
        )
        self.process = subprocess.Popen([self.PROGRAM, "-c", settings, "-p", self.folder.name], stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}/tenure"
        deadline = time.monotonic() + 15
        while not accepts(port):
            assert self.process.poll() is None and time.monotonic() < deadline, "nginx does not start"
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait(15)
        self.folder.cleanup()


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answer(handler, status, kind, body, headers=None):
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(body)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def refuse(handler, problem):
    """Answers with a problem of the API. Returns `True`, as `take` does."""
    answer(handler, problem["status"], "application/problem+json", json.dumps(problem).encode())
    return True


def main(words):
    assets = ASSETS if "--assets" in words else None
    words = [word for word in words if word != "--assets"]
    if not words:
        sys.exit(__doc__)
    proxy = Proxy(words[0], words[1] if len(words) > 1 else "", assets)
    print(f"{proxy.url}/ui", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
