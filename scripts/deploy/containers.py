"""The containers of compose.yaml and the pods of the StatefulSet, on machines of lan.py and without an engine."""

import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from dockerfile_parse import DockerfileParser

from lan import Container, fail, system, until

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
NOT_READY = 4  # the exit code of a probe
POD_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
FORWARD = """
import asyncio, sys
address, inner, host, port = sys.argv[1:]
async def copy(source, target):
    while data := await source.read(65536):
        target.write(data)
    target.close()
async def accept(reader, writer):
    inner_reader, inner_writer = await asyncio.open_connection(address, inner)
    await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer), return_exceptions=True)
async def main():
    async with await asyncio.start_server(accept, host, port) as server:
        await server.serve_forever()
asyncio.run(main())
"""
CONNECT = "import socket, sys; socket.create_connection(sys.argv[1:]).close()"


class Block:
    """A block of commands for an engine. A function stands for the line that starts the containers."""

    def __init__(self, folder, binary, workstation, script):
        self.folder, self.binary, self.workstation = folder, binary, workstation
        self.lines = script.splitlines()

    def run(self, start_line, start):
        if sum(line.startswith(start_line) for line in self.lines) != 1:
            fail(f"expected one line with {start_line!r}: {self.lines}")
        for line in self.lines:
            if line.startswith(start_line):
                start()
            elif not line.startswith(("docker ", "kubectl ")):
                self.workstation.run(line)

    def container(self, *arguments):
        container = Container(self.folder, *arguments)
        shutil.copy(self.binary, container.path("/usr/local/bin/tenure"))
        return container


def image():
    """The last value of each instruction of the Dockerfile."""
    parsed = DockerfileParser(str(DEPLOY / "docker" / "Dockerfile")).structure
    return {each["instruction"]: each["value"] for each in parsed}


def start(containers, alive, ready):
    """Starts containers. One alone is alive and not ready. Then all become ready."""
    containers[0].start()
    containers[0].passes(alive)
    if (code := containers[0].probe(ready)) != NOT_READY:
        fail(f"{' '.join(ready)}: expected exit code {NOT_READY} with one node of three, found {code}")
    for container in containers[1:]:
        container.start()
    for container in containers:
        container.passes(ready)


def stop(containers, by, within):
    with ThreadPoolExecutor(len(containers)) as pool:
        list(pool.map(lambda container: container.stop(signal.Signals[by], within), containers))


def compose(block):
    """Each service has its files, and its port on the workstation."""
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]
    built = image()
    user, command = int(built["USER"].partition(":")[0]), json.loads(built["ENTRYPOINT"]) + json.loads(built["CMD"])
    variables = dict([built["ENV"].split("=")])
    addresses = {name: f"10.0.1.{number}" for number, name in enumerate(services, 1)}
    containers = []

    def up():
        for name, service in services.items():
            own = variables | service["environment"]
            container = block.container(name, addresses[name], user, own, command, addresses)
            for source, path, *_ in (volume.split(":") for volume in service["volumes"] if volume.startswith("./")):
                container.path(path).parent.mkdir(parents=True, exist_ok=True)
                mounted = block.workstation.path(f"/clone/deploy/docker/{source}")
                system("cp", "--preserve=all", str(mounted), str(container.path(path)))
            containers.append(container)
        start(containers, json.loads(built["HEALTHCHECK"].partition(" CMD ")[2]), service["healthcheck"]["test"][1:])
        for service, container in zip(services.values(), containers):
            host, port, inner = service["ports"][0].split(":")
            forward = [sys.executable, "-c", FORWARD, container.address, inner, host, port]
            subprocess.Popen([*block.workstation.enter(), *forward], stderr=subprocess.DEVNULL)
            accepts = [*block.workstation.enter(), sys.executable, "-c", CONNECT, host, port]
            until(f"a forwarder at {host}:{port}", lambda: subprocess.run(accepts, stderr=subprocess.DEVNULL).returncode == 0)

    block.run("docker compose up", up)
    stop(containers, built["STOPSIGNAL"], int(services["tenure-1"]["stop_grace_period"].rstrip("s")))
    print("ok: containers of Docker Compose form a cluster", flush=True)


def kubernetes(block):
    """The pods have the files of kustomization.yaml. The workstation is a client in the cluster."""
    folder = DEPLOY / "kubernetes"
    documents = list(yaml.safe_load_all((folder / "tenure.yaml").read_text()))
    [stateful_set] = [each["spec"] for each in documents if each["kind"] == "StatefulSet"]
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    pod = stateful_set["template"]["spec"]
    [container], identity = pod["containers"], pod["securityContext"]
    [volume] = [each["projected"] for each in pod["volumes"]]
    [mounted] = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == pod["volumes"][0]["name"]]
    ordinals = range(stateful_set["ordinals"]["start"], stateful_set["ordinals"]["start"] + stateful_set["replicas"])
    domain = f"{stateful_set['serviceName']}.{kustomization['namespace']}.svc"
    addresses = {f"tenure-{ordinal}.{domain}": f"10.0.2.{ordinal}" for ordinal in ordinals}
    command = json.loads(image()["ENTRYPOINT"]) + container["args"]
    pods = []

    def generated(kind, name):
        """The content of a ConfigMap or a Secret: file names and texts."""
        [files] = [each["files"] for each in kustomization[f"{kind}Generator"] if each["name"] == name]
        paths = [block.workstation.path(f"/clone/deploy/kubernetes/{file}") for file in files]
        return {path.name: path.read_text() for path in paths}

    def value(variable, ordinal):
        fields = {POD_INDEX: str(ordinal)}
        return variable["value"] if "value" in variable else fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]

    def apply():
        for ordinal, (name, address) in zip(ordinals, addresses.items()):
            variables = {variable["name"]: value(variable, ordinal) for variable in container["env"]}
            new = block.container(name, address, identity["runAsUser"], variables, command, addresses)
            for source in volume["sources"]:
                [(kind, projection)] = source.items()
                content = generated(kind, projection["name"])
                missing = {item["key"] for item in projection.get("items", [])} - content.keys()
                if missing:
                    fail(f"kustomization.yaml: {projection['name']} lacks {sorted(missing)}")
                for item in projection.get("items", [{"key": key, "path": key} for key in content]):
                    file = new.write(f"{mounted}/{item['path']}", content[item["key"]])
                    file.chmod(volume["defaultMode"])
                    shutil.chown(file, group=identity["fsGroup"])
            pods.append(new)
        start(pods, *(container[f"{kind}Probe"]["exec"]["command"] for kind in ("liveness", "readiness")))

    block.run("kubectl apply", apply)
    # The Service for clients leads to any pod.
    service = f"tenure.{kustomization['namespace']}.svc"
    block.workstation.write("/etc/hosts", f"{pods[-1].address} {service}\n")
    client = f"--ca tls/ca.pem --cert tls/client.pem --key tls/client.key --endpoints https://{service}:7101"
    block.workstation.run(f"tenure cluster status {client}")
    stop(pods, "SIGTERM", pod["terminationGracePeriodSeconds"])
    print("ok: pods of the StatefulSet form a cluster", flush=True)
