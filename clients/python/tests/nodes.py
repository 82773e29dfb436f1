"""Real nodes of Tenure as processes, for the integration tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tenure import Client

READY_WITHIN = 30.0

# The first port for outgoing connections (`net.ipv4.ip_local_port_range`) follows: no connection may take the port of a node
# that is down for a moment.
PORTS = range(10240, 32768)

Before = Callable[[Path], None]


def binary() -> str:
    """The path of the server binary."""
    path = os.environ.get("TENURE_BINARY")
    if not path:
        raise RuntimeError("set TENURE_BINARY to the path of the `tenure` binary")
    return path


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback interface that were free a moment ago."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.choice(PORTS)
        with contextlib.suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            if port not in ports:
                ports.append(port)
    return ports


async def leader_of(client: Client) -> int:
    """Waits until the cluster has a leader."""
    until = time.monotonic() + READY_WITHIN
    while (leader := (await client.cluster())["leader"]) is None:
        assert time.monotonic() < until, "no leader"
        await asyncio.sleep(0.01)
    return leader


class Cluster:
    """Nodes with one configuration. Each is a process."""

    def __init__(
        self, folder: Path, nodes: int = 1, extra: str = "", scheme: str = "http", before: Before | None = None
    ) -> None:
        """Writes the configuration, calls `before` with its folder, and starts the nodes."""
        self.folder = folder
        ports = free_ports(2 * nodes)
        self.http = ports[:nodes]
        text = 'cluster = "python"\n'
        for index in range(nodes):
            text += (
                f'[[node]]\nid = {index + 1}\nhttp = "127.0.0.1:{ports[index]}"\n'
                f'peer = "127.0.0.1:{ports[nodes + index]}"\ndata = "data/{index + 1}"\n'
            )
        (folder / "cluster.toml").write_text(text + extra)
        if before is not None:
            before(folder)
        self.urls = [f"{scheme}://127.0.0.1:{port}" for port in self.http]
        self.processes = [self._start(index + 1) for index in range(nodes)]

    def start(self, node: int) -> None:
        """Starts this node again after its end."""
        self.processes[node - 1].wait()
        self.processes[node - 1] = self._start(node)

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        log = (self.folder / f"node{node}.log").open("ab")
        command = [binary(), "serve", "--config", str(self.folder / "cluster.toml"), "--node", str(node)]
        with log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def wait_ready(self, node: int = 1) -> None:
        """Waits until this node hears from a leader. Only for plain HTTP."""
        until = time.monotonic() + READY_WITHIN
        while True:
            try:
                urllib.request.urlopen(f"{self.urls[node - 1]}/readyz", timeout=2)
                return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > until or self.processes[node - 1].poll() is not None:
                    raise RuntimeError((self.folder / f"node{node}.log").read_text()) from None
                time.sleep(0.02)

    def fetch(self, path: str) -> bytes:
        """The answer of the first node to a GET request."""
        with urllib.request.urlopen(self.urls[0] + path, timeout=5) as answer:
            body: bytes = answer.read()
            return body

    def auth(self, *words: str, token: str = "") -> str:
        """The output of `tenure auth` with these words."""
        variables = {"TENURE_ENDPOINTS": ",".join(self.urls), "TENURE_ACCESS_TOKEN": token}
        ended = subprocess.run(
            [binary(), "auth", *words], env={**os.environ, **variables}, check=True, stdout=subprocess.PIPE, text=True
        )
        return ended.stdout.strip()

    def enable_access_control(self) -> str:
        """Turns access control on. Returns the token of an administrator."""
        # The cluster refuses the change until all members have said that they support it.
        until = time.monotonic() + READY_WITHIN
        while True:
            try:
                self.auth("role", "set", "admin", "--admin")
                break
            except subprocess.CalledProcessError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        self.auth("principal", "set", "root", "--role", "admin")
        token = self.auth("token", "create", "root")
        self.auth("enable", token=token)
        return token

    def create_reader(self, prefix: str, root: str) -> str:
        """Creates a principal that reads the leases with this prefix. Returns its token."""
        self.auth("role", "set", "reader", "--read", prefix, token=root)
        self.auth("principal", "set", "reader", "--role", "reader", token=root)
        return self.auth("token", "create", "reader", token=root)

    def signal(self, node: int, number: signal.Signals) -> None:
        """Sends a signal to this node."""
        self.processes[node - 1].send_signal(number)

    def stop(self) -> None:
        """Ends all nodes."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self.processes:
            process.wait()
