"""The first machine of a cloud, step by step: how far it got, and why it got no further. Pure.

The searched texts come from the clouds' APIs, slurmctld's log, Slurm's reasons and machines'
consoles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import product

from msgspec import Struct

from slurm_elastic.base.pages import page
from slurm_elastic.base.units import brief
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK
from slurm_elastic.policies.nodes.node_state import Phase, is_down, phase


class TrialStep(StrEnum):
    """The steps in their order; each is shown with its duration."""

    ASKED = "asked"
    LAUNCHED = "launched"
    RUNNING = "running"
    ADDRESS = "address"
    REACHED = "reached"
    REGISTERED = "registered"
    JOB = "job"
    ENDED = "ended"


MEANING = {
    TrialStep.ASKED: "slurmctld has called ResumeProgram for the node",
    TrialStep.LAUNCHED: "the cloud took the order",
    TrialStep.RUNNING: "the cloud says that the machine runs",
    TrialStep.ADDRESS: "it has an address",
    TrialStep.REACHED: "its port accepts connections",
    TrialStep.REGISTERED: "slurmd has registered with slurmctld",
    TrialStep.JOB: "a job of one node has run on it",
    TrialStep.ENDED: "the machine is ended",
}


class TrialLook(Struct, frozen=True, kw_only=True):
    """One observation. ``machine``: the ledger's machine, launched since the start. ``refused``:
    why the daemon gave the node back. ``answers``: whether the machine accepted a connection (None:
    not tried).
    """

    node: SlurmNode | None
    machine: Machine | None = None
    refused: str = ""
    answers: bool | None = None


def reached(look: TrialLook, before: Sequence[TrialStep]) -> tuple[TrialStep, ...]:
    """Return the steps up to the registration that the machine has reached, in their order.
    ``before``: the steps of earlier looks; a reached step stays reached.
    """
    node, machine = look.node, look.machine
    up = node is not None and phase(node) is Phase.UP and not is_down(node)
    powers_up = node is not None and phase(node) is Phase.POWERING_UP
    asked = machine is not None or powers_up or bool(look.refused)
    runs = machine is not None and machine.instance.state is InstanceState.RUNNING
    has_address = machine is not None and bool(machine.instance.address)
    is_reached = {
        TrialStep.ASKED: asked or up,
        TrialStep.LAUNCHED: machine is not None,
        TrialStep.RUNNING: runs or bool(look.answers),
        TrialStep.ADDRESS: has_address,
        TrialStep.REACHED: bool(look.answers),
        TrialStep.REGISTERED: up and machine is not None,
    }
    # A step proves all earlier steps, which the looks may have missed.
    last_index = max(
        (n for n, step in enumerate(is_reached) if is_reached[step] or step in before), default=-1
    )
    return tuple(is_reached)[: last_index + 1]


class Rest(Struct, frozen=True, kw_only=True):
    """The remains of a trial: Slurm's node (None: no answer), whether a request for the node waits,
    whether a launch for it is unanswered, its machines since the start, and whether slurm-elasticd
    gave the node back.

    The fields must be read in this order. A power-up moves on in the same order, so it cannot
    escape between two readings.
    """

    node: SlurmNode | None
    requested: bool = False
    launching: bool = False
    machines: tuple[Machine, ...] = ()
    refused: bool = False


def is_over(remains: Rest) -> bool:
    """Whether no machine is left and none can come."""
    node = remains.node
    if node is None or phase(node) is Phase.POWERING_UP or remains.requested or remains.launching:
        return False
    if any(not machine.has_ended for machine in remains.machines):
        return False
    # If there is no machine, ResumeProgram may have been called and not written its request yet.
    # The node powers down first, which takes SuspendTimeout.
    return bool(remains.machines) or remains.refused or phase(node) is Phase.POWERED_DOWN


class FirstMistake(Struct, frozen=True):
    """A typical mistake of the first days: its name, a pattern of the texts that show it, and the
    remedy. ``weak`` patterns may have another cause; they count only if no other pattern matches.
    ``steps``: the only steps before which it can stop a trial, empty for any.
    """

    name: str
    words: str
    remedy: str
    weak: bool = False
    steps: frozenset[TrialStep] = frozenset()


SLURMCTLD = "slurmctld: "
"""Prefix for the error of a Slurm command that slurmctld did not answer."""
SBATCH = "sbatch as "
"""Prefix for the words of an sbatch that refuses the trial's job. The user's name follows."""
HEADLESS = "Unable to contact slurm controller"
NAMELESS = (
    r"getaddrinfo\(\) failed|Unable to resolve|[Cc]ould not resolve|Name or service not known"
)
"""The output of a slurmd that cannot reach slurmctld, or cannot resolve its name."""
_HEAD = "join.head must be the head's name and port as the machine reaches it (SlurmctldPort)"

CAUSES: tuple[FirstMistake, ...] = (
    FirstMistake(
        "no answer of slurmctld", rf"^{SLURMCTLD}",
        "`scontrol ping`, and slurmctld's log: it is down, hangs or has too much to do",
    ),
    FirstMistake(
        # Before all others: a site's own words in it may match any pattern.
        "the job is refused", rf"^{SBATCH}",
        "name an account that may run jobs there (--account), or another user (--user)",
    ),
    FirstMistake(
        "clock off",
        r"RequestExpired|RequestTimeTooSkewed|Signature (?:expired|not yet current)"
        r"|(?:Expired|Rewound) credential|out of sync clocks|clock skew",
        "set the clocks of head and machine by NTP (`chronyc tracking`, `slurm-elastic doctor`)",
    ),
    FirstMistake(
        "no credentials",
        r"NoCredentials|Unable to locate credentials|Auth plugin requires parameters"
        r"|no credentials (?:were )?found|MissingRequiredOptions",
        f"give SlurmUser the cloud's credentials ({page('install')} says where each cloud looks); "
        "`slurm-elastic doctor`",
    ),
    FirstMistake(
        "expired credentials",
        r"AuthFailure|ExpiredToken|UnrecognizedClient|InvalidClientTokenId|UnauthorizedOperation"
        r"|credentials|[Uu]nauthori[sz]ed|\b401\b|authentication required"
        r"|couldn't be authenticated",
        f"renew what the services use ({page('install')} says where it is); `slurm-elastic doctor`",
    ),
    FirstMistake(
        "quota",
        r"LimitExceeded|[Qq]uota|CountExceeded|exceeds? .{0,40}limit",
        "have the cloud raise the account's quota, or lower the pool's max_nodes",
    ),
    FirstMistake(
        "wrong image",
        r"InvalidAMIID|[Ii]mage \S+ (?:is not|could not be|not) ?(?:found|available)?"
        r"|no image (?:fits|of)|No such image|manifest unknown"
        r"|slurmd: (?:command )?not found|executable file not found"
        r"|No such file or directory: '?\S*slurmd",
        f"name an image of this region that has slurmd and munge ({page('joining')})",
    ),
    FirstMistake(
        "wrong munge key",
        r"Invalid credential|munge key not brought|Munge decode failed|authentication key",
        f"give the machine the head's /etc/munge/munge.key ({page('joining')})",
    ),
    FirstMistake(
        "wrong key of auth/slurm",
        r"could not find kid|token received for expired key|slurm\.jwks not brought",
        f"slurm-elastic key rotate, or give the image its cloud's keys ({page('keys')})",
    ),
    FirstMistake(
        "other Slurm release",
        r"[Pp]rotocol [Vv]ersion|[Ii]ncompatible versions|[Vv]ersion mismatch",
        "install the head's release of Slurm in the image (`scontrol version`, `slurmd -V`)",
    ),
    FirstMistake(
        "name that does not resolve",
        r"Name or service not known|[Cc]ould not resolve|getaddrinfo|Temporary failure in name"
        r"|No address associated with hostname|Unable to resolve"
        r"|Name resolution|EndpointConnectionError|Could not connect to the endpoint",
        "use a name that the machine (or the head) can resolve, or an address, in join.head or the "
        "endpoint",
    ),
    FirstMistake(
        "full disk",
        r"No space left on device|SlurmdSpoolDir is full|disk is full",
        "give the image a larger disk",
    ),
    FirstMistake(
        "missing user",
        r"uid \d+ not found|[Nn]o such user|unknown user|[Ii]nvalid user|User not found on host"
        r"|getpwuid failed|user '?slurm'? (?:is unknown|does not exist)",
        "the image needs the site's users with the head's uids, SlurmUser and munge among them",
    ),
    FirstMistake("wrong head address", r"no answer at join\.head", _HEAD),
    FirstMistake(
        "no route",
        r"No route to host|Network is unreachable|timed out|did not answer in"
        r"|does not reach join\.head",
        "route and firewall between head and machine: SlurmctldPort, SlurmdPort, 22 where join.ssh",
    ),
    FirstMistake(
        "wrong head address",
        rf"{HEADLESS}|fetch_config: DNS SRV|Unable to register|Zero Bytes were transmitted",
        _HEAD, weak=True,
    ),
    FirstMistake(
        "closed port",
        r"Connection refused|refuses the connection",
        "slurmd does not run there, or another port: look at the console, and at SlurmdPort and "
        "firewall of the image", weak=True,
    ),
    FirstMistake(
        "no capacity or no room",
        r"InsufficientInstanceCapacity|no free|may spend|is limited to|is paused"
        r"|cool(?:s|ing)? down|has no offers|No valid host",
        "`slurm-elastic offers` says what is in the way",
        # After a launch such texts are ours: the pool cools down because the machine did not join.
        steps=frozenset({TrialStep.ASKED, TrialStep.LAUNCHED}),
    ),
)  # fmt: skip
"""The typical mistakes, tried in this order: a special pattern comes before a general one that
matches the same text.
"""

USUAL: dict[TrialStep, tuple[str, ...]] = {
    TrialStep.ASKED: (
        "the include line is not in slurm.conf, or slurmctld was not restarted since (conf check)",
        "ResumeProgram cannot be run by SlurmUser (slurmctld's log)",
    ),
    TrialStep.LAUNCHED: (
        "slurm-elasticd does not run or cannot reach the cloud (doctor)",
        "credentials, quota, image, or no offer within the caps (offers)",
    ),
    TrialStep.RUNNING: ("the cloud is slow or has stopped it: its console says more",),
    TrialStep.ADDRESS: ("the subnet or network gives no address",),
    TrialStep.REACHED: (
        "no route or a firewall between head and machine",
        "slurmd does not start: no slurmd or munge in the image, wrong join.head",
    ),
    TrialStep.REGISTERED: (
        "another munge key, another Slurm release, or a clock that is off (slurmctld's log)",
        "the machine cannot reach SlurmctldPort of join.head",
        "less memory or CPUs than the pool promises",
    ),
    TrialStep.JOB: ("the user or the home directory is not on the machine", "a Prolog fails there"),
    TrialStep.ENDED: ("the cloud does not answer: slurm-elasticd tries again until it does",),
}


class TrialDiagnosis(Struct, frozen=True, kw_only=True):
    """The ``step`` at which the trial stopped, the ``name`` of the cause ("": unknown), its
    ``words`` and the ``remedy``. ``usual``: the usual causes of that step if the cause is unknown.
    """

    step: TrialStep
    name: str = ""
    words: str = ""
    remedy: str = ""
    usual: tuple[str, ...] = ()


def diagnosis(step: TrialStep, evidence: Iterable[str]) -> TrialDiagnosis:
    """Return the cause of the first piece of ``evidence`` that matches a pattern. The caller puts
    the best evidence first.
    """
    pieces = [" ".join(piece.split()) for piece in evidence if piece.strip()]
    # All pieces for strong patterns first: a weak pattern may match a mere consequence.
    possible = [cause for cause in CAUSES if not cause.steps or step in cause.steps]
    for weak in (False, True):
        for piece, cause in product(pieces, possible):
            if cause.weak is weak and re.search(cause.words, piece):
                text = with_release(piece)
                return TrialDiagnosis(step=step, name=cause.name, words=text, remedy=cause.remedy)
    return TrialDiagnosis(step=step, words=pieces[0] if pieces else "", usual=USUAL[step])


def waiting_words(diagnosed: TrialDiagnosis) -> str:
    """Return the sentence about a step that takes long. Only the evidence of a known mistake is
    shown, because any other line may be harmless.
    """
    return f"not yet; last sign: {diagnosed.words:.200}" if diagnosed.name else "not yet"


RELEASES = {
    36: "20.11", 37: "21.08", 38: "22.05", 39: "23.02", 40: "23.11", 41: "24.05", 42: "24.11",
    43: "25.05", 44: "25.11", 45: "26.05",
}  # fmt: skip
"""Slurm's release by the upper byte of its protocol version (slurm_protocol_common.h)."""
_PROTOCOL = re.compile(r"[Pp]rotocol [Vv]ersion (\d+)")


