"""Generates `src/tenure/api.py` from the OpenAPI document of a running node.

python generate.py http://127.0.0.1:7101
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUTPUT = HERE / "src" / "tenure" / "api.py"

HEADER = '''"""The requests and responses of the HTTP API.

`generate.py` makes this file from the OpenAPI document of the server. Do not edit it. Values of later versions, such as
new states, events and error codes, are legal: all enumerations are plain strings here.
"""
'''
# On Python 3.10, `NotRequired` is only in typing_extensions. The client does not depend on that package at run time.
IMPORTS = """
from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired
"""


# The roots of the types that the client uses.
ROOTS = [
    "Acquire",
    "Cluster",
    "Event",
    "Explanation",
    "HandOver",
    "History",
    "Lease",
    "LeasePage",
    "Problem",
    "Queue",
    "Release",
    "Released",
    "RenewBatch",
    "Renewed",
    "Revoked",
    "UpdateMetadata",
    "Version",
]


def used_schemas(schemas: dict[str, Any]) -> dict[str, Any]:
    """Returns the schemas that the roots need."""
    used: dict[str, Any] = {}
    names = ROOTS.copy()
    while names:
        name = names.pop()
        if name not in used:
            used[name] = schemas[name]
            names += re.findall(r"#/components/schemas/(\w+)", json.dumps(schemas[name]))
    return dict(sorted(used.items()))


def open_for_newer_servers(schema: Any) -> Any:
    """Removes the closed enumerations and the closed objects. The tag of a union has one value and stays."""
    if isinstance(schema, list):
        return [open_for_newer_servers(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    is_closed = len(schema.get("enum", [])) > 1 or schema.get("additionalProperties") is False
    kept = {key: value for key, value in schema.items() if not is_closed or key not in ("enum", "additionalProperties")}
    return {key: open_for_newer_servers(value) for key, value in kept.items()}


def generate(document: bytes) -> str:
    """Returns the content of `api.py` for this OpenAPI document."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "openapi.json"), Path(folder, "api.py")
        schemas = open_for_newer_servers(used_schemas(json.loads(document)["components"]["schemas"]))
        api = {"openapi": "3.1.0", "info": {"title": "", "version": ""}, "paths": {}, "components": {"schemas": schemas}}
        source.write_text(json.dumps(api))
        command = [sys.executable, "-m", "datamodel_code_generator", "--input", str(source), "--output", str(target)]
        options = """--input-file-type openapi --output-model-type typing.TypedDict --target-python-version 3.10
            --use-schema-description --use-field-description --enum-field-as-literal all --use-union-operator
            --use-standard-collections --disable-timestamp --formatters builtin"""
        subprocess.run([*command, *options.split()], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        body = target.read_text()
    body = re.sub(r"^(#|from ).*\n", "", body, flags=re.MULTILINE)
    formatted = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "format",
            "--config",
            str(HERE / "pyproject.toml"),
            "--stdin-filename",
            str(OUTPUT),
            "-",
        ],
        input=HEADER + IMPORTS + body,
        capture_output=True,
        text=True,
        check=True,
    )
    return formatted.stdout


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: generate.py URL_OF_A_NODE")
    with urllib.request.urlopen(sys.argv[1].rstrip("/") + "/openapi.json", timeout=10) as answer:
        OUTPUT.write_text(generate(answer.read()))
