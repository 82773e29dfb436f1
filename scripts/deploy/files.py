"""Checks the files of deploy/docker, deploy/kubernetes and deploy/systemd. scripts/check-deploy starts it."""

import json
import re
import shlex
import sys
from pathlib import Path

import yaml
from compose_spec import PyCompose
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKER = ROOT / "deploy" / "docker"
STOPS_WITHIN = 10  # seconds, of a node
INSTRUCTIONS = set("ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL RUN SHELL STOPSIGNAL USER VOLUME WORKDIR".split())


def fail(message):
    sys.exit(f"scripts/check-deploy: {message}")


def check_dockerfile():
    stages = set()
    for each in DockerfileParser(str(DOCKER / "Dockerfile")).structure:
        instruction, value = each["instruction"], each["value"]
        if instruction == "COMMENT":
            continue
        if instruction not in INSTRUCTIONS:
            fail(f"Dockerfile line {each['startline'] + 1}: unknown instruction {instruction}")
        words = shlex.split(value)
        if instruction == "FROM":
            stages.update(words[2:])
        elif instruction == "COPY" and words[0].startswith("--from="):
            if words[0].removeprefix("--from=") not in stages:
                fail(f"Dockerfile: COPY from an unknown stage: {value}")
        elif instruction == "COPY":
            for source in words[:-1]:
                if not (ROOT / source).exists():
                    fail(f"Dockerfile: COPY of {source}, which does not exist")
        elif instruction in ("CMD", "ENTRYPOINT"):
            json.loads(value)
    image = next(iter(re.findall(r"^FROM rust:(\S+?)-", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)), None)
    pinned = re.search(r'channel = "(.*)"', (ROOT / "rust-toolchain.toml").read_text())[1]
    if image != pinned:
        fail(f"Dockerfile: expected Rust {pinned} as in rust-toolchain.toml, found {image}")


def check_compose():
    text = (DOCKER / "compose.yaml").read_text()
    content = yaml.safe_load(text)
    try:
        compose = PyCompose.from_json(json.dumps(content))
        for check in (compose.validate, compose.validate_volumes, compose.validate_networks, compose.validate_secrets):
            check()
    except ValueError as error:
        fail(f"compose.yaml: {error}")
    for name, service in content["services"].items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            # `tenure tls init` makes ./tls.
            is_known = source in content["volumes"] or source.startswith("./tls/") or (DOCKER / source).is_file()
            if not is_known:
                fail(f"compose.yaml: {name} has the unknown volume {source}")


def check_kubernetes():
    """The schema does not know that the pods can form no cluster with other values of these keys."""
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "tenure.yaml").read_text()))
    specs = {(each["kind"], each["metadata"]["name"]): each.get("spec") for each in documents}
    stateful_set, budget = specs["StatefulSet", "tenure"], specs["PodDisruptionBudget", "tenure"]
    service = specs["Service", stateful_set["serviceName"]]
    for spec, key, expected in [
        (stateful_set, "podManagementPolicy", "Parallel"),
        (service, "clusterIP", "None"),
        (service, "publishNotReadyAddresses", True),
        (budget, "maxUnavailable", 1),
    ]:
        if spec.get(key) != expected:
            fail(f"tenure.yaml: expected {key}: {expected}, found {spec.get(key)}")
    grace = stateful_set["template"]["spec"].get("terminationGracePeriodSeconds", 0)
    if grace <= STOPS_WITHIN:
        fail(f"tenure.yaml: expected more than {STOPS_WITHIN} s until the end of a pod, found {grace}")


def check_unit():
    text = (ROOT / "deploy" / "systemd" / "tenure@.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    if set(settings.get("RestartPreventExitStatus", "").split()) != {"2", "8"}:
        fail("tenure@.service: expected RestartPreventExitStatus=2 8: systemd must not start a removed node again")
    if int(settings.get("TimeoutStopSec", 0)) <= STOPS_WITHIN:
        fail(f"tenure@.service: expected a TimeoutStopSec above {STOPS_WITHIN} s, found {settings.get('TimeoutStopSec')}")


check_dockerfile()
check_compose()
check_kubernetes()
check_unit()
