"""slurmd processes on this host, started by the root-owned agent ``slurm-elastic-local``."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import msgspec

from slurm_elastic.base.errors import AuthError, CapacityError, ProviderError, TransientError
from slurm_elastic.base.processes.bounded import ReadBudget, exchange
from slurm_elastic.config import Cluster
from slurm_elastic.machine.local.wire import (
    AgentAnswer,
    LaunchOrder,
    ListOrder,
    MachineRecord,
    Message,
    Ping,
    TerminateOrder,
)
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    InstanceState,
    LaunchSpec,
    Market,
    Notice,
    Offer,
    Pool,
)
from slurm_elastic.providers.local.settings import LocalCloud

MAX_ANSWER_BYTES = 64 << 20
"""A machine's record with all its jobs takes some KB."""
ZONE = "local"
TYPE = "slurmd"

_ERRORS: dict[str, type[ProviderError]] = {
    "InsufficientCapacity": CapacityError,
    "Gone": CapacityError,
    "NotPermitted": AuthError,
    "NodeBusy": TransientError,
    "Busy": TransientError,
    "InternalError": TransientError,
}


class LocalProvider:
    """A client of the agent at ``settings.socket``. The contract is in protocols.Provider."""

    def __init__(self, settings: LocalCloud, cluster: Cluster) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster.uuid or cluster.name

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """One offer for each of the pool's markets except spot, which an own host does not have."""
        markets = [m for m in pool.markets if m is not Market.SPOT]
        if not markets or (pool.zones and ZONE not in pool.zones):
            return ()
        status = self._ask(Ping())
        free = None
        if status.capacity is not None and status.used is not None:
            free = max(0, status.capacity - status.used)
        return tuple(
            Offer(
                cloud=self.name,
                location=self._settings.location,
                instance_type=instance_type,
                zone=ZONE,
                market=market,
                price=self._settings.price,
                cpus=pool.cpus,
                memory=pool.real_memory,
                gres=pool.gres,
                on_demand_price=self._settings.price,
                free=free,
            )
            for instance_type in pool.instance_types or (TYPE,)
            for market in markets
        )

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Make the agent start slurmds. The answer comes before they have registered."""
        answer = self._ask(
            LaunchOrder(
                cluster=self._cluster,
                generation=spec.generation,
                pool=spec.pool.name,
                nodes=spec.nodes,
                instance_type=spec.offer.instance_type,
                market=spec.offer.market,
                price=spec.offer.price,
                jobs=spec.jobs,
            )
        )
        return tuple(self._instance(record) for record in answer.machines)

    def instances(self) -> Sequence[Instance]:
        """The cluster's machines, without those whose slurmd has ended."""
        answer = self._ask(ListOrder(cluster=self._cluster))
        return tuple(self._instance(record) for record in answer.machines)

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Begin to end these machines. They are STOPPING until slurmd and its jobs are gone."""
        if not ids:
            return {}
        answer = self._ask(TerminateOrder(cluster=self._cluster, ids=tuple(ids)))
        exceptions = dict.fromkeys(answer.gone, EndAnswer.GONE)
        exceptions |= dict.fromkeys(answer.not_ours, EndAnswer.NOT_OURS)
        return dict.fromkeys(ids, EndAnswer.ENDED) | exceptions

    def notices(self) -> Sequence[Notice]:
        """Always empty: the site's own hosts are never reclaimed."""
        return ()

    def check(self) -> None:
        """Prove that the agent runs and accepts our calls."""
        self._ask(Ping())

    def _instance(self, record: MachineRecord) -> Instance:
        return Instance(
            id=record.id,
            cloud=self.name,
            node=record.node,
            generation=record.generation,
            instance_type=record.instance_type,
            zone=ZONE,
            market=record.market,
            price=record.price,
            state=InstanceState(record.state),
            launched=record.launched,
            # All its machines are slurmd processes on this host.
            address="127.0.0.1",
        )

    def _ask(self, message: Message) -> AgentAnswer:
        try:
            line = self._exchange(msgspec.json.encode(message))
            answer = msgspec.json.decode(line, type=AgentAnswer)
        except PermissionError as error:
            raise AuthError(self.name, "NotPermitted", f"{self._agent}: {error.strerror}") from None
        except TimeoutError:
            raise TransientError(self.name, "Timeout", f"{self._agent} does not answer") from None
        except OSError as error:
            text = f"{self._agent} is not running ({error.strerror or error})"
            raise TransientError(self.name, "Unreachable", text) from None
        except msgspec.DecodeError as error:
            raise TransientError(self.name, "BadAnswer", f"{self._agent}: {error}") from None
        if not answer.ok:
            raise _ERRORS.get(answer.code, ProviderError)(self.name, answer.code, answer.message)
        return answer

    @property
    def _agent(self) -> str:
        return f"slurm-elastic-local at {self._settings.socket}"

    def _exchange(self, line: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._settings.api_timeout)
            budget = ReadBudget(MAX_ANSWER_BYTES, self._settings.api_timeout)
            connection.connect(self._settings.socket)
            return exchange(connection, line, budget)
