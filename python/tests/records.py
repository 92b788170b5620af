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
    rewrite_record(checkpoint, b'"varve_format": 5', b'"varve_format": 6')


def make_data_newer(file: Path) -> None:
    """Makes a data file look as if a newer Varve had written it."""
    content = file.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    header = content[:size]
    assert b'\\"format\\":1,' in header
    header = header.replace(b'\\"format\\":1,', b'\\"format\\":9,')
    at = header.index(b'\\"header_crc32c\\":\\"') + len(b'\\"header_crc32c\\":\\"')
    zeroed = header[:at] + b"00000000" + header[at + 8 :]
    checked = header[:at] + f"{crc32c(zeroed):08x}".encode() + header[at + 8 :]
    file.write_bytes(checked + content[size:])
