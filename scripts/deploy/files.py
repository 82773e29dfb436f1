"""Checks the Dockerfile and compose.yaml of deploy/docker. scripts/check-deploy starts it."""

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


check_dockerfile()
check_compose()
