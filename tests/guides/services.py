"""The other lock services as processes on free ports."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from nodes import free_ports
from stage import HERE, JARS, require, wait_for

ZOOKEEPER_JAR = JARS / "zookeeper.jar"
CURATOR_JAR = JARS / "curator-recipes.jar"
READY_WITHIN = 60


class Service:
    """Processes of one service, and the environment that its clients need."""

    def __init__(self, folder: Path) -> None:
        """Starts nothing."""
        self.folder = folder
        self.environment: dict[str, str] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    def start(self, *command: str, environment: dict[str, str] | None = None) -> None:
        """Starts a process with its output in a file."""
        with (self.folder / f"server{len(self.processes)}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    command, cwd=self.folder, stdout=log, stderr=log, env=os.environ | (environment or {})
                )
            )

    def wait_ready(self, ready: Callable[[], bool]) -> None:
        """Waits until the service answers. Fails if a process has ended."""

        def answers() -> bool:
            logs = "".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("server*.log"))
            require(all(process.poll() is None for process in self.processes), f"a server has ended:\n{logs}")
            try:
                return ready()
            except (OSError, urllib.error.URLError):
                return False

        wait_for(answers, READY_WITHIN, f"{self.processes[0].args} is ready")  # type: ignore[index]

    def stop(self) -> None:
        """Ends all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def get(url: str) -> bytes:
    """The body of an answer."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: bytes = answer.read()
        return body


def status(url: str, method: str = "GET", body: bytes | None = None) -> int:
    """The status of an answer."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def ask(port: int, line: bytes) -> bytes:
    """The first bytes of an answer over TCP."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(line)
        return connection.recv(1024)


def missing(*programs: str) -> list[str]:
    """The programs that are not installed."""
    return [program for program in programs if shutil.which(program) is None]


def go_packages() -> Path:
    """The GOPATH with client-go, by default that of Debian's packages."""
    return Path(os.environ.get("GOPATH", "/usr/share/gocode"))


def etcd(service: Service) -> None:
    """One member."""
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    service.start(
        *("etcd", "--data-dir", "data", "--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
    )
    service.wait_ready(lambda: b'"true"' in get(f"{client}/health"))
    service.environment = {"ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": client}


def consul(service: Service) -> None:
    """A development agent."""
    http, server, lan, wan = free_ports(4)
    service.start(
        *("consul", "agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", f"-http-port={http}", "-dns-port=-1"),
        *("-grpc-port=-1", f"-server-port={server}", f"-serf-lan-port={lan}", f"-serf-wan-port={wan}"),
    )
    url = f"http://127.0.0.1:{http}"
    service.environment = {"CONSUL_HTTP_ADDR": url}
    service.wait_ready(lambda: b"serfHealth" in get(f"{url}/v1/health/state/passing"))


def redis(service: Service) -> None:
    """Three independent servers, as Redlock wants."""
    ports = free_ports(3)
    for port in ports:
        service.start("redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no")
    service.wait_ready(lambda: all(ask(port, b"PING\r\n") == b"+PONG\r\n" for port in ports))
    service.environment = {"REDIS_URLS": ",".join(f"redis://127.0.0.1:{port}" for port in ports)}


def zookeeper(service: Service) -> None:
    """One server."""
    (port,) = free_ports(1)
    (service.folder / "zoo.cfg").write_text(
        f"dataDir=data\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=500\nadmin.enableServer=false\n"
    )
    service.start("java", "-Xmx128m", "-cp", str(ZOOKEEPER_JAR), "org.apache.zookeeper.server.ZooKeeperServerMain", "zoo.cfg")
    service.wait_ready(lambda: b"Zookeeper version" in ask(port, b"srvr"))
    service.environment = {"ZOOKEEPER": f"127.0.0.1:{port}"}


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: stub
clusters: [{name: stub, cluster: {server: "URL"}}]
users: [{name: candidate, user: {}}]
contexts: [{name: stub, context: {cluster: stub, user: candidate}}]
"""


def kubernetes(service: Service) -> None:
    """A stub of the Lease API."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    service.start(sys.executable, str(HERE / "lease_api.py"), str(port))
    service.wait_ready(lambda: status(f"{url}/apis/coordination.k8s.io/v1/namespaces/default/leases/none") == 404)
    file = service.folder / "kubeconfig"
    file.write_text(KUBECONFIG.replace("URL", url))
    # tests/guides/check installs the package there.
    (packages,) = Path(sys.prefix, "kubernetes").glob("lib/python3*/site-packages")
    service.environment = {"KUBECONFIG": str(file), "KUBERNETES": url, "PYTHONPATH": str(packages)}


def dynamodb(service: Service) -> None:
    """The endpoint of moto, with the table of the lock client."""
    import boto3
    from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    credentials = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    service.environment = credentials | {"AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}
    service.start(
        *(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)),
        environment=credentials,
    )
    service.wait_ready(lambda: bool(get(f"{url}/moto-api/data.json")))
    database = boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    DynamoDBLockClient.create_dynamodb_table(database)
