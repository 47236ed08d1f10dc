"""Stops machines that Slurm does not need, instead of ending them, if their pool keeps some."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from slurm_elastic.base.errors import AuthError, ProviderError, TransientError
from slurm_elastic.base.faults import reach
from slurm_elastic.base.grouping import group_by
from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import terminate_by_cause
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.controller.snapshot import CORRELATION, find_machines_to_act_on
from slurm_elastic.features.network.enrolment import keyed_digest
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.machine_ends import CannotBeStopped, IdleStopped, JobNotWhole
from slurm_elastic.model.cluster import LaunchSpec, Pool
from slurm_elastic.model.machine_states import Stopping
from slurm_elastic.model.protocols import Stops
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies import actions
from slurm_elastic.policies.growth.stopped import NO_RECIPES, Recipes, departing, to_stop
from slurm_elastic.policies.nodes.node_state import is_down, is_drained
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

DIGEST_LENGTH = 16

_IDLE = IdleStopped()


def join(site: Site) -> Extensions:
    """Stop idle machines if a pool keeps some stopped. The repair's actions join in any case,
    because machines of an earlier configuration may be stopping.
    """
    kept = any(pool.stopped for pool in site.pools.values())
    return Extensions(
        on_intent=[partial(note_recipe, site)] if kept else [],
        on_answer=[partial(doubt_recipe, site)] if kept else [],
        spare_from_end=[partial(spare, site)] if kept else [],
        spare_of_refused=[partial(spare_started, site)] if kept else [],
        find_recipes=[partial(recipes_of, site)],
        doers=[
            (actions.NoteStopped, partial(note_stopped, site)),
            (actions.StopAgain, partial(repeat_stop, site)),
        ],
    )


def recipes_of(site: Site, cloud: str, machines: Collection[Machine]) -> Recipes:
    """The recipes of these machines of a cloud, and the recipes of new machines of their pools."""
    cloud_machines = [m for m in machines if m.instance.cloud == cloud and m.pool in site.pools]
    if not cloud_machines:
        return NO_RECIPES
    pools = {m.pool: site.pools[m.pool] for m in cloud_machines}
    fresh_recipes = {name: word for name, pool in pools.items() if (word := recipe(site, pool))}
    return Recipes(
        made_of=site.ledger.launches.recipes({m.instance.generation for m in cloud_machines}),
        fresh=fresh_recipes,
    )


def recipe(site: Site, pool: Pool) -> str:
    """The recipe of a new machine of the pool; "" if it cannot be determined. Two machines with the
    same recipe are made of the same image, configuration and secret.
    """
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
    """The part of the recipe that identifies the secret in use: after a rotation, stopped machines
    have an outdated secret and must not be started. OSError if the secret's file cannot be read.
    """
    ssh = site.config.join.ssh
    if ssh is None:
        return ""
    # A keyed digest: the recipe is in the journal, which more people may read than the secret. Not
    # the file's inode or time: each of two heads has its own file, and a restored file is new.
    digest = keyed_digest(site.config.state, b"join.ssh:" + Path(ssh.secret).read_bytes())
    return f"-{digest[:DIGEST_LENGTH]}"


def note_recipe(site: Site, spec: LaunchSpec) -> None:
    """Record the recipe of a launch's machines."""
    if spec.pool.stopped and (word := recipe(site, spec.pool)):
        site.ledger.launches.note_recipe(spec.generation, word)


def doubt_recipe(site: Site, generation: str, pool: str) -> None:
    """Forget the recipe of a launch's machines if the pool's recipe has changed since it was
    recorded. A call of the launch may have been made before the change or after it.
    """
    noted_recipe = site.ledger.launches.recipes([generation]).get(generation)
    if noted_recipe is not None and (
        pool not in site.pools or noted_recipe != recipe(site, site.pools[pool])
    ):
        site.ledger.launches.note_recipe(generation, "")


