"""The ``checkpoint`` section of the configuration, and what a pool may say of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from slurm_elastic.config.numbers import Count, Dollars, Port, Seconds
from slurm_elastic.policies.checkpoint.unsavable import Unsavable

METHODS = ("none", "signal", "criu", "dmtcp", "blcr", "fake")
"""Ways to save a job's progress; ``fake`` is for rehearsals."""
LAUNCHED = ("criu", "dmtcp", "blcr")
"""The methods that save a job by a launcher before its batch script, on one node."""
SCOPES = ("batch", "full")
UNSAVABLE = tuple(Unsavable)
KEEP, CLOSE = CONNECTIONS = ("keep", "close")
"""The fate of TCP connections, by method ``criu``: a job that has one is not saved, or goes on
elsewhere with its connections closed.
"""
LIMIT, TCP = "limit", "tcp"
_OF_METHOD: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "signal": {
        "signal": (), "stop_signal": (), "scope": SCOPES, "saved": (), "blocking": ("yes", "no"),
    },
    "criu": {TCP: CONNECTIONS},
}  # fmt: skip
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    method: {**_OF_METHOD.get(method, {}), LIMIT: ()} for method in METHODS
}
"""The words of a job about its method (``--comment=ckpt=METHOD,KEY=VALUE``): each key's values;
none: any that has its form (``validate_checkpoint``). ``limit`` may stand without a value.
"""
PRICE_SOURCES = ("none", "ec2", "file")


class SignalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Method ``signal``: the application saves itself. ``signal`` asks for a save after which it
    goes on, ``stop_signal`` (default: the same) for the last one before it is moved.

    ``scope``: ``batch`` sends to the batch script alone, ``full`` to it and all its children.
    ``saved`` is the sign that the save is complete: ``exit`` (the batch script ends),
    ``exit:CODE`` (it ends with that code), ``file:PATH`` (that file of the job's directory appears
    or changes) or ``line:TEXT`` (a line of its output).
    """

    signal: str = "USR1"
    stop_signal: str | None = None
    scope: str = "batch"
    saved: str = "exit"


class NoticeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where warnings come from, besides the command ``ckpt notice``. ``queue`` is the URL of an SQS
    queue that EventBridge fills, read with the account of ``cloud`` (default: the first of provider
    aws). ``clouds``: ask each cloud itself, every ``every`` seconds. ``directory``: files from
    agents on the nodes, owned by root or SlurmUser.
    """

    queue: str | None = None
    cloud: str | None = None
    clouds: bool = True
    every: Seconds = 5.0
    directory: str | None = None


class PriceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spot prices, for the policies that look at them. ``source``: ``none``, ``ec2`` (the price
    history API) or ``file`` (a CSV feed, read again when it changes). ``bid`` ($/h) is the price at
    which machines are taken; none: prices take nobody's machine, as on EC2 since 2017.
    """

    source: str = "none"
    file: str | None = None
    every: Seconds = 60.0
    bid: Dollars | None = None


class BlcrSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Method ``blcr``: how its nodes are reached, by SSH as ``user``, who is root or may use
    setpriv(1). ``key`` is a private key's file (default: SlurmUser's own in ~/.ssh) and
    ``known_hosts`` has the nodes' keys (default: SlurmUser's). ``timeout``: seconds to connect.
    """

    user: str = "root"
    key: str | None = None
    known_hosts: str | None = None
    port: Port = 22
    timeout: Seconds = 10.0
    connections: Count = 32
    bin_dir: str = "/usr/bin"
    scontrol: str = "/usr/bin/scontrol"


OrNone = Annotated[str, Meta(extra={"none": True})]
"""Text of which ``none`` is one: no policy, no method."""


class CheckpointSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs are saved and moved off machines that are taken away.

    ``policy`` is text as ``policies.checkpoint.checkpoint.parse`` reads it. ``method`` is for
    jobs that name none themselves (``--comment=ckpt=METHOD``). ``directory`` is shared by the
    head and all nodes. ``keep``: images of a job. ``parallel``: jobs moved at a time.
    ``expected``: what a job's first checkpoint is taken to need (s); ``slack``: what is kept
    free before a deadline; ``patience``: a job that was stopped for a move that does not come
    goes on after so long. ``at_limit`` is text as
    ``policies.checkpoint.checkpoint.parse_at_limit`` reads it: which jobs go on with a new time
    limit. ``probe``: seconds after its start at which a job is saved once to see whether that
    works, ``unsavable`` what becomes of it where it does not: ``stay``, ``warn`` or
    ``on_demand``. ``tcp``: ``keep`` (a job with an open connection is not saved) or ``close``.
    """

    policy: str = "first_of(on_notice, daly)"
    method: str = "none"
    at_limit: OrNone = "on_request"
    probe: Seconds = 60.0
    unsavable: str = "warn"
    tcp: str = KEEP
    directory: str | None = None
    keep: Count = 2
    parallel: Count = 32
    period: Seconds = 1.0
    expected: Seconds = 60.0
    slack: Seconds = 5.0
    patience: Seconds = 600.0
    notices: NoticeSettings = field(default_factory=NoticeSettings)
    prices: PriceSettings = field(default_factory=PriceSettings)
    signal: SignalSettings = field(default_factory=SignalSettings)
    blcr: BlcrSettings = field(default_factory=BlcrSettings)


class PoolCheckpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool's own words; None: those of the section ``checkpoint``."""

    policy: OrNone | None = None
    method: OrNone | None = None
    at_limit: OrNone | None = None
    unsavable: str | None = None
    tcp: str | None = None
