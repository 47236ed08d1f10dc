"""The commands: ``run`` and ``ready`` by sudo from the launcher, ``sweep`` by root."""

from __future__ import annotations

import os
import signal
import sys
import syslog
from collections.abc import Sequence
from typing import NoReturn

from slurm_elastic.ckptroot import caller as callers
from slurm_elastic.ckptroot import criu, dmtcp, outputs
from slurm_elastic.ckptroot.caller import Caller
from slurm_elastic.ckptroot.payload import Payload, become
from slurm_elastic.ckptroot.session import Method, Session, finish
from slurm_elastic.ckptroot.signals import SIGNALS
from slurm_elastic.ckptroot.site import CONFIG, Refused, Site, read
from slurm_elastic.ckptroot.store import Meta, Store, read_script
from slurm_elastic.ckptroot.sweep import sweep

USAGE = """\
usage: slurm-elastic-ckpt-root ready METHOD               can this job be run so, on this node?
       slurm-elastic-ckpt-root run METHOD UMASK SCRIPT [ARGUMENT...]
       slurm-elastic-ckpt-root sweep                      remove what ended jobs left behind
"""
_METHODS = {"criu": criu, "dmtcp": dmtcp}


def main(argv: Sequence[str] | None = None, config: str = CONFIG) -> int:
    """The program's exit code: of ``run``, that of the job's script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    syslog.openlog("slurm-elastic-ckpt-root", syslog.LOG_PID, syslog.LOG_DAEMON)
    try:
        return _command(arguments, config)
    except (Refused, OSError) as refusal:
        syslog.syslog(syslog.LOG_WARNING, f"refused: {refusal}")
        sys.stderr.write(f"slurm-elastic: {refusal}\n")
        return 1


def _command(arguments: list[str], config: str) -> int:
    if os.geteuid() != 0:
        raise Refused("this is for root: start it by sudo")
    match arguments:
        case ["ready", method]:
            _ready(method, config, asks=True)
            return 0
        case ["run", method, umask, script, *rest]:
            return _run(config, method, _octal(umask), [script, *rest])
        case ["sweep"]:
            site = read(config)
            for line in sweep(site):
                sys.stdout.write(line + "\n")
            return 0
    sys.stderr.write(USAGE)
    return 2


def _octal(text: str) -> int:
    try:
        value = int(text, 8)
    except ValueError as error:
        raise Refused(f"umask {text!r} is no octal number") from error
    if not 0 <= value <= 0o777:
        raise Refused(f"umask {text!r} is not between 0 and 777")
    return value


def _ready(method: str, config: str, *, asks: bool = False) -> tuple[Site, Caller]:
    if method not in _METHODS:
        raise Refused(f"unknown method {method!r}")
    site = read(config)
    _METHODS[method].available(site)
    caller = callers.identify(site, asks=asks)
    state = callers.ask(site, caller.job)
    if state is None:
        raise Refused("slurmctld does not answer")
    if state.uid != caller.uid:
        raise Refused(f"job {caller.job} is of uid {state.uid}, sudo was called by {caller.uid}")
    return site, caller


def _run(config: str, method: str, umask: int, argv: list[str]) -> int:
    """Drive the job's run; whatever keeps us from that, the job runs, only without checkpoints."""
    os.umask(0o027)
    # Before the first fork: none of ours but the payload may die of a signal to the whole step.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    directory = os.getcwd()
    caller = None
    try:
        site, caller = _ready(method, config)
        payload = _payload(site, caller, directory, umask, argv)
        status = _drive(site, caller, payload, method, argv[0])
    except (Refused, OSError) as refusal:
        syslog.syslog(syslog.LOG_WARNING, f"a job runs without checkpoints: {refusal}")
        _plain(caller, directory, umask, argv)
    return finish(status)


def _drive(site: Site, caller: Caller, payload: Payload, method: str, script: str) -> int:
    """The payload's wait status; Refused only where it was not started."""
    store = Store(site, caller.job)
    store.open()
    try:
        attempt, meta = _attempt(site, caller, store, method, script)
        session = Session(site, caller, attempt, store, meta, _open(site, caller, payload, method))
        try:
            session.begin()
        except (Refused, OSError):
            session.abandon()
            raise
        status = session.run()
        session.leave(status)
        return status
    finally:
        store.close()


def _attempt(
    site: Site, caller: Caller, store: Store, method: str, script: str
) -> tuple[int, Meta]:
    """How often Slurm has restarted the job, and how it began: now, or in an earlier run.

    A directory that is not of this user and method is of another job that had the number.
    """
    state = callers.ask(site, caller.job)
    if state is None:
        raise Refused("slurmctld does not answer")
    meta = store.meta()
    wanted = (caller.uid, caller.gid, method)
    if state.restarts and meta and (meta.uid, meta.gid, meta.method) == wanted:
        return state.restarts, meta
    label = state.label(caller.job)
    meta = Meta(caller.job, label, caller.uid, caller.gid, method, outputs.of_step())
    store.begin(meta, read_script(caller, script))
    return state.restarts, meta


def _payload(site: Site, caller: Caller, directory: str, umask: int, argv: list[str]) -> Payload:
    return Payload(
        argv=(str(site.jobs / str(caller.job) / "script"), *argv[1:]),
        environment=caller.environment,
        directory=directory,
        umask=umask,
        uid=caller.uid,
        gid=caller.gid,
        groups=caller.groups,
    )


def _plain(caller: Caller | None, directory: str, umask: int, argv: list[str]) -> NoReturn:
    """Give way to the launcher, as the user, which then runs the script by itself."""
    user = callers.sudo_user()
    gid = int(os.environ["SUDO_GID"])
    environment = caller.environment if caller else os.environb
    become(
        Payload(
            argv=argv,
            environment={**environment, b"SLURM_ELASTIC_PLAIN": b"1"},
            directory=directory,
            umask=umask,
            uid=user.pw_uid,
            gid=gid,
            groups=tuple(os.getgrouplist(user.pw_name, gid)),
        )
    )


def _open(site: Site, caller: Caller, payload: Payload, method: str) -> Method:
    return (
        criu.Criu(site, caller, payload) if method == "criu" else dmtcp.Dmtcp(site, caller, payload)
    )
