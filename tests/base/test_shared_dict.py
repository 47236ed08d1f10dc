"""A mapping that threads change together: each method is one step, and nobody sees half of one."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.ckptman.site import CheckpointSite as CheckpointSite
from slurm_elastic.controller.context import Site

pytestmark = pytest.mark.usefixtures("guarded")


def test_its_methods_are_a_dicts() -> None:
    shared: SharedDict[str, int] = SharedDict()
    assert not shared
    shared["a"] = 1
    shared.update({"b": 2, "c": 3})
    assert (shared.get("a"), shared.get("x"), shared.get("x", 7), len(shared)) == (1, None, 7, 3)
    assert (shared.setdefault("a", 9), shared.setdefault("d", 4)) == (1, 4)
    assert (shared.pop("d"), shared.pop("d")) == (4, None)
    shared.keep({"a", "c", "never"})
    assert shared.snapshot() == {"a": 1, "c": 3}


def test_a_snapshot_stays_as_it_was() -> None:
    shared: SharedDict[str, int] = SharedDict()
    shared["a"] = 1
    before = shared.snapshot()
    shared["b"] = 2
    before["c"] = 3
    assert (before, shared.snapshot()) == ({"a": 1, "c": 3}, {"a": 1, "b": 2})


def test_it_has_no_iterator_that_another_thread_could_break() -> None:
    with pytest.raises(TypeError):
        list(SharedDict())  # type: ignore[call-overload]


def test_what_threads_write_at_once_is_all_there() -> None:
    shared: SharedDict[int, int] = SharedDict()

    def write(begin: int) -> None:
        for number in range(begin, begin + 500):
            shared[number] = number
            shared.keep(range(2000))

    threads = [threading.Thread(target=write, args=(begin,)) for begin in (0, 500, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shared) == 1500


@pytest.mark.parametrize("site", [Site, CheckpointSite])
def test_the_values_that_all_threads_share_have_no_plain_mapping_that_changes(site: Any) -> None:
    assert site.__dataclass_params__.frozen
    kinds = {field.name: str(field.type).split("[")[0] for field in dataclasses.fields(site)}
    assert not {name for name, kind in kinds.items() if kind in ("dict", "list", "set")}
