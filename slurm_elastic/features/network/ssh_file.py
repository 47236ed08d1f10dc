"""Copies a file to a machine by SSH (paramiko), but only if it shows the expected host key."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from pathlib import Path

import paramiko
from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.processes import bounded
from slurm_elastic.base.processes.bounded import BoundedSocket, ReadBudget
from slurm_elastic.base.ssh_errors import is_unknown_host_key
from slurm_elastic.features.network.host_keys import HostKey
from slurm_elastic.features.network.join_secret import require_private

MAX_RECEIVED_BYTES = 1 << 20
"""Bytes that a machine may send in one try, including its part of the handshake. Our command prints
at most one line.
"""
_KEY_TYPES: tuple[type[paramiko.PKey], ...] = (
    paramiko.Ed25519Key,
    paramiko.ECDSAKey,
    paramiko.RSAKey,
)
# The file appears complete or not at all, and other users can at no moment read it. A restart that
# failed, or that a lost connection cut off, must come at the next try, which finds the file equal.
# So a file beside it notes that the restart is pending.
_PLACE = """set -e
umask 077
draft=$(mktemp {target}.XXXXXX)
trap 'rm -f "$draft"' EXIT
cat >"$draft"
test "$(wc -c <"$draft")" -eq {size}
chown {owner} "$draft"
chmod 0400 "$draft"
[ -e {mark} ] && ! cmp -s "$draft" {target} && : >{pending}
mv -f "$draft" {target}
mkdir -p {directory}
: >{mark}
if [ -e {pending} ]; then
    {restart}
    rm -f {pending}
fi
"""


class PushError(SlurmElasticError):
    """The machine could not be reached, or it refused. It may still be booting."""


class WrongHostKeyError(PushError):
    """Another host answers at the machine's address. Nothing was sent to it."""


class FileTarget(Struct, frozen=True, kw_only=True):
    """The destination of a file: ``path`` on a machine, owned by ``owner`` (``user:group``). The
    empty file ``mark`` is created afterwards.

    ``timeout`` (s) covers all steps: the connection, the login and the command.
    """

    address: str
    port: int
    user: str
    path: str
    owner: str
    mark: str
    timeout: float


def read_private_key(path: str) -> paramiko.PKey:
    """Read our private key. ConfigError if it cannot be used or others can read it."""
    require_private(path, "join.ssh.key")
    for kind in _KEY_TYPES:
        try:
            return kind.from_private_key_file(path)
        except paramiko.PasswordRequiredException:
            raise ConfigError(f"join.ssh.key: {path} has a passphrase") from None
        except (paramiko.SSHException, ValueError):
            continue
        except OSError as error:
            raise ConfigError(f"join.ssh.key: {path} cannot be read: {error.strerror}") from error
    raise ConfigError(f"join.ssh.key: {path} is no private key of kind ed25519, ecdsa or rsa")


def push(
    target: FileTarget,
    private_key: paramiko.PKey,
    host_keys: Sequence[HostKey],
    text: bytes,
    restart: str = ":",
) -> None:
    """Write ``text`` to the target. ``restart``: the command to run if the text replaces a text of
    ours. PushError if the target does not take the text yet, WrongHostKeyError if the host key is
    wrong.
    """
    script = _PLACE.format(
        target=shlex.quote(target.path),
        size=len(text),
        owner=shlex.quote(target.owner),
        directory=shlex.quote(str(Path(target.mark).parent)),
        mark=shlex.quote(target.mark),
        pending=shlex.quote(f"{target.path}.restart"),
        restart=restart,
    )
    ordered(target, private_key, host_keys, script, text)


def ordered(
    target: FileTarget,
    private_key: paramiko.PKey,
    host_keys: Sequence[HostKey],
    script: str,
    text: bytes,
) -> None:
    """Run ``script`` as root on the machine, with ``text`` on standard input. WrongHostKeyError if
    another host answers; PushError if the machine cannot be reached or the script fails.
    """
    public_keys = [key for host_key in host_keys if (key := _public_key(host_key)) is not None]
    if not public_keys:
        raise PushError(f"{target.address}: its host key is not known yet")
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    budget = ReadBudget(MAX_RECEIVED_BYTES, target.timeout)
    link: BoundedSocket | None = None
    name = target.address if target.port == 22 else f"[{target.address}]:{target.port}"
    for key in public_keys:
        client.get_host_keys().add(name, key.get_name(), key)
    try:
        link = bounded.connect(target.address, target.port, budget)
        client.connect(
            target.address,
            port=target.port,
            username=target.user,
            pkey=private_key,
            sock=link,  # type: ignore[arg-type] # has all methods that paramiko calls
            timeout=target.timeout,
            banner_timeout=target.timeout,
            auth_timeout=target.timeout,
            allow_agent=False,
            look_for_keys=False,
        )
        run(client, target, script, text)
    except PushError:
        if link is not None and link.failure:
            raise PushError(f"{target.address}: {link.failure}") from None
        raise
    except paramiko.BadHostKeyException as error:
        fingerprint = error.key.fingerprint
        raise WrongHostKeyError(f"{target.address} shows the host key {fingerprint}") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        wrong = isinstance(error, paramiko.SSHException) and is_unknown_host_key(error)
        kind = WrongHostKeyError if wrong else PushError
        error_text = (
            link.failure
            if link is not None and link.failure
            else f"{type(error).__name__}: {error}"
        )
        raise kind(f"{target.address}: {error_text}") from None
    finally:
        client.close()
        if link is not None:
            link.close()


def run(client: paramiko.SSHClient, target: FileTarget, script: str, text: bytes) -> None:
    """Run ``script`` as root on the machine at the other end of ``client``. PushError if it fails
    or does not end in time.
    """
    command = f"sh -c {shlex.quote(script)}"
    if target.user != "root":
        command = f"sudo -n {command}"
    stdin, stdout, stderr = client.exec_command(command, timeout=target.timeout)
    try:
        # Use standard input, so that the secret is in no command line, log or error.
        stdin.write(text)
        stdin.channel.shutdown_write()
        # Read to the end of the output. The connection's budget ends it if the machine does not.
        error_output = stderr.read().decode(errors="replace").strip()
        code = stdout.channel.recv_exit_status()
    except TimeoutError:
        raise PushError(f"{target.address}: no end in {target.timeout:g} s") from None
    if code:
        raise PushError(f"{target.address}: exit {code}: {error_output[-300:]}")


def _public_key(key: HostKey) -> paramiko.PKey | None:
    """Parse the key. None if the console output was garbled."""
    try:
        return paramiko.PKey.from_type_string(key.kind, base64.b64decode(key.text))
    except (paramiko.SSHException, ValueError):
        return None
