"""A folder with the code of one page, its running programs, and the events of their work."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
JARS = Path("/usr/share/java")
# Their manifests name the other jars.
CLASSPATH = f".:{JARS / 'curator-recipes.jar'}:{JARS / 'zookeeper.jar'}"
# The script `check` installs it.
NODE_MODULES = HERE.parent.parent / "target" / "guides" / "node" / "node_modules"
PAGES = HERE.parent.parent / "docs" / "coming-from"
BLOCK = re.compile(r"^```\w+\n((?:#|//) (\S+\.(?:sh|py|java|go|mjs))\n.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Event:
    """One line of work.py."""

    name: str
    kind: str  # load, start, end
    company: str  # alone, overlap
    token: str
    at: float


class CheckFailed(Exception):
    """A guide does not behave as its page says."""


def wait_for(condition: Callable[[], bool], seconds: float, subject: str) -> None:
    """Waits until the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise CheckFailed(f"not within {seconds} s: {subject}")
        time.sleep(0.02)


def require(condition: bool, subject: str) -> None:
    """Fails unless the condition holds."""
    if not condition:
        raise CheckFailed(subject)


class Stage:
    """The programs of one side of one page."""

    def __init__(self, folder: Path, page: str, environment: dict[str, str]) -> None:
        """Writes the blocks of the page into the folder, beside work.py under the names that the blocks use."""
        self.folder = folder
        self.environment = os.environ | environment | {"GUIDE_FOLDER": str(folder)}
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True)
        text = (PAGES / f"{page}.md").read_text()
        self.files = {name: block for block, name in BLOCK.findall(text)}
        for name, block in self.files.items():
            (folder / name).write_text(block)
        for name in ("report", "report.py", "billing", "billing.py"):
            shutil.copy(HERE / "work.py", folder / name)
        shutil.copy(HERE / "report.mjs", folder)
        (folder / "node_modules").symlink_to(NODE_MODULES)

    def compile_java(self) -> None:
        """Compiles the Java programs of the page and their work."""
        files = [str(HERE / "Work.java"), *map(str, self.folder.glob("*.java"))]
        self._compile("javac", "-Xlint:all,-path,-auxiliaryclass", "-Werror", "-cp", CLASSPATH, "-d", ".", *files)

    def compile_go(self, file: str, packages: Path) -> None:
        """Compiles a Go program of the page with the packages of a GOPATH."""
        self.environment |= {"GO111MODULE": "off", "GOPATH": str(packages), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        self._compile("go", "build", "-o", Path(file).stem, file)

    def _compile(self, *command: str) -> None:
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=900)
        require(done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}")

    def start(self, file: str, name: str) -> None:
        """Starts a program of the page. Its work reports under the name."""
        require(file in self.files, f"the page has no block {file}")
        commands = {
            ".sh": ["sh", file],
            ".py": [sys.executable, file],
            ".mjs": ["node", file],
            ".go": [f"./{Path(file).stem}"],
            ".java": ["java", "-Xmx64m", "-cp", CLASSPATH, Path(file).stem],
        }
        environment = self.environment | {"GUIDE_NAME": name, "ADDRESS": f"host-{name}", "POD_NAME": f"pod-{name}"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.programs[name] = subprocess.Popen(
                commands[Path(file).suffix], cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, file: str, name: str) -> tuple[int, str]:
        """Runs a program to its end. Returns its exit code and output."""
        self.start(file, name)
        code = self.programs[name].wait(timeout=20)
        return code, self.output(name)

    def output(self, name: str) -> str:
        """The output of a program until now."""
        return (self.folder / f"{name}.log").read_text()

    def events(self) -> list[Event]:
        """The events until now."""
        file = self.folder / "events"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Event(*words[:4], float(words[4])) for words in (line.split() for line in lines)]

    def wait_event(self, name: str, kind: str, seconds: float) -> Event:
        """Waits for the first event of this kind of a program."""

        def found() -> list[Event]:
            return [event for event in self.events() if (event.name, event.kind) == (name, kind)]

        try:
            wait_for(lambda: bool(found()), seconds, f"the event {kind} of {name}")
        except CheckFailed as error:
            raise CheckFailed(f"{error}\n{self.output(name)}") from None
        return found()[0]

    def wait_start(self, name: str, company: str = "alone", seconds: float = 20) -> Event:
        """Waits until the work of a program starts, and requires that it runs alone or overlaps."""
        event = self.wait_event(name, "start", seconds)
        require(event.company == company, f"the work of {name} runs {event.company}, expected {company}")
        return event

    def finish(self, name: str) -> int:
        """Lets the work end, and waits for the program. Returns its exit code."""
        (self.folder / f"finish-{name}").touch()
        try:
            return self.programs[name].wait(timeout=20)
        except subprocess.TimeoutExpired:
            raise CheckFailed(f"{name} does not end\n{self.output(name)}") from None

    def victim(self, name: str) -> int:
        """The process of the program: the child of the shell, if a shell runs it."""
        pid = self.programs[name].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if self.programs[name].args[0] == "sh" and children else pid

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> float:
        """Signals only the process of the program. Returns the time."""
        os.kill(self.victim(name), number)
        return time.monotonic()

    def stop(self) -> None:
        """Kills all programs and their child processes, which have the environment of this stage."""
        while remaining := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._owns(pid)]:
            for pid in remaining:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for program in self.programs.values():
                program.poll()
            time.sleep(0.02)
        for program in self.programs.values():
            program.wait()

    def _owns(self, pid: int) -> bool:
        """Whether a process runs in the environment of this stage. A dead process has no environment."""
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return f"GUIDE_FOLDER={self.folder}".encode() in environment.split(b"\0")
