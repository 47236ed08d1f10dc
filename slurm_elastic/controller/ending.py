"""Machines end, in one bulk call of a cloud: intent first, the result after."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, of_stranger
from slurm_elastic.base.faults import reach
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.cluster import OFF
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

TERMINATE_FAILED = "terminate-failed"
"""The kind of a decision with the words of a cloud that would not end machines."""


def terminate(
    site: Site, cloud: str, machines: Sequence[Machine], cause: AnyCause, correlation: str
) -> None:
    """Terminate these machines of one cloud in one bulk call; the intent is written first.

    After an error the intent stays and reconcile repeats the call. Providers count what is gone
    already as done. A machine that was asked for before, or was stopped, is paid until its cloud no
    longer lists it, and asked for each round.
    """
    if not machines:
        return
    ids = [m.instance.id for m in machines]
    nodes = [m.instance.node for m in machines]
    reach("suspend.before-intent")
    site.ledger.machines.suspending(cloud, ids, cause, site.now())
    reach("suspend.after-intent")
    try:
        site.providers[cloud].terminate(ids)
    except InstanceNotFound:
        log.info("already gone cloud=%s nodes=%s", cloud, compress(nodes))
    except ProviderError as error:
        log.warning(
            "terminate fails, reconcile repeats it nodes=%s error=%s", compress(nodes), error
        )
        _tell(site, correlation, TERMINATE_FAILED, machines, str(error))
        return
    # A provider may raise its SDK's own errors. The machines are paid, so people must read of it.
    except Exception as error:
        log.exception("terminate fails, reconcile repeats it nodes=%s", compress(nodes))
        _tell(site, correlation, TERMINATE_FAILED, machines, of_stranger(error))
        return
    reach("suspend.after-call")
    # Of those that were asked for before, or were stopped, an answer is no proof, as after a
    # deletion that failed: they have ended when their cloud lists them no more.
    at_once = [m for m in machines if m.is_wanted and m.instance.state not in OFF]
    site.ledger.machines.ended(cloud, [m.instance.id for m in at_once], cause, site.now())
    reach("suspend.after-result")
    log.info("terminated request=%s nodes=%s reason=%s", correlation, compress(nodes), cause)
    _tell(site, correlation, "terminated", machines, cause)


def terminate_by_cause(
    site: Site,
    cloud: str,
    machines: Sequence[Machine],
    cause_of: Mapping[str, AnyCause],
    correlation: str,
) -> None:
    """Terminate these machines of one cloud, each for its own cause (by machine id)."""
    for cause in dict.fromkeys(cause_of[m.instance.id] for m in machines):
        ending = [m for m in machines if cause_of[m.instance.id] == cause]
        terminate(site, cloud, ending, cause, correlation)


def _tell(
    site: Site, correlation: str, kind: str, machines: Sequence[Machine], reason: AnyCause | str
) -> None:
    """One that is asked for each round is told when something changes."""
    again = [m.instance.node for m in machines if not m.is_wanted]
    known = set(again) - set(site.news(again, kind, reason))
    if nodes := [m.instance.node for m in machines if m.instance.node not in known]:
        site.record(correlation, kind, nodes, reason)
