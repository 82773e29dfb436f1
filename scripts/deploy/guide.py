"""Runs the commands of docs/deploy.md on machines in network namespaces. scripts/check-deploy starts it.

  guide.py BINARY FOLDER

The first line of a block of commands names its machines. BEFORE and AFTER have checks for some blocks.
"""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import containers
from lan import SOON, Ended, Machine, fail, system, until

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = ROOT / "docs" / "deploy.md"
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACES = "the workstation|each host|host 4|Docker|kubectl"
FIRST_LINE = re.compile(rf"# (?:on|with) ({PLACES})(, one after the other)?(, in a clone)?")
NIGHTLY = "TENURE_ACCESS_TOKEN_FILE=nightly.token"
CERTIFICATE_ONLY = "env -u TENURE_ACCESS_TOKEN_FILE"


class Guide:
    """The workstation, the hosts, and the state of the checks."""

    def __init__(self, folder, binary):
        self.folder, self.binary = folder, binary
        self.workstation = self.machine("workstation", "10.0.0.9")
        self.hosts = {str(id): self.machine(f"host-{id}", f"10.0.0.{id}") for id in range(1, 5)}
        for id, host in self.hosts.items():
            host.variables["N"] = id
            seen_by_scp = self.workstation.path(f"/lan/{host.address}")
            seen_by_scp.mkdir(parents=True)
            system("mount", "--bind", str(host.root), str(seen_by_scp))
        # The tokens of a held lease, and of one that `tenure run` renews.
        self.token = self.renewed = self.runner = None
        self.done = set()

    def machine(self, name, address):
        machine = Machine(self.folder, name, address)
        machine.path("/built").mkdir()
        shutil.copy(self.binary, machine.path("/built/tenure"))
        machine.path("/root/.cargo/bin").mkdir(parents=True, exist_ok=True)
        shutil.copytree(ROOT / "deploy", machine.path("/clone/deploy"))
        return machine

    def run(self):
        for language, text in BLOCK.findall(GUIDE.read_text()):
            if language == "yaml":
                self.check_prometheus(text)
                continue
            first, _, script = text.partition("\n")
            where = FIRST_LINE.fullmatch(first) or fail(f"the first line of a block names no machine: {first}")
            place, in_turn, in_a_clone = where.groups()
            if in_a_clone:
                self.workstation.path("/run/state").unlink(missing_ok=True)
                self.workstation.run("cd /clone")
            self.check(BEFORE, script)
            self.run_block(place, in_turn, script)
            self.check(AFTER, script)
        missing = {check.__name__ for table in (BEFORE, AFTER) for check in table.values()} - self.done
        if missing:
            fail(f"{GUIDE.name} has no block for {sorted(missing)}")

    def run_block(self, place, in_turn, script):
        if place == "the workstation":
            self.workstation.run(script)
        elif place == "host 4":
            self.hosts["4"].run(script)
        elif place == "each host":
            ids = ["1", "2", "3"]
            with ThreadPoolExecutor(1 if in_turn else len(ids)) as pool:
                list(pool.map(lambda id: self.hosts[id].run(script), ids))
        else:
            block = containers.Block(self.folder, self.binary, self.workstation, script)
            (containers.compose if place == "Docker" else containers.kubernetes)(block)

    def check(self, table, script):
        for text, check in table.items():
            if text in script and check.__name__ not in self.done:
                check(self)
                self.done.add(check.__name__)
                print(f"ok: {check.__name__.replace('_', ' ')}", flush=True)

    def ask(self, command):
        return json.loads(self.workstation.run(f"{command} -o json 2>/dev/null"))

    def wait_for_voters(self, ids):
        """Waits until these nodes are the members, all of them voters and reachable."""
        def members():
            return [(each["id"], each["role"], each["state"]) for each in self.ask("tenure member list")]

        def are_voters(found):
            return [id for id, role, state in found if role in ("leader", "follower") and state == "ok"] == ids == [
                id for id, _, _ in found]
        until(f"the voters {ids}", members, are_voters)

    def check_lease(self, name, token):
        lease = self.ask(f"tenure lease get {name}")
        if (lease["state"], str(lease["token"])) != ("active", token):
            fail(f"the lease with token {token} is now {lease}")

    # The checks.

    def three_hosts_form_a_cluster_with_tls(self):
        self.wait_for_voters([1, 2, 3])
        without = "env -u TENURE_CERT -u TENURE_KEY tenure lease list --timeout 10s"
        self.workstation.refused(without, 4, "CertificateRequired")
        plain = "env -u TENURE_CA -u TENURE_CERT -u TENURE_KEY tenure lease list --endpoints http://10.0.0.1:7101"
        self.workstation.refused(plain, 2, "this node requires TLS")

    def clients_need_a_credential(self):
        run, refused = self.workstation.run, self.workstation.refused
        refused(f"{CERTIFICATE_ONLY} tenure lease list", 1, "unauthenticated")
        self.token = run(f"{NIGHTLY} tenure lease acquire jobs/held --holder a --ttl 10m 2>/dev/null").strip()
        refused(f"{NIGHTLY} tenure lease acquire other/held --holder a", 1, "forbidden")
        certificate = "--cert tls/nightly.pem --key tls/nightly.key"
        run(f"{CERTIFICATE_ONLY} tenure lease renew jobs/held --holder a --token {self.token} {certificate}")
        self.check_lease("jobs/held", self.token)

    def scheduled_backup_is_written(self):
        def files():
            folders = [(self.hosts[id], self.hosts[id].path("/var/lib/tenure/backup")) for id in ("1", "2", "3")]
            return [(host, file.name) for host, folder in folders for file in folder.glob("prod-*")
                    if file.suffix != ".partial"]
        host, name = until("a scheduled backup", files)[0]
        inspected = host.run(f"tenure snapshot inspect /var/lib/tenure/backup/{name} -o json 2>/dev/null")
        if json.loads(inspected)["cluster_id"] != "prod":
            fail(f"the backup is of another cluster: {inspected}")

    def doctor_finds_no_problem(self):
        found = {(each["name"], each["status"]) for each in self.ask("tenure doctor")}
        if ("quorum", "ok") not in found or any(status == "problem" for _, status in found):
            fail(f"doctor: {sorted(found)}")

    def lease_is_renewed_before_the_upgrade(self):
        script = ". /run/state && exec tenure run jobs/renewed --ttl 5s -- sleep 600"
        self.runner = subprocess.Popen(self.workstation.words("bash", "-c", script), stdin=subprocess.DEVNULL)
        [lease] = until("the lease of tenure run", lambda: self.ask("tenure lease list jobs/renewed"))
        self.renewed = str(lease["token"])

    def upgrade_keeps_the_leases(self):
        if self.runner.poll() is not None:
            fail(f"tenure run ended with {self.runner.returncode}")
        self.check_lease("jobs/renewed", self.renewed)
        self.check_lease("jobs/held", self.token)
        self.runner.terminate()
        self.runner.wait(SOON)

    def host_3_is_lost_and_the_lease_stays(self):
        self.hosts["3"].run("kill -KILL $(cat /run/tenure@3.pid)")
        self.workstation.run(f"{NIGHTLY} tenure lease renew jobs/held --holder a --token {self.token}")
        self.check_lease("jobs/held", self.token)

    def host_4_replaces_host_3(self):
        self.wait_for_voters([1, 2, 4])
        self.check_lease("jobs/held", self.token)
        serve = "runuser -u tenure -- timeout 20 tenure serve --config /etc/tenure/cluster.toml --node 3"
        self.hosts["3"].refused(serve, 8, "removed")
        for id in ("1", "2", "4"):
            self.hosts[id].run("systemctl stop tenure@$N")

    def check_prometheus(self, text):
        """Debian's package prometheus has promtool. The step deploy requires it."""
        if not shutil.which("promtool"):
            print("NOT CHECKED: the configuration of Prometheus, without promtool")
            return
        self.workstation.write("/root/prod/prometheus.yml", text)
        self.workstation.run("cp /clone/deploy/prometheus/tenure.rules.yml . && promtool check config prometheus.yml")
        print("ok: Prometheus accepts its configuration", flush=True)


