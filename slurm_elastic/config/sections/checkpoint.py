"""The section ``checkpoint``, of the site and of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from slurm_elastic.config.basics.numbers import Count, Port, Seconds
from slurm_elastic.policies.checkpoint.unsavable import Unsavable

METHODS = ("none", "signal", "criu", "dmtcp", "blcr", "fake")
"""The ways to save a job's progress."""
REHEARSED = "fake"
"""The method for rehearsals. No message offers it to users."""
LAUNCHED = ("criu", "dmtcp", "blcr")
"""Methods whose jobs start under a launcher and run on one node."""
SCOPES = ("batch", "full")
UNSAVABLE = tuple(Unsavable)
KEEP, CLOSE = CONNECTIONS = ("keep", "close")
"""Method ``criu`` and TCP connections: a job with a connection is not saved, or it continues
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
"""The keys that a job may set for its method (``--comment=ckpt=METHOD,KEY=VALUE``) with their
values. A key without values takes any text of its form, which ``validate_checkpoint`` knows.
``limit`` needs no value.
"""
CLOUD_PRICES = "cloud"
PRICE_SOURCES = ("none", CLOUD_PRICES, "file")


class SignalSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Method ``signal``: the application saves itself."""

    signal: str = "USR1"
    """Change it when your applications save themselves on another signal."""
    stop_signal: str | None = None
    """Change it when an application has one signal for a save after which it continues, and another
    for its last save.
    """
    scope: str = "batch"
    """Change it when the batch script does not pass the signal on to the programs it started."""
    saved: str = "exit"
    """Change it when the end of a save shows in another way than by the end of the script."""


class NoticeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where notices come from besides ``ckpt notice``: also files of root or SlurmUser."""

    queue_url: str | None = None
    """Change it when EventBridge fills a queue, which is sooner than asking the cloud."""
    queue_cloud: str | None = None
    """Change it when another account than the first AWS cloud's reads the queue."""
    poll_clouds: bool = True
    """Change it when queue or agents report all notices, and calls to the clouds are scarce."""
    poll_interval: Seconds = 5.0
    """Change it when a cloud throttles calls (longer), or its notices leave less than two minutes
    (shorter).
    """
    directory: str | None = None
    """Change it when agents on the nodes write notices into a directory that the head sees."""


class PriceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spot prices for policies. They are compared with the bid, which is ``max_price`` of a pool.
    If a pool has no bid, no price ends its machines.
    """

    source: str = "none"
    """Change it when the checkpoint policy looks at spot prices."""
    file: str | None = None
    """Change it when prices come from your own feed."""
    poll_interval: Seconds = 60.0
    """Change it when the prices of your source change more often or less often than each minute."""


class BlcrSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Method ``blcr`` reaches its nodes by SSH, as root or as a user who may call setpriv(1)."""

    timeout: ClassVar[float] = 10.0
    """Seconds to connect. Nodes are near, and a save has no time to wait for a slow node."""
    connections: ClassVar[int] = 32
    """How many connections stay open. A new connection to another node costs a tenth of a second.
    """

    user: str = "root"
    """Change it when root is not let in on the nodes."""
    key: str | None = None
    """Change it when another key than SlurmUser's own should be used for the nodes."""
    known_hosts: str | None = None
    """Change it when the nodes' keys are collected in another file."""
    port: Port = 22
    """Change it when sshd of the nodes listens on another port."""
    bin_dir: str = "/usr/bin"
    """Change it when BLCR's commands are in another place on the nodes."""
    scontrol: str = "/usr/bin/scontrol"
    """Change it when Slurm is in another place on the nodes."""


OrNone = Annotated[str, Meta(extra={"none": True})]
"""Text that may be the word ``none``: no policy, no method."""


class CheckpointSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs are saved, and moved off machines that are taken away."""

    policy: str = "first_of(on_notice, daly)"
    """Change it when jobs lose too much at a crash, or saves cost more than they are worth."""
    method: str = "none"
    """Change it when most jobs should be saved without a request of their users."""
    at_time_limit: OrNone = "on_request"
    """Change it when jobs should continue beyond their time limit without being asked, or never."""
    probe_after: Seconds = 60.0
    """Change it when jobs have nothing worth saving in their first minute, or their users want to
    know sooner whether saving works.
    """
    unsavable: str = "warn"
    """Change it when jobs that cannot be saved should not run on spot machines."""
    tcp: str = KEEP
    """Change it when jobs of CRIU keep connections that they can open again."""
    directory: str | None = None
    """Change it when jobs are saved by criu, dmtcp or blcr: head and nodes share this directory."""
    keep_images: Count = 2
    """Change it when space is short, or an older image should exist in case the newest is bad."""
    max_parallel: Count = 32
    """Change it when the shared file system can take more saves at a time, or fewer."""
    poll_interval: Seconds = 1.0
    """Change it when slurmctld is so busy that a question each second is too much."""
    expected_duration: Seconds = 60.0
    """Change it when the first save of a typical job takes longer than a minute, so that it would
    begin too late.
    """
    deadline_margin: Seconds = 5.0
    """Change it when saves end later than predicted: the speed of the file system varies."""
    notices: NoticeSettings = field(default_factory=NoticeSettings)
    prices: PriceSettings = field(default_factory=PriceSettings)
    signal: SignalSettings = field(default_factory=SignalSettings)
    blcr: BlcrSettings = field(default_factory=BlcrSettings)


class PoolCheckpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool's exceptions from the section ``checkpoint``."""

    policy: OrNone | None = None
    """Change it when jobs of this pool are interrupted more often or less often than others."""
    method: OrNone | None = None
    """Change it when this pool's image has another checkpointer."""
    at_time_limit: OrNone | None = None
    """Change it when another rule is right for this pool's jobs at their time limit."""
    unsavable: str | None = None
    """Change it when this pool is all spot, or all on demand."""
    tcp: str | None = None
    """Change it when this pool's jobs can open their connections again, or cannot."""
