"""The head node: state directory and records, spool, Slurm and its slurm.conf."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.base.account import is_group, same_account, trusted
from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.units import brief, counted
from slurm_elastic.config import Config
from slurm_elastic.model.causes.repairs import NodeIll
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.finding import SLURMCTLD, Finding, Level
from slurm_elastic.model.protocols import NO_NODE, Slurm
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.out_of_service import ill
from slurm_elastic.slurm.conf import check, plan
from slurm_elastic.state import statedir
from slurm_elastic.state.heartbeat import DAEMON
from slurm_elastic.watch.causes import DISK, INSTALL, SLURM
from slurm_elastic.watch.doctor import bursting, services

LITTLE_SPACE = 100 * 2**20  # bytes; with less room, as on a full disk, machines are only ended
FEW_FILES = 1000  # inodes; with none left, a request of slurmctld is written nowhere
WAITING = 60.0  # seconds after which a request should have been taken up
_PATIENCE = 5.0  # seconds to find out whether somebody listens where users ask


SPOOL = "requests of Slurm (spool)"


def state_directory(config: Config) -> Iterator[Finding]:
    """Whether it exists, whose it is, and whether it has room."""
    path, what = config.state, f"state directory {config.state}"
    try:
        found = path.stat()
        free, files = shutil.disk_usage(path).free, _files_left(path)
    except PermissionError:
        return  # ``memory`` says so
    except OSError as error:
        advice = "`slurm-elastic conf install` makes it"
        yield Finding.wrong(what, str(error.strerror), advice=advice)
        return
    owner = _name(found.st_uid)
    if not same_account(owner, config.slurm.user) or found.st_mode & statedir.OTHERS:
        yield Finding.wrong(
            what,
            f"owner {owner}, mode {stat.S_IMODE(found.st_mode):04o}",
            expected=f"owner {config.slurm.user}, mode 0700: who opens a file there can lock it",
            advice=f"chown {config.slurm.user}: {path}; chmod 0700 {path}",
        )
    else:
        room = f"{free // 2**20} MiB free"
        yield _lack(what, free, files) or Finding.ok(what, f"owner {owner}, {room}")


def _lack(what: str, free: int, files: int | None) -> Finding | None:
    """Of what the disk has too little: bytes, or inodes for more files."""
    if free < LITTLE_SPACE:
        return Finding.wrong(
            what,
            f"{free // 2**20} MiB free",
            expected=f"{LITTLE_SPACE // 2**20} MiB: on a full disk nothing is bought",
            advice="make room (df names the disk); slurm-elasticd goes on by itself then",
            cause=DISK,
        )
    if files is not None and files < FEW_FILES:
        return Finding.wrong(
            what,
            f"{free // 2**20} MiB free, and inodes for {files} more files",
            expected=f"inodes for {FEW_FILES} files: each request of slurmctld is one",
            advice="remove files that nobody needs (df -i names the disk)",
            cause=DISK,
        )
    return None


def _files_left(path: Path) -> int | None:
    """How many files the file system still takes; None where it sets no number (btrfs)."""
    there = os.statvfs(path)
    return there.f_favail if there.f_files else None


def memory(config: Config, now: float) -> Iterator[Finding]:
    """Findings about the files in the state directory, for those who may look there."""
    if _is_closed(config.state):
        yield Finding.note(
            "requests and ledger",
            f"not looked at: {config.state} is {config.slurm.user}'s alone",
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
    """Whether all users can read the address that the site is notified at."""
    if config.notify.webhook and not config.notify.webhook.startswith("/"):
        yield Finding.note(
            "notify",
            "the address of notify.webhook is in slurm-elastic.yaml, which all users read",
            expected="the path of a file with it, for SlurmUser alone",
            advice="who has it can write there: docs/notify.md; then have it renewed",
        )


def _is_closed(directory: Path) -> bool:
    """Whether the directory exists, or may exist, and we may not read its files."""
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
        probe.settimeout(_PATIENCE)  # a daemon that hangs accepts no connection
        try:
            probe.connect(str(config.read_socket))
        except OSError as error:
            yield Finding.note(
                "users",
                f"nobody answers them at {config.read_socket}: {error.strerror}",
                expected="slurm-elasticd: without it status and explain are for root and SlurmUser",
                advice="does it run, and may SlurmUser write that directory (users.socket)?",
                cause=DAEMON,
            )
        else:
            yield Finding.ok("users", f"answered at {config.read_socket}")


_RIGHTS = {
    "operators": "see everything, and may pause, limit, drain, replace, migrate and resume",
    "viewers": "see everything, and change nothing",
}


def _rights(config: Config) -> Iterator[Finding]:
    """Who has more rights than other users by the configuration; nothing if it names nobody."""
    named = {"operators": config.users.operators, "viewers": config.users.viewers}
    for key, groups in named.items():
        for group in groups:
            if not is_group(group):
                yield Finding.wrong(
                    f"users.{key}",
                    f"this host has no group {group}",
                    advice="its members get nothing of it: correct the name, or make the group",
                )
        if groups:
            yield Finding.ok(f"users.{key}", f"members of {', '.join(groups)} {_RIGHTS[key]}")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def budgets(config: Config) -> Iterator[Finding]:
    """Accounts with a budget that no allow list of a public cloud names. That is a slip, or their
    parent accounts are named, whose children some releases of Slurm let in.
    """
    lists = [
        config.who_of(cloud).accounts
        for cloud in config.clouds
        if cloud.location is Location.PUBLIC
    ]
    listed = {account for names in lists for account in names}
    for account in config.policies.account_budgets:
        if all(lists) and account not in listed:
            yield Finding.note(
                f"budget of account {account}",
                "no public cloud's who.accounts names the account",
                expected=f"one of {', '.join(sorted(listed))}",
                advice="is it spelled as in Slurm (sacctmgr show account)?",
            )


def allowed_groups(config: Config) -> Iterator[Finding]:
    """Groups that clouds are for, which this host has not: slurmctld knows nobody of them."""
    named = {group: cloud.name for cloud in config.clouds for group in config.who_of(cloud).groups}
    for group, cloud in named.items():
        if not is_group(group):
            yield Finding.note(
                f"who may use {cloud}",
                f"this host has no group {group}",
                advice="correct the name in who.groups, or make the group",
            )


def spool(config: Config, now: float) -> Iterator[Finding]:
    """Requests that nobody takes up, or that could not be read."""
    directory = config.state / "requests"
    try:
        with config.sharing():
            times = [p.stat().st_mtime for p in directory.glob("*.json")]
            bad = sum(1 for _ in (directory / "bad").glob("*.json"))
    except OSError as error:
        yield Finding.wrong(SPOOL, str(error.strerror))
        return
    oldest = now - min(times, default=now)
    if oldest > WAITING:
        yield Finding.note(
            SPOOL,
            f"{counted(len(times), 'request')}, the oldest waits for {brief(oldest)}",
            expected="requests that wait for their turn to boot, or none",
            advice="is the daemon alive? Its log says what it waits for",
        )
    else:
        yield Finding.ok(SPOOL, f"{counted(len(times), 'request')}")
    if bad:
        yield Finding.note(
            SPOOL,
            f"{counted(bad, 'unreadable request')} in {directory / 'bad'}",
            expected="none",
            advice="the daemon's log says what is wrong with them; delete them afterwards",
        )


def _failed(config: Config, nodes: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """Our nodes that Slurm itself has taken out of service, with its reasons."""
    by_cause: dict[NodeIll, list[str]] = {}
    for name in (n for pool in plan.pools_of(config) for n in pool.nodes):
        if name in nodes and (ails := ill(nodes[name], config.slurm.drain_terms)) is not None:
            by_cause.setdefault(ails.cause, []).append(name)
    for cause, names in by_cause.items():
        yield Finding.note(
            f"nodes {compress(names)}",
            f"Slurm took them out of service: {cause.finding}",
            expected="nodes in service; slurm-elasticd gives them other machines",
            advice=cause.remedy,
        )


def before_install(config: Config, client: Slurm) -> Iterator[Finding]:
    """The findings on a head whose slurm.conf has nothing of ours yet, so no service runs."""
    yield Finding.note(
        "slurm.conf",
        "it has nothing of ours yet, so no job can use a cloud",
        advice="slurm-elastic conf install; then start the services (docs/install.md)",
    )
    yield _answer(config, client)[0]


def slurm(config: Config, client: Slurm) -> Iterator[Finding]:
    """Whether Slurm answers and knows our nodes."""
    answer, nodes = _answer(config, client)
    yield answer
    if not nodes:
        return
    # Before the filter, which is missing for the same cause until our part is installed.
    yield _our_nodes(config, nodes)
    yield from _failed(config, nodes)
    yield from bursting.in_service(config, nodes)
    yield from bursting.filter_called(config)
    yield from bursting.accounts_held(config)
    if isinstance(client, bursting.Probing):
        yield from bursting.accounts_known(config, client)


def _our_nodes(config: Config, nodes: Mapping[str, SlurmNode]) -> Finding:
    ours = [n for pool in plan.pools_of(config) for n in pool.nodes]
    lacks = [n for n in ours if n not in nodes]
    if not lacks:
        return Finding.ok("our nodes", f"all {len(ours)} are there")
    return Finding.wrong(
        "our nodes",
        f"Slurm does not list {len(lacks)} of {len(ours)}, {lacks[0]} among them",
        expected="all of them",
        advice="slurm-elastic conf install --restart 'systemctl restart slurmctld'",
        cause=INSTALL if len(lacks) == len(ours) else "",
    )


def _answer(config: Config, client: Slurm) -> tuple[Finding, Mapping[str, SlurmNode]]:
    """Whether slurmctld answers, and its nodes."""
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
    found = f"Slurm {version[0]:02d}.{version[1]:02d}, {counted(len(nodes), 'node')}"
    return Finding.ok("slurmctld", found), nodes


def _unanswered(error: SlurmError) -> Finding:
    """Says nothing about nodes, and advises nothing that would change any."""
    advice = "is slurm.bin_dir right, and slurm.conf?"
    if error.unanswered:
        advice = SLURMCTLD
    return Finding.wrong(
        "slurmctld",
        f"does not answer: {error}",
        expected="an answer; until then no machine is launched, ended or given up",
        advice=advice,
        cause=SLURM,
    )


def slurm_conf(config: Config) -> Iterator[Finding]:
    """What ``conf check`` and ``conf diff`` find."""
    what = str(Path(config.slurm.conf))
    try:
        planned = plan.make(config)
        report = check.check(planned)
    except ConfigError as error:
        advice = "slurm-elastic conf check says it at length"
        for problem in error.problems:
            yield Finding.wrong(what, problem, advice=advice)
        return
    except (SlurmElasticError, OSError) as error:
        yield Finding.wrong(what, str(error))
        return
    for notice in plan.shared_partitions(planned.pools, planned.site):
        yield Finding.note(what, notice)
    depth = "proven on a throw-away slurmctld" if report.full else "parsed only"
    if not plan.is_installed(config):
        yield Finding.ok(what, f"our part fits into it; {depth}")
    elif planned.changes():
        yield Finding.wrong(
            what,
            "what is installed differs from the configuration",
            expected="the same",
            advice="slurm-elastic conf diff shows it, conf install puts it in place",
        )
    else:
        yield Finding.ok(what, f"installed as configured; {depth}")
