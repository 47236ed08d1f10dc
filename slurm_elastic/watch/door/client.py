"""Lets commands read the files if they may open them, else asks slurm-elasticd's read door."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.processes.unixsocket import peer_of
from slurm_elastic.base.units import brief
from slurm_elastic.config import Config
from slurm_elastic.features.money.books import Costs
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.slurm.hooks import order_file
from slurm_elastic.slurm.hooks.order_file import Published
from slurm_elastic.watch.door.questions import (
    MAX_ANSWER,
    Ask,
    Chain,
    ChainAsk,
    CostAsk,
    DayAsk,
    DoorAnswer,
    FactsAsk,
    Order,
    OwnJobsAsk,
    PartitionPrice,
    PriceAsk,
    SaveAsk,
    TermsAsk,
    packed,
    trusted,
)
from slurm_elastic.watch.door.records import (
    may_read,
    read_chain,
    read_costs,
    read_costs_by_key,
    read_days,
    read_facts,
)
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.view.day import DaySpan, DayView
from slurm_elastic.watch.view.own_jobs import OwnJobs

ANSWER_TIMEOUT_S = 40.0
"""Time-out of the whole conversation: a little longer than the daemon's own limit."""
T = TypeVar("T")
_MAX_LINE = 64 << 10  # bytes of a request, as the read door takes them
_MAX_NODES = _MAX_LINE // 2  # characters


def facts_of(config: Config, now: float) -> Facts:
    """All facts except Slurm's. SlurmElasticError if the daemon does not answer."""
    if may_read(config):
        return read_facts(config, now)
    return _ask(config, FactsAsk(), lambda answer: answer.facts)


def chain_of(config: Config, ask: ChainAsk, now: float) -> Chain:
    """The decisions about a subject. SlurmElasticError if the caller may not read or see them."""
    if may_read(config):
        return read_chain(config, ask, now)
    # The list would not fit into a request; the ledger has most of the job's nodes, too.
    if sum(map(len, ask.nodes)) > _MAX_NODES:
        ask = msgspec.structs.replace(ask, nodes=())
    return _ask(config, ask, lambda answer: answer.chain)


def day_of(config: Config, now: float, span: DaySpan = DaySpan.DAY) -> DayView:
    """The last hours or days, without Slurm's part. SlurmElasticError if nothing can be read."""
    if may_read(config):
        return read_days(config, now, span)
    return _ask(config, DayAsk(span=span), lambda answer: answer.day)


def costs_of(config: Config, ask: CostAsk, now: float) -> Costs:
    """The costs of all jobs for operators and users who may open the ledger, else of own jobs.

    Raises SlurmElasticError if nothing can be read.
    """
    if may_read(config):
        return read_costs(config, ask, now)
    return _ask(config, ask, lambda answer: answer.costs)


def costs_by_key(
    config: Config, keys: Sequence[By], since: float, until: float, now: float
) -> dict[By, Costs]:
    """The costs as ``costs_of`` gives them, summed by each key of ``keys``."""
    if may_read(config):
        return read_costs_by_key(config, keys, since, until, now)
    asks = {by: CostAsk(by=by, since=since, until=until) for by in keys}
    return {by: _ask(config, ask, lambda answer: answer.costs) for by, ask in asks.items()}


def prices(config: Config, slurm: Slurm, ask: PriceAsk, now: float) -> tuple[PartitionPrice, ...]:
    """The forecasts. SlurmElasticError if the daemon does not answer, SlurmError if
    Slurm does not.
    """
    if may_read(config):
        # Imported only here: status does not need it, and must be quick.
        from slurm_elastic.watch.door.pricing import prices_of, seen_now

        with config.sharing():
            return prices_of(config, ask, seen_now(config, slurm, now))
    return _ask(config, ask, lambda answer: answer.prices)


