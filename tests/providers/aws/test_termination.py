"""Machines that EC2 does not end: the others of the call are ended, in few calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slurm_elastic.base.errors import AuthError, InstanceNotFound, ProviderError, TransientError
from slurm_elastic.model.cluster import EndAnswer
from slurm_elastic.providers.aws.termination import MAX_REFUSALS, AwsTermination

IDS = [f"i-{n:017x}" for n in range(1000)]


class StubApi:
    """Refuses every call about one of ``bad``, as EC2 does in one zone; ``names``: and says which
    one it is.
    """

    pace = None
    max_wait_s = 0.0

    def __init__(self, bad: Sequence[str], error: type[ProviderError], *, names: bool) -> None:
        self.bad = set(bad)
        self.error, self.names = error, names
        self.code = "UnauthorizedOperation" if error is AuthError else "OperationNotPermitted"
        self.calls: list[Sequence[str]] = []
        self.ended: set[str] = set()

    def send(
        self, operation: str, request: Mapping[str, Sequence[str]], machines: int
    ) -> Mapping[str, object]:
        assert operation == "terminate_instances"
        ids = request["InstanceIds"]
        self.calls.append(ids)
        assert machines == len(ids)
        for one in ids:
            if one in self.bad:
                text = f"The instance '{one}' may not be terminated" if self.names else "no"
                raise self.error("aws", self.code, text)
        changes = [
            {
                "InstanceId": one,
                "PreviousState": {"Name": "terminated" if one in self.ended else "running"},
            }
            for one in ids
        ]
        self.ended.update(ids)
        return {"TerminatingInstances": changes}


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("error", [AuthError, ProviderError])
@pytest.mark.parametrize("place", [0, 617, 999])
def test_one_of_a_thousand_is_found_in_one_go(
    place: int, error: type[ProviderError], names: bool
) -> None:
    api = StubApi([IDS[place]], error, names=names)
    ending = AwsTermination(api, "aws")  # type: ignore[arg-type]
    with pytest.raises(error):
        ending.end(IDS)
    assert api.ended == set(IDS) - api.bad
    assert len(api.calls) <= (2 if names else 21)


def test_one_that_was_refused_is_asked_for_after_the_others() -> None:
    api = StubApi([IDS[3]], ProviderError, names=False)
    ending = AwsTermination(api, "aws")  # type: ignore[arg-type]
    for _ in range(2):
        api.calls.clear()
        with pytest.raises(ProviderError):
            ending.end(IDS[:8])
    assert api.calls == [[*IDS[:3], *IDS[4:8]], [IDS[3]]]
    api.bad.clear()
    ending.end(IDS[:8])
    api.calls.clear()
    ending.end(IDS[:8])
    assert api.calls == [IDS[:8]]


def test_an_account_that_may_end_nothing_is_asked_a_few_times_only() -> None:
    api = StubApi(IDS, AuthError, names=False)
    with pytest.raises(AuthError):
        AwsTermination(api, "aws").end(IDS)  # type: ignore[arg-type]
    assert len(api.calls) == MAX_REFUSALS


def test_many_that_are_refused_do_not_keep_the_others_for_ever() -> None:
    api = StubApi(IDS[:100], ProviderError, names=True)
    ending = AwsTermination(api, "aws")  # type: ignore[arg-type]
    for _ in range(100 // MAX_REFUSALS + 1):
        with pytest.raises(ProviderError):
            ending.end(IDS[:101])
    assert api.ended == {IDS[100]}
    api.bad.clear()
    ending.end(IDS[:101])
    assert api.ended == set(IDS[:101])


def test_a_thousand_of_which_ec2_knows_none_are_no_error() -> None:
    api = StubApi(IDS, InstanceNotFound, names=False)
    AwsTermination(api, "aws").end(IDS[:4])  # type: ignore[arg-type]
    assert [len(c) for c in api.calls] == [4, 2, 1, 1, 2, 1, 1]


@pytest.mark.parametrize("code", ["ExpiredToken", "AuthFailure"])
def test_credentials_that_do_not_work_are_told_at_once(code: str) -> None:
    api = StubApi(IDS[:1], AuthError, names=True)
    api.code = code
    with pytest.raises(AuthError):
        AwsTermination(api, "aws").end(IDS)  # type: ignore[arg-type]
    assert len(api.calls) == 1


def test_a_throttle_is_told_at_once() -> None:
    api = StubApi(IDS[:1], TransientError, names=True)
    with pytest.raises(TransientError):
        AwsTermination(api, "aws").end(IDS)  # type: ignore[arg-type]
    assert len(api.calls) == 1


class Pace:
    """How many may be ended within the patience that it is asked with."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[float] = []

    def endable(self, max_wait_s: float) -> int:
        self.asked.append(max_wait_s)
        return self.most


@pytest.mark.parametrize(
    ("most", "sizes"), [(0, [1] * 3), (1, [1] * 3), (2, [2, 1]), (3, [3]), (5000, [3])]
)
def test_a_call_has_no_more_machines_than_the_account_may_end_in_time(
    most: int, sizes: list[int]
) -> None:
    api = StubApi([], ProviderError, names=False)
    api.pace = Pace(most)  # type: ignore[assignment]
    api.max_wait_s = 7.0
    AwsTermination(api, "aws").end(IDS[:3])  # type: ignore[arg-type]
    assert [len(call) for call in api.calls] == sizes
    assert set(api.pace.asked) == {7.0}  # type: ignore[attr-defined]


@pytest.mark.parametrize("pace", [None, Pace(5000)])
def test_nor_more_than_one_call_takes(pace: Pace | None) -> None:
    api = StubApi([], ProviderError, names=False)
    api.pace = pace  # type: ignore[assignment]
    AwsTermination(api, "aws").end([f"i-{n}" for n in range(1001)])  # type: ignore[arg-type]
    assert [len(call) for call in api.calls] == [1000, 1]


def test_what_was_refused_last_is_asked_for_last() -> None:
    api = StubApi(IDS[:3], ProviderError, names=True)
    ending = AwsTermination(api, "aws")  # type: ignore[arg-type]
    for some in (IDS[:3], IDS[:1]):
        with pytest.raises(ProviderError):
            ending.end(some)
    api.bad.clear()
    api.calls.clear()
    ending.end(IDS[:4])
    assert api.calls == [[IDS[3]], [IDS[1], IDS[2], IDS[0]]]


def test_machines_that_ec2_does_not_know_are_told_and_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    api = StubApi(IDS[:1], ProviderError, names=True)
    ending = AwsTermination(api, "aws")  # type: ignore[arg-type]
    with pytest.raises(ProviderError):
        ending.end(IDS[:2])
    api.error = InstanceNotFound
    ending.end(IDS[:2])
    assert f"already gone cloud=aws ids={IDS[0]}" in caplog.messages
    api.calls.clear()
    ending.end(IDS[:2])
    assert api.calls[0] == IDS[:2], "it is asked for as any other"


def test_a_machine_that_had_ended_before_or_that_ec2_does_not_know_is_gone() -> None:
    api = StubApi([], ProviderError, names=True)
    ending = AwsTermination(api, "aws")  # type: ignore[arg-type]
    assert ending.end(IDS[:1]) == {IDS[0]: EndAnswer.ENDED}
    assert ending.end(IDS[:2]) == {IDS[0]: EndAnswer.GONE, IDS[1]: EndAnswer.ENDED}
    api.bad, api.error = {IDS[2]}, InstanceNotFound
    assert ending.end([IDS[2], IDS[3]]) == {IDS[2]: EndAnswer.GONE, IDS[3]: EndAnswer.ENDED}
