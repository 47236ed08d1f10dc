"""How to save a job: by the request in its comment, else by the features it asks for, else by its
pool, else by the site. Pure.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import PurePath

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.checkpoint_kinds import policy_of
from slurm_elastic.config.method_kinds import options_of, table
from slurm_elastic.config.mounting import has_mount
from slurm_elastic.config.sections.checkpoint import (
    CLOSE,
    LAUNCHED,
    LIMIT,
    REHEARSED,
    TCP,
    CheckpointSettings,
    PoolCheckpoint,
)
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.config.validation.validate_checkpoint import (
    SHARED,
    SIGN_FORM,
    SIGNAL_FORM,
    is_sign,
    is_signal,
)
from slurm_elastic.model.causes.save_refusals import (
    ComponentAlone,
    DirectoryMissing,
    FilesOnMachine,
    NoMethodNamed,
    RequestInvalid,
    SavedOnlyToMove,
    SaveRefusal,
    SignOnMachine,
    WantsNoSave,
)
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.checkpoint import (
    AnyPolicy,
    AtLimit,
    Never,
    Renew,
    parse_at_limit,
)
from slurm_elastic.policies.checkpoint.unsavable import Unsavable, unfit

MAX_COMMENT_LENGTH = 4096
"""Longer comments are refused, because a comment with a request is parsed again and again."""
_WISH = re.compile(r"(?:^|[\s;])ckpt=([^\s;]*)")
_FEATURE = re.compile(r"(?<![\w.-])ckpt_([a-z]+)(?![\w.-])")
_FORMS = {
    "signal": (is_signal, SIGNAL_FORM),
    "stop_signal": (is_signal, SIGNAL_FORM),
    "saved": (is_sign, SIGN_FORM),
}


class MethodChoice(Struct, frozen=True, kw_only=True):
    """Method and policy for one job. ``refused``: what is wrong with the job's own request.
    ``move_only``: a save ends the run, so it is made only to move the job. ``blocking``: the job
    stands still during its save; an application that saves itself may say that it does not.
    ``copied``: its files are on its machine alone until its run ends.
    ``renewals``: how often it may be requeued at its time limit. ``unsavable``: what happens if no
    save succeeds. ``own``: the job requested the method itself.
    """

    method: str
    policy: AnyPolicy
    options: dict[str, str] = field(default_factory=dict)
    refused: SaveRefusal | None = None
    move_only: bool = False
    blocking: bool = True
    renewals: int = 0
    unsavable: Unsavable = Unsavable.WARN
    own: bool = False
    copied: bool = False

    @property
    def why_move_only(self) -> SaveRefusal:
        """Why a job with ``move_only`` is not saved where it is."""
        return FilesOnMachine() if self.copied else SavedOnlyToMove()


def resolve(
    comment: str, features: str, pool: PoolCheckpoint, settings: CheckpointSettings
) -> MethodChoice:
    """The choice by ``--comment=ckpt=METHOD[,limit][,KEY=VALUE...]``, else by
    ``--constraint=ckpt_METHOD``, else by the pool or the site.
    """
    policy = policy_of(pool.policy or settings.policy)
    try:
        request = parse_comment(comment) or parse_features(features)
    except ValueError as error:
        # Do not save it at all, rather than in a way that its user did not mean.
        return MethodChoice(method="none", policy=Never(), refused=RequestInvalid(error=str(error)))
    method, options = request or (pool.method or settings.method, {})
    sign = options.get("saved", settings.signal.saved)
    # A save with the sign "exit" ends the batch script, so it only makes sense for a move.
    ends_by_save = method == "signal" and sign.partition(":")[0] == "exit"
    renewals_asked = options.pop(LIMIT, None)
    if method == "criu" and options.pop(TCP, pool.tcp or settings.tcp) == CLOSE:
        options = {**options, TCP: CLOSE}
    rule = at_limit_of(pool.at_time_limit or settings.at_time_limit)
    return MethodChoice(
        method=method,
        policy=policy,
        options=options,
        move_only=ends_by_save,
        blocking=options.get("blocking") != "no",
        unsavable=Unsavable(pool.unsavable or settings.unsavable),
        own=request is not None,
        renewals=0 if method == "none" else _renewals(rule, renewals_asked),
    )


def resolve_for(job: SlurmJob, pool: PoolSettings | None, config: Config) -> MethodChoice:
    """``resolve`` for this job, if the method can save jobs of its kind. ``pool``: of its node."""
    settings = config.checkpoint
    plan = resolve(
        job.comment, job.features, pool.checkpoint if pool else PoolCheckpoint(), settings
    )
    copied = _is_copied(job, pool, config)
    sign = plan.options.get("saved", settings.signal.saved)
    refusal: SaveRefusal | None = None
    # The submit filter refuses only a job that names a method, not the method of the site.
    if plan.method != "none" and job.het_job:
        refusal = ComponentAlone()
    elif plan.method in SHARED and settings.directory is None:
        refusal = DirectoryMissing(method=plan.method)
    elif plan.method == "signal" and copied and sign.startswith("file:"):
        refusal = SignOnMachine(sign=sign)
    elif plan.method in LAUNCHED:
        # If a job with several nodes requests nothing itself, its first save fails, so that its
        # user reads why.
        refusal = unfit(plan.method, batch=job.batch, nodes=len(job.nodes) if plan.own else 1)
    if refusal:
        return MethodChoice(method="none", policy=plan.policy, refused=refusal)
    if copied and plan.method in SHARED:
        # If the machine is lost, the files that the job wrote until its image are lost with it.
        # After a move they are there, because they come back with the end of the run.
        return replace(plan, move_only=True, copied=True)
    return plan


def _is_copied(job: SlurmJob, pool: PoolSettings | None, config: Config) -> bool:
    """Whether the head copies the job's directory to its machine (``data: copy``)."""
    cloud = next((cloud for cloud in config.clouds if pool and cloud.name == pool.cloud), None)
    if cloud is None or cloud.data is not Data.COPY:
        return False
    directory = PurePath(os.path.normpath(job.directory))
    return not any(
        has_mount(mount, cloud) and directory.is_relative_to(mount.path)
        for mount in config.join.mounts
    )