def with_release(text: str) -> str:
    """Add to a protocol version in the text the release of Slurm that speaks it."""

    def named(match: re.Match[str]) -> str:
        release = RELEASES.get(int(match[1]) >> 8)
        return f"{match[0]} (Slurm {release}'s)" if release else match[0]

    return _PROTOCOL.sub(named, text)


LOG_WORDS = re.compile(
    r"Munge decode failed|[Ii]nvalid credential|Expired credential|Rewound credential|out of sync"
    r"|[Pp]rotocol [Vv]ersion|[Ii]ncompatible|getaddrinfo|node configuration|Low RealMemory"
)


def log_evidence(lines: Iterable[str], node: str) -> tuple[str, ...]:
    """Return the lines of slurmctld's log that explain why a node does not come, newest first:
    lines of this node, and of senders that slurmctld could not understand. The strongest evidence
    comes first: differing clocks, then a protocol version.
    """
    stripped = [line.strip() for line in lines]
    errors = [line for line in stripped if "error" in line or LOG_WORDS.search(line)]
    about_node = [
        line for line in errors if LOG_WORDS.search(line) or re.search(rf"\b{node}\b", line)
    ]
    newest = about_node[::-1]
    # sorted() is stable: the newest line stays first within each half.
    return (*_clocks(stripped), *sorted(newest, key=lambda line: not _PROTOCOL.search(line)))


