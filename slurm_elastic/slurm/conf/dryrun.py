"""Starts a throw-away slurmctld on a copy of a configuration and reads back what it understood.

The copy keeps everything about nodes, partitions and scheduling. Paths, authentication, accounting
and all programs are replaced, so that nothing of the site is run, written or asked. A slurmctld
contacts the slurmds of its configuration at once, even from a port of its own (measured). Therefore
it runs in a network namespace, from which it can reach nothing.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.account import account
from slurm_elastic.base.units import brief
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.client.commands.sbatch_test_only import joined
from slurm_elastic.slurm.client.siteconf import ConfLine, Entry, SiteConf
from slurm_elastic.slurm.conf import gresconf, topology_yaml
from slurm_elastic.slurm.conf.checks.plugins import has_plugin
from slurm_elastic.slurm.conf.isolated import ADDRESS, QUESTIONS, namespaces

_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child")
_PROGRAM = Path(__file__).with_name("isolated.py")
_TIMEOUT_S = 180.0

_REPLACED = re.compile(
    r"accounting.*|acctgather.*|auth(alt)?(types?|info)|backup(addr|controller)|burstbuffer.*"
    r"|certmgr.*|clifilterplugins|communicationparameters|control(addr|machine)|cred.*|epilog.*"
    r"|extsensors.*|federation.*|healthcheck.*|jobacctgather.*|jobcomp.*|jobcontainer.*"
    r"|jobcredential.*|jobsubmitplugins|mailprog|nodefeaturesplugins|power(parameters|plugin)"
    r"|prep(plugins|parameters)|prolog(slurmctld)?|rebootprogram|resume(fail)?program"
    r"|slurmctld(addr|host|logfile|pidfile|plugstack|port|primary.*|syslogdebug)"
    r"|slurmschedlog(file|level)|slurmuser|srun(epilog|prolog)|statesavelocation|suspendprogram"
    r"|task(epilog|prolog)|tls.*|unkillablestepprogram"
)
"""Options (lower case) that the copy leaves out: paths, keys, accounting, programs."""

_WEIGHTS = frozenset({"tresbillingweights", "priorityweighttres"})
"""Options whose items may need slurmdbd. Without it slurmctld knows no TRES of GPUs or licences."""

_COPIED_FILES = ("cgroup.conf", "topology.conf", topology_yaml.FILE_NAME)
"""The files that slurmctld reads beside slurm.conf and gres.conf."""


_WITHOUT_CAUSE = re.compile(r"Unable to process configuration file|read_slurm_conf reading")
"""Fatal errors whose cause is in the error lines before them."""
_USUAL_ERRORS = re.compile(r"state file|state save file|MailProg|mpi/|MPI:|http_parser|url_parser")
"""Errors that every throw-away slurmctld logs: it has no state and no mail program."""


class DryRun(Struct, frozen=True, kw_only=True):
    """slurmctld's answer: fields by node and by partition, and all options. Or its ``failure``."""

    nodes: Mapping[str, Mapping[str, str]]
    partitions: Mapping[str, Mapping[str, str]]
    config: Mapping[str, str]
    failure: str | None = None


class DryRunSubmission(Struct, frozen=True, kw_only=True):
    """The partitions of a plain job, or sbatch's refusal in one line, or why nothing was tried."""

    partitions: tuple[str, ...] = ()
    refusal: str = ""
    failure: str = ""


def isolation() -> tuple[str, ...] | None:
    """The command that runs another command in its own namespaces. None if this host does not allow
    namespaces.
    """
    # Without --map-root-user: slurmctld as root drops groups, which a mapped root may not.
    own_user = () if os.geteuid() == 0 else ("--user", "--map-current-user", "--keep-caps")
    command = ("unshare", *own_user, *_NAMESPACES)
    return command if shutil.which("unshare") and _succeeds((*command, "true")) else None


