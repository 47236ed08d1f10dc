"""The host keys of machines: as their consoles print them, and the file that keeps them.

``StateDir/known_hosts`` has one entry a key for each living machine whose key is known, in
OpenSSH's form (sshd(8)) with the machine's id as comment: an admin may use it, too.
"""

from __future__ import annotations

import base64
import logging
import re
import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import paramiko
from msgspec import Struct

from slurm_elastic import bounded, writing
from slurm_elastic.bounded import BoundedSocket, Budget
from slurm_elastic.config import Config
from slurm_elastic.config.joining import CONSOLE, Ssh
from slurm_elastic.controller.boots import KEY_FAILED, KEY_REFUSED
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.join_secret import name_of, owner_of, require_private, text_for
from slurm_elastic.errors import ConfigError, ProviderError, SlurmElasticError
from slurm_elastic.ledger import Machine
from slurm_elastic.model_ledger import generation_time
from slurm_elastic.policies.boots import given_up_after
from slurm_elastic.protocols import Console
from slurm_elastic.providers.base.joining import KEY_MARK

log = logging.getLogger(__name__)


_KINDS = r"ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)"
_KEY = re.compile(rf"\b({_KINDS}) ([A-Za-z0-9+/]{{40,1400}}={{0,2}})")
# cloud-init's words, module keys-to-console.
_BEGIN = "-----BEGIN SSH HOST KEY KEYS-----"
_END = "-----END SSH HOST KEY KEYS-----"
CONSOLE_READ = 1 << 18
"""Characters of a console, the last ones, that are looked at: clouds keep fewer."""
MOST_KEYS = 16
"""The host keys of one machine: sshd has a handful of kinds."""
_ENTRY = re.compile(rf"(\S+) ({_KINDS}) (\S+) (\S+)")


class HostKey(Struct, frozen=True, order=True):
    """A public host key: its kind (``ssh-ed25519``) and its base64 text."""

    kind: str
    text: str


def host_key(line: str) -> HostKey:
    """The key of a line such as ``ssh-ed25519 AAAA... comment``; ValueError for anything else."""
    found = _KEY.match(line)
    if found is None:
        raise ValueError(f"{line[:40]!r} is no public key")
    return HostKey(*found.groups())


def printed_keys(console: str) -> tuple[HostKey, ...]:
    """The keys that cloud-init has printed on a machine's console, of its last boot."""
    text = console[-CONSOLE_READ:]
    end = text.rfind(_END)
    begin = text.rfind(_BEGIN, 0, max(end, 0))
    if begin < 0:
        return ()
    return tuple(HostKey(*found) for found in _KEY.findall(text[begin:end])[:MOST_KEYS])


