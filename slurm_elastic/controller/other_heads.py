"""Notices another head that works for this cluster. Then no machine starts or ends until a person
has said which head continues.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.controller.context import Site
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.repairs import HeadChosen, JournalOfOtherHost, OtherHeadLaunches
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.journal_owner import Host, JournalOwner
from slurm_elastic.model.memory import generation_time
from slurm_elastic.policies.repair.other_heads import launched_by_others
from slurm_elastic.state.heartbeat import OTHER_HEAD_MEANS, ServiceTrouble
from slurm_elastic.state.ledger import Decision, Ledger

log = logging.getLogger(__name__)

CORRELATION = "other-head"
SUBJECT = "other-head"
"""The subject of ``clear`` by which a person says that this head continues."""
REMEDY = (
    "stop the services of the head that is the copy and disable them. Then, on the head that "
    f"continues: slurm-elastic clear {SUBJECT}"
)


def trouble_of_head(ledger: Ledger) -> ServiceTrouble | None:
    """Return the finding for screens, also while the service does not run; None without one."""
    finding = ledger.owner.other_head()
    if finding is None:
        return None
    return ServiceTrouble(
        problem=str(finding.cause), since=finding.since, effect=OTHER_HEAD_MEANS, remedy=REMEDY
    )


def take_up_journal(site: Site) -> bool:
    """Record whose journal this is, at the start of the service. If another host has written it,
    record that finding. Return False if the journal cannot be read yet: the caller must try again.
    """
    ledger, origin = site.ledger, site.ledger.journal_origin()
    owner = ledger.owner.get()
    if owner is None and ledger.end_only:
        # The rows in memory have no owner. Recorded there, this head would replace the owner in
        # the journal when the disk is back, and a clone would never notice the original.
        return False
    if owner is None or (origin and owner.origin and owner.origin != origin):
        # The journal is new, or a person has just restored it for this head.
        continue_here(ledger, site.host, origin, site.now())
        return True
    if site.host is not None and not owner.host.may_be(site.host):
        cause = JournalOfOtherHost(host=owner.host.name, here=site.host.name)
        _note(site, cause, ())
        return True
    # Both hosts of a pair of heads write the journal, and the epoch is the fence.
    host = owner.host.seen_again(site.host) if site.host is not None else Host()
    current = replace(owner, host=host, origin=origin or owner.origin)
    if current != owner:
        ledger.owner.record(current)
    return True


def look_for_other_head(site: Site, cloud: str, listed: Sequence[Instance]) -> None:
    """Record the finding if the cloud lists machines that another head has launched."""
    ledger, owner = site.ledger, site.ledger.owner.get()
    if owner is None:
        return
    # If the clock was set back, a time in the future would hide every later launch.
    owner = replace(owner, knows_since=min(owner.knows_since, site.now()))
    state = ledger.state()
    live_ids = {m.instance.id for m in (*state.machines, *state.stopped)}
    launches = {row.generation for row in state.launches}
    # Most lists end here, without a query for each of their machines.
    unknown = launched_by_others(listed, live_ids, launches, owner)
    if not unknown:
        return
    known_ids = ledger.owner.known_machines(cloud, [i.id for i in unknown])
    known_launches = ledger.owner.known_launches([i.generation for i in unknown])
    if machines := launched_by_others(unknown, known_ids, known_launches, owner):
        example = machines[0]
        cause = OtherHeadLaunches(
            machine=example.id,
            cloud=cloud,
            node=example.node,
            launched_at=generation_time(example.generation),
        )
        _note(site, cause, machines)


def _note(site: Site, cause: AnyCause, machines: Sequence[Instance]) -> None:
    ids = [machine.id for machine in machines]
    if site.ledger.owner.record_other_head(cause, ids, site.now()):
        log.error("no machine starts or ends until a person helps: %s; do: %s", cause, REMEDY)
        nodes = sorted({machine.node for machine in machines if machine.node})
        site.record(CORRELATION, "other-head", (SUBJECT, *nodes), cause)


def continue_here(
    ledger: Ledger, host: Host | None, origin: str, now: float, person: str = ""
) -> None:
    """Record that the head on this ``host`` continues with this journal, and no other head. It gets
    the machines that another head has launched until ``now``. ``person``: who decided it, "" at
    the start of a journal.
    """
    with ledger.together():
        finding = ledger.owner.other_head()
        ledger.owner.record(
            JournalOwner(
                knows_since=now,
                origin=origin,
                host=host or Host(),
                accepted=finding.about if finding is not None else (),
            )
        )
        ledger.owner.clear_other_head()
        if person:
            ledger.decisions.record(
                Decision(
                    at=now,
                    correlation="clear",
                    kind="cleared",
                    subjects=(SUBJECT,),
                    cause=HeadChosen(who=person),
                )
            )
