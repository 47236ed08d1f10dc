"""Which threads of an image wait in poll(2) again, and that nothing else of it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot.poll_again import wait_again
from slurm_elastic.machine.ckptroot.site import RequestRefused

from . import forged

POLL, NANOSLEEP = 7, 35
EINTR = (1 << 64) - 4
PLACE = 0x7F1234567890
ALICE = forged.creds()


def registers(ax: int, call: int, place: int, mode: int | None) -> bytes:
    """The general ones, with others around them (core-x86.proto)."""
    values = {1: 5, 11: ax, 12: 1 << 63, 16: call, 17: place}
    if mode is not None:
        values[28] = mode
    return b"".join(forged.field(number, value) for number, value in values.items())


def core(
    ax: int = EINTR, call: int = POLL, place: int = PLACE, mode: int | None = 1, machine: int = 1
) -> bytes:
    thread = forged.field(1, 0) + forged.field(2, registers(ax, call, place, mode))
    task = forged.field(1, 0) + forged.field(10, ALICE)
    return forged.image(
        forged.CORE, forged.field(1, machine) + forged.field(2, thread) + forged.field(5, task)
    )


def written(directory: Path, *cores: bytes) -> list[bytes]:
    return [(directory / f"core-{n}.img").read_bytes() for n in range(1001, len(cores) + 1001)]


def wide(number: int, size: int) -> bytes:
    digits = [number >> 7 * place & 0x7F for place in range(size)]
    return bytes([digit | 0x80 for digit in digits[:-1]] + digits[-1:])


@pytest.mark.parametrize("mode", [1, None])
def test_a_thread_that_was_in_poll_calls_it_again(tmp_path: Path, mode: int | None) -> None:
    before = core(mode=mode)
    image = forged.write(tmp_path / "image", before, core(ax=0))
    assert wait_again(image) == 1
    (after, other) = written(image, b"", b"")
    assert other == core(ax=0)
    told, place = forged.varint(EINTR), forged.varint(PLACE)
    assert after == before.replace(told, wide(POLL, len(told))).replace(
        place, wide(PLACE - 2, len(place))
    )
    assert len(after) == len(before)


def test_a_place_that_gets_shorter_keeps_its_length(tmp_path: Path) -> None:
    image = forged.write(tmp_path / "image", core(place=1 << 42))
    wait_again(image)
    assert wide((1 << 42) - 2, 7) in written(image, b"")[0]


def test_once_it_is_so_it_stays_so(tmp_path: Path) -> None:
    image = forged.write(tmp_path / "image", core())
    assert [wait_again(image), wait_again(image)] == [1, 0]


OTHERS = {
    "in another call": core(call=NANOSLEEP),
    "in no call": core(call=(1 << 64) - 1),
    "with an answer": core(ax=3),
    "of 32 bits": core(mode=2),
    "of another machine": core(machine=4),
    "without registers": forged.core(ALICE),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_others_stay_as_they_are(tmp_path: Path, other: bytes) -> None:
    image = forged.write(tmp_path / "image", other)
    assert wait_again(image) == 0
    assert written(image, other) == [other]


def test_what_is_cut_off_is_refused(tmp_path: Path) -> None:
    image = forged.write(tmp_path / "image", core()[:-1])
    with pytest.raises(RequestRefused, match="cut off"):
        wait_again(image)
