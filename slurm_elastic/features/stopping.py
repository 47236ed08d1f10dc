"""Machines that nobody needs are stopped instead of ended, where their pool keeps some so."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.base.faults import reach
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate_by_cause
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.controller.snapshot import CORRELATION, find_machines_to_act_on
from slurm_elastic.model.causes.machine_ends import CannotBeStopped, IdleStopped
from slurm_elastic.model.cluster import LaunchSpec, Pool
from slurm_elastic.model.protocols import Stops
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies import actions
from slurm_elastic.policies.growth.stopped import NO_RECIPES, Recipes, departing, to_stop
from slurm_elastic.policies.nodes.node_state import is_down, is_drained
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

_IDLE = IdleStopped()


def join(site: Site) -> Extensions:
    """Stop idle machines if pools keep some stopped. The repair of those that are left of an
    earlier configuration joins in any case.
    """
    kept = any(pool.stopped for pool in site.pools.values())
    return Extensions(
        on_intent=[partial(note_recipe, site)] if kept else [],
        on_answer=[partial(doubt_recipe, site)] if kept else [],
        spare_from_end=[partial(spare, site)] if kept else [],
        find_recipes=[partial(recipes_of, site)],
        doers=[
            (actions.NoteStopped, partial(note_stopped, site)),
            (actions.StopAgain, partial(repeat_stop, site)),
        ],
    )


def recipes_of(site: Site, cloud: str, machines: Collection[Machine]) -> Recipes:
    """The recipes of these machines of a cloud, and those of fresh ones of their pools."""
    mine = [m for m in machines if m.instance.cloud == cloud and m.pool in site.pools]
    if not mine:
        return NO_RECIPES
    pools = {m.pool: site.pools[m.pool] for m in mine}
    fresh = {name: word for name, pool in pools.items() if (word := recipe(site, pool))}
    return Recipes(
        made_of=site.ledger.launches.recipes({m.instance.generation for m in mine}), fresh=fresh
    )


def recipe(site: Site, pool: Pool) -> str:
    """The recipe of a fresh machine of the pool; "" where the cloud does not tell."""
    provider = site.providers.get(pool.cloud)
    if not isinstance(provider, Stops):
        return ""
    try:
        return f"{provider.recipe(pool)}{_secret(site)}"
    except (ProviderError, OSError) as error:
        log.info("recipe not known pool=%s error=%s", pool.name, error)
    except Exception:
        log.exception("recipe not known pool=%s", pool.name)
    return ""


def _secret(site: Site) -> str:
    """Which of Slurm's secrets machines have got: after another one, those of before know none.
    OSError where that cannot be told.
    """
    ssh = site.config.join.ssh
    if ssh is None:
        return ""
    found = os.stat(ssh.secret)
    return f"-{found.st_ino:x}-{found.st_mtime_ns:x}"


def note_recipe(site: Site, spec: LaunchSpec) -> None:
    """Write down what the machines of a launch are made of."""
    if spec.pool.stopped and (word := recipe(site, spec.pool)):
        site.ledger.launches.note_recipe(spec.generation, word)


def doubt_recipe(site: Site, generation: str, pool: str) -> None:
    """Forget what the machines of a launch are made of where a fresh one would be another by now:
    its call, or a later one of the same launch, may have begun before the change or after it.
    """
    noted = site.ledger.launches.recipes([generation]).get(generation)
    if noted is not None and (pool not in site.pools or noted != recipe(site, site.pools[pool])):
        site.ledger.launches.note_recipe(generation, "")


def spare(
    site: Site,
    cloud: str,
    doomed: Sequence[Machine],
    view: Mapping[str, SlurmNode],
    correlation: str,
) -> list[Machine]:
    """Of machines that Slurm does not need those that are stopped now, as their pool keeps some."""
    kept = choose(site, cloud, doomed, view)
    refused = stop(site, cloud, kept, correlation)
    return [m for m in kept if m not in refused]


def choose(
    site: Site, cloud: str, doomed: Sequence[Machine], view: Mapping[str, SlurmNode]
) -> list[Machine]:
    """The machines to be stopped among those that Slurm does not need: none while the ledger's
    file cannot be used, and none that a person, or Slurm itself, has taken out of service.
    """
    pools = {name: pool for name, pool in site.pools.items() if pool.stopped}
    fit = [m for m in doomed if m.pool in pools and _is_sound(m, view)]
    if not fit or site.ledger.end_only:
        return []
    state = site.ledger.state()
    going = departing(fit, state.directives, site.now())
    fit = [m for m in fit if m.instance.id not in going]
    there = (*state.machines, *state.stopped)
    return to_stop(fit, there, pools, recipes_of(site, cloud, fit), site.now())


def _is_sound(machine: Machine, view: Mapping[str, SlurmNode]) -> bool:
    node = view.get(machine.instance.node)
    return node is not None and not is_drained(node) and not is_down(node)


def stop(site: Site, cloud: str, machines: Sequence[Machine], correlation: str) -> list[Machine]:
    """Stop these, the intent first; an error that may pass leaves it, and the repair repeats the
    call. Returns those that the cloud does not stop: they are to be ended.
    """
    if not machines:
        return []
    ids = [m.instance.id for m in machines]
    reach("stop.before-intent")
    site.ledger.stops.stopping(cloud, ids, _IDLE, site.now())
    reach("stop.after-intent")
    return stop_again(site, cloud, machines, correlation)


def stop_again(
    site: Site, cloud: str, machines: Sequence[Machine], correlation: str
) -> list[Machine]:
    """The call of ``stop``, whose intent stands."""
    ids, nodes = [m.instance.id for m in machines], [m.instance.node for m in machines]
    try:
        _stops(site, cloud).stop(ids)
    except TransientError as error:
        log.warning("stop fails, reconcile repeats it nodes=%s error=%s", compress(nodes), error)
        return []
    except ProviderError as error:
        cause = CannotBeStopped(error=str(error))
        log.warning("not stopped nodes=%s error=%s", compress(nodes), error)
        site.ledger.stops.failed(cloud, ids, cause)
        site.record(correlation, "stop-refused", nodes, cause)
        return list(machines)
    except Exception:
        log.exception(
            "stop fails in an unknown way, reconcile repeats it nodes=%s", compress(nodes)
        )
        return []
    reach("stop.after-call")
    has_stopped(site, cloud, machines, correlation)
    reach("stop.after-result")
    return []


def _stops(site: Site, cloud: str) -> Stops:
    provider = site.providers[cloud]
    if isinstance(provider, Stops):
        return provider
    raise ProviderError(cloud, "NoStop", "its machines cannot be stopped")


def has_stopped(site: Site, cloud: str, machines: Sequence[Machine], correlation: str) -> None:
    """Write down that these have stopped, as it was decided."""
    pools = {m.instance.id: site.pools.get(m.pool) for m in machines}
    prices = {id_: pool.stopped_price if pool else 0.0 for id_, pool in pools.items()}
    nodes = [m.instance.node for m in machines]
    with site.ledger.together():
        site.ledger.stops.done(cloud, prices, site.now())
        site.record(correlation, "stopped", nodes, _IDLE)
    log.info("stopped request=%s nodes=%s reason=%s", correlation, compress(nodes), _IDLE)


# The actions of the repair.


def note_stopped(
    site: Site, snapshot: ClusterSnapshot, some: Sequence[actions.NoteStopped]
) -> None:
    """Record that these machines are stopped, as their cloud lists them."""
    cloud = snapshot.terms.cloud
    has_stopped(site, cloud, find_machines_to_act_on(site, cloud, some), CORRELATION)


def repeat_stop(site: Site, snapshot: ClusterSnapshot, some: Sequence[actions.StopAgain]) -> None:
    """Repeat the stop of these machines. End them if the cloud does not stop them, or if the ledger
    accepts no new intents: nobody would remember that they exist.
    """
    cloud = snapshot.terms.cloud
    machines = find_machines_to_act_on(site, cloud, some)
    if why := site.ledger.end_only:
        ids = [m.instance.id for m in machines]
        site.ledger.stops.failed(cloud, ids, CannotBeStopped(error=why))
        refused = machines
    else:
        refused = stop_again(site, cloud, machines, CORRELATION)
    terminate_by_cause(site, cloud, refused, {a.machine: a.cause for a in some}, CORRELATION)
