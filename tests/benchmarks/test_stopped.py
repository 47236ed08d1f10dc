"""The benchmark of stopped machines says what it saw; its machines are those of image check."""

from __future__ import annotations

import pytest

from benchmarks import stopped


def boot(joined: float) -> dict[str, float]:
    return {"joined": joined, "processor": joined / 4, "without": 1.0}


@pytest.mark.parametrize(("starts", "met"), [((30, 20, 90), True), ((31,), False)])
def test_the_middle_of_the_starts_is_told_beside_the_fresh_boot(
    starts: tuple[float, ...], met: bool
) -> None:
    found = stopped._rows("tcg", [boot(90), *map(boot, starts)])
    first, processor, count, without = found.rows
    assert (first.reference, first.ok, found.ok) == (90, met, met)
    assert first.ours == sorted(starts)[len(starts) // 2]
    assert processor.ours == first.ours / 4
    assert count.case == "starts, by tcg"
    assert (without.ours, count.ours) == (len(starts), len(starts))
