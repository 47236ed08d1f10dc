"""One file brought to one machine by SSH (paramiko), only if it shows the host key that it must."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from pathlib import Path

import paramiko
from msgspec import Struct

from slurm_elastic.base import bounded
from slurm_elastic.base.bounded import BoundedSocket, Budget
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.features.host_keys import HostKey
from slurm_elastic.features.join_secret import require_private

MOST = 1 << 20
"""Bytes that a machine may send in one try, its part of the handshake among them: our command says
a line, if anything.
"""
_KEY_TYPES: tuple[type[paramiko.PKey], ...] = (
    paramiko.Ed25519Key,
    paramiko.ECDSAKey,
    paramiko.RSAKey,
)
# Complete or not at all, and never readable by others, not even for a moment.
_PLACE = """set -e
umask 077
draft=$(mktemp {target}.XXXXXX)
trap 'rm -f "$draft"' EXIT
cat >"$draft"
test "$(wc -c <"$draft")" -eq {size}
chown {owner} "$draft"
chmod 0400 "$draft"
mv -f "$draft" {target}
mkdir -p {directory}
: >{mark}
"""


class PushError(SlurmElasticError):
    """The machine could not be reached or refused; it may only have to boot."""


class WrongHostKeyError(PushError):
    """Whoever answers at the machine's address is not the machine: nothing was sent."""


class Target(Struct, frozen=True, kw_only=True):
    """Where a file goes: to ``path``, owned by ``owner`` (``user:group``), then ``mark`` is made.

    ``timeout`` (s) is for all of it: connecting, logging in, the command.
    """

    address: str
    port: int
    user: str
    path: str
    owner: str
    mark: str
    timeout: float


def read_private_key(path: str) -> paramiko.PKey:
    """Our key; ConfigError where it cannot be used, or others may read it."""
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


def push(target: Target, ours: paramiko.PKey, theirs: Sequence[HostKey], text: bytes) -> None:
    """Put ``text`` there; PushError where that was not possible yet."""
    script = _PLACE.format(
        target=shlex.quote(target.path),
        size=len(text),
        owner=shlex.quote(target.owner),
        directory=shlex.quote(str(Path(target.mark).parent)),
        mark=shlex.quote(target.mark),
    )
    ordered(target, ours, theirs, script, text)


def ordered(
    target: Target, ours: paramiko.PKey, theirs: Sequence[HostKey], script: str, text: bytes
) -> None:
    """Have the machine run ``script`` as root with ``text`` on standard input; PushError where it
    could not be reached, is another one, or the script fails.
    """
    known = [key for one in theirs if (key := _public_key(one)) is not None]
    if not known:
        raise PushError(f"{target.address}: its host key is not known yet")
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    budget = Budget(MOST, target.timeout)
    link: BoundedSocket | None = None
    name = target.address if target.port == 22 else f"[{target.address}]:{target.port}"
    for key in known:
        client.get_host_keys().add(name, key.get_name(), key)
    try:
        link = bounded.connect(target.address, target.port, budget)
        client.connect(
            target.address,
            port=target.port,
            username=target.user,
            pkey=ours,
            sock=link,  # type: ignore[arg-type] # all that paramiko uses of one
            timeout=target.timeout,
            banner_timeout=target.timeout,
            auth_timeout=target.timeout,
            allow_agent=False,
            look_for_keys=False,
        )
        run(client, target, script, text)
    except PushError:
        if link is not None and link.why:
            raise PushError(f"{target.address}: {link.why}") from None
        raise
    except paramiko.BadHostKeyException as error:
        shown = error.key.fingerprint
        raise WrongHostKeyError(f"{target.address} shows the host key {shown}") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        wrong = isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(
            error
        )
        kind = WrongHostKeyError if wrong else PushError
        said = link.why if link is not None and link.why else f"{type(error).__name__}: {error}"
        raise kind(f"{target.address}: {said}") from None
    finally:
        client.close()
        if link is not None:
            link.close()


def run(client: paramiko.SSHClient, target: Target, script: str, text: bytes) -> None:
    """Have the machine at the other end of ``client`` run ``script`` as root; PushError where that
    fails or does not end.
    """
    command = f"sh -c {shlex.quote(script)}"
    if target.user != "root":
        command = f"sudo -n {command}"
    stdin, stdout, stderr = client.exec_command(command, timeout=target.timeout)
    try:
        # By standard input, so that no command line, log or error has it.
        stdin.write(text)
        stdin.channel.shutdown_write()
        # Read to its end, which the budget of the connection sets where the machine does not.
        said = stderr.read().decode(errors="replace").strip()
        code = stdout.channel.recv_exit_status()
    except TimeoutError:
        raise PushError(f"{target.address}: no end in {target.timeout:g} s") from None
    if code:
        raise PushError(f"{target.address}: exit {code}: {said[-300:]}")


def _public_key(key: HostKey) -> paramiko.PKey | None:
    """None where a console has garbled it."""
    try:
        return paramiko.PKey.from_type_string(key.kind, base64.b64decode(key.text))
    except (paramiko.SSHException, ValueError):
        return None
