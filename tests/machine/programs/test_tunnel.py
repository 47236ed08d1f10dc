"""The machine's end of the tunnel, without ip and wg."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from slurm_elastic.machine.programs import tunnel

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
        return "HEAD\t92\t0\n" if line.startswith("wg show") else ""

    monkeypatch.setattr(tunnel, "run", run)
    one = tunnel.TunnelInterface(settings, FACTS)
    with pytest.raises(OSError, match="no memory"):
        one.look()
    assert (tunnel.TunnelInterface(settings, FACTS) if anew else one).look()
    assert "ip address replace 10.99.0.9/32 dev wg-se" in done
    assert "ip route replace 10.99.0.0/16 dev wg-se src 10.99.0.9" in done
    assert done.count("ip link add dev wg-se type wireguard") == 1


class Head:
    """In place of wg and ip: the head answers to the keys in ``knows``."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.knows = path, set[str]()
        self.ran: list[str] = []
        self._key, self._received = "", 0
        monkeypatch.setattr(tunnel, "run", self.run)
        monkeypatch.setattr(tunnel, "TRY_S", 0.0)

    def run(self, *command: str, **_: object) -> str:
        line = " ".join(command)
        self.ran.append(line)
        if "private-key" in command:
            self._key = Path(command[command.index("private-key") + 1]).name
        if command[:2] == ("wg", "show"):
            # A head that knows the key sends something before each look.
            self._received += 92 if self._key in self.knows else 0
            return f"HEAD\t{self._received}\t0\n"
        if command[-1] == "remove":
            self._received = 0
        return "own" if command[:2] == ("wg", "pubkey") else ""

    def tunnel(self, **facts: str) -> tunnel.TunnelInterface:
        console = self.path / "console"
        settings = {
            "public_key": "HEAD", "endpoint": "h:1", "interface": "wg-se", "mtu": 1380,
            "networks": ["10.99.0.0/16"], "key": str(self.path / "key"), "console": str(console),
            "pools": {"pub": {"first": "10.99.0.8", "nodes": "pub[1-2]"}},
        }  # fmt: skip
        return tunnel.TunnelInterface(settings, {**FACTS, **facts})


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    return Head(tmp_path, monkeypatch)


def test_the_key_is_printed_before_there_is_an_interface_and_once(head: Head) -> None:
    one = head.tunnel()
    for _ in range(3):
        assert not one.look()
    assert (head.path / "console").read_text() == "slurm-elastic-tunnel-key g1 pub2 own\n"
    head.ran.clear()
    (head.path / "console").unlink()
    (head.path / "console").mkdir()
    head.tunnel().look()
    assert head.ran.index("wg pubkey") < head.ran.index("ip -oneline link show")


def test_a_key_that_the_head_has_is_not_handed_in_again_at_once(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word is dead from then on: whoever tries it again would wait for nobody."""
    head.knows.add("key.enrol")
    handed: list[str] = []
    one = head.tunnel(enrol="word")
    monkeypatch.setattr(one, "ask", lambda line: handed.append(line) or "")
    assert not one.look()
    assert not one.look()
    assert handed == ["own"]
    head.knows = {"key"}
    assert one.look(), "the head answers to its own key"
    one.sent_at -= tunnel.RESEND_S + 1
    head.knows = {"key.enrol"}
    one.connect(str(head.path / "other"))
    assert not one.look()
    assert handed == ["own", "own"], "the head may have lost it"


def test_a_machine_hands_in_by_its_own_key_or_by_the_one_that_it_makes_of_its_launchs_word(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr(
        tunnel.TunnelInterface, "connect", lambda _, path: used.append(Path(path).read_text())
    )
    for facts in ({"enrol_key": "its own"}, {"enrol": "word"}):
        one = head.tunnel(**facts)
        one.sent_at = float("-inf")
        one.look()
    made = [text for text in used if text]  # without the machine's lasting key
    assert made == ["its own", tunnel.enrolment_key("word", "pub2")]


def test_a_later_boot_begins_with_the_key_that_it_has(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word of its launch is dead by then; the head may know its own key."""
    (head.path / "key").write_text("OWN")
    one = head.tunnel(enrol="word")
    handed: list[bool] = []
    monkeypatch.setattr(one, "hand_in", lambda: handed.append(True))
    assert not one.look()
    assert handed == []
    one.sent_at -= tunnel.RESEND_S + 1
    assert not one.look()
    assert handed == [True], "the head may have forgotten it"
    head.knows = {"key"}
    assert one.look()


def test_a_head_that_shuts_the_way_of_its_answer_is_not_waited_for(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as desk:
        one = head.tunnel()
        one.settings |= {"head": "127.0.0.1", "enrol_port": desk.getsockname()[1]}
        monkeypatch.setattr(tunnel, "ANSWER_S", 0.05)
        assert one.ask("own") == ""
        connection, _ = desk.accept()
        with connection:
            assert connection.makefile().readline() == "own\n", "the head has the line all the same"


def test_a_machine_that_is_called_listens_and_leaves_the_peer_alone(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(tunnel.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(tunnel.TunnelInterface, "is_there", lambda _: True)
    monkeypatch.setattr(tunnel.TunnelInterface, "wait", lambda *_: False)
    called = head.tunnel()
    called.settings.update(endpoint="", port=4500)

    def set_up() -> list[str]:
        """What was set since."""
        clock[0] += tunnel.STALE_S / 2
        head.ran.clear()
        assert not called.look()
        return [line for line in head.ran if line.startswith("wg set")]

    first = set_up()
    assert "listen-port 4500" in first[0]
    assert "peer HEAD persistent-keepalive 10" in first[1]
    assert not [line for line in first if "endpoint" in line]
    assert [set_up(), set_up()] == [[], []], "a call that is under way is not disturbed"
    assert set_up() == first, "the head's clock may have been set back"
    head.knows.add("key")
    assert called.look()


def test_a_tunnel_is_up_if_data_comes_whatever_the_clock_shows(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may boot with its clock hours ahead, and NTP sets it back after the handshake."""
    clock = [1000.0]
    monkeypatch.setattr(tunnel.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(tunnel.time, "time", lambda: 0.0)
    one = head.tunnel()
    assert not one.is_up(), "nothing has come yet"
    one.connect(one.key)
    head.knows = {"key"}
    assert one.is_up()
    head.knows = set()
    clock[0] += tunnel.STALE_S - 1
    assert one.is_up()
    clock[0] += 1
    assert not one.is_up()
    one.connect(one.key)
    head.knows = {"key"}
    assert one.is_up(), "the answer to a new handshake is as long as the one before"
