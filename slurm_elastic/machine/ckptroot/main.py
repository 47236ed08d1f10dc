"""The commands: ``run`` and ``ready`` by sudo from the launcher, ``sweep`` by root."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from slurm_elastic.machine.ckptroot import caller as callers
from slurm_elastic.machine.ckptroot import criu, dmtcp, journal, outputs, ownplaces
from slurm_elastic.machine.ckptroot.baggage import PLACES
from slurm_elastic.machine.ckptroot.caller import Caller, JobState
from slurm_elastic.machine.ckptroot.patience import Ended, Patience
from slurm_elastic.machine.ckptroot.payload import Payload, become
from slurm_elastic.machine.ckptroot.quota import Quota
from slurm_elastic.machine.ckptroot.session import Method, Session, ending, finish
from slurm_elastic.machine.ckptroot.signals import block
from slurm_elastic.machine.ckptroot.site import CONFIG, Refused, Site, read
from slurm_elastic.machine.ckptroot.store import Meta, Store, Taken, read_script
from slurm_elastic.machine.ckptroot.sweep import sweep

USAGE = """\
usage: slurm-elastic-ckpt-root ready METHOD               can this job be run so, on this node?
       slurm-elastic-ckpt-root run METHOD UMASK SCRIPT [ARGUMENT...]
       slurm-elastic-ckpt-root sweep                      remove what ended jobs left behind
"""
_METHODS = {"criu": criu, "dmtcp": dmtcp}


def main(argv: Sequence[str] | None = None, config: str = CONFIG) -> int:
    """The program's exit code: of ``run``, that of the job's script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    journal.begin()
    try:
        return _command(arguments, config)
    except (Refused, OSError) as refusal:
        journal.tell(journal.WARNING, f"refused: {refusal}")
        sys.stderr.write(f"slurm-elastic: {refusal}\n")
        return 1


def _command(arguments: list[str], config: str) -> int:
    if os.geteuid() != 0:
        raise Refused("this is for root: start it by sudo")
    match arguments:
        case ["ready", method]:
            _ready(method, config)
            return 0
        case ["run", method, umask, script, *rest]:
            return _run(config, method, _octal(umask), [script, *rest])
        case ["sweep"]:
            site = read(config)
            for line in sweep(site):
                sys.stdout.write(line + "\n")
            for place in PLACES:
                ownplaces.sweep(place)
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


def _ready(method: str, config: str) -> None:
    """Refused where the script had better run by itself. Not for want of slurmctld's answer where
    the job may have images: ``run`` waits for that.
    """
    site, caller = _allowed(method, config, asks=True)
    state = callers.ask(site, caller.job)
    if state is not None:
        _check_owner(state, caller)
    elif not _may_go_on(Store(site, caller.job), caller):
        raise Refused("slurmctld does not answer")


def _allowed(method: str, config: str, *, asks: bool = False) -> tuple[Site, Caller]:
    if method not in _METHODS:
        raise Refused(f"unknown method {method!r}")
    site = read(config)
    _METHODS[method].available(site)
    return site, callers.identify(site, asks=asks)


def _check_owner(state: JobState, caller: Caller) -> None:
    if state.uid != caller.uid:
        raise Refused(f"job {caller.job} is of uid {state.uid}, sudo was called by {caller.uid}")


def _may_go_on(store: Store, caller: Caller) -> bool:
    """Whether it is a restart as far as that can be told without slurmctld. A user who says so
    himself waits for nothing, and so does no harm but to himself.
    """
    return bool(caller.restarts or store.images())


def _run(config: str, method: str, umask: int, argv: list[str]) -> int:
    """Drive the job's run; whatever keeps us from that, the job runs, only without checkpoints."""
    os.umask(0o027)
    # Before the first fork: none of ours but the payload may die of a signal to the whole step.
    block()
    plain = _plain(config, umask, argv)
    try:
        site, caller = _allowed(method, config)
        payload = _payload(site, caller, umask, argv)
        store, session = begin(site, caller, payload, method, argv[0])
    except Ended as end:
        journal.tell(journal.NOTICE, f"a job's run is over before it began: {end}")
        return finish(int(signal.SIGTERM))
    except Exception as refusal:  # noqa: BLE001 - whatever it is, nothing was started
        why = f"a job runs without checkpoints: {str(refusal) or type(refusal).__name__}"
        journal.tell(journal.WARNING, why)
        become(plain)
    return finish(drive(store, session))


