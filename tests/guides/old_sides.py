"""The statements about the other services, against these services."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable

from services import get
from stage import Stage, require, wait_for

# Slow machines need longer than the ttl.
MARGIN = 10


def takes_turns(stage: Stage, file: str, waiting: Callable[[], bool]) -> None:
    """The second program waits for the first, and then works alone."""
    stage.start(file, "A")
    stage.wait_start("A")
    stage.start(file, "B")
    wait_for(waiting, 20, "B waits")
    require(stage.finish("A") == 0, f"A fails: {stage.output('A')}")
    stage.wait_start("B")


def takes_over(stage: Stage, file: str, waiting: Callable[[], bool], within: float, company: str) -> float:
    """C starts after a kill -9 of B, alone or beside the work of B. Returns the time that it took."""
    stage.start(file, "C")
    wait_for(waiting, 20, "C waits")
    killed = stage.kill("B")
    took = stage.wait_start("C", company, within).at - killed
    (stage.folder / "finish-B").touch()
    require(stage.finish("C") == 0, f"C fails: {stage.output('C')}")
    return took


def etcd(stage: Stage) -> str:
    """etcdctl lock and elect."""

    def etcdctl(*arguments: str) -> str:
        return subprocess.run(
            ["etcdctl", *arguments], env=stage.environment, capture_output=True, text=True, check=True, timeout=20
        ).stdout

    def keys() -> list[dict[str, int]]:
        found: list[dict[str, int]] = json.loads(etcdctl("get", "--prefix", "nightly/", "-w", "json")).get("kvs", [])
        return sorted(found, key=lambda key: key["create_revision"])

    takes_turns(stage, "old.sh", lambda: len(keys()) == 2)
    took = takes_over(stage, "old.sh", lambda: len(keys()) == 2, 5 + MARGIN, "overlap")

    stage.start("old.sh", "D")
    stage.wait_start("D")
    stage.start("old.sh", "E")
    wait_for(lambda: len(keys()) == 2, 20, "E waits")
    etcdctl("lease", "revoke", f"{keys()[0]['lease']:x}")
    stage.wait_start("E", "overlap")
    stage.finish("D")
    stage.finish("E")

    command = ["etcdctl", "lock", "codes", "--", "sh", "-c", "exit 7"]
    failed = subprocess.run(command, env=stage.environment, capture_output=True, text=True, timeout=20)
    require((failed.returncode, "exit status 7" in failed.stderr) == (1, True), f"etcdctl lock: {failed}")

    stage.start("old-elect.sh", "F")
    wait_for(lambda: "host-F" in stage.output("F"), 20, "F leads")
    stage.start("old-elect.sh", "G")
    wait_for(lambda: len(etcdctl("get", "--prefix", "billing/", "--keys-only").split()) == 2, 20, "G waits")
    require("host-G" not in stage.output("G"), "two leaders")
    stage.kill("F", signal.SIGTERM)
    wait_for(lambda: "host-G" in stage.output("G"), 20, "G leads")
    return f"takeover beside the running command after {took:.1f} s"


def consul(stage: Stage) -> str:
    """consul lock, and sessions over HTTP."""
    address = stage.environment["CONSUL_HTTP_ADDR"]

    def sessions(count: int) -> bool:
        return len(json.loads(get(f"{address}/v1/session/list"))) == count

    takes_turns(stage, "old.sh", lambda: sessions(2))
    wait_for(lambda: sessions(1), 20, "the session of A ends")
    took = takes_over(stage, "old.sh", lambda: sessions(2), 60 + MARGIN, "overlap")
    require(took > 15, f"takeover after {took:.1f} s, expected the ttl and the lock delay")
    for name, answer in (("D", "true"), ("E", "false")):
        code, output = stage.run("old-http.sh", name)
        require((code, output.strip()) == (0, answer), f"{name}: {output}, expected {answer}")
    return f"takeover beside the running command after {took:.1f} s"


def redis(stage: Stage) -> str:
    """Redlock without renewals."""
    stage.start("old.py", "A")
    stage.wait_start("A")
    stage.start("old.py", "B")
    stage.wait_start("B", "overlap")
    require(stage.finish("A") != 0, "A does not notice that its lock has ended")
    require("ReleaseUnlockedLock" in stage.output("A"), stage.output("A"))
    require(stage.finish("B") == 0, stage.output("B"))
    stage.start("old.py", "C")
    stage.wait_start("C")
    stage.start("old.py", "D")
    killed = stage.kill("C")
    took = stage.wait_start("D", seconds=5 + MARGIN).at - killed
    require(stage.finish("D") == 0, stage.output("D"))
    return f"second process beside the first, takeover after {took:.1f} s"


def zookeeper(stage: Stage) -> str:
    """Locks and elections of kazoo."""
    from kazoo.client import KazooClient

    client = KazooClient(stage.environment["ZOOKEEPER"])
    client.start()
    try:

        def queued(path: str) -> Callable[[], bool]:
            return lambda: bool(client.exists(path)) and len(client.get_children(path)) == 2

        takes_turns(stage, "old.py", queued("/reports/nightly"))
        took = takes_over(stage, "old.py", queued("/reports/nightly"), 5 + MARGIN, "alone")
        stage.start("old-elect.py", "D")
        stage.wait_start("D")
        stage.start("old-elect.py", "E")
        wait_for(queued("/shop/billing"), 20, "E waits")
        require(stage.finish("D") == 0, stage.output("D"))
        stage.wait_start("E")
        require(stage.finish("E") == 0, stage.output("E"))
    finally:
        client.stop()
        client.close()
    return f"takeover after {took:.1f} s"


def dynamodb(stage: Stage) -> str:
    """The takeover of a record that did not change for its lease duration."""
    stage.start("old.py", "A")
    stage.wait_start("A")
    stage.start("old.py", "B")
    require(stage.finish("A") == 0, stage.output("A"))
    stage.wait_start("B")
    stage.kill("B")
    began = time.monotonic()
    stage.start("old.py", "C")
    took = stage.wait_start("C", seconds=5 + MARGIN).at - began
    require(took >= 5, f"takeover {took:.1f} s after the start of the waiter, expected a full lease duration")
    require(stage.finish("C") == 0, stage.output("C"))
    return f"takeover {took:.1f} s after the start of the waiter"
