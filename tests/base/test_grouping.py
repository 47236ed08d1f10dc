from __future__ import annotations

from slurm_elastic.base.grouping import group_by


def test_groups_and_their_items_keep_the_order() -> None:
    groups = group_by(["pear", "fig", "plum", "kiwi", "yam"], len)
    assert list(groups.items()) == [(4, ["pear", "plum", "kiwi"]), (3, ["fig", "yam"])]


def test_nothing_makes_no_group() -> None:
    assert group_by((), len) == {}