class KnownHosts:
    """The file; not thread-safe. An address belongs to the machine that was put there last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: dict[str, tuple[str, tuple[HostKey, ...]]] = {}
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            if found := _ENTRY.fullmatch(line):
                host, kind, text, machine = found.groups()
                before = self._keys.get(machine, (host, ()))[1]
                self._keys[machine] = host, (*before, HostKey(kind, text))

    def keys(self, machine: str, address: str, port: int) -> tuple[HostKey, ...]:
        """The keys that the machine must show one of; none where they are not known yet."""
        host, keys = self._keys.get(machine, ("", ()))
        return keys if host == _host(address, port) else ()

    def put(self, machine: str, address: str, port: int, keys: Iterable[HostKey]) -> None:
        """The machine has these; what another one had at that address is forgotten."""
        host = _host(address, port)
        self._keys = {m: entry for m, entry in self._keys.items() if entry[0] != host}
        self._keys[machine] = host, tuple(keys)
        self._write()

    def keep(self, machines: Iterable[str]) -> None:
        """Forget all but these."""
        alive = set(machines)
        left = {m: entry for m, entry in self._keys.items() if m in alive}
        if left != self._keys:
            self._keys = left
            self._write()

    @property
    def machines(self) -> Mapping[str, str]:
        """The host of each machine whose keys are known, as the file has it."""
        return {machine: host for machine, (host, _) in self._keys.items()}

    def _write(self) -> None:
        lines = [
            f"{host} {key.kind} {key.text} {machine}\n"
            for machine, (host, keys) in sorted(self._keys.items())
            for key in keys
        ]
        writing.replace(self._path, "".join(lines).encode(), 0o644)


def _host(address: str, port: int) -> str:
    """As OpenSSH writes it: brackets where the port is another one."""
    return address if port == 22 else f"[{address}]:{port}"


# One file brought to one machine by SSH (paramiko), only if it shows the host key that it must.
#
# The text goes by standard input, so that no command line, log or error has it.


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
        _run(client, target, script, text)
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


def _run(client: paramiko.SSHClient, target: Target, script: str, text: bytes) -> None:
    command = f"sh -c {shlex.quote(script)}"
    if target.user != "root":
        command = f"sudo -n {command}"
    stdin, stdout, stderr = client.exec_command(command, timeout=target.timeout)
    try:
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


# Brings the machines' secret (join_secret) to fresh machines by SSH, where the configuration says
# so (``join.ssh``).
#
# Each machine is tried again, a few at a time, from its launch until its node is up or its time to
# boot is over. No row says which machine has it: after a restart of the daemon the key goes once
# more to the machines that boot just then, which changes nothing on them.


PERIOD = 2.0
"""Seconds between two looks at the ledger."""
PAUSE = 5.0
"""Seconds between two tries at one machine."""
CORRELATION = "join"


class MungeKeys:
    """``tick`` from the daemon's loop starts what is due; the work is in threads of its own."""

    def __init__(
        self, site: Site, ssh: Ssh, *, mark: str = KEY_MARK,
        worker: Executor | None = None, pause: float = PAUSE,
    ) -> None:  # fmt: skip
        self._site = site
        self._ssh, self._what = ssh, name_of(ssh)
        self._mark, self._pause = mark, pause
        self._ours = read_private_key(ssh.key)
        text_for(ssh, "", site.now())  # told at the start where it cannot be used
        self._fixed = () if ssh.host_key == CONSOLE else (host_key(ssh.host_key),)
        self._known = KnownHosts(site.config.state / "known_hosts")
        self._lock = threading.Lock()
        self._worker = worker or ThreadPoolExecutor(ssh.at_once, thread_name_prefix="munge-key")
        self._running: dict[str, Future[bool]] = {}
        self._again: dict[str, float] = {}
        self._done: set[str] = set()
        self._complaints: dict[str, str] = {}
        self._next = float("-inf")

    def tick(self) -> None:
        """Collect what has ended, forget machines that are gone, start what is due."""
        clock = self._site.monotonic()
        if clock < self._next:
            return
        self._next = clock + PERIOD
        self._collect(clock)
        machines = self._site.ledger.machines()
        alive = {m.instance.id for m in machines}
        with self._lock:  # one that is stopped comes back with the keys that it had
            self._known.keep(alive | {m.instance.id for m in self._site.ledger.stopped()})
        self._done &= alive
        for known in (self._again, self._complaints):
            for gone in known.keys() - alive:
                del known[gone]
        for machine in machines:
            if machine.registered is not None:
                self._note_joined(machine)
            elif self._is_due(machine, clock):
                started = self._worker.submit(self._bring, machine)
                self._running[machine.instance.id] = started

    def close(self) -> None:
        """Wait for the tries that run."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _is_due(self, machine: Machine, clock: float) -> bool:
        one = machine.instance
        if (
            one.id in self._done
            or one.id in self._running
            or clock < self._again.get(one.id, clock)
        ):
            return False
        if not one.address or machine.suspending is not None:
            return False
        if not takes_key(self._site.config, one.cloud):
            return False
        born = generation_time(one.generation) or one.launched
        timeout = self._site.config.resume_timeout(self._site.clouds[one.cloud])
        if self._site.now() - born <= given_up_after(timeout) - PERIOD:  # it is gone after that
            return True
        self._done.add(one.id)
        why = self._complaints.get(one.id, "it was never tried")
        log.error(
            "%s not brought, too late id=%s node=%s reason=%s", self._what, one.id, one.node, why
        )
        self._site.record(CORRELATION, KEY_FAILED, (one.node,), f"{one.id}: {why}")
        return False

    def _note_joined(self, machine: Machine) -> None:
        """The key has come with a try whose answer did not: a slow machine goes on without us."""
        one, last = machine.instance, self._complaints.get(machine.instance.id)
        if last is None or one.id in self._done or one.id in self._running:
            return
        self._done.add(one.id)
        log.info(
            "%s: the node has registered id=%s node=%s last=%s",
            self._what, one.id, one.node, last,
        )  # fmt: skip
        why = f"{one.id}: its node has registered; the last try told: {last}"
        self._site.record(CORRELATION, "key-brought", (one.node,), why)

    def _collect(self, clock: float) -> None:
        for name, future in list(self._running.items()):
            if not future.done():
                continue
            del self._running[name]
            error = future.exception()
            if error is not None:
                log.error(
                    "%s: a try fails in an unknown way id=%s", self._what, name, exc_info=error
                )
            if error is None and future.result():
                self._done.add(name)
            else:
                self._again[name] = clock + self._pause

    def _bring(self, machine: Machine) -> bool:
        """One try at one machine; whether it has the key now."""
        one = machine.instance
        target = Target(
            address=one.address or "",
            port=self._ssh.port,
            user=self._ssh.user,
            path=self._ssh.place,
            owner=owner_of(self._ssh),
            mark=self._mark,
            timeout=self._ssh.timeout,
        )
        try:
            text = text_for(self._ssh, one.cloud, self._site.now())
            push(target, self._ours, self._keys_of(machine), text)
        except WrongHostKeyError as error:
            self._complain(machine, f"wrong host key, nothing was sent: {error}", loud=True)
            return False
        except (PushError, ProviderError, ConfigError) as error:
            self._complain(machine, str(error), loud=False)
            return False
        log.info("%s brought id=%s node=%s address=%s", self._what, one.id, one.node, one.address)
        self._site.record(CORRELATION, "key-brought", (one.node,), f"{one.id} at {one.address}")
        return True

    def _keys_of(self, machine: Machine) -> Sequence[HostKey]:
        """The host keys the machine must show; asked of its cloud once."""
        one, port = machine.instance, self._ssh.port
        address = one.address or ""
        with self._lock:
            known = self._known.keys(one.id, address, port)
        if known:
            return known
        keys = self._fixed or self._printed(machine)
        if keys:
            with self._lock:
                self._known.put(one.id, address, port, keys)
        return keys

    def _printed(self, machine: Machine) -> tuple[HostKey, ...]:
        provider = self._site.providers[machine.instance.cloud]
        if not isinstance(provider, Console):
            raise PushError(f"cloud {provider.name} does not show what its machines print")
        return printed_keys(provider.console(machine.instance.id))

    def _complain(self, machine: Machine, why: str, *, loud: bool) -> None:
        """Each complaint about a machine once: most only mean that it boots."""
        one = machine.instance
        if self._complaints.get(one.id) == why:
            return
        self._complaints[one.id] = why
        level = logging.ERROR if loud else logging.INFO
        log.log(
            level, "%s not brought yet id=%s node=%s reason=%s", self._what, one.id, one.node, why
        )
        if loud:
            self._site.record(CORRELATION, KEY_REFUSED, (one.node,), f"{one.id}: {why}")


def takes_key(config: Config, cloud: str) -> bool:
    """Whether machines of that cloud get the key by SSH: those that are told by user data."""
    try:
        return config.cloud(cloud).by_user_data
    except KeyError:  # the ledger has machines of clouds that left the configuration
        return False
