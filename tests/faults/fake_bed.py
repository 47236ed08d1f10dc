"""The fault matrix's cloud in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_elastic.base.errors import AuthError, CapacityError, QuotaError, TransientError
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.model.cluster import EndAnswer, Instance, LaunchSpec, Location, Market, Pool
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.fake.provider import FakeAccount, FakeProvider
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.testing.contract import CLUSTER
from slurm_elastic.testing.matrix import FOR_GOOD, times


class _Babbling(FakeProvider):
    """Calls that took effect and answer something nobody can read."""

    babble: Sequence[str] = ()

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        return self._babbled("launch", super().launch(spec))

    def instances(self) -> Sequence[Instance]:
        return self._babbled("instances", super().instances())

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        answers = super().terminate(ids)
        self._babbled("terminate", ())
        return answers

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        left_alone = super().stop(ids)
        self._babbled("stop", ())
        return left_alone

    def start(self, instance: str) -> None:
        super().start(instance)
        self._babbled("start", ())

    def _babbled(self, call: str, answer: Sequence[Instance]) -> Sequence[Instance]:
        if call in self.babble:
            self.babble = self.babble[1:]
            raise ValueError("the answer is a web page")
        return answer


class Fake:
    name = "fake"
    pool = Pool(
        name="f", cloud="rehearsal", nodes=("f1", "f2"), cpus=2, real_memory=3000,
        instance_types=("small",), markets=(Market.ON_DEMAND,),
    )  # fmt: skip
    ERRORS = {  # noqa: RUF012
        "capacity": CapacityError,
        "quota": QuotaError,
        "throttle": TransientError,
        "auth": AuthError,
        "internal": TransientError,
        "reset before": TransientError,
    }
    CALLS = {"launch": "launch", "list": "instances", "terminate": "terminate"}  # noqa: RUF012

    def __init__(self) -> None:
        self.account = FakeAccount()
        self.provider: _Babbling | None = None

    def settings(self) -> CloudSettings:
        types = {"small": InstanceType(cpus=2, memory=4096, price=0.1)}
        return FakeCloud(name="rehearsal", location=Location.PUBLIC, types=types)

    def open(self, clock: Callable[[], float]) -> Provider:
        cloud = self.settings()
        assert isinstance(cloud, FakeCloud)
        self.provider = _Babbling(cloud, CLUSTER, self.account, clock, lambda _: None)
        return self.provider

    def alive(self) -> set[str]:
        return self.account.alive()

    def nodes(self) -> Mapping[str, str]:
        return {i: self.account.machines[i].instance.node for i in self.alive()}

    def hide_fresh(self, seconds: float) -> None:
        assert self.provider is not None
        self.provider.visible_after = seconds

    def show(self) -> None:
        self.hide_fresh(0.0)
        for machine in self.account.machines.values():
            machine.visible_from = 0.0

    def strike(self, fault: str, call: str) -> bool:
        assert self.provider is not None
        name = self.CALLS[call]
        if fault in self.ERRORS:
            count = 10**4 if fault in FOR_GOOD else times(fault, call)
            if fault in FOR_GOOD and call != "launch":
                return False
            self.provider.fail_next(self.ERRORS[fault], count, name)
        elif fault in ("reset after", "time-out") and call == "launch":
            self.provider.lose_answer_next()
        elif fault == "wrong data":
            self.provider.babble = [name] * times(fault, call)
        elif fault == "slow answer":
            self.provider.latency = 5.0
        else:  # of a list or an end without an answer nobody knows whether it was carried out
            self.provider.fail_next(TransientError, times(fault, call), name)
        return True

    def heal(self) -> None:
        assert self.provider is not None
        self.provider.heal()

    def standing(self) -> object:
        p = self.provider
        assert p is not None
        slow = len(p.calls) if p.latency else 0
        return len(p._faults), p._answers_to_lose, len(p.babble), slow
