"""Commands read the files where they may open them, and else ask through slurm-elasticd's read
door.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.unixsocket import peer_of
from slurm_elastic.config import Config
from slurm_elastic.controller.books import Costs
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.watch.door.asks import (
    MAX_ANSWER,
    Answer,
    Ask,
    Chain,
    ChainAsk,
    CostAsk,
    DayAsk,
    FactsAsk,
    Order,
    PartitionPrice,
    PriceAsk,
    trusted,
)
from slurm_elastic.watch.door.records import may_read, read_chain, read_costs, read_day, read_facts
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.view.day import DayView, day_view

PATIENCE = 40.0
"""Seconds for all of it: a little more than the daemon takes at most for an answer."""
T = TypeVar("T")
_MAX_NODES = 32 << 10
"""Characters; a request is 64 KiB at most."""


def facts_of(config: Config, now: float) -> Facts:
    """All but Slurm's own part. SlurmElasticError where the daemon does not answer."""
    if may_read(config):
        return read_facts(config, now)
    return _ask(config, FactsAsk(), lambda said: said.facts)


def chain_of(config: Config, ask: ChainAsk, now: float) -> Chain:
    """Raises SlurmElasticError where nothing can be, or is to be, read."""
    if may_read(config):
        return read_chain(config, ask, now)
    if sum(map(len, ask.nodes)) > _MAX_NODES:  # the ledger knows most of them, too
        ask = msgspec.structs.replace(ask, nodes=())
    return _ask(config, ask, lambda said: said.chain)


def day_of(config: Config, now: float) -> DayView:
    """The last 24 hours, but for what Slurm says itself. SlurmElasticError where nothing can be
    read.
    """
    if may_read(config):
        return day_view(*read_day(config, now), now)
    return _ask(config, DayAsk(), lambda said: said.day)


def costs_of(config: Config, ask: CostAsk, now: float) -> Costs:
    """All jobs' costs for who may open the ledger and for operators, else the caller's own. Raises
    SlurmElasticError where nothing can be read.
    """
    if may_read(config):
        return read_costs(config, ask, now)
    return _ask(config, ask, lambda said: said.costs)


def prices(config: Config, slurm: Slurm, ask: PriceAsk, now: float) -> tuple[PartitionPrice, ...]:
    """For everybody. Raises SlurmElasticError where the daemon does not answer, SlurmError where
    Slurm does not.
    """
    if may_read(config):
        # Not what status needs, which is to be quick.
        from slurm_elastic.watch.door.pricing import prices_of, seen_now

        return prices_of(config, ask, seen_now(config, slurm, now))
    return _ask(config, ask, lambda said: said.prices)


def order(config: Config, ask: Order, now: float) -> tuple[str, ...]:
    """Carry an operator's order out, here for root and SlurmUser, else by slurm-elasticd; the
    deeds, a line each. SlurmElasticError for who may not.
    """
    if os.geteuid() in trusted(config):
        # Not what status needs, which is to be quick.
        from slurm_elastic.watch.door.orders import carry_out, own_name

        return carry_out(config, ask, own_name(), now)
    return _ask(config, ask, lambda said: said.lines)


def _ask(config: Config, ask: Ask, part: Callable[[Answer], T | None]) -> T:
    path = config.read_socket
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as link:
            document = _conversation(link, path, msgspec.json.encode(ask) + b"\n", config)
    except BlockingIOError as error:
        raise SlurmElasticError(
            f"slurm-elasticd does not answer at {path} in {PATIENCE:.0f} s; ask again in a while"
        ) from error
    except OSError as error:
        raise SlurmElasticError(
            f"slurm-elasticd does not answer at {path} ({error.strerror or error}): it is not "
            f"running, or cannot serve users; {config.state} itself is for root and "
            f"{config.slurm.user}"
        ) from error
    try:
        answer = msgspec.json.decode(document, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SlurmElasticError(
            f"slurm-elasticd broke off, or is of another release: {error}"
        ) from error
    if answer.error:
        raise SlurmElasticError(answer.error)
    found = part(answer)
    if found is None:
        raise SlurmElasticError(f"slurm-elasticd answers something else at {path}")
    return found


def _limit(link: socket.socket, seconds: float) -> None:
    """Bound the next connect, send and receive by the kernel's time-out: only that waits in a
    connect while the queue of connections is full.
    """
    timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def _conversation(link: socket.socket, path: Path, line: bytes, config: Config) -> bytes:
    until = time.monotonic() + PATIENCE
    _limit(link, PATIENCE)
    # The way by /proc fits where the path is longer than a socket's may be (107 bytes, unix(7)).
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        link.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
    uid = peer_of(link).uid
    if uid not in trusted(config):
        raise SlurmElasticError(
            f"{path} is served by uid {uid}, neither by root nor by {config.slurm.user}"
        )
    # One that was turned away at the door has its answer, and nobody reads the request.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        link.sendall(line)
    parts: list[bytes] = []
    size = 0
    while size <= MAX_ANSWER:
        _limit(link, max(until - time.monotonic(), 0.01))
        try:
            part = link.recv(1 << 20)
        except ConnectionResetError:  # at the end, where our request was not read
            if not parts:
                raise
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise SlurmElasticError(f"the answer at {path} is longer than {MAX_ANSWER >> 20} MiB")