def own_jobs_of(
    config: Config,
    slurm: Slurm,
    ask: OwnJobsAsk,
    now: float,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> OwnJobs:
    """The jobs of this user, or of other users if this user may see them.

    SlurmElasticError if the daemon does not answer, or if the user may not see these jobs.
    """
    if may_read(config):
        # Imported only here: status does not need it, and must be quick.
        from slurm_elastic.watch.door.orders import name_of
        from slurm_elastic.watch.door.own_jobs import (
            narrowed,
            read_own_jobs,
            slurm_reading,
            subject_of,
        )

        uid = os.geteuid()
        subject = subject_of(ask, uid, name_of(uid), None)
        with config.sharing():
            reading = slurm_reading(config, slurm, now, subject=subject)
            slurm_part, facts = narrowed(reading, read_facts(config, now), subject)
            return read_own_jobs(config, ask, subject, slurm_part, facts)
    return _ask(config, ask, lambda answer: answer.own_jobs, timeout_s)


def published_terms(config: Config, now: float) -> Published | None:
    """The published terms of all pools; None if there are none now, or slurm-elasticd does not
    answer.
    """
    if may_read(config):
        return order_file.read(config.state / order_file.FILE, now)
    try:
        return order_file.parse(_ask(config, TermsAsk(), lambda answer: answer.terms), now)
    except SlurmElasticError:  # also a slurm-elasticd of an earlier release
        return None


def order(config: Config, ask: Order, now: float, giver: str = "") -> tuple[str, ...]:
    """Carry out an operator's order: in this process for root and SlurmUser, else by the daemon.

    ``giver``: the name to record if this process acts for another user whose right it has checked;
    slurm-elasticd records its peer's name. Returns lines that say what was done. SlurmElasticError
    if the user may not give orders.
    """
    if os.geteuid() in trusted(config):
        # Imported only here: status does not need it, and must be quick.
        from slurm_elastic.watch.door.orders import carry_out, own_name

        with config.sharing():
            return carry_out(config, ask, giver or own_name(), now)
    return _ask(config, packed(ask), lambda answer: answer.lines)


def save_job(config: Config, slurm: Slurm, job: int, now: float) -> tuple[str, ...]:
    """Order a save of a job: in this process for root and SlurmUser, else by the daemon.

    Returns lines that say what was ordered. SlurmElasticError if the user may not save the job, or
    if it cannot be saved.
    """
    if os.geteuid() in trusted(config):
        # Imported only here: status does not need it, and must be quick.
        from slurm_elastic.watch.door.orders import own_name
        from slurm_elastic.watch.door.saves import Saver, save_now

        with config.sharing():
            saver = Saver(uid=os.geteuid(), name=own_name(), is_trusted=True)
            return save_now(config, slurm.jobs(), job, saver, now)
    return _ask(config, SaveAsk(job=job), lambda answer: answer.lines)


def _ask(
    config: Config,
    ask: Ask,
    select: Callable[[DoorAnswer], T | None],
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> T:
    path = config.read_socket
    line = msgspec.json.encode(ask) + b"\n"
    if len(line) > _MAX_LINE:
        raise SlurmElasticError(
            f"the request has {len(line)} bytes, and slurm-elasticd takes {_MAX_LINE} from users:"
            " name fewer nodes at a time, or ask as root or SlurmUser"
        )
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as link:
            document = _conversation(link, path, line, config, timeout_s)
    # The time-outs of the socket end a call with EAGAIN.
    except BlockingIOError as error:
        raise SlurmElasticError(
            f"no news now: slurm-elasticd has not answered for {brief(timeout_s)} ({path}). "
            "Running jobs continue. Ask again in a minute"
        ) from error
    except OSError as error:
        raise SlurmElasticError(
            f"no news now: slurm-elasticd does not run or cannot serve users "
            f"({path}: {error.strerror or error}). Running jobs continue. "
            f"Tell the administrators: {service_remedies.state('slurm-elasticd')}"
        ) from error
    try:
        answer = msgspec.json.decode(document, type=DoorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SlurmElasticError(
            f"slurm-elasticd's answer is incomplete, or of another release: {error}"
        ) from error
    if answer.error:
        raise SlurmElasticError(answer.error)
    answer_part = select(answer)
    if answer_part is None:
        raise SlurmElasticError(f"slurm-elasticd answered another question at {path}")
    return answer_part


def _limit(link: socket.socket, seconds: float) -> None:
    """Bound the next connect, send and receive (s).

    The kernel's SO_SNDTIMEO is the only time-out of a connect() to a unix socket with a full queue.
    """
    timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def _conversation(
    link: socket.socket, path: Path, line: bytes, config: Config, timeout_s: float
) -> bytes:
    until = time.monotonic() + timeout_s
    _limit(link, timeout_s)
    # Through /proc, because a socket's path may have no more than 107 bytes (unix(7)).
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        link.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    # Another user's process could listen at this path. The kernel names the user.
    uid = peer_of(link).uid
    if uid not in trusted(config):
        raise SlurmElasticError(
            f"{path} is served by uid {uid}, which is neither root nor {config.slurm.user}"
        )
    # A server that turns us away has sent its answer already and does not read the request.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        link.sendall(line)
    chunks: list[bytes] = []
    size = 0
    while size <= MAX_ANSWER:
        _limit(link, max(until - time.monotonic(), 0.01))
        try:
            chunk = link.recv(1 << 20)
        except ConnectionResetError:  # at the end of an answer, if our request was not read
            if not chunks:
                raise
            chunk = b""
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
    raise SlurmElasticError(f"the answer at {path} is longer than {MAX_ANSWER >> 20} MiB")
