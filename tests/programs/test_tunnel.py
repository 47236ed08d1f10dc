"""The machine's end of the tunnel, without ip and wg."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.programs import tunnel

FACTS = {"pool": "pub", "node": "pub2", "generation": "g1"}


@pytest.mark.parametrize("anew", [False, True], ids=["same process", "a new one"])
def test_what_broke_off_half_way_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    settings = {
        "public_key": "HEAD", "endpoint": "h:1", "interface": "wg-se", "mtu": 1380,
        "networks": ["10.99.0.0/16"], "key": str(tmp_path / "key"), "console": "/dev/null",
        "pools": {"pub": {"first": "10.99.0.8", "nodes": "pub[1-2]"}},
    }  # fmt: skip
    done: list[str] = []
    broken = ["ip address"]

    def run(*command: str, **_: object) -> str:
        line = " ".join(command)
        if broken and line.startswith(broken[0]):
            broken.clear()
            raise OSError("no memory")
        done.append(line)
        if line.startswith("ip -oneline") and "ip link add dev wg-se type wireguard" in done:
            return "3: wg-se: <POINTOPOINT>\n"
        return "HEAD\t9999999999\n" if line.startswith("wg show") else ""

    monkeypatch.setattr(tunnel, "run", run)
    one = tunnel.Tunnel(settings, FACTS)
    with pytest.raises(OSError, match="no memory"):
        one.look()
    assert (tunnel.Tunnel(settings, FACTS) if anew else one).look()
    assert "ip address replace 10.99.0.9/32 dev wg-se" in done
    assert "ip route replace 10.99.0.0/16 dev wg-se src 10.99.0.9" in done
    assert done.count("ip link add dev wg-se type wireguard") == 1


@pytest.mark.parametrize(("kept", "asked"), [(False, ["ENROL", "OWN"]), (True, ["OWN"])])
def test_a_later_boot_begins_with_the_key_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kept: bool, asked: list[str]
) -> None:
    """The key of its launch is dead by then; the head may know its own."""
    key = tmp_path / "key"
    settings = {
        "public_key": "HEAD", "endpoint": "h:1", "interface": "wg-se", "mtu": 1380,
        "networks": ["10.99.0.0/16"], "key": str(key), "console": "/dev/null",
        "pools": {"pub": {"first": "10.99.0.8", "nodes": "pub[1-2]"}},
    }  # fmt: skip
    if kept:
        key.write_text("OWN")
    used: list[str] = []

    def run(*command: str, **_: object) -> str:
        if command[:2] == ("wg", "set") and "private-key" in command:
            path = command[command.index("private-key") + 1]
            used.append("ENROL" if path.endswith(".enrol") else "OWN")
        known = "9999999999" if used and used[-1] == "OWN" else "0"
        return f"HEAD\t{known}\n" if command[:2] == ("wg", "show") else "OWN"

    monkeypatch.setattr(tunnel, "run", run)
    monkeypatch.setattr(tunnel, "ANSWER", 0.0)
    one = tunnel.Tunnel(settings, FACTS | {"enrol": "word"})
    assert one.look()
    assert used == asked
    assert not Path(f"{key}.enrol").exists()