def why_no_method(choice: MethodChoice) -> SaveRefusal:
    """Why a job has no method."""
    if choice.refused:
        return choice.refused
    return WantsNoSave() if choice.own else NoMethodNamed()


def _renewals(rule: AtLimit, requested: str | None) -> int:
    """How often a job may be requeued at its time limit, by the site's rule and its own request."""
    if requested is None:
        return rule.times if isinstance(rule, Renew) else 0
    return min(rule.times, int(requested)) if requested else rule.times


def asks_for_limit(comment: str) -> bool:
    """Whether a job's comment requests to continue after its time limit."""
    match = _WISH.search(comment[:MAX_COMMENT_LENGTH])
    return match is not None and any(
        word.partition("=")[0] == LIMIT for word in match[1].split(",")[1:]
    )


def parse_comment(comment: str) -> tuple[str, dict[str, str]] | None:
    """Method and options in a job's comment; None if it does not mention checkpoints.

    Raises ValueError, with one sentence for the user, if the request is not valid.
    """
    # Cut before the search: users write comments, and each look parses all of them.
    match = _WISH.search(comment[:MAX_COMMENT_LENGTH])
    if match is None:
        return None
    if len(comment) > MAX_COMMENT_LENGTH:
        raise ValueError(
            f"a comment of {len(comment)} characters: expected at most {MAX_COMMENT_LENGTH}"
        )
    method, *option_words = match[1].split(",")
    if method not in table().names():
        offered = ", ".join(name for name in table().names() if name != REHEARSED)
        raise ValueError(f"ckpt={method}: expected one of {offered}")
    options: dict[str, str] = {}
    for option in option_words:
        key, equals, value = option.partition("=")
        if key == LIMIT:
            options[key] = _checked_times(match[1], value) if equals else ""
            continue
        if not key or not equals or not value:
            raise ValueError(f"ckpt={match[1]}: {option!r} is no KEY=VALUE")
        _check_option(method, key, value)
        options[key] = value
    return method, options


def _checked_times(request: str, value: str) -> str:
    if not re.fullmatch(r"\d{1,3}", value, re.ASCII):
        raise ValueError(f"ckpt={request}: limit is {value!r}, expected a number up to 999")
    return value


def parse_features(features: str) -> tuple[str, dict[str, str]] | None:
    """The method in a job's constraint (``ckpt_criu&bigmem``); None if there is none.

    Raises ValueError if there are several, as in ``[ckpt_criu|ckpt_dmtcp]``.
    """
    methods = sorted(set(_FEATURE.findall(features)).intersection(table().names()))
    if len(methods) > 1:
        names = ", ".join(f"ckpt_{method}" for method in methods)
        raise ValueError(f"the constraint {features} names {names}: expected one of them")
    return (methods[0], {}) if methods else None


def _check_option(method: str, key: str, value: str) -> None:
    """Raises ValueError for an unknown option or value. The submit filter makes the same checks
    (job_saving.lua), except the forms.
    """
    known_options = options_of(method)
    if key not in known_options:
        raise ValueError(f"{key}: expected one of {', '.join(known_options)}")
    values = known_options[key]
    if values and value not in values:
        raise ValueError(f"{key}={value}: expected one of {', '.join(values)}")
    is_valid, form = _FORMS.get(key, (None, ""))
    if is_valid and not is_valid(value):
        raise ValueError(f"{key}={value}: expected {form}")


@cache
def at_limit_of(text: str) -> AtLimit:
    """Parse a rule for time limits. The configuration was validated, so this cannot fail."""
    return parse_at_limit(text)
