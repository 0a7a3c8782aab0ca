"""The form of a facts document and of a wish: what somebody wrote or recorded that cannot be taken for what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_Check = Callable[[Any], str]
"""What is wrong with a value, as the rest of a sentence that its key begins; empty when nothing is."""

_QUOTE = "write it in quotes: YAML reads 0x10de, 0000:1b:00.0 and 580.10 as numbers and changes them"


def form_faults(facts: Mapping[str, Any], want: Mapping[str, Any]) -> list[str]:
    """Every value of a document that has not the form that `driver_facts` and the role give it.

    A wrong form is not guessed around: an unquoted vendor id becomes a number, and a host with eight GPUs one without.
    Keys that are absent or null were not asked for; `pci` has to be there, and the kernel where there is a device.

    Returns:
        sentences, each beginning with the key (`pci[0].vendor: ...`).
    """
    faults = [*_judge(facts, _FACTS, ""), *_judge(want, _WANT, "want.")]
    devices = facts.get("pci")
    if not isinstance(devices, list):
        return [*faults, "pci: is no list of devices; `pci: []` is a host without any"]
    for index, device in enumerate(devices):
        faults.extend(_device_faults(device, f"pci[{index}]"))
    if not any("pci" in fault for fault in faults):
        faults.extend(_twice(devices))
    kernel = facts.get("kernel") or {}
    if devices and isinstance(kernel, Mapping):
        needed = {"release": "the module is built for it", "distribution": "it decides on the packages' names"}
        faults.extend(f"kernel.{key}: is missing; {why}" for key, why in needed.items() if not kernel.get(key))
    return faults


def _device_faults(device: Any, where: str) -> list[str]:
    if not isinstance(device, Mapping):
        return [f"{where}: is {_show(device)}, not a device with address, vendor, device and class"]
    faults = [f"{where}.{key}: is missing" for key in ("address", "vendor", "device", "class") if key not in device]
    return [*faults, *_judge(device, _DEVICE, f"{where}.")]


def _twice(devices: list[Any]) -> list[str]:
    seen: dict[str, int] = {}
    faults = []
    for index, device in enumerate(devices):
        address = str(device["address"]).lower()
        if address in seen:
            faults.append(f"pci[{index}].address: {address} is that of pci[{seen[address]}] too; a device stands once")
        seen.setdefault(address, index)
    return faults


def _judge(value: Mapping[str, Any], form: Mapping[str, Any], where: str) -> list[str]:
    """The faults of a mapping's known keys; what it has beside them is nobody's business here."""
    faults = []
    for key, check in form.items():
        found = value.get(key)
        if found is None:
            continue
        if isinstance(check, Mapping):
            if isinstance(found, Mapping):
                faults.extend(_judge(found, check, f"{where}{key}."))
            else:
                faults.append(f"{where}{key}: is {_show(found)}, not a mapping with {', '.join(check)}")
        elif fault := check(found):
            faults.append(f"{where}{key}: {fault}")
    return faults


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _text(value: Any) -> str:
    if isinstance(value, str):
        return ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"is {_show(value)}, not text" + (f"; {_QUOTE}" if number else "")


def _number_or_text(value: Any) -> str:
    """`12` and `24.04` are what YAML makes of a release, and say the same."""
    return "" if isinstance(value, int | float) and not isinstance(value, bool) else _text(value)


def _hex(digits: int) -> _Check:
    def check(value: Any) -> str:
        if fault := _text(value):
            return fault
        plain = value.strip().lower().removeprefix("0x")
        if not plain or len(plain) > digits or set(plain) - set("0123456789abcdef"):
            return f"is {_show(value)}, not up to {digits} hex digits"
        return ""

    return check


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else f"is {_show(value)}, not true or false"


def _list(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return f"is {_show(value)}, not a list"
    return next((fault for one in value if (fault := _text(one))), "")


def _table(check: _Check) -> _Check:
    """A mapping from names to values of one form."""

    def judge(value: Any) -> str:
        if not isinstance(value, Mapping):
            return f"is {_show(value)}, not a mapping from packages"
        for name, one in value.items():
            if fault := check(one):
                return f"{name} {fault}"
        return ""

    return judge


def _pair(value: Any) -> str:
    good = isinstance(value, list | tuple) and len(value) == 2
    return "" if good else f"is {_show(value)}, not the two versions [from, to]"


def _fabric(value: Any) -> str:
    return "" if isinstance(value, bool) or value == "auto" else f"is {_show(value)}, not true, false or auto"


_ID = _hex(4)
_DEVICE: Mapping[str, Any] = {
    "address": _text,
    "vendor": _ID,
    "device": _ID,
    "class": _hex(6),
    "subsystem_vendor": lambda value: _ID(value) if value != "" else "",
    "subsystem_device": lambda value: _ID(value) if value != "" else "",
    "driver": _text,
    "vpd": _text,
}
_FACTS: Mapping[str, Any] = {
    "kernel": {
        "release": _text,
        "headers": _flag,
        "headers_package": _text,
        "distribution": {"id": _text, "version": _number_or_text},
    },
    # What the module says, or systemd-detect-virt's word (`kvm`).
    "virtualization": lambda value: "" if isinstance(value, bool) else _text(value),
    "secure_boot": _flag,
    "mok_enrolled": _flag,
    "module": {
        "loaded": _text,
        "license": _text,
        "built": {"version": _text, "vermagic": _text},
        "blacklisted_nouveau": _flag,
        "nouveau_loaded": _flag,
    },
    "installed": _table(_text),
    "foreign": {"runfile": _flag, "version": _text},
    "reboot_required": _list,
    "candidates": _table(_list),
    "simulation": {"error": _text, "install": _table(_text), "upgrade": _table(_pair), "remove": _list},
}
_WANT: Mapping[str, Any] = {
    "channel": _text,
    "existing": _text,
    "module": _text,
    "versions": {"driver": _text},
    "packages": _table(_text),
    "kernel": _text,
    "load_modules": _flag,
    "fabric_manager": _fabric,
    "models": _list,
    "kernels_accepted": _list,
}