def spare(
    site: Site,
    cloud: str,
    doomed: Sequence[Machine],
    view: Mapping[str, SlurmNode],
    correlation: str,
) -> list[Machine]:
    """Stop some of the machines that Slurm does not need, and return the stopped ones."""
    kept = choose(site, cloud, doomed, view)
    refused = stop(site, cloud, kept, correlation)
    return [m for m in kept if m not in refused]


def spare_started(
    site: Site,
    cloud: str,
    doomed: Sequence[Machine],
    view: Mapping[str, SlurmNode],
    correlation: str,
) -> list[Machine]:
    """Stop the machines of a refused job again that were started for it, and return the stopped
    ones.
    """
    # They still boot, so most are not ``Serving``. A stock of stopped machines would else end with
    # each job that lacks a node.
    kept = choose(site, cloud, doomed, view, boot_again=True)
    refused = stop(site, cloud, kept, correlation, JobNotWhole())
    return [m for m in kept if m not in refused]


def choose(
    site: Site,
    cloud: str,
    doomed: Sequence[Machine],
    view: Mapping[str, SlurmNode],
    *,
    boot_again: bool = False,
) -> list[Machine]:
    """Choose the machines to stop among those that Slurm does not need. No machine is chosen while
    the ledger accepts no new intents, and never a machine that a person or Slurm has taken out of
    service. ``boot_again``: see ``to_stop``.
    """
    pools = {name: pool for name, pool in site.pools.items() if pool.stopped}
    stoppable = [m for m in doomed if m.pool in pools and _is_sound(m, view)]
    if not stoppable or site.ledger.end_only:
        return []
    state = site.ledger.state()
    departing_ids = departing(stoppable, state.directives, site.now())
    # An operator wants these machines gone, not kept.
    stoppable = [m for m in stoppable if m.instance.id not in departing_ids]
    pool_machines = (*state.machines, *state.stopped)
    recipes = recipes_of(site, cloud, stoppable)
    return to_stop(stoppable, pool_machines, pools, recipes, site.now(), boot_again=boot_again)


def _is_sound(machine: Machine, view: Mapping[str, SlurmNode]) -> bool:
    node = view.get(machine.instance.node)
    return node is not None and not is_drained(node) and not is_down(node)


def stop(
    site: Site,
    cloud: str,
    machines: Sequence[Machine],
    correlation: str,
    cause: AnyCause = _IDLE,
) -> list[Machine]:
    """Record the intent, then stop the machines. After a transient error the intent stays open and
    the repair repeats the call. Return the machines that the cloud refuses to stop; the caller must
    end them.
    """
    if not machines:
        return []
    ids = [m.instance.id for m in machines]
    reach("stop.before-intent")
    # On the disk before the call: after a crash the repair repeats the stop of an open intent.
    site.ledger.stops.record_stopping(cloud, ids, cause, site.now())
    reach("stop.after-intent")
    return stop_again(site, cloud, machines, correlation, cause)


def stop_again(
    site: Site,
    cloud: str,
    machines: Sequence[Machine],
    correlation: str,
    cause: AnyCause,
) -> list[Machine]:
    """Repeat the call of ``stop`` for machines with an open intent. Returns the machines that the
    cloud refuses to stop. There are none if it stops them or its answer leaves that open.
    """
    ids, nodes = [m.instance.id for m in machines], [m.instance.node for m in machines]
    try:
        left_alone = _stops(site, cloud).stop(ids)
    except TransientError as error:
        log.warning("stop fails, reconcile repeats it nodes=%s error=%s", compress(nodes), error)
        return []
    except ProviderError as error:
        if len(machines) > 1 and not isinstance(error, AuthError):
            # A cloud may refuse all machines of a call because of one of them (EC2 does). A stop of
            # a machine that has stopped is no error, so try both halves.
            half = len(machines) // 2
            parts = (machines[:half], machines[half:])
            return [m for part in parts for m in stop_again(site, cloud, part, correlation, cause)]
        _record_refusal(site, cloud, machines, correlation, str(error))
        return list(machines)
    except Exception:
        log.exception(
            "stop fails in an unknown way, reconcile repeats it nodes=%s", compress(nodes)
        )
        return []
    reach("stop.after-call")
    strangers = [m for m in machines if m.instance.id in left_alone]
    stopped = [m for m in machines if m.instance.id not in left_alone]
    if stopped:
        has_stopped(site, cloud, stopped, correlation, cause)
    reach("stop.after-result")
    if strangers:
        # The caller ends them. That asks the cloud by their ids, and reports a machine that exists
        # and is not ours.
        error_text = "the machine is gone, or its tags are not ours"
        _record_refusal(site, cloud, strangers, correlation, error_text)
    return strangers


