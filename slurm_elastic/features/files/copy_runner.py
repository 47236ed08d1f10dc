"""Runs one copy: the head's end as the job's user, the machine's end through SSH.

OpenSSH carries the data. It runs as SlurmUser with a key of its own, behind which a machine runs
nothing but its end of a copy. The head's end is started by slurm-elastic-copier, or by ourselves if
we are root.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.guards import GuardedBy
from slurm_elastic.base.processes import asking
from slurm_elastic.config import Config
from slurm_elastic.config.sections.joining import CONSOLE, Ssh
from slurm_elastic.features.files.copy_orders import CopyResult
from slurm_elastic.features.network.host_keys import HostKey, KnownHosts, host_key
from slurm_elastic.features.network.ssh_file import FileTarget, PushError, ordered, read_private_key
from slurm_elastic.machine.jobfiles import bundle
from slurm_elastic.machine.jobfiles.copier import CopierRefusalError, start_head, stuck_ends
from slurm_elastic.machine.jobfiles.identity import COMMAND
from slurm_elastic.model.cluster import Instance

PROGRAM = "/var/lib/slurm-elastic-node/jobfiles.pyz"
"""The program on a machine."""
_KEY, _IMAGE_HOSTS = "copy_key", "image_known_hosts"
_POLL_S = 0.5
_AFTER_LINK_S = 30.0
"""How long the head's end may work on after the connection has ended."""
_MAX_RESULT_BYTES = 1 << 20
_CONNECT_S = 20.0
"""How long a copy waits for another copy that connects to the same machine."""
_FAILED_FOR_S = 10.0
"""For so long after a machine has not answered no other copy connects to it."""
_FOR_ROOT = ("do", "job", "restarts", "uid", "gid", "groups", "made_at", "live", "end_wait")
"""The part of an order that root on the machine must be able to believe."""
# Each file appears complete or not at all. Other lines of our key must go, because sshd takes the
# first line of a key.
_INSTALL = """set -e
umask 022
mkdir -p {directory}
draft=$(mktemp {program}.XXXXXX)
trap 'rm -f "$draft"' EXIT
cat >"$draft"
chmod 0755 "$draft"
mv -f "$draft" {program}
home=$(getent passwd {user} | cut -d: -f6)
keys=$home/.ssh/authorized_keys
test "$(grep -F {key} "$keys" 2>/dev/null)" = {line} && exit 0
umask 077
mkdir -p "$home/.ssh"
lines=$(mktemp "$keys.XXXXXX")
trap 'rm -f "$draft" "$lines"' EXIT
if test -e "$keys"; then grep -vF {key} "$keys" >"$lines" || test $? -eq 1; fi
printf '%s\n' {line} >>"$lines"
chown {user}: "$home/.ssh" "$lines"
mv -f "$lines" "$keys"
"""


