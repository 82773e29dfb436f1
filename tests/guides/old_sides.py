"""The statements about the other services, against these services."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

from services import get, go_packages, status
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

    stage.start("old-observe.sh", "observer")
    stage.start("old-elect.sh", "F")
    wait_for(lambda: "host-F" in stage.output("F"), 20, "F leads")
    stage.start("old-elect.sh", "G")
    wait_for(lambda: len(etcdctl("get", "--prefix", "billing/", "--keys-only").split()) == 2, 20, "G waits")
    require("host-G" not in stage.output("G"), "two leaders")
    wait_for(lambda: "host-F" in stage.output("observer"), 20, "the observer sees F")
    stage.kill("F", signal.SIGTERM)
    wait_for(lambda: "host-G" in stage.output("G"), 20, "G leads")
    wait_for(lambda: "host-G" in stage.output("observer"), 20, "the observer sees G")
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
    """Redlock of pottery, without renewals."""
    stage.start("old.py", "A")
    stage.wait_start("A")
    stage.start("old.py", "B")
    stage.wait_start("B", "overlap")
    # Its lock ends soon, too.
    (stage.folder / "finish-B").touch()
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


def node_redlock(stage: Stage) -> str:
    """Redlock with renewals, and without a token. A program tries for 2 s."""
    stage.start("old.mjs", "A")
    first = stage.wait_start("A")
    # Longer than the ttl: the lock is renewed.
    wait_for(lambda: time.monotonic() > first.at + 7, 9, "the ttl passes")
    code, output = stage.run("old.mjs", "B")
    require(code != 0 and "unable to achieve a quorum" in output, f"B ends with {code}: {output}")
    require(stage.finish("A") == 0, stage.output("A"))
    stage.start("old.mjs", "C")
    stage.wait_start("C")
    killed = stage.kill("C")
    wait_for(lambda: time.monotonic() > killed + 4, 5, "most of the ttl passes")
    stage.start("old.mjs", "D")
    took = stage.wait_start("D").at - killed
    # A paused holder still works when the next one starts. Then it ends with an error.
    paused = stage.kill("D", signal.SIGSTOP)
    wait_for(lambda: time.monotonic() > paused + 5.5, 7, "the ttl passes")
    stage.start("old.mjs", "E")
    stage.wait_start("E", "overlap")
    stage.kill("D", signal.SIGCONT)
    require(stage.finish("D") != 0, f"D does not notice that its lock has ended: {stage.output('D')}")
    require(stage.finish("E") == 0, stage.output("E"))
    return f"takeover after {took:.1f} s, and beside a paused holder"


@contextlib.contextmanager
def zookeeper_queues(stage: Stage) -> Iterator[Callable[[str], Callable[[], bool]]]:
    """Tells of a path in ZooKeeper whether two clients are in its queue."""
    from kazoo.client import KazooClient

    client = KazooClient(stage.environment["ZOOKEEPER"])
    client.start()
    try:
        yield lambda path: lambda: bool(client.exists(path)) and len(client.get_children(path)) == 2
    finally:
        client.stop()
        client.close()


def zookeeper(stage: Stage) -> str:
    """Locks and elections of kazoo."""
    with zookeeper_queues(stage) as queued:
        takes_turns(stage, "old.py", queued("/reports/nightly"))
        took = takes_over(stage, "old.py", queued("/reports/nightly"), 5 + MARGIN, "alone")
        stage.start("old-elect.py", "D")
        stage.wait_start("D")
        stage.start("old-elect.py", "E")
        wait_for(queued("/shop/billing"), 20, "E waits")
        require(stage.finish("D") == 0, stage.output("D"))
        stage.wait_start("E")
        require(stage.finish("E") == 0, stage.output("E"))
    return f"takeover after {took:.1f} s"


def curator(stage: Stage) -> str:
    """InterProcessMutex and LeaderLatch."""
    stage.compile_java()
    with zookeeper_queues(stage) as queued:
        takes_turns(stage, "OldMutex.java", queued("/reports/nightly"))
        took = takes_over(stage, "OldMutex.java", queued("/reports/nightly"), 5 + MARGIN, "alone")
        # A paused holder still works when the next one starts.
        stage.start("OldMutex.java", "D")
        stage.wait_start("D")
        stage.start("OldMutex.java", "E")
        wait_for(queued("/reports/nightly"), 20, "E waits")
        stage.kill("D", signal.SIGSTOP)
        stage.wait_start("E", "overlap")
        stage.kill("D", signal.SIGCONT)
        stage.finish("D")
        require(any((event.name, event.kind) == ("D", "end") for event in stage.events()), "D does not go on")
        stage.finish("E")
        stage.start("OldLatch.java", "F")
        stage.wait_start("F")
        stage.start("OldLatch.java", "G")
        wait_for(queued("/shop/billing"), 20, "G waits")
        require(stage.finish("F") == 0, stage.output("F"))
        stage.wait_start("G")
        require(stage.finish("G") == 0, stage.output("G"))
    return f"takeover after {took:.1f} s, and beside a paused holder"


def lease_url(stage: Stage) -> str:
    """The leases of the stub, which refuses a second creation, and a second change of one version."""
    url = f"{stage.environment['KUBERNETES']}/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {"metadata": {"name": "probe"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 5}}
    created = [status(url, "POST", json.dumps(lease).encode()) for _ in range(2)]
    probe = get(f"{url}/probe")
    changed = [status(f"{url}/probe", "PUT", probe) for _ in range(2)]
    require((created, changed) == ([201, 409], [200, 409]), f"the stub answers {created} and {changed}")
    return url


def elections(stage: Stage, file: str, waiting: str, after_kill: str) -> tuple[bool, float, float]:
    """An end, a kill and a pause of the leader. Returns if the first one released the lease, and two takeover times."""
    url = lease_url(stage)

    def is_held_by(pod: str) -> bool:
        return str(json.loads(get(f"{url}/billing"))["spec"].get("holderIdentity", "")).startswith(pod)

    def wait_candidate(name: str) -> None:
        wait_for(lambda: waiting in stage.output(name), 20, f"{name} waits")

    stage.start(file, "A")
    stage.wait_start("A")
    stage.start(file, "B")
    wait_candidate("B")
    require(is_held_by("pod-A"), "the lease does not name its holder")
    require(stage.finish("A") == 0, stage.output("A"))
    ended = time.monotonic()
    is_released = not is_held_by("pod-A")
    idle = stage.wait_start("B").at - ended
    stage.start(file, "C")
    wait_candidate("C")
    killed = stage.kill("B")
    took = stage.wait_start("C", after_kill, 5 + MARGIN).at - killed
    (stage.folder / "finish-B").touch()
    require(stage.finish("C") == 0, stage.output("C"))
    # A paused leader still works when the next one starts. Then it exits.
    stage.start(file, "D")
    stage.wait_start("D")
    stage.start(file, "E")
    wait_candidate("E")
    stage.kill("D", signal.SIGSTOP)
    stage.wait_start("E", "overlap")
    stage.kill("D", signal.SIGCONT)
    wait_for(lambda: stage.programs["D"].poll() is not None, 20, "D exits")
    require(stage.programs["D"].returncode == 1, stage.output("D"))
    (stage.folder / "finish-D").touch()
    require(stage.finish("E") == 0, stage.output("E"))
    return is_released, idle, took


def client_go(stage: Stage) -> str:
    """The leader election of client-go."""
    stage.compile_go("old-elect.go", go_packages())
    is_released, idle, took = elections(stage, "old-elect.go", "attempting to acquire leader lease", "overlap")
    require(is_released, "A does not release the lease at its end")
    times = f"{idle:.1f} s after an end, {took:.1f} s after a kill beside the running command"
    return f"takeover {times}, and beside a paused leader"


def kubernetes(stage: Stage) -> str:
    """The leader election of the Python package `kubernetes`."""
    is_released, idle, took = elections(stage, "old-elect.py", "yet to finish lease_duration", "alone")
    require(not is_released and idle > 2, f"B leads {idle:.1f} s after the end of A, expected up to 5 s")
    return f"takeover {idle:.1f} s after an end, {took:.1f} s after a kill, and beside a paused leader"


def dynamodb(stage: Stage) -> str:
    """The takeover of a record that did not change for its lease duration."""
    stage.start("old.py", "A")
    stage.wait_start("A")
    stage.start("old.py", "B")
    require(stage.finish("A") == 0, stage.output("A"))
    stage.wait_start("B")
    stage.kill("B")
    stage.start("old.py", "C")
    # Its imports can take long.
    began = stage.wait_event("C", "load", 60).at
    took = stage.wait_start("C", seconds=5 + MARGIN).at - began
    require(took >= 5, f"takeover {took:.1f} s after the start of the waiter, expected a full lease duration")
    require(stage.finish("C") == 0, stage.output("C"))
    return f"takeover {took:.1f} s after the start of the waiter"
