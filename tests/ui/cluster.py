"""A cluster of real `tenure serve` processes on free loopback ports."""

import asyncio
import http.client
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path

READY_WITHIN = 20  # seconds
TLS_FILES = {"ca": "ca.pem", "cert": "node-{node}.pem", "key": "node-{node}.key"}


# The first port for outgoing connections (`net.ipv4.ip_local_port_range`) follows: no connection may take the port of a node that is
# down for a moment.
PORTS = range(10240, 32768)


def free_ports(count):
    """Different ports that were free a moment ago."""
    ports = []
    while len(ports) < count:
        port = random.choice(PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        if port not in ports:
            ports.append(port)
    return ports


class Refused(Exception):
    """A response with another status than 200."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status = status


class Node:
    def __init__(self, number, port, log, scheme):
        self.id = number
        self.port = port
        self.log = log
        self.scheme = scheme
        self.process = None

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"


class Cluster:
    """With `tls`, the certificates are in the folder `tls`. `prepare` can replace some before the nodes start."""

    def __init__(self, binary, nodes=3, tls=False):
        self.binary = binary
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-ui-"))
        ports = free_ports(2 * nodes)
        text = 'cluster = "ui-test"\n'
        self.nodes = []
        for number in range(1, nodes + 1):
            http_port, peer_port = ports[2 * number - 2 : 2 * number]
            text += f'[[node]]\nid = {number}\nhttp = "127.0.0.1:{http_port}"\npeer = "127.0.0.1:{peer_port}"\n'
            text += f'data = "data/{number}"\n'
            self.nodes.append(Node(number, http_port, self.folder / f"node-{number}.log", "https" if tls else "http"))
        self.file = self.folder / "cluster.toml"
        self.file.write_text(text)
        if tls:
            subprocess.run([binary, "tls", "init", self.folder / "tls", "--config", self.file], check=True, capture_output=True)
            files = "".join(f'{key} = "tls/{file}"\n' for key, file in TLS_FILES.items())
            self.file.write_text(f"{text}[tls]\n{files}")
            self.prepare()
        for node in self.nodes:
            self.start(node)
        for node in self.nodes:
            self.wait_ready(node)

    def prepare(self):
        pass

    def start(self, node):
        command = [self.binary, "serve", "--config", self.file, "--node", str(node.id)]
        with open(node.log, "ab") as log:
            node.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_ready(self, node):
        until = time.monotonic() + READY_WITHIN
        while time.monotonic() < until:
            try:
                request(node.url, "GET", "/readyz")
                return
            except (OSError, http.client.HTTPException, Refused):
                if node.process.poll() is not None:
                    break
                time.sleep(0.05)
        raise RuntimeError(f"node {node.id} is not ready:\n{node.log.read_text()[-2000:]}")

    def kill(self, node):
        os.kill(node.process.pid, signal.SIGKILL)
        node.process.wait()

    def leader(self, asked=None, token=None):
        """The node that leads, as another node sees it."""
        until = time.monotonic() + READY_WITHIN
        while time.monotonic() < until:
            status = request((asked or self.nodes[0]).url, "GET", "/v1/cluster", token=token)
            if status["leader"] and status["quorum"]:
                return self.nodes[status["leader"] - 1]
            time.sleep(0.05)
        raise RuntimeError("the cluster has no leader")

    def stop(self):
        for node in self.nodes:
            if node.process.poll() is None:
                os.kill(node.process.pid, signal.SIGKILL)
                node.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def request(url, method, path, body=None, token=None, timeout=15):
    """Sends one request and returns its JSON, or raises `Refused`."""
    scheme, rest = url.split("://")
    host = rest.split("/")[0]
    if scheme == "https":
        connection = http.client.HTTPSConnection(host, timeout=timeout, context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection(host, timeout=timeout)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["content-type"] = "application/json"
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status != 200:
        raise Refused(response.status, text)
    return json.loads(text) if text.startswith("{") else text


def change(url, method, path, body=None, token=None, timeout=15):
    """As `request`. Sends a request again that a node has refused during an election: it has changed nothing."""
    until = time.monotonic() + READY_WITHIN
    while True:
        try:
            return request(url, method, path, body, token, timeout)
        except Refused as error:
            if error.status != 503 or time.monotonic() > until:
                raise
        time.sleep(0.05)


def acquire(url, name, holder, ttl_ms=600_000, token=None, **more):
    path = f"/v1/leases/{name.replace('/', '%2F')}/acquire"
    timeout = 15 + more.get("wait_ms", 0) / 1000
    return change(url, "POST", path, {"holder": holder, "ttl_ms": ttl_ms, **more}, token, timeout)


def acquire_many(url, names, holder, ttl_ms, lanes=32):
    """Acquires many leases over a few connections."""
    scheme, address = url.split("://")
    host, port = address.split(":")
    tls = ssl._create_unverified_context() if scheme == "https" else None
    body = json.dumps({"holder": holder, "ttl_ms": ttl_ms}).encode()

    async def lane(own):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
        for name in own:
            head = f"POST /v1/leases/{name.replace('/', '%2F')}/acquire HTTP/1.1\r\nhost: {host}\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            status = 429
            while status == 429:  # overload: certainly not done
                writer.write(head.encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                text = await reader.readexactly(int(length.split(b":")[1]))
                status = int(answer.split(b" ")[1])
                if status == 429:
                    await asyncio.sleep(0.05)
            if status != 200:
                raise Refused(status, text.decode())
        writer.close()
        await writer.wait_closed()

    async def all_lanes():
        await asyncio.gather(*(lane(names[number::lanes]) for number in range(lanes)))

    asyncio.run(all_lanes())