class _Readiness:
    """Whether a machine has our program and our key. The jobs of a machine that does not answer
    share one attempt: their threads would otherwise wait for each other's time-outs, while results
    of other users wait for a thread.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": "to bring the program to one machine"}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_ready = False
        self._failed_at, self._reason = -math.inf, ""

    def reach(self, install: Callable[[], None], until: float) -> None:
        """Call ``install`` unless the machine is ready. Raises an error of ``install``, PushError
        if another copy connects for too long, or has failed to connect a moment ago.
        """
        wait_s = max(min(until - time.monotonic(), _CONNECT_S), 0.0)
        # Several jobs may start on a machine at the same time. Only one brings the program.
        if not self._lock.acquire(timeout=wait_s):
            raise PushError("another copy has been connecting to the machine for too long")
        try:
            if self.is_ready:
                return
            if time.monotonic() - self._failed_at < _FAILED_FOR_S:
                raise PushError(self._reason)
            try:
                install()
            except (PushError, OSError, SlurmElasticError) as error:
                self._failed_at, self._reason = time.monotonic(), str(error)
                raise
            self.is_ready = True
        finally:
            self._lock.release()


class CopyRunner:
    """Copies to and from machines by ``join.ssh``."""

    def __init__(self, config: Config, ssh: Ssh) -> None:
        self._config, self._ssh = config, ssh
        self._state = config.state.resolve()
        self._login_key = read_private_key(ssh.key)
        self._fixed = () if ssh.host_key == CONSOLE else (host_key(ssh.host_key),)
        self._public_key = self._own_key()
        for key in self._fixed:
            writing.replace(self._state / _IMAGE_HOSTS, f"* {key.kind} {key.text}\n".encode())
        self._program = bundle.build()
        self._readiness: dict[str, _Readiness] = {}

    def __call__(
        self, instance: Instance, order: Mapping[str, Any], until: float, cancelled: threading.Event
    ) -> CopyResult:
        readiness = self._readiness.setdefault(instance.id, _Readiness())
        try:
            keys = self._host_keys(instance)
            readiness.reach(lambda: self._install(instance, keys), until)
            result = self._copy(instance, order, until, cancelled)
        except (PushError, OSError, SlurmElasticError, CopierRefusalError) as error:
            result = CopyResult(reason=str(error))
        if result.reason:
            # The machine may have lost the program or our key: bring both before the next try.
            readiness.is_ready = False
        return result

    def _own_key(self) -> str:
        path = self._state / _KEY
        # ssh-keygen writes the private key first, so without the public one the pair is not whole.
        public = path.with_suffix(".pub")
        if not public.exists():
            path.unlink(missing_ok=True)
            command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "slurm-elastic-copy")
            try:
                subprocess.run([*command, "-f", str(path)], check=True, capture_output=True,
                               timeout=30, stdin=subprocess.DEVNULL)  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                raise ConfigError(f"data: copy needs ssh-keygen and ssh: {error}") from error
        return public.read_text().strip()

    def _host_keys(self, instance: Instance) -> Sequence[HostKey]:
        if self._fixed:
            return self._fixed
        hosts = KnownHosts(self._state / "known_hosts")
        return hosts.keys(instance.id, instance.address or "", self._ssh.port)

    def _install(self, instance: Instance, keys: Sequence[HostKey]) -> None:
        """Bring the program and the line of our key to the machine."""
        user = self._ssh.user
        line = authorized_line(user, self._public_key)
        script = _INSTALL.format(
            directory=shlex.quote(os.path.dirname(PROGRAM)), program=shlex.quote(PROGRAM),
            user=shlex.quote(user), line=shlex.quote(line),
            key=shlex.quote(" ".join(self._public_key.split()[:2])),
        )  # fmt: skip
        target = FileTarget(
            address=instance.address or "", port=self._ssh.port, user=user, path=PROGRAM,
            owner="root:root", mark="", timeout=self._ssh.timeout,
        )  # fmt: skip
        ordered(target, self._login_key, keys, script, self._program)

    def _copy(
        self, instance: Instance, order: Mapping[str, Any], until: float, cancelled: threading.Event
    ) -> CopyResult:
        asking.check_gate()  # ssh is a program, which no hook of this process can stop
        out_read, out_write = os.pipe()
        with os.fdopen(out_read, "rb") as result, contextlib.ExitStack() as ending:
            link = subprocess.Popen(
                self._ssh_command(instance, order), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            ending.callback(_end, link)
            assert link.stdin  # noqa: S101 - they are pipes
            assert link.stdout  # noqa: S101
            files = (link.stdout.fileno(), link.stdin.fileno(), out_write)
            try:
                end_head = ending.enter_context(self._head(order, files))
            finally:
                os.close(out_write)
                # Our copies of the descriptors: only the two ends may hold them, or neither sees
                # the other one's end.
                link.stdin.close()
                link.stdout.close()
            text = _read(result.fileno(), until, cancelled, link)
            end_head()
            if text is None and _has_ended(link) and not cancelled.is_set():
                return CopyResult(reason="a directory of the job on the head does not answer")
            if text is None:
                return CopyResult(reason="it took too long" if not cancelled.is_set() else "ended")
            return self._result(text, link)

    def _ssh_command(self, instance: Instance, order: Mapping[str, Any]) -> list[str]:
        hosts = self._state / (_IMAGE_HOSTS if self._fixed else "known_hosts")
        options = {
            "BatchMode": "yes", "StrictHostKeyChecking": "yes", "UserKnownHostsFile": f'"{hosts}"',
            "GlobalKnownHostsFile": "/dev/null", "IdentitiesOnly": "yes", "ConnectTimeout": "15",
            "ServerAliveInterval": "10", "ServerAliveCountMax": "3", "LogLevel": "ERROR",
        }  # fmt: skip
        arguments = [word for pair in options.items() for word in ("-o", "=".join(pair))]
        return [
            # No configuration of SlurmUser's or the host's: an option there could send the files
            # elsewhere.
            "ssh", "-T", "-F", "/dev/null", *arguments, "-i", str(self._state / _KEY),
            "-p", str(self._ssh.port), "-l", self._ssh.user, instance.address or "",
            ssh_text(instance.node, order),
        ]  # fmt: skip

    @contextlib.contextmanager
    def _head(
        self, order: Mapping[str, Any], files: Sequence[int]
    ) -> Iterator[Callable[[], object]]:
        """Start the head's end, and yield a function that ends it. It ends with the context."""
        if os.geteuid() == 0:
            process = start_head(order, files)
            try:
                yield process.kill
            finally:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
                stuck_ends.kill(order["uid"], process)
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(10.0)
            path = self._config.copy.socket
            try:
                link.connect(path)
                text = json.dumps(order).encode() + b"\n"
                # The descriptors go with the first byte. The rest of a long order may need further
                # calls.
                sent = socket.send_fds(link, [text], list(files))
                link.sendall(text[sent:])
            except OSError as error:
                raise SlurmElasticError(
                    f"{path} does not answer: start slurm-elastic-copier ({error})"
                ) from error
            yield link.close

    def _result(self, text: bytes, link: subprocess.Popen[bytes]) -> CopyResult:
        try:
            result = json.loads(text)
        except ValueError:
            result = {}
        if result.get("ok"):
            return CopyResult(
                files=result["files"], bytes=result["bytes"], bases=result["bases"],
                notes=tuple(map(_readable, result["notes"])), late=tuple(result.get("late", ())),
                joined=tuple(result.get("joined", ())),
            )  # fmt: skip
        reason = str(result.get("reason") or text.decode(errors="replace").strip()[-300:])
        ssh_error = _end(link).decode(errors="replace").strip()[-300:]
        # The head's end only knows that the connection ended. ssh knows why.
        if ssh_error and (not reason or "connection has ended" in reason):
            reason = ssh_error
        return CopyResult(
            reason=_readable(reason) or "no answer", final=bool(result.get("final")),
            busy=bool(result.get("busy")),
            bases=result.get("bases", {}),
        )  # fmt: skip