def begin(
    site: Site, caller: Caller, payload: Payload, method: str, script: str
) -> tuple[Store, Session]:
    """Start or restore the job; Ended, Refused or whatever else: nothing was started."""
    store = Store(site, caller.job)
    patience = Patience(caller.job)
    try:
        state = _take(site, caller, store, patience)
        patience.rewarded()
        meta = _meta(site, caller, store, state, method, script)
        made = _open(site, caller, payload, method)
        session = Session(site, caller, state.restarts, store, meta, made)
        try:
            session.begin()
        except Exception as error:
            session.abandon(error)
            raise
    except BaseException:
        store.close()
        raise
    return store, session


def drive(store: Store, session: Session) -> int:
    """The payload's wait status, in the end."""
    try:
        status = session.run()
        session.leave(status)
        return status
    finally:
        store.close()


def _take(site: Site, caller: Caller, store: Store, patience: Patience) -> JobState:
    """Take the job's directory; what slurmctld says of the job, not before a wait but after."""
    patience.patient = _may_go_on(store, caller)
    state = _ask(site, caller, patience, caller.restarts)
    patience.patient = state.restarts > 0
    while True:
        try:
            store.open()
            break
        except Taken as taken:
            if not patience.again(str(taken)):
                raise
    return _ask(site, caller, patience, state.restarts) if patience.waited else state


def _ask(site: Site, caller: Caller, patience: Patience, restarts: int | None) -> JobState:
    """``restarts``: how often the job was restarted before this run, if that is known."""
    while True:
        state = callers.ask(site, caller.job, look=patience.look)
        if state is not None:
            break
        if not patience.again("slurmctld does not answer"):
            raise Refused("slurmctld does not answer")
    # A run that was cut off with its node: the job may have long been running elsewhere.
    if patience.waited and ending(state, state.restarts if restarts is None else restarts):
        raise Ended(f"Slurm says {state.state}, restarted {state.restarts} times")
    _check_owner(state, caller)
    return state


def _meta(
    site: Site, caller: Caller, store: Store, state: JobState, method: str, script: str
) -> Meta:
    """How the job began: now, or in an earlier run.

    A directory that is not of this user and method is of another job that had the number.
    """
    meta = store.meta()
    wanted = (caller.uid, caller.gid, method)
    if state.restarts and meta and (meta.uid, meta.gid, meta.method) == wanted:
        return meta
    if meta and meta.uid != caller.uid:
        Quota(site, caller.job, meta.uid, store.path).forget()
    label = state.label(caller.job)
    meta = Meta(caller.job, label, caller.uid, caller.gid, method, outputs.of_step())
    store.begin(meta, read_script(caller, script))
    return meta


def _payload(site: Site, caller: Caller, umask: int, argv: list[str]) -> Payload:
    return Payload(
        argv=(str(site.jobs / str(caller.job) / "script"), *argv[1:]),
        environment=caller.environment,
        directory=os.getcwd(),
        umask=umask,
        uid=caller.uid,
        gid=caller.gid,
        groups=caller.groups,
    )


def _plain(config: str, umask: int, argv: list[str]) -> Payload:
    """The launcher again, which then runs the script by itself: as the user, where we are, with the
    environment that sudo was called with. Found out first, as nothing may keep us from it later.
    Refused where it cannot be: the script never runs as somebody else, or with root's environment.
    """
    try:
        sudo = read(config).sudo
    except (Refused, OSError, ValueError):
        sudo = Site.sudo
    user, gid = callers.sudo_user(), callers.sudo_number("SUDO_GID")
    return Payload(
        argv=argv,
        environment={**callers.own_environment(sudo), b"SLURM_ELASTIC_PLAIN": b"1"},
        directory=".",  # which may have been deleted meanwhile
        umask=umask,
        uid=user.pw_uid,
        gid=gid,
        groups=tuple(os.getgrouplist(user.pw_name, gid)),
    )


def _open(site: Site, caller: Caller, payload: Payload, method: str) -> Method:
    return (
        criu.Criu(site, caller, payload) if method == "criu" else dmtcp.Dmtcp(site, caller, payload)
    )
