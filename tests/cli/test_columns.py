"""How tables give way on a narrow screen, and how long hostlists are told."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.text import Text

from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.reports.shortened import hosts

NODE, KIND = "gpu-interactive-eu-west-node1", "standard-hpc-metal-24xlarge.v2"


def shown(width: int, why: str = "down: Not responding", *, other_form: bool = False) -> list[str]:
    table = Rows(
        "", "Node", "Type", "Market", "Cost $", "Next", right=("Cost $",), wrapped={"Next": 30},
        gives=(("Type", 12), "Market"),
        otherwise=(lambda: Text(f"{NODE}: {why}")) if other_form else None,
    )  # fmt: skip
    table.add(NODE, KIND, "spot", "0.0619", why)
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(
    ("width", "row"),
    [
        (99, f"{NODE}  {KIND}  spot    0.0619  down: Not responding"),
        (90, f"{NODE}  standard-h…4xlarge.v2  spot    0.0619  down: Not responding"),
        (80, f"{NODE}  standard-…xlarge.v2  0.0619  down: Not responding"),
    ],
)
def test_columns_give_way_in_their_order_and_no_further_than_needed(width: int, row: str) -> None:
    assert shown(width)[1:] == [row]


def test_where_all_has_given_way_in_vain_there_is_the_other_form_or_all_is_folded() -> None:
    assert shown(72, other_form=True) == [f"{NODE}: down: Not responding"]
    folded = shown(60)
    assert max(map(len, folded)) <= 60
    assert all(word in "".join(folded) for word in ("0.0619", "Not", "responding"))


def test_long_words_go_on_below_themselves_between_words() -> None:
    (_, first, *more) = shown(80, "is taken away in 1m (interruption): job 42 CANNOT BE SAVED")
    assert first.startswith(f"{NODE}  ")
    assert first.endswith("is taken away in 1m")
    assert [line.strip() for line in more] == ["(interruption): job", "42 CANNOT BE SAVED"]


def test_a_hostlist_that_is_cut_is_closed_and_counted() -> None:
    odd = f"pub[{','.join(map(str, range(1, 200, 2)))}]"
    assert hosts(odd, 1).plain == "pub[1,3,5,7,9,11,...] (100 nodes)"
    assert hosts(odd, 1, count=False).plain == "pub[1,3,5,7,9,11,13,15,17,19,...]"
    assert hosts(odd, None).plain == odd
    assert hosts("pub[1-12]", 1).plain == "pub[1-12]"
    assert hosts(f"{NODE[:-1]}[15,17,19,21]", 1).plain == f"{NODE[:-1]}[15,...] (4 nodes)"
    assert hosts(f"{NODE}-of-cluster[1-10000]", 1).plain == f"{NODE}-of-cluster[1-10000]"
    several = ",".join(f"login{letter}" for letter in "abcdefghi")
    assert hosts(several, 1).plain == "logina,loginb,loginc,... (9 nodes)"


def test_the_node_that_is_asked_for_comes_first() -> None:
    odd = f"pub[{','.join(map(str, range(1, 200, 2)))}]"
    assert hosts(odd, 1, first="pub101").plain == "pub101,pub[1,3,5,7,...] (100 nodes)"
    assert hosts(odd, 1, first="42").plain == hosts(odd, 1).plain


def test_where_a_line_is_less_than_a_word_words_are_broken_and_names_are_not() -> None:
    table = Rows(
        "", "Job", "Method", "Why", "It would help to", wrapped={"Why": 20, "It would help to": 20}
    )
    why = f"it has a connection open (tcp {'9' * 40})"
    table.add("1", "criu", why, f"close it (fd {'8' * 40})")
    console = Console(width=60)
    with console.capture() as captured:
        console.print(table)
    head, first, *_ = captured.get().splitlines()
    assert head.split()[:2] == ["Job", "Method"]
    assert first.startswith("1    criu    it has a connection")
    assert captured.get().count("9") == captured.get().count("8") == 40