def authorized_line(user: str, public_key: str, program: str = PROGRAM) -> str:
    """The line of ``authorized_keys`` by which our key runs the program and nothing else. The
    program gets our ssh command as one argument.
    """
    sudo = "" if user == "root" else "sudo -n "
    command = f'{sudo}/usr/bin/env python3 -I {program} node \\"$SSH_ORIGINAL_COMMAND\\"'
    return f'restrict,command="{command}" {public_key}'


def ssh_text(node: str, order: Mapping[str, Any]) -> str:
    """Our ssh command. It comes from us, so root on the machine takes the user from it and not from
    the head's end, which has the rights of the user.
    """
    return f"{COMMAND} {node} {json.dumps({name: order[name] for name in _FOR_ROOT})}"


def _readable(text: str) -> str:
    """The text with names of files in a form that people can read and the ledger can store: a name
    may be no UTF-8, or contain a line feed.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _read(
    descriptor: int, until: float, cancelled: threading.Event, link: subprocess.Popen[bytes]
) -> bytes | None:
    """Read to the end. None if that takes too long, or the copy is no longer wanted.

    The head's end is a process of the user, who may stop it, and its file system may not answer.
    The machine gives such an end up, and ssh ends. So we wait only _AFTER_LINK_S after ``link``.
    """
    text = b""
    # Not select(2): slurm-elasticd may have more than 1024 descriptors.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    ended_at = math.inf
    while time.monotonic() < min(until, ended_at + _AFTER_LINK_S) and not cancelled.is_set():
        if ended_at == math.inf and _has_ended(link):
            ended_at = time.monotonic()
        if not poll.poll(_POLL_S * 1000):
            continue
        block = os.read(descriptor, 65536)
        if not block or len(text) > _MAX_RESULT_BYTES:
            return text
        text += block
    return None


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended. It stays for ``_end``, which reads its reason."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """End the process if it still runs, and return what it wrote to standard error."""
    if process.returncode is not None:
        return b""
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    text = b""
    if process.stderr is not None:
        text = process.stderr.read(4096) or b""
        process.stderr.close()
    return text
