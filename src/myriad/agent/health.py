"""What makes a GPU unfit for new work: driver error reports (Xid), memory, lost cards. Pure.

The same findings keep a gate closed and, after it was open, taint the node. A report is an event, not a state: one that
was seen and dealt with (a reset, a gate run on demand, a brake that was let go) is in the baseline and counts no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from myriad.fleet.portrait import Gpu, Portrait

Effect = Literal["app", "reset", "reboot", "pending"]
"""What a report asks for. `app`: the program failed, the GPU is fine. `reset`: the GPU takes no new work before a
reset. `reboot`: a reset is not enough. `pending`: only where the row remap says that a reset is due."""

_DRAIN = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data"
_XIDS_DOC = "https://docs.nvidia.com/deploy/xid-errors/"
_MEMORY_DOC = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"


@dataclass(frozen=True, slots=True)
class XidKind:
    """One kind of report.

    Attributes:
        effect: what it asks for.
        words: what it says, for a sentence.
        source: where the vendor describes it.
    """

    effect: Effect
    words: str
    source: str = _XIDS_DOC


XIDS: Mapping[int, XidKind] = {
    13: XidKind("app", "graphics engine exception: a fault of the program"),
    31: XidKind("app", "memory page fault: a fault of the program"),
    43: XidKind("app", "the program's channel was stopped"),
    45: XidKind("app", "the program's channels were torn down"),
    46: XidKind("reset", "the GPU stopped processing"),
    48: XidKind("reset", "uncorrectable memory error (double bit)", _MEMORY_DOC),
    62: XidKind("reset", "internal microcontroller halted"),
    63: XidKind("pending", "a row of memory was marked for remapping", _MEMORY_DOC),
    64: XidKind("reset", "a row of memory could not be remapped", _MEMORY_DOC),
    74: XidKind("reset", "NVLink error"),
    79: XidKind("reboot", "the GPU has fallen off the bus"),
    92: XidKind("app", "many single-bit memory errors, all corrected"),
    94: XidKind("reset", "uncorrectable memory error, contained to one program", _MEMORY_DOC),
    95: XidKind("reset", "uncorrectable memory error, not contained", _MEMORY_DOC),
    119: XidKind("reset", "the GPU's system processor (GSP) does not answer"),
    120: XidKind("reset", "the GPU's system processor (GSP) failed"),
    140: XidKind("reset", "unrecovered memory error", _MEMORY_DOC),
}
"""Reports that Myriad acts on or knows to be harmless. An unknown one stands in the portrait, for people."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One health check of the node, over all of its GPUs. `next` names the node as NODE."""

    check: str
    expected: int | str
    found: int | str
    ok: bool
    cause: str = ""
    next: str = ""


def findings(portrait: Portrait, baseline: Mapping[str, int]) -> Iterator[Finding]:
    """Lost GPUs, memory errors, row remapping, error reports: each once for the node.

    Args:
        portrait: what was found.
        baseline: reports that were dealt with, as `seen` gives them.
    """
    gpus = portrait.gpus
    lost = [gpu for gpu in gpus if gpu.fault]
    yield Finding("lost", 0, 0, True) if not lost else Finding(
        "lost", 0, len(lost), False, _several([(gpu, gpu.fault) for gpu in lost]),
        f"{_DRAIN} && ssh NODE reboot; if it stays lost, "
        "power-cycle the machine and check seating, power and riser",
    )  # fmt: skip
    reset = _reset(gpu for gpu in gpus if _memory(gpu))
    if any(gpu.ecc is not None for gpu in gpus):
        errors = [
            (gpu, f"{gpu.ecc.volatile_uncorrected} uncorrected memory errors since the driver was loaded")
            for gpu in gpus
            if gpu.ecc is not None and gpu.ecc.volatile_uncorrected
        ]
        toggled = [
            (gpu, f"ECC is {_on(gpu.ecc.enabled)}, and {_on(gpu.ecc.pending)} from the next reboot on")
            for gpu in gpus
            if gpu.ecc is not None and gpu.ecc.pending is not None and gpu.ecc.pending != gpu.ecc.enabled
        ]
        yield _finding("ecc", errors + toggled, reset if errors else f"{_DRAIN} && ssh NODE reboot")
    if any(gpu.row_remap is not None for gpu in gpus):
        failed = [(gpu, "row remapping failed: no spare rows are left")
                  for gpu in gpus if gpu.row_remap is not None and gpu.row_remap.failure]  # fmt: skip
        pending = [(gpu, "a row remap is pending until the GPU is reset")
                   for gpu in gpus if gpu.row_remap is not None and gpu.row_remap.pending]  # fmt: skip
        remedy = f"{_DRAIN}; replace the card of {_cards(gpu for gpu, _ in failed)}" if failed else reset
        yield _finding("row-remap", failed + pending, remedy)
    if any(gpu.xids is not None for gpu in gpus):
        yield _xids(gpus, baseline)


def _reset(gpus: Iterable[Gpu]) -> str:
    indices = ",".join(str(index) for index in sorted({gpu.index for gpu in gpus}))
    return f"{_DRAIN}; ssh NODE nvidia-smi --gpu-reset -i {indices}; then myriad gate NODE --run"


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"


def _cards(gpus: Iterable[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index}" + (f" at {gpu.pci_address}" if gpu.pci_address else "") for gpu in gpus)


def _memory(gpu: Gpu) -> bool:
    return bool((gpu.ecc and gpu.ecc.volatile_uncorrected) or (gpu.row_remap and gpu.row_remap.pending))


def _finding(check: str, faults: Sequence[tuple[Gpu, str]], remedy: str) -> Finding:
    if not faults:
        return Finding(check, 0, 0, True)
    return Finding(check, 0, len({gpu.index for gpu, _ in faults}), False, _several(faults), remedy)


def _xids(gpus: Sequence[Gpu], baseline: Mapping[str, int]) -> Finding:
    faults: list[tuple[Gpu, str]] = []
    effects: set[Effect] = set()
    for gpu in gpus:
        for xid in gpu.xids or ():
            kind = XIDS.get(xid.code)
            if kind is None or kind.effect == "app" or xid.at_least <= baseline.get(_key(gpu, xid.code), 0):
                continue
            if kind.effect == "pending" and not (gpu.row_remap and gpu.row_remap.pending):
                continue
            effects.add(kind.effect)
            faults.append((gpu, f"Xid {xid.code}: {kind.words}" + (f" ({xid.first_at})" if xid.first_at else "")))
    if not faults:
        return Finding("xid", 0, 0, True)
    remedy = f"{_DRAIN} && ssh NODE reboot" if "reboot" in effects else _reset(gpu for gpu, _ in faults)
    return Finding("xid", 0, len(faults), False, _several(faults), remedy)


def _several(faults: Sequence[tuple[Gpu, str]]) -> str:
    shown = "; ".join(f"GPU {gpu.index}: {text}" for gpu, text in faults[:3])
    return f"{shown} and {len(faults) - 3} more" if len(faults) > 3 else shown


def _key(gpu: Gpu, code: int) -> str:
    return f"{gpu.uuid or gpu.pci_address or gpu.index}/{code}"


def seen(portrait: Portrait) -> dict[str, int]:
    """All error reports of a portrait as a baseline: from now on only new ones count."""
    return {_key(gpu, xid.code): xid.at_least for gpu in portrait.gpus for xid in gpu.xids or ()}
