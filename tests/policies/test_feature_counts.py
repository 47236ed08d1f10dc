"""A job's parts by its feature expression."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.policies.growth.feature_counts import alternatives

POOLS = {"pub": ("aws", "pub"), "big": ("aws", "big"), "gpu": ("aws", "gpu", "big")}


def ways(expression: str, nodes: int) -> list[list[tuple[int, list[str]]]]:
    """For each way the nodes of each part, and the pools that could give them."""
    return [
        [(p.nodes, [name for name, has in POOLS.items() if p.term.holds(has)]) for p in parts]
        for parts in alternatives(expression, nodes)
    ]


@pytest.mark.parametrize(
    ("expression", "nodes", "expected"),
    [
        ("[pub*3&big*2]", 5, [[(3, ["pub"]), (2, ["big", "gpu"])]]),
        ("pub*2", 4, [[(2, ["pub"]), (2, ["pub", "big", "gpu"])]]),
        ("[pub*1&gpu*1]&aws", 2, [[(1, ["pub"]), (1, ["gpu"])]]),
        ("[pub*1&big*1]&onprem", 2, [[(1, []), (1, [])]]),
        ("pub|gpu", 3, [[(3, ["pub", "gpu"])]]),
        ("[pub|big]", 3, [[(3, ["pub"])], [(3, ["big", "gpu"])]]),
        ("(big&gpu)*2", 2, [[(2, ["gpu"])]]),
        ("[(big&gpu)*1&pub*1]", 2, [[(1, ["gpu"]), (1, ["pub"])]]),
        ("aws&(pub|gpu)", 1, [[(1, ["pub", "gpu"])]]),
        # A plain list is compared elsewhere, another form is Slurm's.
        ("aws,pub", 1, []),
        ("", 1, []),
        ("[pub*3&big", 1, []),
        ("pub*x|(", 1, []),
        ("pub&big|gpu", 1, []),
    ],
)
def test_an_expression_is_read_as_slurm_counts(
    expression: str, nodes: int, expected: list[list[tuple[int, list[str]]]]
) -> None:
    assert ways(expression, nodes) == expected


@given(st.text("ab|&*[](),12 ", max_size=12), st.integers(1, 4))
def test_any_text_is_read_or_left_to_slurm(expression: str, nodes: int) -> None:
    for parts in alternatives(expression, nodes):
        assert all(part.nodes >= 0 for part in parts)
        assert parts
