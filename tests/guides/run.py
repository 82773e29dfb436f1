"""Runs both sides of each page in docs/coming-from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parent.parent / "clients" / "python"
sys.path.insert(0, str(CLIENT / "tests"))

import old_sides  # noqa: E402
import services  # noqa: E402
from nodes import Cluster, binary  # noqa: E402
from stage import NODE_MODULES, PAGES, CheckFailed, Stage, require, wait_for  # noqa: E402

TTL = 5
# The next log entry with the time, and slow machines.
MARGIN = 5
# The clocks of the nodes, and the rounding of a time left.
DRIFT = 0.1


@dataclass(frozen=True)
class OldSide:
    """The old code of a page in one language."""

    title: str
    check: Callable[[Stage], str]
    # The reason why it cannot run here.
    lacks: Callable[[], str]
    # Whether Debian 12 has its programs. If TENURE_REQUIRE_SERVERS is 1, the check then fails without them.
    is_packaged: bool = True


@dataclass(frozen=True)
class Peer:
    """One page."""

    # The files of the new side, and the names of their leases.
    programs: dict[str, str]
    service: Callable[[services.Service], None]
    old_sides: tuple[OldSide, ...]


def needs(package: str, *programs: str) -> Callable[[], str]:
    """The reason if one of the programs is missing."""
    return lambda: f"install {package}" if services.missing(*programs) else ""


def needs_zookeeper() -> str:
    """The reason if ZooKeeper is missing."""
    complete = services.ZOOKEEPER_JAR.exists() and not services.missing("java")
    return "" if complete else "install Debian's packages default-jre-headless and libzookeeper-java"


def needs_curator() -> str:
    """The reason if ZooKeeper, Curator or a compiler is missing."""
    complete = services.CURATOR_JAR.exists() and not services.missing("javac") and not needs_zookeeper()
    packages = "default-jdk-headless, libzookeeper-java and libcurator-recipes-java"
    return "" if complete else f"install Debian's packages {packages}"


def needs_client_go() -> str:
    """The reason if client-go or Go is missing."""
    complete = (services.go_packages() / "src/k8s.io/client-go").is_dir() and not services.missing("go")
    return "" if complete else "install Debian's packages golang-go and golang-k8s-client-go-dev, from Debian 13 on"


def needs_node() -> str:
    """The reason if Node.js or its packages are missing."""
    return "" if NODE_MODULES.is_dir() and not services.missing("node") else "install Node.js 20 or later with npm"


def needs_node_redlock() -> str:
    """The reason if Redis or Node.js is missing."""
    return needs("Debian's package redis-server", "redis-server")() or needs_node()


PEERS = {
    "etcd": Peer(
        {"new.sh": "nightly", "new-elect.sh": "billing"},
        services.etcd,
        (OldSide("old", old_sides.etcd, needs("Debian's packages etcd-server and etcd-client", "etcd", "etcdctl")),),
    ),
    "consul": Peer(
        {"new.sh": "service/nightly"},
        services.consul,
        (OldSide("old", old_sides.consul, needs("the package consul (Debian 11, or HashiCorp's)", "consul"), is_packaged=False),),
    ),
    "redis": Peer(
        {"new.py": "report:nightly", "new.mjs": "report:weekly", "new.sh": "report:daily"},
        services.redis,
        (
            OldSide("old (pottery)", old_sides.redis, needs("Debian's package redis-server", "redis-server")),
            OldSide("old (node-redlock)", old_sides.node_redlock, needs_node_redlock),
        ),
    ),
    "zookeeper": Peer(
        {"new.py": "reports/nightly", "new.sh": "reports/daily", "new-elect.py": "shop/billing"},
        services.zookeeper,
        (
            OldSide("old (kazoo)", old_sides.zookeeper, needs_zookeeper),
            OldSide("old (Curator)", old_sides.curator, needs_curator),
        ),
    ),
    "kubernetes": Peer(
        {"new-elect.sh": "default/billing", "new-elect.py": "default/invoices"},
        services.kubernetes,
        (
            OldSide("old (client-go)", old_sides.client_go, needs_client_go, is_packaged=False),
            OldSide("old (Python)", old_sides.kubernetes, lambda: ""),
        ),
    ),
    "dynamodb": Peer({"new.py": "export"}, services.dynamodb, (OldSide("old", old_sides.dynamodb, lambda: ""),)),
}


def check_new(stage: Stage, cluster: Cluster, file: str, lease: str) -> str:
    """Two programs exclude each other, a killed one is replaced within the ttl, and each start has a higher token."""
    path = f"/v1/leases/{lease.replace('/', '%2F')}"

    def fetch(path: str) -> Any:
        """Reads JSON. During an election, a node answers that it cannot know."""
        until = time.monotonic() + 20
        while True:
            try:
                return json.loads(cluster.fetch(path))
            except urllib.error.HTTPError as error:
                if error.code not in (503, 504) or time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def waits() -> bool:
        return len(fetch(f"{path}/queue")["waiters"]) == 1

    def holder_token() -> str:
        return str(fetch(path)["token"])

    is_observed = file == "new-elect.sh" and "new-observe.sh" in stage.files
    if is_observed:
        stage.start("new-observe.sh", "observer")

    def wait_observed(token: str) -> None:
        """An observer can miss a leader that leads only between two of its reads."""
        if is_observed:
            wait_for(lambda: token in stage.output("observer"), 20, f"the observer sees the token {token}")

    stage.start(file, "A")
    first = stage.wait_start("A")
    require(first.token == holder_token(), f"A has the token {first.token}, the lease {holder_token()}")
    stage.start(file, "B")
    wait_for(waits, 20, "B waits in the queue")
    # Longer than the ttl: the lease is renewed.
    wait_for(lambda: time.monotonic() > first.at + TTL + 1, TTL + 2, "the ttl passes")
    require(waits(), "B did not wait for the end of A")
    wait_observed(first.token)
    require(stage.finish("A") == 0, f"A fails: {stage.output('A')}")
    second = stage.wait_start("B")
    require(second.token == holder_token(), f"B has the token {second.token}, the lease {holder_token()}")
    stage.start(file, "C")
    wait_for(waits, 20, "C waits in the queue")
    wait_observed(second.token)
    # The lease does not expire before this time. A later renewal only adds to it.
    read_at = time.monotonic()
    expiry = read_at + fetch(path)["expires_in_ms"] / 1000
    killed = stage.kill("B")
    third = stage.wait_start("C", "alone", TTL + MARGIN)
    require(third.token == holder_token(), f"C has the token {third.token}, the lease {holder_token()}")
    require(third.at > expiry - DRIFT, f"C starts {expiry - third.at:.1f} s before the expiry of B's lease")
    wait_observed(third.token)
    require(stage.finish("C") == 0, f"C fails: {stage.output('C')}")
    require(int(first.token) < int(second.token) < int(third.token), "the tokens do not rise")
    return f"takeover after {third.at - killed:.1f} s"


def check_peer(name: str, folder: Path, cluster: Cluster, bin_folder: Path) -> tuple[list[str], bool]:
    """Checks both sides of a page. Returns the lines of the report, and whether both are right."""
    peer, lines, right = PEERS[name], [], True
    is_strict = os.environ.get("TENURE_REQUIRE_SERVERS") == "1"

    def side(title: str, call: Callable[[], str]) -> None:
        nonlocal right
        began = time.monotonic()
        try:
            lines.append(f"{name} {title}: {call()} ({time.monotonic() - began:.0f} s)")
        except (CheckFailed, OSError, ValueError, subprocess.SubprocessError) as error:
            lines.append(f"{name} {title}: FAILED: {error}")
            right = False

    def new(file: str, lease: str) -> str:
        environment = {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "TENURE_ENDPOINTS": ",".join(cluster.urls),
            "TENURE": cluster.urls[0],
        }
        stage = Stage(folder / f"{name}-{file}", name, environment)
        try:
            outcome = check_new(stage, cluster, file, lease)
            if "new-http.sh" in stage.files:
                check_http(stage)
            return outcome
        finally:
            stage.stop()

    def old(number: int, check: Callable[[Stage], str]) -> str:
        service = services.Service(folder / f"{name}-service{number}")
        try:
            peer.service(service)
            stage = Stage(folder / f"{name}-old{number}", name, service.environment)
            try:
                return check(stage)
            finally:
                stage.stop()
        finally:
            service.stop()

    for file, lease in peer.programs.items():
        if file.endswith(".mjs") and (lack := needs_node()):
            lines.append(f"{name} {file}: NOT CHECKED: {lack}")
            right &= not is_strict
            continue
        side(file, lambda file=file, lease=lease: new(file, lease))
    for number, old_side in enumerate(peer.old_sides):
        if lack := old_side.lacks():
            lines.append(f"{name} {old_side.title}: NOT CHECKED: {lack}")
            right &= not (is_strict and old_side.is_packaged)
        else:
            side(old_side.title, lambda number=number, old_side=old_side: old(number, old_side.check))
    return lines, right


def check_http(stage: Stage) -> None:
    """The second holder is refused."""
    code, output = stage.run("new-http.sh", "D")
    require(code == 0 and int(json.loads(output)["token"]) > 0, f"D: exit code {code}: {output}")
    code, output = stage.run("new-http.sh", "E")
    require(code == 22, f"E: exit code {code}: {output}: expected 22, curl's code for a refusal")


def main(names: list[str]) -> int:
    """Checks these pages, or all."""
    pages = {page.stem for page in PAGES.glob("*.md")}
    if pages != set(PEERS):
        print(f"tests/guides: pages without a check, or without a page: {sorted(pages ^ set(PEERS))}")
        return 1
    if unknown := set(names) - set(PEERS):
        print(f"tests/guides: unknown page {sorted(unknown)}: expected {sorted(PEERS)}")
        return 2
    began = time.monotonic()
    # The end of each block stops its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="tenure-guides-") as temporary:
        folder = Path(temporary)
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        (bin_folder / "tenure").symlink_to(binary())
        all_right = True

        nodes = folder / "nodes"
        nodes.mkdir()
        cluster = Cluster(nodes, nodes=3)
        try:
            for node in (1, 2, 3):
                cluster.wait_ready(node)
            # Most of the time passes in takeovers, so the pages run side by side. Each uses other names.
            with ThreadPoolExecutor() as pool:
                reports = pool.map(lambda name: check_peer(name, folder, cluster, bin_folder), names or list(PEERS))
                for lines, right in reports:
                    print("\n".join(lines), flush=True)
                    all_right &= right
        finally:
            cluster.stop()
    print(f"tests/guides: {'passed' if all_right else 'FAILED'} ({time.monotonic() - began:.0f} s)")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
