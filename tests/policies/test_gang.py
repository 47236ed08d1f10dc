"""Multi-node jobs are had whole or not at all, whatever a cloud gives."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import example, given
from hypothesis import strategies as st

from slurm_elastic.policies.launch.gang import Gang, gangs, resolve, select

NODES = tuple(f"n{i}" for i in range(1, 10))


@st.composite
def rounds(draw: st.DrawFn) -> tuple[tuple[str, ...], dict[int, tuple[str, ...]], frozenset[str]]:
    """Wanted nodes, jobs (which may share nodes and name others), nodes that go alone."""
    wanted = draw(st.lists(st.sampled_from(NODES), unique=True, min_size=1))
    shares = st.lists(st.sampled_from(NODES), unique=True, min_size=1, max_size=5).map(tuple)
    jobs = draw(st.dictionaries(st.integers(1, 6), shares, max_size=5))
    alone = draw(st.frozensets(st.sampled_from(NODES), max_size=3))
    return tuple(wanted), jobs, alone


POOLS: Mapping[str, str] = {n: "a" if i < 5 else "b" for i, n in enumerate(NODES)}


@given(rounds())
def test_each_wanted_node_is_in_a_unit_and_no_other(case: tuple) -> None:  # type: ignore[type-arg]
    wanted, jobs, alone = case
    found = gangs(wanted, jobs, alone)
    assert {n for u in found for n in u.nodes} == set(wanted)
    assert all(len(u.nodes) == 1 for u in found if alone & set(u.nodes))
    for job, of in jobs.items():
        share = [n for n in of if n in wanted and n not in alone]
        if len(share) > 1:
            assert Gang(job=job, nodes=tuple(share)) in found


@given(rounds(), st.frozensets(st.sampled_from(NODES)), st.integers(0, 10))
@example((("n1", "n2"), {1: ("n1", "n2")}, frozenset()), frozenset(), 1)
def test_what_is_asked_for_fits_and_begins_no_unit_that_does_not(
    case: tuple,  # type: ignore[type-arg]
    had: frozenset[str],
    room: int,
) -> None:
    todo = gangs(*case)
    asked = select(todo, had, room)
    assert len(asked) == len(set(asked)) <= room
    assert not had.intersection(asked)
    whole = [u for u in todo if set(u.nodes) <= had | set(asked)]
    assert set(asked) <= {n for u in whole for n in u.nodes}
    if room >= len(NODES):
        assert had | set(asked) >= {n for u in todo for n in u.nodes}


@given(rounds(), st.frozensets(st.sampled_from(NODES)))
def test_no_machine_is_kept_for_nobody_and_none_is_lost(
    case: tuple,  # type: ignore[type-arg]
    had: frozenset[str],
) -> None:
    todo = gangs(*case)
    names = {n for u in todo for n in u.nodes}
    settled = resolve(todo, had, POOLS)
    parts = (settled.serving, settled.reassigned, settled.ended)
    counted = [n for part in parts for n in part]
    assert sorted(counted) == sorted(had & names), "each machine has one fate"
    assert set(settled.refused) == (names - had) | set(settled.ended)
    kept = set(settled.serving)
    for unit in todo:
        if not set(unit.nodes) <= had:
            assert unit.job is None or unit.job in settled.failed
    serving = {n for u in todo if set(u.nodes) <= had for n in u.nodes}
    assert kept == serving, "a half-served job keeps nothing"


@given(rounds(), st.frozensets(st.sampled_from(NODES)))
def test_machines_are_reassigned_only_to_jobs_that_wait_and_fit(
    case: tuple,  # type: ignore[type-arg]
    had: frozenset[str],
) -> None:
    todo = gangs(*case)
    settled = resolve(todo, had, POOLS)
    failed = [u for u in todo if u.job is not None and not set(u.nodes) <= had]
    for pool in ("a", "b"):
        reassigned = [n for n in settled.reassigned if POOLS[n] == pool]
        sizes = [len(u.nodes) for u in failed if {POOLS[n] for n in u.nodes} == {pool}]
        assert len(reassigned) in {sum(some) for some in _subsets(sizes)}
        ended = [n for n in settled.ended if POOLS[n] == pool]
        if not reassigned:
            assert all(size > len(ended) for size in sizes), "one of them could have had these"


def _subsets(sizes: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for size in sizes:
        found += [(*some, size) for some in found]
    return found


def test_the_jobs_come_first_then_what_goes_alone() -> None:
    jobs = {7: ("n4",), 8: ("n1", "n2"), 9: ("n2", "n3")}
    found = gangs(("n1", "n2", "n3", "n4", "n5"), jobs)
    assert [(u.job, u.nodes) for u in found] == [
        (8, ("n1", "n2")), (9, ("n2", "n3")), (7, ("n4",)), (None, ("n5",)),
    ]  # fmt: skip


def test_a_job_too_large_lets_the_smaller_ones_by() -> None:
    todo = gangs(NODES[:6], {1: NODES[:4], 2: NODES[4:6]})
    assert select(todo, (), 3) == ("n5", "n6")


def test_what_one_job_leaves_serves_the_next() -> None:
    todo = gangs(NODES[:5], {1: ("n1", "n2", "n3"), 2: ("n4", "n5")})
    settled = resolve(todo, {"n1", "n2"}, POOLS)
    assert settled.reassigned == ("n1", "n2")
    assert settled.ended == ()
    assert settled.refused == ("n3", "n4", "n5")
    assert settled.failed == (1, 2)


def test_a_node_that_a_single_node_job_waits_for_too_is_kept_for_it() -> None:
    todo = gangs(NODES[:2], {1: ("n1", "n2"), 2: ("n1",)})
    settled = resolve(todo, {"n1"}, POOLS)
    assert settled.serving == ("n1",)
    assert settled.refused == ("n2",)


def test_what_is_too_little_for_any_job_is_ended() -> None:
    todo = gangs(NODES[:3], {1: ("n1", "n2", "n3")})
    settled = resolve(todo, {"n1", "n2"}, POOLS)
    assert (settled.reassigned, settled.ended) == ((), ("n1", "n2"))


def test_a_node_that_no_job_is_known_to_wait_for_gets_no_machine_of_another() -> None:
    todo = gangs(("n1", "n2", "n3", "n5"), {1: ("n1", "n2", "n3")})
    settled = resolve(todo, {"n1"}, POOLS)
    assert (settled.reassigned, settled.ended) == ((), ("n1",))


def test_a_job_of_two_pools_gets_no_machine_of_another() -> None:
    todo = gangs(("n1", "n2", "n3", "n5", "n6"), {1: ("n1", "n2", "n3"), 2: ("n5", "n6")})
    settled = resolve(todo, {"n1", "n2"}, POOLS)
    assert (settled.reassigned, settled.ended) == ((), ("n1", "n2"))
