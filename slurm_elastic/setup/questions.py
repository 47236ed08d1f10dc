"""The questions of ``init``: at most ten, each with a default and the reason for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import format_duration, parse_duration, parse_size
from slurm_elastic.config.found import Found
from slurm_elastic.config.site_place import is_loopback_url, why_no_address
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.site import SiteFacts
from slurm_elastic.setup.sizes import Size, common_size, format_shape, why_missing

DAY_S = 86400.0
_AT_LINE = re.compile(r".*?:\d+: ")


class Question(Struct, frozen=True, kw_only=True):
    """A question. ``default``: the text that stands for no input. ``why``: the reason for it.

    ``accepts(text)`` returns the fields of ``Answers`` that the text sets. It raises ValueError
    with a sentence for the person who typed it.
    """

    key: str
    text: str
    default: str
    why: str
    accepts: Callable[[str], dict[str, object]]


class Answers(Struct, frozen=True, kw_only=True):
    """The answers so far. ``memory`` in MiB; ``max_time`` in s (None: Slurm's own limit); ``cap``
    in dollars per hour; ``hosts``: the URL of a BMC by node; ``default_partition``: jobs that name
    the site's default partition burst, too; ``head`` and ``checkpoints`` "" for none.
    """

    clouds: tuple[str, ...] = ()
    hosts: dict[str, str] = {}
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    cap: float | None = None
    cpus: int = 1
    memory: int = 1024
    spot: bool = True
    max_time: float | None = None
    default_partition: bool = False
    head: str = ""
    checkpoints: str = ""

    @property
    def size(self) -> Size:
        """Return the size that a node has at least."""
        return self.cpus, self.memory


class Earlier(Struct, frozen=True, kw_only=True):
    """Facts of an existing configuration: the answers that it contains, the ``names`` of its clouds
    and pools, whether it has a ``public`` cloud, and whether machines of a cloud get the head's
    address from it (``joins``), and whether it lists ``partitions`` of the site for some cloud.
    """

    answers: Answers = Answers()
    names: frozenset[str] = frozenset()
    public: bool = False
    joins: bool = False
    partitions: bool = False


def first(clouds_found: Sequence[Found], earlier: Earlier) -> tuple[Question, ...]:
    """Return the question about clouds, which decides the other questions. Empty if no new cloud
    can be used.
    """
    usable = [cloud for cloud in clouds_found if cloud.usable and cloud.name not in earlier.names]
    return (_clouds(usable),) if usable else ()


def questions(
    site: SiteFacts, chosen: Sequence[Found], earlier: Earlier | None = None
) -> tuple[Question, ...]:
    """Return the other questions that matter for these new clouds, in order."""
    known_answers = earlier or Earlier()
    selected = []
    if by_node := [cloud for cloud in chosen if cloud.by_node and not cloud.todos]:
        selected.append(_hosts(site, by_node[0], is_only_cloud=len(by_node) == len(chosen)))
    if known_answers.public or any(cloud.location is Location.PUBLIC for cloud in chosen):
        selected += [_accounts() if site.accounts_checked else _groups(site), _cap()]
    if chosen or earlier is None:
        selected.append(_shape(site, chosen))
    if any(cloud.spot for cloud in chosen):
        selected.append(_spot())
    selected.append(_max_time(site))
    if site.has_default_partition and not known_answers.partitions:
        selected.append(_default_partition(site))
    if known_answers.joins or any(cloud.joins for cloud in chosen):
        selected.append(_head(site, chosen))
    selected.append(_checkpoints())
    return (
        tuple(_with_configured_default(cloud, earlier) for cloud in selected)
        if earlier
        else tuple(selected)
    )


def _with_configured_default(question: Question, earlier: Earlier) -> Question:
    """Return the question with the configuration's value as its default. The question about the
    head keeps its own default if the configuration has no clouds that needed an answer.
    """
    current = earlier.answers
    texts = {
        "accounts": " ".join(current.accounts), "groups": " ".join(current.groups),
        "cap": "" if current.cap is None else f"{current.cap:g}",
        "max_time": "" if current.max_time is None else str(format_duration(current.max_time)),
        "default_partition": "yes" if current.default_partition else "no",
        "head": current.head, "checkpoints": current.checkpoints,
    }  # fmt: skip
    if question.key not in texts or (
        question.key == "head" and not (current.head or earlier.joins)
    ):
        return question
    default = texts[question.key] or "none"

    def accepts(text: str) -> dict[str, object]:
        # The configured value counts even if it has a form that a person may not type.
        return {} if text == default else question.accepts(text)

    reason = question.why if default == question.default else "as the configuration has it"
    return replace(question, default=default, why=reason, accepts=accepts)


def answered(
    question: Question, text: str, so_far: Answers, rules: Callable[[Answers], object]
) -> Answers:
    """Return ``so_far`` with this answer. Raises ValueError if the text is no answer, or if
    ``rules`` raise ConfigError for the file that would be written.
    """
    answers = replace(so_far, **question.accepts(text))
    try:
        rules(answers)
    except ConfigError as error:
        raise ValueError(_AT_LINE.sub("", error.problems[0])) from None
    return answers


def _is_none(text: str) -> bool:
    return text.lower() in ("", "none")


def _clouds(usable: Sequence[Found]) -> Question:
    names = [cloud.name for cloud in usable]

    def accepts(text: str) -> dict[str, object]:
        chosen = _words(text)
        if not chosen or not set(chosen) <= set(names):
            form = f"one or several of {', '.join(names)}" if len(names) > 1 else names[0]
            raise ValueError(f"expected {form}")
        return {"clouds": chosen}

    return Question(
        key="clouds", text="Which clouds shall jobs grow into?", default=" ".join(names),
        why="all that can be used", accepts=accepts,
    )  # fmt: skip


def _hosts(site: SiteFacts, rack: Found, *, is_only_cloud: bool) -> Question:
    """Return the question about hosts. Without hosts the cloud is left out; with ``is_only_cloud``
    at least one host is required.
    """

    def accepts(text: str) -> dict[str, object]:
        pairs = [] if _is_none(text) else [word.partition("=") for word in _words(text)]
        if is_only_cloud and not pairs:
            raise ValueError(f"{rack.name} needs at least one host: NODE=URL")
        for name, _, url in pairs:
            if not (name and url):
                raise ValueError("expected NODE=URL for each host, separated by blanks")
            if name in site.taken:
                raise ValueError(f"{name} is already a node in slurm.conf: choose another name")
        hosts = {name: url for name, _, url in pairs}
        if len(hosts) < len(pairs):
            raise ValueError("expected each host once")
        return {"hosts": hosts}

    return Question(
        key="hosts", text=f"Which hosts of {rack.name} shall be switched on, and by which BMCs?",
        default="none", accepts=accepts,
        why="NODE=URL of each, such as r1=https://r1-bmc/redfish/v1/Systems/1"
        + ("" if is_only_cloud else f"; none leaves {rack.name} out"),
    )  # fmt: skip


def _names(key: str) -> Callable[[str], dict[str, object]]:
    return lambda text: {key: () if _is_none(text) else _words(text)}


def _groups(site: SiteFacts) -> Question:
    return Question(
        key="groups", text="Which Unix groups may spend money in public clouds?", default="none",
        why=f"{site.accounting}: an account is whatever anybody types; public clouds stay shut "
        "until a group is named", accepts=_names("groups"),
    )  # fmt: skip


def _accounts() -> Question:
    return Question(
        key="accounts", text="Which accounts may spend money in public clouds?", default="none",
        why="public clouds stay shut until an account is named", accepts=_names("accounts"),
    )  # fmt: skip


def _cap() -> Question:
    def accepts(text: str) -> dict[str, object]:
        if _is_none(text):
            return {"cap": None}
        try:
            return {"cap": float(text.removeprefix("$"))}
        except ValueError:
            raise ValueError("expected dollars an hour, or none") from None

    return Question(
        key="cap", text="How many dollars an hour may be spent at most?", default="none",
        why="public clouds stay shut without a cap", accepts=accepts,
    )  # fmt: skip


def _shape(site: SiteFacts, chosen: Sequence[Found]) -> Question:
    site_size = site.cpus, -(-site.memory // 1024) * 1024  # machines are sold in whole GiB
    default = common_size(chosen, site_size)

    def accepts(text: str) -> dict[str, object]:
        cpus, cross, memory = text.replace(" ", "").lower().partition("x")
        try:
            size = int(cpus), parse_size(memory.upper())
        except ValueError:
            raise ValueError("expected cpus x memory, such as 8x32G") from None
        # RealMemory is at least 256 MiB below a machine's memory, so less would leave nothing.
        if not cross or size[1] <= 256:
            hint = f"; did you mean {cpus}x{memory}G?" if memory.isdecimal() else ""
            raise ValueError(f"expected more memory than 256 MiB, found {size[1]} MiB{hint}")
        for cloud in chosen if size[0] > 0 else ():
            if reason := why_missing(cloud, size):
                raise ValueError(reason)
        return {"cpus": size[0], "memory": size[1]}

    return Question(
        key="shape", text="How large is a node?", default=format_shape(default), accepts=accepts,
        why="as most of the site's own nodes" if default == site_size else
        f"the site's own are {format_shape(site_size)}, which not all of these clouds have",
    )  # fmt: skip


def _yes_or_no(key: str) -> Callable[[str], dict[str, object]]:
    def accepts(text: str) -> dict[str, object]:
        if text.lower() not in ("yes", "no", "y", "n"):
            raise ValueError("expected yes or no")
        return {key: text.lower().startswith("y")}

    return accepts


def _spot() -> Question:
    return Question(
        key="spot", text="Buy spot machines before others?", default="yes",
        why="a third of the price; jobs that Slurm may not requeue never go there",
        accepts=_yes_or_no("spot"),
    )  # fmt: skip


def _default_partition(site: SiteFacts) -> Question:
    return Question(
        key="default_partition", default="yes",
        text=f"May jobs that name your default partition, {site.partition}, burst, too?",
        why="workflow tools such as Snakemake name it in each job; by no, such jobs wait for your "
        "own nodes",
        accepts=_yes_or_no("default_partition"),
    )  # fmt: skip


def _max_time(site: SiteFacts) -> Question:
    longest = min(site.max_time or DAY_S, DAY_S)

    def accepts(text: str) -> dict[str, object]:
        if _is_none(text):
            return {"max_time": None}
        if text.isdecimal():
            # sbatch --time=90 means 90 minutes, and 90 in our file 90 seconds.
            raise ValueError(f"{text} are minutes to Slurm and seconds to us: expected a unit")
        try:
            return {"max_time": float(parse_duration(text))}
        except ValueError:
            raise ValueError("expected a time such as 12h or 2d, or none") from None

    reason = (
        "a day, so that no machine is paid for longer"
        if site.max_time is None or site.max_time > DAY_S
        else (f"as partition {site.partition}")
    )
    return Question(
        key="max_time", text="How long may a job run in the clouds?",
        default=str(format_duration(longest)), why=reason, accepts=accepts,
    )  # fmt: skip


def head_flaw(site: SiteFacts, chosen: Sequence[Found]) -> str:
    """Return why machines cannot reach the head by SlurmctldHost, "" if no reason is known.

    Machines of a cloud on this host reach this host's loopback addresses.
    """
    endpoints = [str(cloud.keys.get("endpoint", "")) for cloud in chosen if cloud.joins]
    is_here = bool(endpoints) and all(map(is_loopback_url, endpoints))
    return _why_no_head(site.head) or ("" if is_here else site.head_flaw)


def _head(site: SiteFacts, chosen: Sequence[Found]) -> Question:
    flaw = head_flaw(site, chosen)

    def accepts(text: str) -> dict[str, object]:
        head = "" if _is_none(text) else text.removesuffix(".")
        reason = _why_no_head(head) if head else ""
        if reason:
            raise ValueError(f"{reason}; expected the head's name or address as machines know it")
        return {"head": head}

    return Question(
        key="head", text="By which name or address do machines reach this head?",
        default="none" if flaw else site.head, accepts=accepts,
        why="none, if their image knows the head already" if flaw else
        "as SlurmctldHost; none, if their image knows the head already",
    )  # fmt: skip


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+", re.IGNORECASE)


def _why_no_head(text: str) -> str:
    """Return why ``text`` cannot be the address of a head, "" if it can. A port is allowed."""
    if "://" in text:
        return f"{text} is a URL"
    if text.count(":") > 1:
        return f"{text} is an IPv6 address, which is not supported here: enter a name"
    host, colon, port = text.partition(":")
    if colon and not (port.isdecimal() and 0 < int(port) < 65536):
        return f"{text} has no port from 1 to 65535 after its ':'"
    if host.lower() in ("yes", "no", "y", "n"):
        return f"{host} is an answer to another question"
    if not host or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        return f"{text!r} is neither a name nor an address"
    if host.lower() == "localhost":
        return f"on a machine, {host} is the machine itself"
    return why_no_address(host) if _NUMBER.fullmatch(host.rpartition(".")[2]) else ""


_KERNEL_DIRECTORIES = ("dev", "proc", "sys")


def _checkpoints() -> Question:
    def accepts(text: str) -> dict[str, object]:
        if _is_none(text):
            return {"checkpoints": ""}
        path = PurePosixPath(text)
        if (
            path.root != "/"
            or len(path.parts) == 1
            or ".." in path.parts
            or path.parts[1] in _KERNEL_DIRECTORIES
        ):
            raise ValueError("expected the absolute path of a directory that all nodes share")
        return {"checkpoints": str(path)}

    return Question(
        key="checkpoints", text="Where do jobs' checkpoints go?", default="none",
        why="without a place, jobs start over when their machine is taken away", accepts=accepts,
    )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.replace(",", " ").split()))