def run(
    settings: SlurmSettings,
    site: SiteConf,
    fragment: str | None,
    wrapper: Sequence[str],
    *,
    gres: str = "",
    linger: float = 0.0,
) -> DryRun:
    """Run one throw-away slurmctld on the site's configuration, with or without our fragment.
    ``gres`` is our part of gres.conf.

    ``wrapper`` is ``isolation()``. An empty one shares the network, which only a test may want.
    ``linger``: how long (s) slurmctld runs on after its answers.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-check-") as name:
        directory = Path(name)
        _prepare(settings, site, fragment, gres, directory)
        command = [*_command(settings, site, directory, wrapper), f"--linger={linger}"]
        if failure := _failure_of(command, directory, site):
            return _failed(failure)
        texts = {q: (directory / q).read_text(errors="replace") for q in QUESTIONS}
    return DryRun(
        nodes=records(texts["nodes"], "NodeName"),
        partitions=records(texts["partitions"], "PartitionName"),
        config=_settings(texts["config"]),
    )


def submit_job(
    settings: SlurmSettings,
    site: SiteConf,
    fragment: str,
    wrapper: Sequence[str],
    scripts: Mapping[str, str],
    *,
    gres: str = "",
    options: Sequence[str] = (),
    user: str | None = None,
) -> DryRunSubmission:
    """Submit a plain job to one throw-away slurmctld, which calls the job_submit.lua in ``scripts``
    (name -> text), if there is any. ``options`` are sbatch's.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-elastic-check-") as name:
        directory = Path(name)
        _prepare(settings, site, fragment, gres, directory)
        for script, text in scripts.items():
            _write_script(directory / script, text, settings.user)
        if scripts:
            with (directory / "slurm.conf").open("a") as conf:
                conf.write("JobSubmitPlugins=lua\n")
        command = _command(settings, site, directory, wrapper)
        # argparse would take a separate --account=x for an option of its own, so we write "=".
        command += ["--submit", *(f"--submit-option={option}" for option in options)]
        command += [f"--user={user}"] if user else []
        if failure := _failure_of(command, directory, site):
            return DryRunSubmission(failure=failure)
        refusal = directory / "refusal"
        if refusal.exists():
            return DryRunSubmission(refusal=joined(refusal.read_text()))
        partitions = (directory / "partitions").read_text()
    return DryRunSubmission(partitions=tuple(partitions.strip().split(",")))


def _write_script(path: Path, text: str, user: str) -> None:
    """A copy that only slurmctld can read, because the site may keep secrets in its script."""
    # Before the text, so that no other user can open the file in between.
    path.touch(mode=0o600)
    path.write_text(text)
    if os.geteuid() == 0:
        owner = account(user)
        os.chown(path, owner.pw_uid, owner.pw_gid)


def _failure_of(command: Sequence[str], directory: Path, site: SiteConf) -> str:
    """Run the throw-away slurmctld to its end. Return why it gave no answer, or "" if it did."""
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {brief(_TIMEOUT_S)}"
    if process.returncode == 0:
        return ""
    stderr = process.stderr.decode(errors="replace").strip()
    reason = stderr.rpartition("\n")[2] or _reason(directory)
    return relocated(reason, directory / "slurm.conf", site) or "it logged no reason"


def _command(
    settings: SlurmSettings, site: SiteConf, directory: Path, wrapper: Sequence[str]
) -> list[str]:
    return [
        *wrapper,
        # -I: no PYTHONPATH and no user site of the caller.
        *(sys.executable, "-I", str(_PROGRAM), str(directory)),
        *(f"{settings.sbin_dir}/slurmctld", f"{settings.bin_dir}/scontrol"),
        f"--outside={namespaces()}" if wrapper else "--shared",
        *(() if _can_skip_authentication(settings, site) else ("--munged",)),
    ]


def records(text: str, key: str) -> dict[str, dict[str, str]]:
    """The answer of ``scontrol -o show``: the fields by the value of ``key`` (as NodeName)."""
    records: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        fields = {m[1]: m[2].strip() for m in re.finditer(r"(\S+?)=(.*?)(?=\s+\S+?=|$)", line)}
        if key in fields:
            records[fields.pop(key)] = fields
    return records


def copy_text(lines: Sequence[ConfLine]) -> str:
    """The lines without the options of ``_REPLACED``, otherwise as they were written.

    An empty line replaces an omitted line, so that slurmctld counts lines as we do.
    """
    return "".join(f"{_kept_text(line)}\n" for line in lines)


def _kept_text(line: ConfLine) -> str:
    if line.entries[0].key == "poweraction":  # a program of the site (26.05)
        return ""
    is_option = not line.is_record
    kept_entries = tuple(
        _without_slurmdbd(entry)
        for entry in line.entries
        if not (is_option and _REPLACED.fullmatch(entry.key)) and not _is_ipv6(entry)
    )
    if kept_entries == line.entries:
        return _escaped(line.text)
    return _escaped(" ".join(_written(entry) for entry in kept_entries))


def _is_ipv6(entry: Entry) -> bool:
    """Whether the entry has IPv6 addresses of nodes, which are no hostlist.

    Without CommunicationParameters slurmctld 22.05 tries each of them for 10 s (measured).
    """
    return entry.key in ("nodeaddr", "bcastaddr") and ":" in entry.value


def _without_slurmdbd(entry: Entry) -> Entry:
    """The entry without the weights of resources that only slurmdbd knows (``GRES/gpu=2.0``)."""
    if entry.key not in _WEIGHTS or "/" not in entry.value:
        return entry
    weights = [item for item in entry.value.split(",") if "/" not in item]
    return replace(entry, value=",".join(weights))


def _written(entry: Entry) -> str:
    quoted = not entry.value or any(c.isspace() for c in entry.value)
    return f'{entry.name}="{entry.value}"' if quoted else f"{entry.name}={entry.value}"


def _escaped(text: str) -> str:
    return text.replace("#", "\\#")


def _succeeds(command: Sequence[str]) -> bool:
    process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return process.returncode == 0