# A part of a block, and the check before or after it.
BEFORE = {
    "mv /usr/local/bin/tenure.new": Guide.lease_is_renewed_before_the_upgrade,
    "sed -i -e": Guide.host_3_is_lost_and_the_lease_stays,
}
AFTER = {
    "until tenure cluster status": Guide.three_hosts_form_a_cluster_with_tls,
    "tenure auth status": Guide.clients_need_a_credential,
    "tenure snapshot inspect": Guide.scheduled_backup_is_written,
    "tenure doctor\n": Guide.doctor_finds_no_problem,
    "mv /usr/local/bin/tenure.new": Guide.upgrade_keeps_the_leases,
    "tenure member list": Guide.host_4_replaces_host_3,
}


def last_lines(folder):
    """The last lines of the logs of the nodes."""
    logs = sorted([*folder.glob("*/root/var/log/tenure@*.log"), *folder.glob("*/log")])
    return "\n".join(f"{log.relative_to(folder)}: {line}" for log in logs for line in log.read_text().splitlines()[-3:])


def main():
    binary, folder = (Path(word) for word in sys.argv[1:])
    system("mount", "-t", "tmpfs", "tmpfs", str(folder))
    system("ip", "link", "set", "lo", "up")
    system("ip", "link", "add", "lan", "type", "bridge")
    system("ip", "link", "set", "lan", "up")
    try:
        Guide(folder, binary).run()
    except Ended as ended:
        fail(f"{ended}\n{last_lines(folder)}")


if __name__ == "__main__":
    main()
