"""Sizes and times as people read them. Pure."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """`3.1 GB`, `27 MB`; decimal units, as networks and disks are sold."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 10 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def seconds_text(seconds: float) -> str:
    """`48 s`, `12 min`, `18 h 2 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