def _prepare(
    settings: SlurmSettings, site: SiteConf, fragment: str | None, gres: str, directory: Path
) -> None:
    lines = site.lines
    if fragment is not None:
        (directory / "fragment").write_bytes(siteconf.encoded(fragment))
        lines = (*lines, *siteconf.read_lines(directory / "fragment"))
    user = settings.user if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    text = copy_text(lines) + _own_options(
        directory, user, munge=not _can_skip_authentication(settings, site)
    )
    (directory / "slurm.conf").write_bytes(siteconf.encoded(text))
    for name in _COPIED_FILES:
        if (site.directory / name).is_file():
            shutil.copyfile(site.directory / name, directory / name)
    hosts = "".join(f"{line}\n" for line in _hosts(lines))
    (directory / "hosts").write_bytes(siteconf.encoded(hosts))
    _prepare_gres(site, gres, directory)
    # Empty: a copy of the site's state would hold its jobs and nodes.
    (directory / "state").mkdir()
    # slurmctld reads all of it as SlurmUser, but a temporary directory has mode 0700, and under
    # root's umask 077 so do the files.
    for path in (*directory.iterdir(), directory):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if os.geteuid() == 0:
        # Only ``state``: root writes into the directory, where SlurmUser must not plant links.
        owner = account(user)
        os.chown(directory / "state", owner.pw_uid, owner.pw_gid)


def _prepare_gres(site: SiteConf, our_text: str, directory: Path) -> None:
    lines = gresconf.site_lines(site)
    if lines or our_text:
        text = gresconf.flattened(lines, our_text)
        (directory / gresconf.SITE_FILE).write_bytes(siteconf.encoded(text))


def _can_skip_authentication(settings: SlurmSettings, site: SiteConf) -> bool:
    """Whether Slurm has the plug-ins for no authentication. SchedMD's RPMs leave them out."""
    return all(has_plugin(settings, site, name) for name in ("auth_none", "cred_none"))


def _own_options(directory: Path, user: str, *, munge: bool) -> str:
    host = socket.gethostname().split(".")[0]
    authentication = "AuthType=auth/none\nCredType=cred/none\n"
    if munge:
        authentication = f"AuthType=auth/munge\nAuthInfo=socket={directory}/munge/socket\n"
    return authentication + (
        f"SlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={_free_port()}\n"
        f"SlurmUser={user}\nStateSaveLocation={directory}/state\n"
        f"SlurmctldPidFile={directory}/state/pid\nSlurmctldLogFile={directory}/state/log\n"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _hosts(lines: Sequence[ConfLine]) -> Iterator[str]:
    """An /etc/hosts in which every name of a node line resolves. Addresses stay addresses."""
    yield "127.0.0.1 localhost"
    names = {
        name
        for line in lines
        if line.entries[0].key == "nodename"
        for entry in line.entries
        if entry.key in ("nodename", "nodeaddr", "nodehostname", "bcastaddr")
        and not _is_ipv6(entry)
        for name in siteconf.names(entry)
    }
    for name in sorted(names):
        yield f"{ADDRESS} {name}"


def unknown_option(message: str, site: SiteConf) -> Entry | None:
    """The entry whose key Slurm does not know according to its message; None for other messages."""
    match = re.search(r"unrecognized key: (\w+)", message)
    return site.option(match[1]) if match else None


def relocated(message: str, conf: Path, site: SiteConf) -> str:
    """Slurm's message with places in the copy replaced by the site's. Both have the same lines."""
    match = re.search(rf"{re.escape(str(conf))} line (\d+)", message)
    if match and 0 < int(match[1]) <= len(site.lines):
        place = site.lines[int(match[1]) - 1].entries[0]
        message = message.replace(match[0], f"{place.file} line {place.line}")
    return message.replace(str(conf), site.path).replace(str(conf.parent), str(site.directory))


def _reason(directory: Path) -> str:
    """The fatal errors of the log, with the errors before them if they name no cause."""
    log = directory / "state" / "log"
    texts = [
        p.read_text(errors="replace") for p in (directory / "slurmctld.out", log) if p.exists()
    ]
    lines = [re.sub(r"^\[\S+\] |^slurmctld: ", "", line) for t in texts for line in t.splitlines()]
    fatal = [line for line in lines if "fatal:" in line]
    errors = [line for line in lines if "error:" in line and not _USUAL_ERRORS.search(line)]
    if not fatal or any(_WITHOUT_CAUSE.search(line) for line in fatal):
        fatal = [*errors[-3:], *fatal]
    return "; ".join(dict.fromkeys(fatal))


def _failed(failure: str) -> DryRun:
    return DryRun(nodes={}, partitions={}, config={}, failure=failure or "it logged no reason")


def _settings(text: str) -> dict[str, str]:
    matches = (re.match(r"(\w+)\s*=\s?(.*)$", line) for line in text.splitlines())
    return {match[1]: match[2].strip() for match in matches if match}
