"""The head node: state directory and memory, spool, Slurm and its slurm.conf."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.base.account import same, trusted
from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Finding, Level, Location
from slurm_elastic.model.protocols import NO_NODE, Slurm
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import is_down
from slurm_elastic.policies.nodes.out_of_service import ill
from slurm_elastic.slurm.conf import check, plan
from slurm_elastic.state import statedir
from slurm_elastic.watch.doctor import bursting, services

LITTLE_SPACE = 100 * 2**20
"""Bytes; on a full disk machines are only ended."""
WAITING = 60.0
"""Seconds after which a request should have been taken up."""
_PATIENCE = 5.0
"""Seconds for who listens where users ask."""


def state_directory(config: Config) -> Iterator[Finding]:
    """Is it there, whose is it, is there room."""
    path, what = config.state, f"state directory {config.state}"
    try:
        found = path.stat()
        free = shutil.disk_usage(path).free
    except PermissionError:
        return  # told of its files
    except OSError as error:
        advice = "`slurm-elastic conf install` makes it"
        yield Finding(what=what, level=Level.WRONG, found=str(error.strerror), advice=advice)
        return
    owner = _name(found.st_uid)
    if not same(owner, config.slurm.user) or found.st_mode & statedir.OTHERS:
        yield Finding(
            what=what,
            level=Level.WRONG,
            found=f"owner {owner}, mode {stat.S_IMODE(found.st_mode):04o}",
            expected=f"owner {config.slurm.user}, mode 0700: who opens a file there can lock it",
            advice=f"chown {config.slurm.user}: {path}; chmod 0700 {path}",
        )
    elif free < LITTLE_SPACE:
        yield Finding(
            what=what,
            level=Level.WRONG,
            found=f"{free // 2**20} MiB free",
            expected=f"{LITTLE_SPACE // 2**20} MiB: on a full disk nothing is bought",
            advice="make room (df names the disk); slurm-elasticd goes on by itself then",
        )
    else:
        room = f"{free // 2**20} MiB free"
        yield Finding(what=what, level=Level.OK, found=f"owner {owner}, {room}")


def memory(config: Config, now: float) -> Iterator[Finding]:
    """Findings about the files in the state directory, for who may look there."""
    if _is_closed(config.state):
        yield Finding(
            what="requests and ledger",
            level=Level.NOTE,
            found=f"not looked at: {config.state} is {config.slurm.user}'s alone",
            advice=f"run this as root or {config.slurm.user}",
        )
        yield from _users(config)
        return
    yield from spool(config, now)
    yield from services.daemon(config, now)
    yield from services.checkpoints(config, now)
    yield from _users(config)
    yield from _rights(config)
    yield from _webhook(config)


def _webhook(config: Config) -> Iterator[Finding]:
    """Whether all users read the address by which the site is told."""
    if config.notify.webhook and not config.notify.webhook.startswith("/"):
        yield Finding(
            what="notify", level=Level.NOTE,
            found="the address of notify.webhook is in slurm-elastic.yaml, which all users read",
            expected="the path of a file with it, for SlurmUser alone",
            advice="who has it can write there: docs/notify.md; then have it renewed",
        )  # fmt: skip


def _is_closed(directory: Path) -> bool:
    """Whether it is there, or may be, and its files are not for who asks."""
    try:
        directory.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(directory, os.R_OK | os.X_OK)


def _users(config: Config) -> Iterator[Finding]:
    """Whether somebody listens where users ask."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PATIENCE)  # a daemon that hangs takes nobody from its queue
        try:
            probe.connect(str(config.read_socket))
        except OSError as error:
            yield Finding(
                what="users",
                level=Level.NOTE,
                found=f"nobody answers them at {config.read_socket}: {error.strerror}",
                expected="slurm-elasticd: without it status and explain are for root and SlurmUser",
                advice="does it run, and may SlurmUser write that directory (users.socket)?",
            )
        else:
            yield Finding(what="users", level=Level.OK, found=f"answered at {config.read_socket}")