def reason_set(lines: Iterable[str], node: str) -> str:
    """Return the last reason in slurmctld's log for the node that is not ours; "" if there is none.
    The node itself no longer has the reason after it was powered down.
    """
    pattern = re.compile(rf"\bnode {re.escape(node)} reason set to: (?!{re.escape(OUR_MARK)})(.+)$")
    reasons = [match[1].strip() for line in lines if (match := pattern.search(line))]
    return reasons[-1] if reasons else ""


_MUNGED = re.compile(r"\b(ENCODED|DECODED): (\w{3} \w{3} +\d+ [\d:]{8} \d{4})$")


UNREADABLE_YEAR = 1970
"""The year of both times of a credential that slurmctld cannot read, as with another key."""
_CTIME = "%a %b %d %H:%M:%S %Y"


def _clocks(lines: Iterable[str]) -> tuple[str, ...]:
    """Return how far the clock of a credential's sender is off; slurmctld prints both times."""
    # The dictionary below keeps the last pair of times in the log, which is the newest.
    matches = [match for line in lines if (match := _MUNGED.search(line))]
    times = {
        match[1]: datetime.strptime(match[2], _CTIME).replace(tzinfo=UTC) for match in matches
    }  # both are of one zone, and only their difference is shown
    if len(times) < 2 or any(when.year == UNREADABLE_YEAR for when in times.values()):
        return ()
    offset_s = (times["ENCODED"] - times["DECODED"]).total_seconds()
    way = "ahead of" if offset_s > 0 else "behind"
    return (f"out of sync clocks: the sender's is {brief(abs(offset_s))} {way} the head's",)
