"""Runs the commands of docs/deploy.md on machines in network namespaces. scripts/check-deploy starts it.

  deploy_guide.py BINARY FOLDER

A block of commands names its machines in its first line. The checks below run before or after the block that has a given
text. The containers of Docker Compose and the pods of Kubernetes run the same way, without an engine.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from dockerfile_parse import DockerfileParser

from deploy_lan import POLL, SOON, Container, Ended, Machine, fail, system, until

ROOT = Path(__file__).resolve().parent.parent
GUIDE, DEPLOY = ROOT / "docs" / "deploy.md", ROOT / "deploy"
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST_LINE = re.compile(r"# (?:on|with) (the workstation|each host|host 4|Docker|kubectl)(, one after the other)?(, in a clone)?")
NIGHTLY = "TENURE_ACCESS_TOKEN_FILE=nightly.token"
CERTIFICATE_ONLY = "env -u TENURE_ACCESS_TOKEN_FILE"


class Guide:
    """The hosts, the workstation, and the state of the checks."""

    def __init__(self, folder, binary):
        self.folder, self.binary = folder, binary
        self.workstation = self.machine("workstation", "10.0.0.9")
        self.hosts = {str(id): self.machine(f"host-{id}", f"10.0.0.{id}") for id in range(1, 5)}
        for id, host in self.hosts.items():
            host.variables["N"] = id
            lan = self.workstation.path(f"/lan/{host.address}")
            lan.mkdir(parents=True)
            system("mount", "--bind", str(host.root), str(lan))
        self.token = self.holder = None
        self.done = set()

    def machine(self, name, address):
        machine = Machine(self.folder, name, address)
        machine.path("/built").mkdir()
        shutil.copy(self.binary, machine.path("/built/tenure"))
        machine.path("/root/.cargo/bin").mkdir(parents=True, exist_ok=True)
        shutil.copytree(DEPLOY, machine.path("/clone/deploy"))
        return machine

    def run(self):
        for language, text in BLOCK.findall(GUIDE.read_text()):
            if language == "yaml":
                self.check_prometheus(text)
                continue
            first, _, rest = text.partition("\n")
            where = FIRST_LINE.fullmatch(first) or fail(f"the first line of a block names no machine: {first}")
            place, in_turn, in_a_clone = where.groups()
            script = ("cd /clone\n" if in_a_clone else "") + rest
            if in_a_clone:
                self.workstation.path("/run/state").unlink(missing_ok=True)
            self.check(BEFORE, script)
            if place in ("Docker", "kubectl"):
                (self.compose if place == "Docker" else self.kubernetes)(script)
            elif place == "each host":
                ids = ["1", "2", "3"]
                with ThreadPoolExecutor(1 if in_turn else len(ids)) as pool:
                    outputs = list(pool.map(lambda id: self.hosts[id].run(script), ids))
            else:
                (self.workstation if place == "the workstation" else self.hosts["4"]).run(script)
            self.check(AFTER, script)
        missing = {check for table in (BEFORE, AFTER) for check in table.values()} - self.done
        if missing:
            fail(f"no block of docs/deploy.md has the text of {sorted(check.__name__ for check in missing)}")

    def check(self, table, script):
        for text, check in table.items():
            if text in script and check not in self.done:
                check(self)
                self.done.add(check)
                print(f"ok: {check.__name__.replace('_', ' ')}", flush=True)

    def ask(self, command):
        return json.loads(self.workstation.run(f"{command} -o json 2>/dev/null"))

    def voters(self, ids):
        """Waits until these nodes are the members, all of them voters and reachable."""
        members = lambda: [(each["id"], each["role"] in ("leader", "follower"), each["state"]) for each in self.ask("tenure member list")]
        until(f"the voters {ids}", members, lambda found: found == [(id, True, "ok") for id in ids])

    def lease_stays(self):
        lease = self.ask("tenure lease get jobs/held")
        if (lease["state"], str(lease["token"])) != ("active", self.token):
            fail(f"the lease with token {self.token} is now {lease}")

    # The checks.

    def three_hosts_form_a_cluster_with_tls(self):
        self.voters([1, 2, 3])
        without = "env -u TENURE_CERT -u TENURE_KEY tenure lease list --timeout 2s"
        self.workstation.refused(without, 4, "CertificateRequired")
        plain = "env -u TENURE_CA -u TENURE_CERT -u TENURE_KEY tenure lease list --endpoints http://10.0.0.1:7101 --timeout 2s"
        self.workstation.refused(plain, 2, "this node requires TLS")

    def clients_need_a_credential(self):
        run, refused = self.workstation.run, self.workstation.refused
        refused(f"{CERTIFICATE_ONLY} tenure lease list", 1, "unauthenticated")
        self.token = run(f"{NIGHTLY} tenure lease acquire jobs/held --holder a --ttl 10m 2>/dev/null").strip()
        refused(f"{NIGHTLY} tenure lease acquire other/held --holder a", 1, "forbidden")
        own = "--cert tls/nightly.pem --key tls/nightly.key"
        run(f"{CERTIFICATE_ONLY} tenure lease renew jobs/held --holder a --token {self.token} {own}")
        self.lease_stays()

    def backup_is_written(self):
        hosts = [host for host in self.hosts.values() if host.name != "host-4"]
        files = lambda: [(host, file) for host in hosts for file in host.path("/var/lib/tenure/backup").glob("prod-*")]
        host, file = until("a scheduled backup", files)[0]
        inspected = host.run(f"tenure snapshot inspect /var/lib/tenure/backup/{file.name} -o json 2>/dev/null")
        if json.loads(inspected)["cluster_id"] != "prod":
            fail(f"the backup is of another cluster: {inspected}")

    def doctor_finds_no_problem(self):
        findings = self.ask("tenure doctor")
        found = {(each["name"], each["status"]) for each in findings}
        if ("quorum", "ok") not in found or any(status == "problem" for _, status in found):
            fail(f"doctor: {findings}")

    def lease_is_renewed_during_the_upgrade(self):
        words = self.workstation.words("bash", "-c", ". /run/state && exec tenure run jobs/rolling --ttl 5s -- sleep 600")
        self.holder = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        self.rolling = until("a lease of tenure run", lambda: self.ask("tenure lease list jobs/rolling"))[0]["token"]

    def upgrade_keeps_the_leases(self):
        if self.holder.poll() is not None:
            fail(f"tenure run ended with {self.holder.returncode}")
        lease = self.ask("tenure lease get jobs/rolling")
        if (lease["state"], lease["token"]) != ("active", self.rolling):
            fail(f"the lease with token {self.rolling} is now {lease}")
        self.lease_stays()
        self.holder.terminate()
        self.holder.wait(SOON)

    def host_3_is_lost_and_the_lease_stays(self):
        self.hosts["3"].run("kill -KILL $(cat /run/tenure@3.pid)")
        self.workstation.run(f"{NIGHTLY} tenure lease renew jobs/held --holder a --token {self.token}")
        self.lease_stays()

    def host_4_replaces_host_3(self):
        self.voters([1, 2, 4])
        self.lease_stays()
        serve = "runuser -u tenure -- timeout 20 tenure serve --config /etc/tenure/cluster.toml --node 3"
        self.hosts["3"].refused(serve, 8, "removed")
        for id in ("1", "2", "4"):
            self.hosts[id].run("systemctl stop tenure@$N")

    def check_prometheus(self, text):
        """Debian's package prometheus has promtool; the step deploy requires it."""
        if not shutil.which("promtool"):
            print("NOT CHECKED: the configuration of Prometheus, without promtool")
            return
        self.workstation.write("/root/prod/prometheus.yml", text)
        self.workstation.run("cp /clone/deploy/prometheus/tenure.rules.yml . && promtool check config prometheus.yml")

    # Containers.

    def compose(self, script):
        """The services of compose.yaml, each with its files, and its port at the workstation."""
        services = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]
        image = {each["instruction"]: each["value"] for each in DockerfileParser(str(DEPLOY / "docker" / "Dockerfile")).structure}
        variables = dict([image["ENV"].split("=")])
        command = json.loads(image["ENTRYPOINT"]) + json.loads(image["CMD"])
        user = int(image["USER"].partition(":")[0])
        hosts = {name: f"10.0.1.{number}" for number, name in enumerate(services, 1)}
        containers = []

        def up():
            for name, service in services.items():
                own = variables | service["environment"]
                container = self.container(name, hosts[name], user, own, command, hosts)
                for source, path, _ in (volume.split(":") for volume in service["volumes"] if volume.endswith(":ro")):
                    container.path(path).parent.mkdir(parents=True, exist_ok=True)
                    system("cp", "--preserve=all", str(self.workstation.path("/clone/deploy/docker") / source), str(container.path(path)))
                containers.append(container)
            alive = json.loads(image["HEALTHCHECK"].partition(" CMD ")[2])
            self.start(containers, alive, services["tenure-1"]["healthcheck"]["test"][1:])
            for service, container in zip(services.values(), containers):
                self.publish(service["ports"][0], container.address)

        self.run_lines(script, "docker compose up", up)
        grace = int(services["tenure-1"]["stop_grace_period"].rstrip("s"))
        self.end(containers, image["STOPSIGNAL"], grace)

    def publish(self, port, address):
        """A published port: HOST:PORT:PORT OF THE CONTAINER."""
        host, port, inner = port.split(":")
        forward = f"""
import asyncio
async def copy(source, target):
    while data := await source.read(65536): target.write(data)
    target.close()
async def accept(reader, writer):
    inner_reader, inner_writer = await asyncio.open_connection("{address}", {inner})
    await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer), return_exceptions=True)
async def main():
    async with await asyncio.start_server(accept, "{host}", {port}) as server: await server.serve_forever()
asyncio.run(main())"""
        subprocess.Popen([*self.workstation.enter(), sys.executable, "-c", forward], stderr=subprocess.DEVNULL)

    def kubernetes(self, script):
        """The pods of the StatefulSet, with the files of kustomization.yaml. The workstation is a client in the cluster."""
        folder = DEPLOY / "kubernetes"
        objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all((folder / "tenure.yaml").read_text())}
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        stateful_set = objects["StatefulSet", "tenure"]["spec"]
        pod = stateful_set["template"]["spec"]
        container, identity = pod["containers"][0], pod["securityContext"]
        first, count = stateful_set["ordinals"]["start"], stateful_set["replicas"]
        domain = f"{stateful_set['serviceName']}.{kustomization['namespace']}.svc"
        hosts = {f"tenure-{ordinal}.{domain}": f"10.0.2.{ordinal}" for ordinal in range(first, first + count)}
        image = DockerfileParser(str(DEPLOY / "docker" / "Dockerfile")).structure
        entrypoint = next(json.loads(each["value"]) for each in image if each["instruction"] == "ENTRYPOINT")
        pods = []

        def keys(generator):
            files = (self.workstation.path("/clone/deploy/kubernetes") / file for file in kustomization[generator][0]["files"])
            return {file.name: file.read_bytes() for file in files}

        def apply():
            files = {("configMap", "tenure"): keys("configMapGenerator"), ("secret", "tenure-tls"): keys("secretGenerator")}
            volume = next(each for each in pod["volumes"] if each["name"] == "config")["projected"]
            mount = next(each for each in container["volumeMounts"] if each["name"] == "config")["mountPath"]
            for ordinal, (name, address) in enumerate(hosts.items(), first):
                field = {"metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal)}
                own = {each["name"]: each.get("value") or field[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]}
                new = self.container(name, address, identity["runAsUser"], own, entrypoint + container["args"], hosts)
                for source in volume["sources"]:
                    [(kind, value)] = source.items()
                    content = files[kind, value["name"]]
                    for item in value.get("items", [{"key": key, "path": key} for key in content]):
                        file = new.write(f"{mount}/{item['path']}", content[item["key"]].decode())
                        file.chmod(volume["defaultMode"])
                        shutil.chown(file, group=identity["fsGroup"])
                pods.append(new)
            self.start(pods, *(container[f"{kind}Probe"]["exec"]["command"] for kind in ("liveness", "readiness")))

        self.run_lines(script, "kubectl apply", apply)
        # The Service for clients leads to any pod.
        self.workstation.write("/etc/hosts", f"{pods[-1].address} tenure.{kustomization['namespace']}.svc\n")
        client = "--ca tls/ca.pem --cert tls/client.pem --key tls/client.key --endpoints https://tenure.tenure.svc:7101"
        status = json.loads(self.workstation.run(f"tenure cluster status {client} -o json 2>/dev/null"))
        if not status["quorum"]:
            fail(f"the pods form no cluster: {status}")
        self.end(pods, "SIGTERM", pod["terminationGracePeriodSeconds"])

    def container(self, *arguments):
        container = Container(self.folder, *arguments)
        shutil.copy(self.binary, container.path("/usr/local/bin/tenure"))
        return container

    def run_lines(self, script, start, function):
        """Runs the lines of a block. `function` stands for the line that begins with `start`, and other lines for an engine do nothing."""
        lines = script.splitlines()
        if sum(line.startswith(start) for line in lines) != 1:
            fail(f"expected one line of docs/deploy.md with {start!r}: {lines}")
        for line in lines:
            if line.startswith(start):
                function()
            elif not line.startswith(("docker ", "kubectl ")):
                self.workstation.run(line)

    def start(self, containers, alive, ready):
        """Starts containers. One alone is alive and not ready, and all are ready."""
        containers[0].start()
        containers[0].passes(alive)
        if (code := containers[0].probe(ready)[0]) != 4:
            fail(f"expected exit code 4 from the readiness probe of one node of three, found {code}")
        for container in containers[1:]:
            container.start()
        for container in containers:
            container.passes(ready)
        print(f"ok: the probes of {containers[0].name} and the others pass", flush=True)

    def end(self, containers, by, grace):
        """Stops containers as an engine does."""
        with ThreadPoolExecutor(len(containers)) as pool:
            list(pool.map(lambda container: container.stop(signal.Signals[by], grace), containers))


# A part of a block, and the check before or after it.
BEFORE = {
    "mv /usr/local/bin/tenure.new": Guide.lease_is_renewed_during_the_upgrade,
    "sed -i -e": Guide.host_3_is_lost_and_the_lease_stays,
}
AFTER = {
    "until tenure cluster status": Guide.three_hosts_form_a_cluster_with_tls,
    "tenure auth status": Guide.clients_need_a_credential,
    "tenure snapshot inspect": Guide.backup_is_written,
    "tenure doctor\n": Guide.doctor_finds_no_problem,
    "mv /usr/local/bin/tenure.new": Guide.upgrade_keeps_the_leases,
    "tenure member list": Guide.host_4_replaces_host_3,
}


def main():
    folder = Path(sys.argv[2])
    system("mount", "-t", "tmpfs", "tmpfs", str(folder))
    system("ip", "link", "set", "lo", "up")
    system("ip", "link", "add", "lan", "type", "bridge")
    system("ip", "link", "set", "lan", "up")
    try:
        Guide(folder, sys.argv[1]).run()
    except Ended as ended:
        fail(ended)


if __name__ == "__main__":
    main()
