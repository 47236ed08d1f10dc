"""The servers of one project: listed whole, told apart, deleted by id."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from slurm_elastic.base.errors import (
    AuthError,
    InstanceNotFound,
    TransientError,
)
from slurm_elastic.providers.base import tags
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.openstack import convert, instances
from slurm_elastic.providers.openstack.catalog import flavor_pages, image_pages
from slurm_elastic.providers.openstack.errors import NO_HOST
from slurm_elastic.providers.openstack.instances import DELETION_COUNTS_S, Servers
from slurm_elastic.testing.contract import UUID

OWNER = Ownership(cluster=UUID, clouds=frozenset({"stack"}))


def record(ident: str, **fields: Any) -> dict[str, Any]:
    own = {tags.CLUSTER: UUID, tags.CLOUD: "stack", tags.GENERATION: "g1"}
    return {
        "id": ident, "name": f"mark-{ident}", "status": "ACTIVE", "metadata": own,
        "created": "2026-11-21T10:00:00Z",
    } | fields  # fmt: skip


class Nova:
    """Answers with what it is given, call by call; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []

    def __call__(self, service: str, method: str, path: str) -> Any:
        assert service == "compute"
        parts = urlsplit(path)
        self.asked.append((method, parts.path, parse_qs(parts.query)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def servers(nova: Nova, owners: Ownership = OWNER) -> Servers:
    return Servers("stack", owners, nova, threads=1)  # type: ignore[arg-type]


def page(*records: dict[str, Any], more: bool = False) -> dict[str, Any]:
    links = {"servers_links": [{"rel": "next", "href": "?"}]} if more else {}
    return {"servers": list(records), **links}


def ids(found: list[convert.ServerFields]) -> list[str]:
    return [one.id for one in found]


# pages


def test_a_list_is_read_to_its_last_page() -> None:
    nova = Nova(page(record("a"), record("b"), record("c"), more=True), page(record("d")))
    assert ids(servers(nova).live("mark")) == ["a", "b", "c", "d"]
    first, second = (query for _, _, query in nova.asked)
    assert first == {"limit": ["1000"], "name": ["mark"]}, "as many as nova gives at most"
    assert second == first | {"marker": ["c"]}


def test_a_server_that_moved_to_the_next_page_meanwhile_is_one() -> None:
    nova = Nova(page(record("a"), record("b"), more=True), page(record("b"), record("c")))
    assert ids(servers(nova).live()) == ["a", "b", "c"]
    assert "name" not in nova.asked[0][2]


def test_a_nova_that_gives_the_same_page_again_has_given_no_list() -> None:
    same = page(record("a"), record("b"), more=True)
    with pytest.raises(TransientError, match="RepeatedPage"):
        servers(Nova(same, same)).live()


def test_an_empty_page_that_is_not_the_last_makes_no_list() -> None:
    nova = Nova(page(record("a"), more=True), page(more=True))
    with pytest.raises(TransientError, match="RepeatedPage"):
        servers(nova).live()


@pytest.mark.parametrize(
    ("read", "same"),
    [
        (flavor_pages, {"flavors": [{"id": "1"}], "flavors_links": [{"rel": "next"}]}),
        (image_pages, {"images": [{"id": "1"}], "next": "/v2/images?marker=1"}),
    ],
)
def test_no_other_list_is_read_without_end(read: Any, same: dict[str, Any]) -> None:
    with pytest.raises(TransientError, match="RepeatedPage"):
        list(read("stack", lambda *_: same))


def test_a_link_to_elsewhere_is_no_next_page() -> None:
    answer = page(record("a")) | {"servers_links": [{"rel": "self", "href": "?"}]}
    assert ids(servers(Nova(answer)).live()) == ["a"]


@pytest.mark.parametrize("answer", [{}, {"servers": [{}]}, []])
def test_what_is_no_list_says_nothing(answer: Any) -> None:
    with pytest.raises(TransientError):
        servers(Nova(answer)).live()


# whose, and which


def test_others_and_deleted_ones_are_not_listed() -> None:
    nova = Nova(page(
        record("a"),
        record("b", metadata={tags.CLUSTER: "another"}),
        record("c", metadata={}),
        record("d", status="DELETED"),
        record("e", status="SOFT_DELETED"),
        record("f", status="SHUTOFF"),
    ))  # fmt: skip
    made = servers(nova)
    assert ids(made.live()) == ["a", "f"]
    assert made.ours.ids == {"a", "f"}


def test_a_list_without_a_cell_is_not_the_truth() -> None:
    nova = Nova(page(record("a"), {"id": "b", "status": "UNKNOWN"}))
    with pytest.raises(TransientError, match=r"CellDown: .* 1 servers lack their metadata"):
        servers(nova).live()


def test_ended_ones_are_known_by_their_names_alone() -> None:
    nova = Nova(page(
        record("a", status="DELETED", metadata={}, hostId="h"),
        record("b", status="ACTIVE"),
        record("c", status="SOFT_DELETED", name="another"),
        record("d", status="SOFT_DELETED", metadata={"any": "thing"}),
    ))  # fmt: skip
    made = servers(nova)
    assert [(s.id, s.placed, s.tags) for s in made.ended("mark", 1_790_000_000.0)] == [
        ("a", True, {}), ("d", False, {}),
    ]  # fmt: skip
    ((_, _, query),) = nova.asked
    assert query["changes-since"] == ["2026-09-21T14:13:20Z"]
    assert query["name"] == ["mark"]
    assert made.ours.ids == set()


# deleting


def test_a_deletion_counts_before_nova_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(instances.time, "monotonic", lambda: now[0])
    both = page(record("a"), record("b"))
    nova = Nova(None, both, both)
    made = servers(nova)
    made.delete(["a"])
    assert nova.asked[0][:2] == ("DELETE", "/servers/a")
    now[0] += DELETION_COUNTS_S - 1
    assert {s.id: s.task for s in made.live()} == {"a": convert.DELETING, "b": ""}
    now[0] += 1
    assert {s.id: s.task for s in made.live()} == {"a": "", "b": ""}, "it was not carried out"


def test_one_that_is_gone_has_been_deleted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = servers(Nova(InstanceNotFound("stack", "HTTP404", "no"), page(record("a"))))
    made.delete(["a"])
    assert "already gone cloud=stack id=a" in caplog.text
    assert [s.task for s in made.live()] == [convert.DELETING]


def test_what_must_be_repeated_is_told_first_and_the_others_are_deleted() -> None:
    refused, lost = AuthError("stack", "HTTP403", "no"), TransientError("stack", "Timeout", "?")
    nova = Nova(refused, lost, None)
    with pytest.raises(TransientError):
        servers(nova).delete(["a", "b", "c"])
    assert [path for _, path, _ in nova.asked] == ["/servers/a", "/servers/b", "/servers/c"]
    with pytest.raises(AuthError):
        servers(Nova(refused, None)).delete(["a", "b"])


# faults


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"server": {"fault": {"message": "No valid host was found."}}}, NO_HOST),
        ({"server": {"fault": {"message": "Boom"}}}, "Boom"),
        ({"server": {"fault": None}}, "no message"),
        (InstanceNotFound("stack", "HTTP404", "no"), "the start failed"),
    ],
)
def test_a_fault_is_told_as_far_as_it_is_known(
    answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert said in str(servers(Nova(answer)).fault("a"))
    assert ("fault cannot be read cloud=stack id=a" in caplog.text) is isinstance(answer, Exception)