_RIGHTS = {
    "operators": "see everything, and may pause, limit, drain, replace, migrate and resume",
    "viewers": "see everything, and change nothing",
}


def _rights(config: Config) -> Iterator[Finding]:
    """Whom the configuration gives more than other users have; nothing where it names nobody."""
    named = {"operators": config.users.operators, "viewers": config.users.viewers}
    for key, groups in named.items():
        for group in groups:
            try:
                grp.getgrnam(group)
            except KeyError:
                yield Finding(
                    what=f"users.{key}", level=Level.WRONG, found=f"this host has no group {group}",
                    advice="its members get nothing of it: correct the name, or make the group",
                )  # fmt: skip
        if groups:
            found = f"members of {', '.join(groups)} {_RIGHTS[key]}"
            yield Finding(what=f"users.{key}", level=Level.OK, found=found)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def budgets(config: Config) -> Iterator[Finding]:
    """Accounts that no allow list of a public cloud names: a slip, or those above them are named,
    whose children some releases of Slurm let in.
    """
    lists = [
        config.who_of(cloud).accounts
        for cloud in config.clouds
        if cloud.location is Location.PUBLIC
    ]
    listed = {account for names in lists for account in names}
    for account in config.policies.account_budgets:
        if all(lists) and account not in listed:
            yield Finding(
                what=f"budget of account {account}",
                level=Level.NOTE,
                found="no public cloud's who.accounts names the account",
                expected=f"one of {', '.join(sorted(listed))}",
                advice="is it spelled as in Slurm (sacctmgr show account)?",
            )


def spool(config: Config, now: float) -> Iterator[Finding]:
    """Requests that nobody takes up, or that could not be read."""
    directory = config.state / "requests"
    try:
        times = [p.stat().st_mtime for p in directory.glob("*.json")]
        bad = sum(1 for _ in (directory / "bad").glob("*.json"))
    except OSError as error:
        yield Finding(what="spool", level=Level.WRONG, found=str(error.strerror))
        return
    oldest = now - min(times, default=now)
    if oldest > WAITING:
        yield Finding(
            what="spool",
            level=Level.NOTE,
            found=f"{len(times)} request(s), the oldest waits for {oldest:.0f} s",
            expected="requests that wait for their turn to boot, or none",
            advice="is the daemon alive? Its log says what it waits for",
        )
    else:
        yield Finding(what="spool", level=Level.OK, found=f"{len(times)} request(s)")
    if bad:
        yield Finding(
            what="spool",
            level=Level.NOTE,
            found=f"{bad} unreadable request(s) in {directory / 'bad'}",
            expected="none",
            advice="the daemon's log says what is wrong with them; delete them afterwards",
        )


