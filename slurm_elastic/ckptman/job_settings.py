"""How a job is to be saved: its own word in the comment, else that of the features that it asks
for, else its pool's, else the site's. Pure.
"""

from __future__ import annotations

import re
from functools import cache

from msgspec import Struct, field

from slurm_elastic.config.checkpoint import (
    CLOSE,
    LAUNCHED,
    LIMIT,
    REHEARSED,
    TCP,
    CheckpointSettings,
    PoolCheckpoint,
)
from slurm_elastic.config.method_kinds import options_of, table
from slurm_elastic.config.validate_checkpoint import (
    NO_DIRECTORY,
    SHARED,
    SIGN_FORM,
    SIGNAL_FORM,
    is_sign,
    is_signal,
)
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.checkpoint import (
    AnyPolicy,
    AtLimit,
    Never,
    Renew,
    parse,
    parse_at_limit,
)
from slurm_elastic.policies.checkpoint.unsavable import Unsavable, unfit

MAX_COMMENT_LENGTH = 4096
"""Characters of a comment that says how a job is saved: it is read again and again."""
_WISH = re.compile(r"(?:^|[\s;])ckpt=([^\s;]*)")
_FEATURE = re.compile(r"(?<![\w.-])ckpt_([a-z]+)(?![\w.-])")
_FORMS = {
    "signal": (is_signal, SIGNAL_FORM),
    "stop_signal": (is_signal, SIGNAL_FORM),
    "saved": (is_sign, SIGN_FORM),
}


class MethodChoice(Struct, frozen=True, kw_only=True):
    """The method and policy for one job. ``refused`` says what is wrong with the job's own word.
    ``move_only``: a save ends the run, so it is only made to move the job. ``blocking``: the job
    stands still while it is saved; an application that saves itself may say that it does not.
    ``renewals``: how often it may be requeued at its time limit; ``unsavable``: what becomes of it
    where no save succeeds; ``own``: by the job's own word.
    """

    method: str
    policy: AnyPolicy
    options: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    move_only: bool = False
    blocking: bool = True
    renewals: int = 0
    unsavable: Unsavable = Unsavable.WARN
    own: bool = False


def resolve(
    comment: str, features: str, pool: PoolCheckpoint, settings: CheckpointSettings
) -> MethodChoice:
    """``--comment=ckpt=METHOD[,limit][,KEY=VALUE...]``, or ``--constraint=ckpt_METHOD``, or what
    the pool or the site says.
    """
    policy = policy_of(pool.policy or settings.policy)
    try:
        wish = parse_comment(comment) or parse_features(features)
    except ValueError as error:
        # It is never saved, rather than in a way that its user did not mean.
        return MethodChoice(method="none", policy=Never(), refused=str(error))
    method, options = wish or (pool.method or settings.method, {})
    saved = options.get("saved", settings.signal.saved)
    ends = method == "signal" and saved.partition(":")[0] == "exit"
    asked = options.pop(LIMIT, None)
    if method == "criu" and options.pop(TCP, pool.tcp or settings.tcp) == CLOSE:
        options = {**options, TCP: CLOSE}
    rule = at_limit_of(pool.at_limit or settings.at_limit)
    return MethodChoice(
        method=method,
        policy=policy,
        options=options,
        move_only=ends,
        blocking=options.get("blocking") != "no",
        unsavable=Unsavable(pool.unsavable or settings.unsavable),
        own=wish is not None,
        renewals=0 if method == "none" else _renewals(rule, asked),
    )


def resolve_for(job: SlurmJob, pool: PoolCheckpoint, settings: CheckpointSettings) -> MethodChoice:
    """``resolve`` for this job, as far as its method can save a job of its kind."""
    plan = resolve(job.comment, job.features, pool, settings)
    if plan.method in SHARED and settings.directory is None:
        why = f"method {plan.method} {NO_DIRECTORY}"
    elif plan.method in LAUNCHED:
        # One of several nodes that says nothing itself is found out by its first save, as its user
        # is to read why.
        why = unfit(plan.method, batch=job.batch, nodes=len(job.nodes) if plan.own else 1)
    else:
        why = ""
    return MethodChoice(method="none", policy=plan.policy, refused=why) if why else plan


def explain_no_method(choice: MethodChoice) -> str:
    """Why a job has no method."""
    if choice.refused:
        return choice.refused
    if choice.own:
        return "its own word is ckpt=none"
    return "neither its comment nor the configuration names a method"


def _renewals(rule: AtLimit, asked: str | None) -> int:
    """How often a job may be requeued at its limit, by the site's rule, and by its own word."""
    if asked is None:
        return rule.times if isinstance(rule, Renew) else 0
    return min(rule.times, int(asked)) if asked else rule.times


def asks_for_limit(comment: str) -> bool:
    """Whether a job's own comment wants it to go on after its time limit."""
    found = _WISH.search(comment[:MAX_COMMENT_LENGTH])
    return found is not None and any(
        word.partition("=")[0] == LIMIT for word in found[1].split(",")[1:]
    )


def parse_comment(comment: str) -> tuple[str, dict[str, str]] | None:
    """Method and options in a job's comment; None where it says nothing of checkpoints.

    ValueError with one sentence where it cannot be followed.
    """
    found = _WISH.search(comment[:MAX_COMMENT_LENGTH])
    if found is None:
        return None
    if len(comment) > MAX_COMMENT_LENGTH:
        raise ValueError(
            f"a comment of {len(comment)} characters: expected at most {MAX_COMMENT_LENGTH}"
        )
    method, *rest = found[1].split(",")
    if method not in table().names():
        offered = ", ".join(name for name in table().names() if name != REHEARSED)
        raise ValueError(f"ckpt={method}: expected one of {offered}")
    options: dict[str, str] = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if key == LIMIT:
            options[key] = _checked_times(found[1], value) if equals else ""
            continue
        if not key or not equals or not value:
            raise ValueError(f"ckpt={found[1]}: {word!r} is no KEY=VALUE")
        _check_option(method, key, value)
        options[key] = value
    return method, options


def _checked_times(wish: str, value: str) -> str:
    if not re.fullmatch(r"\d{1,3}", value, re.ASCII):
        raise ValueError(f"ckpt={wish}: limit is {value!r}, expected a number up to 999")
    return value


def parse_features(features: str) -> tuple[str, dict[str, str]] | None:
    """The method in a job's constraint (``ckpt_criu&bigmem``); None where it names none.

    ValueError where it names several, as in ``[ckpt_criu|ckpt_dmtcp]``.
    """
    methods = sorted(set(_FEATURE.findall(features)).intersection(table().names()))
    if len(methods) > 1:
        names = ", ".join(f"ckpt_{method}" for method in methods)
        raise ValueError(f"the constraint {features} names {names}: expected one of them")
    return (methods[0], {}) if methods else None


def _check_option(method: str, key: str, value: str) -> None:
    """The submit filter says the same (job_saving.lua), but for the forms."""
    known = options_of(method)
    if key not in known:
        raise ValueError(f"{key}: expected one of {', '.join(known)}")
    values = known[key]
    if values and value not in values:
        raise ValueError(f"{key}={value}: expected one of {', '.join(values)}")
    fits, form = _FORMS.get(key, (None, ""))
    if fits and not fits(value):
        raise ValueError(f"{key}={value}: expected {form}")


@cache
def at_limit_of(text: str) -> AtLimit:
    """The rule for time limits of a text that the configuration's check has read already."""
    return parse_at_limit(text)


@cache
def policy_of(text: str) -> AnyPolicy:
    """The policy of a text that the configuration's check has read already."""
    return parse(text)
