"""What a shared library says of itself: its name, what it needs, where it looks, and the GPUs its code is for. Pure.

Formats: the System V ABI for ELF (64 bit, little endian), and NVIDIA's container of GPU code in the section
`.nv_fatbin`. NVIDIA does not document the latter; its layout is read as LLVM's and the CUDA tools' own output agree on
it: a region begins with the magic number, entries follow, and each names its kind and compute capability. An image's
libraries can thus be held against the wanted GPUs without loading them, and where no torch is there to be asked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO

_MAGIC = b"\x7fELF"
_PT_DYNAMIC, _PT_LOAD = 2, 1
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 14, 15, 29
_FATBIN_MAGIC = 0xBA55ED50
_KIND_PTX = 1
_MOST_DYNAMIC = 1 << 20
_MOST_STRINGS = 64 << 20


@dataclass(frozen=True, slots=True)
class Elf:
    """The dynamic section of a library or program.

    Attributes:
        soname: the name under which the loader knows it; empty without one.
        needed: names of the libraries that it asks for.
        rpath: folders of DT_RPATH, searched before LD_LIBRARY_PATH; without effect beside a `runpath`.
        runpath: folders of DT_RUNPATH, searched after LD_LIBRARY_PATH.
        gpu_code: compute capabilities that it has GPU code for: `9.0`, or `12.0+PTX` for what can be compiled at start.
    """

    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    gpu_code: tuple[str, ...] = ()


def read_elf(file: IO[bytes]) -> Elf | None:
    """Read a file that can seek; None where it is no 64-bit little-endian ELF, or a broken one."""
    try:
        return _read(file)
    except (struct.error, ValueError, UnicodeDecodeError):
        return None


def _read(file: IO[bytes]) -> Elf | None:
    file.seek(0)
    head = file.read(64)
    if len(head) < 64 or not head.startswith(_MAGIC) or head[4] != 2 or head[5] != 1:
        return None
    ph_offset, sh_offset = struct.unpack_from("<QQ", head, 32)
    ph_size, ph_count, sh_size, sh_count, names_index = struct.unpack_from("<HHHHH", head, 54)
    loads: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    for number in range(ph_count):
        kind, _flags, offset, address, _physical, size = struct.unpack(
            "<IIQQQQ", _at(file, ph_offset + number * ph_size, 40)
        )
        if kind == _PT_LOAD:
            loads.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, size)
    names = _dynamic(file, dynamic, loads) if dynamic is not None else Elf()
    sections = _sections(file, sh_offset, sh_size, sh_count, names_index)
    code: set[str] = set()
    for name, offset, size in sections:
        if name in (".nv_fatbin", "__nv_relfatbin"):
            code |= _fatbin(file, offset, size)
    return Elf(names.soname, names.needed, names.rpath, names.runpath, tuple(sorted(code, key=_order)))


def _at(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("the file ends inside a header")
    return data


def _dynamic(file: IO[bytes], where: tuple[int, int], loads: list[tuple[int, int, int]]) -> Elf:
    offset, size = where
    if size > _MOST_DYNAMIC:
        raise ValueError("no dynamic section is that large")
    entries = list(struct.iter_unpack("<qQ", _at(file, offset, size - size % 16)))
    first: dict[int, int] = {}
    for tag, value in entries:
        first.setdefault(tag, value)
    if _DT_STRTAB not in first or first.get(_DT_STRSZ, 0) > _MOST_STRINGS:
        return Elf()
    strings = _at(file, _file_offset(first[_DT_STRTAB], loads), first.get(_DT_STRSZ, 0))

    def text(position: int) -> str:
        end = strings.find(b"\0", position)
        return strings[position:end].decode() if 0 <= position < len(strings) and end >= 0 else ""

    def folders(tag: int) -> tuple[str, ...]:
        return tuple(one for one in text(first[tag]).split(":") if one) if tag in first else ()

    return Elf(
        soname=text(first[_DT_SONAME]) if _DT_SONAME in first else "",
        needed=tuple(text(value) for tag, value in entries if tag == _DT_NEEDED),
        rpath=folders(_DT_RPATH),
        runpath=folders(_DT_RUNPATH),
    )


def _file_offset(address: int, loads: list[tuple[int, int, int]]) -> int:
    for start, offset, size in loads:
        if start <= address < start + size:
            return address - start + offset
    return address


def _sections(file: IO[bytes], offset: int, size: int, count: int, names_index: int) -> list[tuple[str, int, int]]:
    """Name, offset and size of each section; empty for a stripped file without a table."""
    if not offset or not count or size < 64:
        return []
    rows = []
    for number in range(count):
        name, _kind, _flags, _address, start, length = struct.unpack("<IIQQQQ", _at(file, offset + number * size, 40))
        rows.append((name, start, length))
    if names_index >= len(rows):
        return []
    _, start, length = rows[names_index]
    strings = _at(file, start, length)
    return [(strings[name : strings.find(b"\0", name)].decode(), begin, long) for name, begin, long in rows]


def _fatbin(file: IO[bytes], offset: int, size: int) -> set[str]:
    """Compute capabilities of the entries of a section; only headers are read, however large the code is."""
    found: set[str] = set()
    position, end = offset, offset + size
    while position + 16 <= end:
        magic, _version, head, length = struct.unpack("<IHHQ", _at(file, position, 16))
        if magic != _FATBIN_MAGIC:
            # Regions are aligned to 8 bytes with zeros between them.
            position += 8
            continue
        entry, stop = position + head, min(position + head + length, end)
        while entry + 32 <= stop:
            kind, _v, entry_head, entry_size = struct.unpack("<HHIQ", _at(file, entry, 16))
            (capability,) = struct.unpack("<I", _at(file, entry + 28, 4))
            if entry_head < 32 or not 10 <= capability < 1000:
                break
            name = f"{capability // 10}.{capability % 10}"
            found.add(f"{name}+PTX" if kind == _KIND_PTX else name)
            entry += entry_head + entry_size
        position = max(stop, position + 16)
        position += -(position - offset) % 8
    return found


def _order(code: str) -> tuple[int, int, bool]:
    first, _, second = code.removesuffix("+PTX").partition(".")
    return int(first), int(second), code.endswith("+PTX")
