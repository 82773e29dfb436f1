"""A stub of coordination.k8s.io/v1 Lease: get, create and replace, with the version check of an API server."""

from __future__ import annotations

import json
import re
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = re.compile(r"^/apis/coordination\.k8s\.io/v1/namespaces/([^/]+)/leases(?:/([^/]+))?$")
LEASES: dict[tuple[str, str], dict[str, Any]] = {}
LOCK = threading.Lock()


class Refused(Exception):
    """An answer with a Status object."""

    def __init__(self, code: HTTPStatus, reason: str) -> None:
        """Keeps both."""
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Api(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    versions = 0

    def answer(self, code: HTTPStatus, body: dict[str, Any]) -> None:
        """Sends JSON."""
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def serve(self) -> None:
        """Answers a request. Requests run one after the other, as in an etcd transaction."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            match = PATH.match(self.path.split("?")[0])
            if not match:
                raise Refused(HTTPStatus.NOT_FOUND, "NotFound")
            if "protobuf" in self.headers.get("Content-Type", ""):
                raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType")
            with LOCK:
                code, lease = self.lease(match[1], match[2], json.loads(body) if body else {})
            self.answer(code, lease)
        except Refused as refused:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": refused.reason}
            self.answer(refused.code, status | {"reason": refused.reason, "code": refused.code.value})

    do_GET = do_POST = do_PUT = serve

    def lease(self, namespace: str, name: str | None, body: dict[str, Any]) -> tuple[HTTPStatus, dict[str, Any]]:
        """Reads or changes a lease."""
        metadata = body.get("metadata", {})
        key = (namespace, name or metadata.get("name", ""))
        current = LEASES.get(key)
        if self.command == "POST":
            if current:
                raise Refused(HTTPStatus.CONFLICT, "AlreadyExists")
            code = HTTPStatus.CREATED
        elif current is None:
            raise Refused(HTTPStatus.NOT_FOUND, "NotFound")
        elif self.command == "GET":
            return HTTPStatus.OK, current
        elif metadata.get("resourceVersion") != current["metadata"]["resourceVersion"]:
            raise Refused(HTTPStatus.CONFLICT, "Conflict")
        else:
            code = HTTPStatus.OK
        Api.versions += 1
        version = {"name": key[1], "namespace": namespace, "resourceVersion": str(Api.versions)}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        LEASES[key] = kind | {"metadata": metadata | version, "spec": body.get("spec", {})}
        return code, LEASES[key]


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api).serve_forever()
