"""The head: state directory and records, spool, Slurm and its slurm.conf."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.base.account import acting_as, is_group, same_account, trusted
from slurm_elastic.base.errors import ConfigError, ProviderError, SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import brief, counted
from slurm_elastic.config import Config
from slurm_elastic.features.news.telling import mail_program
from slurm_elastic.model.causes.repairs import NodeIll
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import NO_NODE, Slurm
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.out_of_service import ill
from slurm_elastic.providers.base.hosts.claims import Claims
from slurm_elastic.providers.base.tags import CLUSTER
from slurm_elastic.slurm.conf import check, install, plan
from slurm_elastic.slurm.conf.checks import allow_lists, head_names
from slurm_elastic.slurm.conf.checks.overridden import overridden
from slurm_elastic.state import statedir
from slurm_elastic.state.heartbeat import DAEMON, read_mark
from slurm_elastic.watch.causes import DISK, INSTALL, SLURM
from slurm_elastic.watch.doctor import bursting, services

MIN_FREE_BYTES = 100 * 2**20  # on a full disk machines are only ended
MIN_FREE_INODES = 1000  # without a free inode no request of slurmctld can be written
REQUEST_TIMEOUT_S = 60.0  # slurm-elasticd should have served a request after this time
_CONNECT_TIMEOUT_S = 5.0  # to the socket at which users ask

_SUBMITTERS = ("/usr/sbin/postdrop", "/usr/sbin/exim4", "/usr/sbin/exim", "/usr/sbin/sendmail")

SPOOL = "requests of Slurm (spool)"


def state_directory(config: Config) -> Iterator[Finding]:
    """Report whether the state directory exists, who owns it, and whether it has room."""
    path, subject = config.state, f"state directory {config.state}"
    try:
        status = path.stat()
        free_bytes, free_inodes = shutil.disk_usage(path).free, _free_inodes(path)
    except PermissionError:
        return  # ``memory`` reports it
    except OSError as error:
        advice = "`slurm-elastic conf install` makes it"
        yield Finding.wrong(subject, str(error.strerror), advice=advice)
        return
    owner = _name(status.st_uid)
    if not same_account(owner, config.slurm.user) or status.st_mode & statedir.OTHERS:
        yield Finding.wrong(
            subject,
            f"owner {owner}, mode {stat.S_IMODE(status.st_mode):04o}",
            expected=f"owner {config.slurm.user}, mode 0700: who opens a file there can lock it",
            advice=f"chown {config.slurm.user}: {path}; chmod 0700 {path}",
        )
    else:
        room = f"{free_bytes // 2**20} MiB free"
        yield _lack(subject, free_bytes, free_inodes) or Finding.ok(
            subject, f"owner {owner}, {room}"
        )


def _lack(subject: str, free_bytes: int, free_inodes: int | None) -> Finding | None:
    """Report what the disk has too little of: bytes, or inodes for more files."""
    if free_bytes < MIN_FREE_BYTES:
        return Finding.wrong(
            subject,
            f"{free_bytes // 2**20} MiB free",
            expected=f"{MIN_FREE_BYTES // 2**20} MiB: on a full disk nothing is bought",
            advice="make room (df names the disk); slurm-elasticd then continues without a restart",
            cause=DISK,
        )
    if free_inodes is not None and free_inodes < MIN_FREE_INODES:
        return Finding.wrong(
            subject,
            f"{free_bytes // 2**20} MiB free, and inodes for {free_inodes} more files",
            expected=f"inodes for {MIN_FREE_INODES} files: each request of slurmctld is one",
            advice="remove files that are not needed (df -i names the disk)",
            cause=DISK,
        )
    return None


def _free_inodes(path: Path) -> int | None:
    """Return the free inodes; None if the file system has no fixed number (btrfs)."""
    filesystem = os.statvfs(path)
    # f_favail and not f_ffree: the latter counts inodes that only root may use.
    return filesystem.f_favail if filesystem.f_files else None


def memory(config: Config, now: float) -> Iterator[Finding]:
    """Yield the findings on the files in the state directory, for users who may read it."""
    if _is_closed(config.state):
        yield Finding.note(
            "requests and ledger",
            f"not checked: only {config.slurm.user} can read {config.state}",
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
    yield from _mail(config)
    yield from _claims_of_unknown_clouds(config)


def _mail(config: Config) -> Iterator[Finding]:
    """Report a missing mail program: else a missing mail would be the first sign."""
    notify = config.notify
    program = mail_program(config)
    sends_mail = notify.mail or notify.users or notify.accounts or notify.coordinators
    if sends_mail and not (Path(program).is_file() and os.access(program, os.X_OK)):
        yield Finding.wrong(
            "notify",
            f"{program} is not a program, so no mail is sent",
            expected="the path of a mail program",
            advice=f"install one, or set notify.mail_program ({page('notify')})",
        )
    elif sends_mail and (submitter := _submitter_out_of_reach(config, program)):
        yield Finding.note(
            "notify",
            f"mail by {program} may not leave: {submitter} gains no rights in our unit",
            expected="a mail program that speaks SMTP itself",
            advice=f"set notify.mail_program to one, such as msmtp's mail ({page('notify')})",
        )


def _submitter_out_of_reach(config: Config, program: str) -> str:
    """The set-uid or set-gid program by which this host's mail server takes local mail, if
    slurm-elasticd runs with NoNewPrivileges; else "". Mail programs report no error then, because
    they wait for no sendmail.
    """
    mark = read_mark(config.state)
    if mark is None or Path(program).resolve().name.startswith("msmtp"):
        return ""
    try:
        status = Path(f"/proc/{mark.pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if "NoNewPrivs:\t1" not in status:
        return ""
    return next((path for path in _SUBMITTERS if _gains_rights(path)), "")


def _gains_rights(path: str) -> bool:
    try:
        return bool(Path(path).stat().st_mode & (stat.S_ISUID | stat.S_ISGID))
    except OSError:
        return False


def _claims_of_unknown_clouds(config: Config) -> Iterator[Finding]:
    """Report hosts that are claimed for a cloud that is not configured, such as a renamed one. Tags
    show the machines of a renamed cloud, but hosts have none.
    """
    names = {cloud.name for cloud in config.clouds}
    for path in sorted((config.state / "claims").glob("*.db")):
        if path.stem in names:
            continue
        try:
            with acting_as(config.slurm.user):  # sqlite may make files beside the claims
                claims = Claims(path.stem, path, timeout=1.0).all()
        except ProviderError:
            continue  # a locked or broken file of a cloud that is gone: nothing is known about it
        claimed = [
            h for h, claim in claims.items() if claim.marks.get(CLUSTER) == config.cluster.uuid
        ]
        if claimed:
            yield Finding.wrong(
                f"claims of {path.stem}",
                f"{compress(claimed)}: switched on for cloud {path.stem}, which is not configured",
                expected="its cloud: without it they stay on, and get no job",
                advice=f"if the cloud has another name now, stop slurm-elasticd, rename {path} to "
                f"NEWNAME.db, and start it ({page('operating')})",
            )


def _webhook(config: Config) -> Iterator[Finding]:
    """Report an address for notices that all users can read."""
    if config.notify.webhook and not config.notify.webhook.startswith("/"):
        yield Finding.note(
            "notify",
            "the address of notify.webhook is in slurm-elastic.yaml, which all users read",
            expected="the path of a file that only SlurmUser can read",
            advice="move it to a file and renew it, because everyone who knows it can post there "
            f"({page('notify')})",
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
    """Report whether slurm-elasticd answers users."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)  # a hanging daemon accepts no connection
        try:
            probe.connect(str(config.read_socket))
        except OSError as error:
            yield Finding.note(
                "users",
                f"no answer at {config.read_socket}: {error.strerror}",
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
    """Report the groups that the configuration gives more rights than other users have."""
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
    """Report accounts with a budget that no allow list of a public cloud names.

    Either the name is misspelled, or the list names a parent account, whose children some releases
    of Slurm let in.
    """
    allow_lists = [
        config.who_of(cloud).accounts
        for cloud in config.clouds
        if cloud.location is Location.PUBLIC
    ]
    listed_accounts = {account for names in allow_lists for account in names}
    for account in config.policies.account_budgets:
        if all(allow_lists) and account not in listed_accounts:
            yield Finding.note(
                f"budget of account {account}",
                "no public cloud's allow.accounts names the account",
                expected=f"one of {', '.join(sorted(listed_accounts))}",
                advice="is it spelled as in Slurm (sacctmgr show account)?",
            )


def allowed_groups(config: Config) -> Iterator[Finding]:
    """Report groups of allow lists that this host lacks or shows no member of."""
    for flaw in allow_lists.group_flaws(config):
        yield Finding.note(f"who may use {flaw.clouds}", flaw.finding, advice=flaw.remedy)


def join_head(config: Config) -> Iterator[Finding]:
    """Report names of ``join.head`` that this host cannot resolve."""
    for host in head_names.unresolved(config):
        yield Finding.note(
            "join.head", f"this host cannot resolve {host}", advice=head_names.REMEDY
        )


def spool(config: Config, now: float) -> Iterator[Finding]:
    """Report requests that wait for too long or that could not be read."""
    directory = config.state / "requests"
    try:
        with config.sharing():
            times = [time for path in directory.glob("*.json") if (time := _written_at(path))]
            bad = sum(1 for _ in (directory / "bad").glob("*.json"))
    except OSError as error:
        yield Finding.wrong(SPOOL, str(error.strerror))
        return
    oldest = now - min(times, default=now)
    if oldest > REQUEST_TIMEOUT_S:
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


def _written_at(path: Path) -> float | None:
    """Return when the file was written; None if slurm-elasticd has served it since the listing."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime
    return None


def _failed(config: Config, nodes: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """Report our nodes that Slurm has taken out of service, with its reasons."""
    by_cause: dict[NodeIll, list[str]] = {}
    for name in (n for pool in plan.pools_of(config) for n in pool.nodes):
        if name in nodes and (illness := ill(nodes[name], config.slurm.drain_terms)) is not None:
            by_cause.setdefault(illness.cause, []).append(name)
    for cause, names in by_cause.items():
        yield Finding.note(
            f"nodes {compress(names)}",
            f"Slurm took them out of service: {cause.finding}",
            expected="nodes in service; slurm-elasticd gives them other machines",
            advice=cause.remedy,
        )


def before_install(config: Config, client: Slurm) -> Iterator[Finding]:
    """Yield the findings on a head where nothing of ours is installed: no service runs there."""
    yield Finding.note(
        "slurm.conf",
        "it has nothing of ours yet, so no job can use a cloud",
        advice=f"slurm-elastic conf install; then start the services ({page('install')})",
    )
    yield _answer(config, client)[0]


def lacks_include(config: Config, file: Path | None) -> bool:
    """Whether slurm.conf lost our include line after an install. ``file``: the configuration."""
    if file is None or plan.is_installed(config):
        return False
    with contextlib.suppress(ConfigError):  # a damaged record says nothing
        manifest = install.read_manifest(file)
        return manifest is not None and manifest.slurm_conf == config.slurm.conf
    return False


def include_line(config: Config, file: Path | None) -> Iterator[Finding]:
    """Report an include line that something else took out, such as a configuration management."""
    if lacks_include(config, file):
        yield Finding.wrong(
            config.slurm.conf,
            "slurm-elastic is installed, but the include line was taken out",
            expected="its line: a slurmctld that restarts without it drops the cloud nodes and"
            " their jobs, while the machines stay paid",
            advice="`slurm-elastic conf install` puts it back; add the line where this file is"
            " made, too",
            cause=INSTALL,
        )


def slurm(config: Config, client: Slurm) -> Iterator[Finding]:
    """Yield whether Slurm answers and knows our nodes."""
    answer, nodes = _answer(config, client)
    yield answer
    if not nodes:
        return
    # Our nodes come before the filter. Until our part is installed both are missing for the same
    # cause, and only the first finding of a cause is shown.
    yield _our_nodes(config, nodes)
    yield from _failed(config, nodes)
    yield from bursting.in_service(config, nodes)
    yield from bursting.filter_called(config)
    yield from bursting.accounts_held(config)
    if isinstance(client, bursting.Probing):
        yield from bursting.accounts_known(config, client)


def _our_nodes(config: Config, nodes: Mapping[str, SlurmNode]) -> Finding:
    own_nodes = [n for pool in plan.pools_of(config) for n in pool.nodes]
    missing = [n for n in own_nodes if n not in nodes]
    if not missing:
        return Finding.ok("our nodes", f"all {len(own_nodes)} are there")
    return Finding.wrong(
        "our nodes",
        f"Slurm does not list {len(missing)} of {len(own_nodes)}, {missing[0]} among them",
        expected="all of them",
        advice=service_remedies.install_and_restart(),
        cause=INSTALL if len(missing) == len(own_nodes) else "",
    )


def _answer(config: Config, client: Slurm) -> tuple[Finding, Mapping[str, SlurmNode]]:
    """Return whether slurmctld answers, and its nodes."""
    try:
        nodes = client.nodes()
        version = client.version()
    except SlurmError as error:
        return _unanswered(error), {}
    if not nodes:
        advice = f"run this as {config.slurm.user} or root; is it the right slurm.conf?"
        hidden = os.geteuid() not in trusted(config.slurm.user)  # PrivateData=nodes hides all
        no_nodes = Finding(
            subject="slurmctld", level=FindingLevel.NOTE if hidden else FindingLevel.WRONG,
            observed=NO_NODE,
            expected="the nodes of the cluster", advice=advice,
        )  # fmt: skip
        return no_nodes, {}
    text = f"Slurm {version[0]:02d}.{version[1]:02d}, {counted(len(nodes), 'node')}"
    return Finding.ok("slurmctld", text), nodes


def _unanswered(error: SlurmError) -> Finding:
    """Report that slurmctld does not answer; the advice must not change any node."""
    advice = "is slurm.bin_dir right, and slurm.conf?"
    if error.unanswered:
        advice = service_remedies.slurmctld_state()
    return Finding.wrong(
        "slurmctld",
        f"does not answer: {error}",
        expected="an answer; until then no machine is launched, ended or given up",
        advice=advice,
        cause=SLURM,
    )


def slurm_conf(config: Config) -> Iterator[Finding]:
    """Yield the findings of ``conf check`` and ``conf diff``."""
    conf_path = str(Path(config.slurm.conf))
    try:
        planned = plan.make(config)
        report = check.check(planned)
    except ConfigError as error:
        advice = "slurm-elastic conf check says it at length"
        for problem in error.problems:
            yield Finding.wrong(conf_path, problem, advice=advice)
        return
    except (SlurmElasticError, OSError) as error:
        yield Finding.wrong(conf_path, str(error))
        return
    for override in overridden(config, planned.version):
        yield Finding.wrong(conf_path, override, expected="our include line behind all options")
    if report.failure:
        yield Finding.wrong(
            conf_path,
            f"slurmctld does not start on the site's own files: {report.failure}",
            expected="files on which a restarted slurmctld starts",
            advice="mend them before you restart slurmctld; slurm-elastic conf check tries them",
        )
    for notice in plan.shared_partitions(planned.pools, planned.site):
        yield Finding.note(conf_path, notice)
    depth = "proven on a throw-away slurmctld" if report.full else "parsed only"
    if not plan.is_installed(config):
        yield Finding.ok(conf_path, f"our part fits into it; {depth}")
    elif planned.changes():
        for outdated in plan.outdated_site_programs(planned):
            yield Finding.wrong(
                conf_path, outdated, expected="the same", advice="slurm-elastic conf install"
            )
        yield Finding.wrong(
            conf_path,
            "what is installed differs from the configuration",
            expected="the same",
            advice="slurm-elastic conf diff shows it, conf install puts it in place",
        )
    else:
        yield Finding.ok(conf_path, f"installed as configured; {depth}")
