"""Machines in network namespaces. Each has an address, and a copy-on-write root directory."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

PATH = "/shims:/root/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMAND_LIMIT = 40  # seconds
SOON = 20.0  # seconds: the limit of events that come soon without a fault
POLL = 0.2

# systemd does not run here. This runs ExecStart of the unit as its user, with its environment and its state directory.
SYSTEMCTL = r"""#!/bin/bash
set -eu
unit=${2:-} && for unit; do :; done
pid_file=/run/$unit.pid
file=/etc/systemd/system/${unit%@*}@.service
setting() { cat "$file" "/etc/systemd/system/$unit.service.d"/*.conf 2>/dev/null | sed -n "s/^$1=//p" | tail -n 1; }
ended() { ! [ -e "/proc/$1" ] || grep -q '^State:.*zombie' "/proc/$1/status"; }
stop() {
    kill "-$(setting KillSignal)" "$(cat "$pid_file")"
    for _ in $(seq "$(setting TimeoutStopSec)0"); do ended "$(cat "$pid_file")" && return; sleep 0.1; done
    echo "$unit did not stop" >&2 && exit 1
}
start() {
    user=$(setting User) group=$(setting Group)
    install -d -m "$(setting StateDirectoryMode)" -o "$user" -g "$group" "/var/lib/$(setting StateDirectory)"
    export "$(setting Environment)"
    # A sandbox may forbid a higher limit. Then the node accepts fewer clients.
    ulimit -n "$(setting LimitNOFILE)" 2>/dev/null || true
    command=$(setting ExecStart | sed "s/%i/${unit#*@}/g")
    setsid setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs --bounding-set=-all \
        sh -c "exec $command" </dev/null >>"/var/log/$unit.log" 2>&1 &
    echo $! >"$pid_file"
}
case $1 in
    daemon-reload) ;;
    enable) [ "$2" = --now ] && grep -q ^WantedBy= "$file" && start ;;
    restart) stop && start ;;
    stop) stop ;;
    *) echo "systemctl $*: unknown here" >&2 && exit 1 ;;
esac
"""
# No sshd runs here. The roots of the other machines are below /lan.
SCP = r"""#!/bin/sh
set -eu
for target; do :; done
target=${target#*@}
while [ $# -gt 1 ]; do cp "$1" "/lan/${target%%:*}${target#*:}" && shift; done
"""
# The binary exists already.
CARGO = r"""#!/bin/sh
[ "$*" = "install --locked --path cli" ] && [ -e deploy ] && cp /built/tenure ~/.cargo/bin/tenure
"""
SUDO = '#!/bin/sh\nexec "$@"\n'
SHIMS = {"systemctl": SYSTEMCTL, "scp": SCP, "cargo": CARGO, "sudo": SUDO}


def fail(message):
    sys.exit(f"scripts/check-deploy: {message}")


def system(*words):
    subprocess.run(words, check=True)


def until(description, check, is_reached=bool):
    """Repeats a check until it returns the value that is waited for, and returns it."""
    end = time.monotonic() + SOON
    while not is_reached(value := check()):
        if time.monotonic() > end:
            fail(f"not within {SOON:.0f} s: {description}; last: {value}")
        time.sleep(POLL)
    return value


class Ended(Exception):
    """A command that failed."""

    def __init__(self, command, code, stdout, stderr):
        super().__init__(f"{command}\nexit code {code}\n{stdout}{stderr}")
        self.code, self.stderr = code, stderr


class Machine:
    """One machine. The caller has its own network, mount and process namespaces, which end with it."""

    def __init__(self, folder, name, address):
        self.name, self.address = name, address
        self.folder, self.root = folder / name, folder / name / "root"
        for each in ("upper", "work", "root"):
            (self.folder / each).mkdir(parents=True)
        layers = f"lowerdir=/,upperdir={self.folder}/upper,workdir={self.folder}/work"
        system("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root))
        system("mount", "--bind", "/dev", f"{self.root}/dev")
        system("mount", "-t", "proc", "proc", f"{self.root}/proc")
        system("mount", "-t", "tmpfs", "tmpfs", f"{self.root}/run")
        for path, text in SHIMS.items():
            self.write(f"shims/{path}", text).chmod(0o755)
        self.variables = {"PATH": PATH, "HOME": "/root"}
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = Path("/proc/self/ns/net").readlink()
        until("a network namespace", lambda: Path(f"/proc/{self.holder.pid}/ns/net").readlink() != own)
        near = f"n{address.replace('.', '')}"
        system("ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        system("ip", "link", "set", near, "master", "lan", "up")
        for words in ("link set lo up", f"address add {address}/16 dev eth0", "link set eth0 up"):
            system(*self.enter(), "ip", *words.split())

    def enter(self):
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]

    def path(self, path):
        return self.root / str(path).lstrip("/")

    def write(self, path, text):
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def words(self, *words):
        """A command for this machine."""
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return [*self.enter(), "chroot", str(self.root), "env", "-i", *variables, *words]

    def run(self, script):
        """Runs a script and returns its output. The folder and the exported variables stay for the next one."""
        state = "cd /root; [ ! -e /run/state ] || . /run/state"
        keep = '{ export -p; printf "cd %q\\n" "$PWD"; } >/run/state'
        self.write("run/script", f"{state}\nset -e -o pipefail\n{script}\n{keep}\n")
        words = self.words("timeout", str(COMMAND_LIMIT), "bash", "/run/script")
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Ended(f"{self.name}: {script}", done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def refused(self, script, code, reason):
        """The script fails with this exit code and for this reason."""
        try:
            self.run(script)
        except Ended as ended:
            if ended.code == code and reason in ended.stderr:
                return
            fail(f"expected exit code {code} and {reason!r}: {ended}")
        fail(f"{self.name}: this succeeded: {script}")


class Container(Machine):
    """A machine that runs one container: a command of a user without rights, on a read-only root."""

    def __init__(self, folder, name, address, user, variables, command, hosts):
        super().__init__(folder, name, address)
        self.user, self.command, self.process = user, command, None
        self.variables = {"PATH": PATH, **variables}
        shutil.rmtree(self.path("/etc/tenure"), ignore_errors=True)
        self.write("/etc/hosts", "127.0.0.1 localhost\n" + "".join(f"{hosts[name]} {name}\n" for name in hosts))
        self.path("/var/lib/tenure").mkdir(parents=True, exist_ok=True)
        owned = f"uid={user},gid={user},mode=0700"
        system("mount", "-t", "tmpfs", "-o", owned, "tmpfs", str(self.path("/var/lib/tenure")))

    def inside(self, command):
        drop = f"setpriv --reuid {self.user} --regid {self.user} --clear-groups --no-new-privs --bounding-set=-all"
        read_only = f'mount -o remount,bind,ro / && exec {drop} "$@"'
        return self.words("unshare", "--mount", "sh", "-c", read_only, "sh", *command)

    def start(self):
        log = open(self.folder / "log", "a")
        self.process = subprocess.Popen(self.inside(self.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self):
        return (self.folder / "log").read_text()

    def probe(self, command):
        """The exit code of a probe."""
        return subprocess.run(self.inside(command), capture_output=True, timeout=COMMAND_LIMIT).returncode

    def passes(self, command):
        until(f"exit code 0 of {' '.join(command)} at {self.name}", lambda: self.probe(command), lambda code: code == 0)

    def stop(self, by, within):
        """Stops the container as an engine does. It must exit with success in time."""
        self.process.send_signal(by)
        if self.process.wait(within) != 0:
            fail(f"{self.name} exited with {self.process.returncode}:\n{self.log()}")
