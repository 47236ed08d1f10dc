"""Which public key is which machine's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ledger_cases import T0, instance, spec
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.memory import Tunnel
from slurm_elastic.state.ledger import Ledger

ONE = Tunnel(generation="g1", node="pub1", address="10.99.0.8", key="K1", since=T0)
TWO = Tunnel(generation="g1", node="pub2", address="10.99.0.9", key="K2", since=T0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.db")) as made:
        made.launches.record_intent(spec(), "r", T0)
        made.machines.record_launch("g1", [instance("i-1", "pub1"), instance("i-2", "pub2")], T0)
        yield made


def addresses(ledger: Ledger) -> dict[str, str | None]:
    return {m.instance.id: m.instance.address for m in ledger.machines.live(ended_since=0.0)}


def test_a_machine_that_enrols_is_known_by_its_key_and_has_its_address(ledger: Ledger) -> None:
    ledger.refresh()
    assert ledger.tunnels.all() == ()
    assert (ledger.tunnels.enrol(TWO), ledger.tunnels.enrol(ONE)) == ("", "")
    assert ledger.tunnels.all() == (ONE, TWO), "by node"
    assert addresses(ledger) == {"i-1": "10.99.0.8", "i-2": "10.99.0.9"}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (ONE, ""),
        (replace(ONE, since=T0 + 9), ""),
        (replace(ONE, key="K9"), "the machine has another key already"),
        (replace(TWO, key="K1"), "node pub1 already has this key"),
        (replace(ONE, generation="g2"), "node pub1 already has this key"),
        (replace(TWO, address="10.99.0.8"), "10.99.0.8 is the address of another machine, of pub1"),
        (replace(ONE, generation="g2", key="K9"),
         "10.99.0.8 is the address of another machine, of pub1"),
        (TWO, ""),
    ],
)  # fmt: skip
def test_neither_key_nor_address_is_ever_that_of_two_machines(
    ledger: Ledger, other: Tunnel, why: str
) -> None:
    ledger.tunnels.enrol(ONE)
    assert ledger.tunnels.enrol(other) == why
    assert ledger.tunnels.all() == ((ONE, TWO) if other == TWO else (ONE,))


def test_a_machine_that_has_ended_keeps_the_address_that_it_had(ledger: Ledger) -> None:
    ledger.machines.record_end("aws", ["i-1"], Quoted(text="gone"), T0 + 1)
    assert ledger.tunnels.enrol(ONE) == ""
    assert addresses(ledger) == {"i-1": None, "i-2": None}


def test_keys_of_machines_that_are_gone_may_be_had_again(ledger: Ledger) -> None:
    ledger.tunnels.enrol(ONE)
    ledger.tunnels.enrol(TWO)
    ledger.refresh()
    ledger.tunnels.all()
    ledger.tunnels.end([ONE, replace(TWO, generation="g9")])
    assert ledger.tunnels.all() == (TWO,)
    assert ledger.tunnels.enrol(replace(ONE, generation="g2")) == ""


def test_a_machine_that_stops_again_before_its_tunnel_is_back_keeps_its_key(
    ledger: Ledger,
) -> None:
    """A cloud may deny its start at once."""
    ledger.tunnels.enrol(ONE)

    def stop(now: float) -> None:
        ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), now)
        ledger.stops.record_stopped("aws", {"i-1": 0.01}, now)

    stop(T0 + 1)
    for number in (2, 4):
        row = ledger.launches.get("g1")
        assert row is not None
        row = replace(row, generation=f"g{number}", nodes=("pub1",))
        (machine,) = ledger.stops.machines()
        assert ledger.stops.record_start(row, machine, T0 + number) is not None
        stop(T0 + number + 1)
        (machine,) = ledger.stops.machines()
        assert machine.tunnel_key == "K1"
