"""Names: what Kubernetes accepts, what a person probably meant, and how values are shown in sentences."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

# RFC 1123 label: names of namespaces, teams, pools, cohorts.
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/
_LABEL_VALUE = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")
# One step of a location: a label value without dots, because the steps are joined by dots.
_PLACE = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_]*[A-Za-z0-9])?\Z")
_LABEL_NAME = _LABEL_VALUE
_EXTENDED_RESOURCE = re.compile(
    r"^(?P<domain>[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)/(?P<name>[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)\Z"
)
MAX_NAME = 63
"""Longest label value and longest RFC 1123 label, in characters."""

LABEL_RULE = "lower-case letters, digits and hyphens, beginning and ending with a letter or digit"


def dns_label_fault(name: Any) -> str | None:
    """Why `name` cannot name a Kubernetes object that also stands in labels; None when it can."""
    if not isinstance(name, str) or isinstance(name, bool):
        return f"{show(name)} is not a name; write text: {LABEL_RULE}"
    if len(name) > MAX_NAME:
        return f'"{name}" has {len(name)} characters; Kubernetes allows {MAX_NAME}'
    if not _DNS_LABEL.match(name):
        hint = re.sub(r"-+", "-", re.sub(r"[^a-z0-9]", "-", name.lower())).strip("-")
        offer = f'; for example "{hint}"' if hint and hint != name else ""
        return f'"{name}" is not a Kubernetes name: {LABEL_RULE}{offer}'
    return None


def host_name_fault(name: str) -> str | None:
    """Why a host name cannot be a node name and the value of kubernetes.io/hostname; None when it can."""
    if len(name) > MAX_NAME:
        return f"has {len(name)} characters; a node's name is a label value of at most {MAX_NAME}"
    if not all(_DNS_LABEL.match(part) for part in name.split(".")):
        return f"is not a valid node name: {LABEL_RULE}; rename the host in the inventory and keep ansible_host"
    return None


def place_fault(step: str) -> str | None:
    """Why one step of a location cannot stand in a node label; None when it can."""
    if step == "":
        return "has an empty step"
    if not _PLACE.match(step):
        return (
            f'has the step "{step}"; a step is letters, digits, "-" and "_" (no dots), '
            "beginning and ending with a letter or digit"
        )
    return None


def label_name_fault(name: Any) -> str | None:
    """Why `name` cannot be the part of a label key after `myriad.dev/`; None when it can."""
    if not isinstance(name, str) or not _LABEL_NAME.match(name) or len(name) > MAX_NAME:
        return f"{show(name)} cannot be a label name: at most {MAX_NAME} letters, digits, hyphens, underscores or dots"
    return None


def extended_resource_fault(name: Any) -> str | None:
    """Why `name` cannot be an extended resource; None when it can."""
    if not isinstance(name, str) or not _EXTENDED_RESOURCE.match(name) or len(name.partition("/")[2]) > MAX_NAME:
        return f'is {show(name)}; an extended resource is written domain/name, for example "nvidia.com/gpu"'
    return None


def several_fault(name: str, hosts: Collection[str], groups: Collection[str]) -> str | None:
    """Why a name, where one host is meant, would be several to Ansible: a group, or a pattern; None where it is one."""
    # A host that is called like a group is the group to Ansible.
    if name in groups:
        return f'"{name}" is a group'
    if name in hosts:
        return None
    if not all(_DNS_LABEL.match(part) for part in name.lower().replace("_", "-").split(".")):
        return f'"{name}" is a pattern'
    return None


def address_fault(address: str) -> str | None:
    """Why text cannot be the address of a machine; None when it can: an IP address, or a name.

    Numbers with dots are an IPv4 address or nothing: `10.0.0.256` is no name that any resolver knows.
    """
    if re.fullmatch(r"\d+(\.\d+)+", address) and _ip(address) is None:
        return "is no IPv4 address: four numbers from 0 to 255, with dots"
    if re.search(r"\s", address):
        return "has a space in it"
    return None


def address_key(address: str) -> str:
    """What is equal for two ways to write one address: `2001:DB8:0::1`, `2001:db8::1`; `Gpu1.lan.`, `gpu1.lan`."""
    return _ip(address) or address.lower().rstrip(".")


def _ip(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def zero_padding_key(name: str) -> str:
    """The name with leading zeros of its numbers taken away: gpu0633 and gpu633 give the same key."""
    return re.sub(r"\d+", lambda match: str(int(match[0])), name)


def closest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant, or None. Case, `_` and `-` do not count; another digit makes another."""
    wanted = re.sub(r"[-_ ]", "", word.lower())
    plain = {re.sub(r"[-_ ]", "", name.lower()): name for name in known}
    # h200 is another thing than h100, not a slip of the finger.
    plain = {text: name for text, name in plain.items() if text == wanted or not _differs_in_digits(text, wanted)}
    if wanted in plain:
        return plain[wanted]
    found = difflib.get_close_matches(wanted, list(plain), n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def _differs_in_digits(one: str, other: str) -> bool:
    return len(one) == len(other) and re.sub(r"\d", "0", one) == re.sub(r"\d", "0", other)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "research"?`, or the list of what is known, or nothing is known."""
    names = sorted(known)
    best = closest(word, names)
    if best is not None:
        return f'; did you mean "{best}"?'
    if not names:
        return "; none is described"
    return f"; known: {listing(names)}"


def listing(names: Iterable[str], *, limit: int = 8) -> str:
    """Names for a sentence: `a, b, c` or `a, b, c and 12 more`."""
    items = list(names)
    if len(items) <= limit:
        return ", ".join(items)
    return f"{', '.join(items[:limit])} and {len(items) - limit} more"


def show(value: Any) -> str:
    """A value as it stands in a sentence: text in quotes, `empty`, `a list`, `a mapping`."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence):
        return "a list"
    return str(value)
