"""Ends machines in one bulk call per cloud. The intent is written before the call, the result
after it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, describe_foreign
from slurm_elastic.base.faults import reach
from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import AnyCause, Quoted
from slurm_elastic.model.causes.machine_ends import NotOurMachine
from slurm_elastic.model.causes.repairs import ListDoubted
from slurm_elastic.model.cluster import OFF, EndAnswer
from slurm_elastic.model.protocols import LooksUp
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

_ACCEPTED = (EndAnswer.ENDED, EndAnswer.GONE)

STILL_THERE = "unlisted"
"""The kind of a decision that keeps a machine which the list lacks and the cloud has."""
TERMINATE_FAILED = "terminate-failed"
"""The kind of a decision that records the error of a cloud which did not end machines."""


def terminate(
    site: Site, cloud: str, machines: Sequence[Machine], cause: AnyCause, correlation: str
) -> None:
    """Terminate these machines of one cloud in one bulk call. The intent is written first.

    After an error the intent stays in the ledger and the next round repeats the call. If the cloud
    accepts the first request for the end of a running machine, the machine no longer counts as
    paid; a later list that still has it changes that. If a machine was stopped, or its end was
    requested before, it counts as paid until its cloud says by its id that it is gone, and each
    round requests its end again (``confirm_ends``).

    A machine that a feature has not finished with stays; the next round tries again.

    OtherHeadError: another head works for this cluster, and the machines may be its own.
    """
    # Here, beside the call, and not only where it is decided: the other head may have been found
    # after the decision, in the list of another cloud.
    site.ledger.owner.require_only()
    unfinished = find_unfinished(site, machines)
    machines = [m for m in machines if m not in unfinished]
    if not machines:
        return
    ids = [m.instance.id for m in machines]
    reach("suspend.before-intent")
    site.ledger.machines.record_ending(cloud, ids, cause, site.now())
    reach("suspend.after-intent")
    answers = _request_ends(site, cloud, machines, correlation)
    if answers is None:
        return
    reach("suspend.after-call")
    # For the other machines an accepted request proves nothing: the cloud accepted an earlier
    # request, too, and the deletion failed.
    first_requests = [m for m in machines if m.is_wanted and m.instance.state not in OFF]
    ended = [
        m for m in machines
        if (answer := answers.get(m.instance.id)) is EndAnswer.GONE
        or (answer is EndAnswer.ENDED and m in first_requests)
    ]  # fmt: skip
    site.ledger.machines.record_end(cloud, [m.instance.id for m in ended], cause, site.now())
    reach("suspend.after-result")
    accepted = [m for m in machines if answers.get(m.instance.id) in _ACCEPTED]
    if accepted:
        nodes = compress([m.instance.node for m in accepted])
        log.info("terminated request=%s nodes=%s reason=%s", correlation, nodes, cause)
        _record_if_changed(site, correlation, "terminated", accepted, cause)


def confirm_ends(
    site: Site, cloud: str, machines: Sequence[Machine], cause: AnyCause, correlation: str
) -> Sequence[Machine]:
    """Request the ends of these machines again, whose end was decided and that their cloud's list
    lacks. Returns the machines whose end this proves, and records them as ended.

    The list alone is no proof: it also lacks a machine without its tags, although the machine runs
    and costs money.
    """
    answers = _request_ends(site, cloud, machines, correlation) if machines else None
    if answers is None:
        return ()
    ended = [m for m in machines if answers.get(m.instance.id) in _ACCEPTED]
    site.ledger.machines.record_end(cloud, [m.instance.id for m in ended], cause, site.now())
    return ended


def find_gone(
    site: Site, cloud: str, node_by_id: Mapping[str, str], correlation: str
) -> Collection[str]:
    """Return the machines of these that are gone. ``node_by_id``: the machines that the cloud's
    list lacks.

    A list also lacks a machine without its tags, although the machine runs and costs money. So the
    cloud is asked for the machines by their ids, if it can be. If it does not answer, nothing is
    known, and the next round asks again.
    """
    provider, ids = site.providers[cloud], list(node_by_id)
    if not isinstance(provider, LooksUp) or not ids:
        return ids
    try:
        gone = frozenset(provider.gone(ids))
    except ProviderError as error:
        log.warning("missing machines cannot be looked up cloud=%s error=%s", cloud, error)
        return ()
    # A provider may raise its SDK's own errors. They must not end the round.
    except Exception:
        log.exception("missing machines cannot be looked up cloud=%s", cloud)
        return ()
    for id_ in ids:
        if id_ not in gone:
            doubt = f"it lacks {id_}, which the cloud has by this id: were its tags taken away?"
            cause = ListDoubted(doubt=doubt)
            site.recorder.record_if_changed(correlation, STILL_THERE, [node_by_id[id_]], cause)
    return gone


def _request_ends(
    site: Site, cloud: str, machines: Sequence[Machine], correlation: str
) -> Mapping[str, EndAnswer] | None:
    """The cloud's answers by machine, None after an error for all of them. Errors and machines of
    others are recorded where people see them.
    """
    ids = [m.instance.id for m in machines]
    nodes = [m.instance.node for m in machines]
    try:
        answers = site.providers[cloud].terminate(ids)
    # A running machine seems gone, too, under another account's credentials. When ours are back, a
    # list shows the machine, and a round adopts it and ends it by the state of its node.
    except InstanceNotFound:
        if len(machines) > 1:
            return _request_each_end(site, cloud, machines, correlation)
        log.info("already gone cloud=%s nodes=%s", cloud, compress(nodes))
        return dict.fromkeys(ids, EndAnswer.GONE)
    except ProviderError as error:
        log.warning(
            "terminate fails, reconcile repeats it nodes=%s error=%s", compress(nodes), error
        )
        failure = Quoted(text=str(error))
        _record_if_changed(site, correlation, TERMINATE_FAILED, machines, failure)
        return None
    # A provider may raise its SDK's own errors. The machines still cost money, so record the error
    # where people see it, and let the round continue with the other machines.
    except Exception as error:
        log.exception("terminate fails, reconcile repeats it nodes=%s", compress(nodes))
        failure = Quoted(text=describe_foreign(error))
        _record_if_changed(site, correlation, TERMINATE_FAILED, machines, failure)
        return None
    for machine in machines:
        if answers[machine.instance.id] is EndAnswer.NOT_OURS:
            not_ours = NotOurMachine(machine=machine.instance.id)
            if _record_if_changed(site, correlation, TERMINATE_FAILED, [machine], not_ours):
                log.error("machine not ended cloud=%s reason=%s", cloud, not_ours)
    return answers


def _request_each_end(
    site: Site, cloud: str, machines: Sequence[Machine], correlation: str
) -> Mapping[str, EndAnswer]:
    """Request each end by itself, because an error that one machine is gone proves nothing about
    the others. Machines without an answer are missing in the result.
    """
    answers: dict[str, EndAnswer] = {}
    for machine in machines:
        answers |= _request_ends(site, cloud, [machine], correlation) or {}
    return answers


def find_unfinished(site: Site, machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines that must not end yet, for example because files of jobs are there."""
    finders = site.extensions.find_unfinished
    return [machine for find in finders for machine in find(machines)]


def terminate_by_cause(
    site: Site,
    cloud: str,
    machines: Sequence[Machine],
    cause_of: Mapping[str, AnyCause],
    correlation: str,
) -> None:
    """Terminate these machines of one cloud, each for its own cause (by machine id)."""
    for cause, ending in group_by(machines, lambda m: cause_of[m.instance.id]).items():
        terminate(site, cloud, ending, cause, correlation)


def _record_if_changed(
    site: Site, correlation: str, kind: str, machines: Sequence[Machine], cause: AnyCause
) -> Sequence[str]:
    """Record the decision, and return the nodes for which that was done. If a machine's end was
    requested before, record only a changed decision, because each round requests the end again.
    """
    asked_before = [m.instance.node for m in machines if not m.is_wanted]
    nodes = [m.instance.node for m in machines]
    return site.recorder.record_if_changed(correlation, kind, nodes, cause, repeated=asked_before)
