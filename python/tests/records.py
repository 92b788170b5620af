"""Changes of commit records that keep their checksums right."""

from __future__ import annotations

from pathlib import Path


def crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def rewrite_record(checkpoint: Path, old: bytes, new: bytes) -> None:
    """Edits varve.json and makes its checksum right again."""
    file = checkpoint / "varve.json"
    text = file.read_bytes()
    assert old in text
    text = text.replace(old, new)
    at = text.rindex(b'"crc32c": "') + len(b'"crc32c": "')
    zeroed = text[:at] + b"00000000" + text[at + 8 :]
    file.write_bytes(text[:at] + f"{crc32c(zeroed):08x}".encode() + text[at + 8 :])


def make_newer(checkpoint: Path) -> None:
    """Makes a checkpoint look as if a newer Varve had written it."""
    rewrite_record(checkpoint, b'"varve_format": 4', b'"varve_format": 5')
