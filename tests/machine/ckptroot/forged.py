"""Images of CRIU as somebody could forge them: the messages of criu/images/*.proto."""

from __future__ import annotations

import struct
from pathlib import Path

COMMON, CORE, FILES = 0x54564319, 0x55053847, 0x56303138


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def creds(uid: int = 2000, gid: int = 2000, **other: int | list[int]) -> bytes:
    values: dict[str, int | list[int]] = {
        "uid": uid, "gid": gid, "euid": uid, "egid": gid, "suid": uid, "sgid": gid, "fsuid": uid,
        "fsgid": gid, "cap_inh": [0, 0], "cap_prm": [0, 0], "cap_eff": [0, 0],
        "cap_bnd": [0xFFFFFFFF, 0x1FF], "secbits": 0, "groups": [gid],
    } | other  # fmt: skip
    out = b""
    for number, value in enumerate(values.values(), start=1):
        for one in value if isinstance(value, list) else [value]:
            out += field(number, one)
    return out


def core(*sets: bytes) -> bytes:
    thread = field(1, 0) + field(2, 0) + b"".join(field(10, one) for one in sets)
    return image(CORE, field(1, 1) + field(5, thread))


def image(magic: int, *entries: bytes) -> bytes:
    return struct.pack("<II", COMMON, magic) + b"".join(
        struct.pack("<I", len(entry)) + entry for entry in entries
    )


def file_entry(path: str, flags: int, size: int | None) -> bytes:
    """CRIU notes no size for what is open to be appended to and not read."""
    reg = field(1, 1) + field(2, flags) + field(3, 0) + field(6, path.encode())
    reg += b"" if size is None else field(8, size)
    return field(1, 1) + field(2, 1) + field(3, reg)


def write(directory: Path, *cores: bytes, files: bytes | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "inventory.img").write_bytes(b"inventory")
    (directory / "pstree.img").write_bytes(b"tree")
    (directory / "files.img").write_bytes(image(FILES) if files is None else files)
    for number, content in enumerate(cores, start=1001):
        (directory / f"core-{number}.img").write_bytes(content)
    return directory