def _record_refusal(
    site: Site, cloud: str, machines: Sequence[Machine], correlation: str, error_text: str
) -> None:
    """Record that the cloud does not stop these machines."""
    ids, nodes = [m.instance.id for m in machines], [m.instance.node for m in machines]
    refusal = CannotBeStopped(error=error_text)
    log.warning("not stopped nodes=%s error=%s", compress(nodes), error_text)
    site.ledger.stops.record_stop_failure(cloud, ids, refusal)
    site.record(correlation, "stop-refused", nodes, refusal)


def _stops(site: Site, cloud: str) -> Stops:
    provider = site.providers[cloud]
    if isinstance(provider, Stops):
        return provider
    raise ProviderError(cloud, "NoStop", "its machines cannot be stopped")


def has_stopped(
    site: Site,
    cloud: str,
    machines: Sequence[Machine],
    correlation: str,
    cause: AnyCause,
) -> None:
    """Record that these machines have stopped. From then on they cost the pool's stopped price."""
    pools = {m.instance.id: site.pools.get(m.pool) for m in machines}
    prices = {id_: pool.stopped_price if pool else 0.0 for id_, pool in pools.items()}
    nodes = [m.instance.node for m in machines]
    # One transaction: `explain` must not know a stop that the ledger does not have.
    with site.ledger.together():
        site.ledger.stops.record_stopped(cloud, prices, site.now())
        site.record(correlation, "stopped", nodes, cause)
    log.info("stopped request=%s nodes=%s reason=%s", correlation, compress(nodes), cause)


# The actions of the repair.


def note_stopped(
    site: Site, snapshot: ClusterSnapshot, stopped: Sequence[actions.NoteStopped]
) -> None:
    """Record that these machines are stopped, as their cloud lists them."""
    cloud = snapshot.terms.cloud
    machines = find_machines_to_act_on(site, cloud, stopped)
    for cause, group in group_by(machines, _cause_of_stop).items():
        has_stopped(site, cloud, group, CORRELATION, cause)


def repeat_stop(site: Site, snapshot: ClusterSnapshot, stops: Sequence[actions.StopAgain]) -> None:
    """Repeat the stop of these machines. End them if the cloud does not stop them, or if the ledger
    accepts no new intents: no record would say that they exist.
    """
    cloud = snapshot.terms.cloud
    machines = find_machines_to_act_on(site, cloud, stops)
    if error := site.ledger.end_only:
        ids = [m.instance.id for m in machines]
        site.ledger.stops.record_stop_failure(cloud, ids, CannotBeStopped(error=error))
        refused = machines
    else:
        refused = [
            machine
            for cause, group in group_by(machines, _cause_of_stop).items()
            for machine in stop_again(site, cloud, group, CORRELATION, cause)
        ]
    terminate_by_cause(site, cloud, refused, {a.machine: a.cause for a in stops}, CORRELATION)


def _cause_of_stop(machine: Machine) -> AnyCause:
    return machine.life.cause if isinstance(machine.life, Stopping) else _IDLE
