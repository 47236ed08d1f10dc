"""The benchmark of joins says what it saw; its machines are those of the tests of tunnels."""

from __future__ import annotations

import pytest

from benchmarks import join


def joins(*idle: float, **stages: float) -> list[join.Join]:
    return [{**stages, "idle": seconds} for seconds in idle]


@pytest.mark.parametrize(("tunnel", "met"), [((5.0, 60.0, 6.9), True), ((7.1,), False)])
def test_the_middle_of_the_joins_is_told_beside_those_without_a_tunnel(
    tunnel: tuple[float, ...], met: bool
) -> None:
    rows = join._rows("once", joins(*tunnel, enrolled=1.0), joins(4.0, 3.0, 90.0))
    longer, with_it, without, *stages = rows
    middle = sorted(tunnel)[len(tunnel) // 2]
    assert (longer.ours, longer.ok) == (pytest.approx(middle - 4.0), met)
    assert (with_it.ours, without.ours) == (middle, 4.0)
    fastest, other, enrolled = stages
    assert (fastest.ours, other.ours) == (min(tunnel), 3.0)
    assert (enrolled.case, enrolled.ours) == ("enrol: once: with: its key is believed after", 1.0)


@pytest.mark.parametrize("count", ["0", "101"])
def test_a_number_of_machines_that_makes_no_sense_is_refused(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        join.main(["--machines", count])
    assert ended.value.code == 2
    assert f"--machines: {count} is not between 1 and 100" in capsys.readouterr().err