def _failed(config: Config, nodes: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """Nodes of ours that Slurm itself has taken out of service, by its words."""
    by_words: dict[str, list[str]] = {}
    for name in (n for pool in plan.pools_of(config) for n in pool.nodes):
        if name in nodes and (ails := ill(nodes[name], config.slurm.user)) is not None:
            by_words.setdefault(str(ails), []).append(name)
    for text, names in by_words.items():
        found, _, remedy = text.partition("; do: ")
        yield Finding(
            what=f"nodes {compress(names)}",
            level=Level.NOTE,
            found=f"Slurm took them out of service: {found}",
            expected="nodes in service; slurm-elasticd gives them other machines",
            advice=remedy,
        )


def _down(config: Config, nodes: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """Nodes of ours that are down for whatever else, by Slurm's words."""
    by_reason: dict[str, list[str]] = {}
    for name in (n for pool in plan.pools_of(config) for n in pool.nodes):
        node = nodes.get(name)
        if node is not None and is_down(node) and ill(node, config.slurm.user) is None:
            by_reason.setdefault(node.reason or "no reason is given", []).append(name)
    for reason, names in by_reason.items():
        yield Finding(
            what="nodes that are down",
            level=Level.NOTE,
            found=f"{len(names)}, {names[0]} among them: {reason}",
            advice=f"slurm-elastic explain {names[0]} says what is done about it",
        )


def before_install(config: Config, client: Slurm) -> Iterator[Finding]:
    """The findings on a head whose slurm.conf has nothing of ours yet: no service runs there."""
    yield Finding(
        what="slurm.conf",
        level=Level.NOTE,
        found="it has nothing of ours yet, so no job can use a cloud",
        advice="slurm-elastic conf install; then start the services (docs/install.md)",
    )
    yield _answer(config, client)[0]


def slurm(config: Config, client: Slurm) -> Iterator[Finding]:
    """Does it answer, does it know our nodes."""
    answer, nodes = _answer(config, client)
    yield answer
    if not nodes:
        return
    yield from _failed(config, nodes)
    yield from _down(config, nodes)
    yield from bursting.in_service(config, nodes)
    yield from bursting.filter_called(config)
    yield from bursting.accounts_held(config)
    if isinstance(client, bursting.Probing):
        yield from bursting.accounts_known(config, client)
    ours = [n for pool in plan.pools_of(config) for n in pool.nodes]
    lacks = [n for n in ours if n not in nodes]
    if lacks:
        yield Finding(
            what="our nodes",
            level=Level.WRONG,
            found=f"Slurm does not list {len(lacks)} of {len(ours)}, {lacks[0]} among them",
            expected="all of them",
            advice="slurm-elastic conf install (on 22.05 slurmctld has to be restarted)",
        )
    else:
        yield Finding(what="our nodes", level=Level.OK, found=f"all {len(ours)} are there")


def _answer(config: Config, client: Slurm) -> tuple[Finding, Mapping[str, SlurmNode]]:
    """Whether slurmctld does, and its nodes."""
    try:
        nodes = client.nodes()
        version = client.version()
    except SlurmError as error:
        return _unanswered(error), {}
    if not nodes:
        advice = f"run this as {config.slurm.user} or root; is it the right slurm.conf?"
        hidden = os.geteuid() not in trusted(config.slurm.user)  # PrivateData=nodes hides all
        none = Finding(
            what="slurmctld", level=Level.NOTE if hidden else Level.WRONG, found=NO_NODE,
            expected="the nodes of the cluster", advice=advice,
        )  # fmt: skip
        return none, {}
    found = f"Slurm {version[0]:02d}.{version[1]:02d}, {len(nodes)} node(s)"
    return Finding(what="slurmctld", level=Level.OK, found=found), nodes


def _unanswered(error: SlurmError) -> Finding:
    """Nothing is said of nodes then, and nothing advised that would change any."""
    advice = "is slurm.bin_dir right, and slurm.conf?"
    if error.unanswered:
        advice = "systemctl status slurmctld; its log says why it stopped or hangs"
    return Finding(
        what="slurmctld",
        level=Level.WRONG,
        found=f"does not answer: {error}",
        expected="an answer; until then no machine is launched, ended or given up",
        advice=advice,
    )


def slurm_conf(config: Config) -> Iterator[Finding]:
    """The findings of ``conf check`` and ``conf diff``."""
    what = str(Path(config.slurm.conf))
    try:
        planned = plan.make(config)
        report = check.check(planned)
    except ConfigError as error:
        advice = "slurm-elastic conf check says it at length"
        for problem in error.problems:
            yield Finding(what=what, level=Level.WRONG, found=problem, advice=advice)
        return
    except (SlurmElasticError, OSError) as error:
        yield Finding(what=what, level=Level.WRONG, found=str(error))
        return
    depth = "proven on a throw-away slurmctld" if report.full else "parsed only"
    if not plan.is_installed(config):
        yield Finding(what=what, level=Level.OK, found=f"our part fits into it; {depth}")
    elif planned.changes():
        yield Finding(
            what=what,
            level=Level.WRONG,
            found="what is installed differs from the configuration",
            expected="the same",
            advice="slurm-elastic conf diff shows it, conf install puts it in place",
        )
    else:
        yield Finding(what=what, level=Level.OK, found=f"installed as configured; {depth}")
