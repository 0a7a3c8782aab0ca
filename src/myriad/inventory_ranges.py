"""Host patterns of an inventory (`gpu[001:128]`), with a sentence where one means nothing.

Ansible expands them; what it says of a wrong one ("not enough values to unpack") names neither the pattern nor the
line, and a range that runs backwards is no host at all and no word. So a pattern is looked at before it is expanded.

Source: https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html#adding-ranges-of-hosts
"""

from __future__ import annotations

import re
import string

from ansible.errors import AnsibleError
from ansible.parsing.utils.addresses import parse_address
from ansible.plugins.inventory import expand_hostname_range

MOST_HOSTS = 100_000
"""Hosts of one pattern at most: more is a digit too many, and would fill the memory before anybody is told."""

_RANGE = re.compile(r"\[([^\[\]]*)\]")
_FORM = "a range is written [01:16], [1:9:2] or [a:f]"


def expand(pattern: str) -> list[str]:
    """Hosts of a pattern; a port behind it (`gpu1:2222`) is left out.

    Raises:
        ValueError: it stands for no host; the sentence reads on from the pattern and says what to write.
    """
    if "[" not in pattern and ":" not in pattern:
        return [pattern]
    try:
        hosts, _port = parse_address(pattern, allow_ranges=True)
    except AnsibleError:
        hosts = pattern  # as Ansible does: what is no address may still be a name
    if "[" not in hosts:
        return [hosts]
    count = 1
    for inner in _RANGE.findall(hosts):
        count *= _length(inner)
    if "[" in _RANGE.sub("", hosts):
        raise ValueError(f"has a range that is not closed; {_FORM}")
    if count > MOST_HOSTS:
        raise ValueError(f"stands for {count:,} hosts; {MOST_HOSTS:,} are the most: is there a digit too many?")
    return [str(name) for name in expand_hostname_range(hosts)]


def _length(inner: str) -> int:
    """How many hosts a range gives."""
    parts = inner.split(":")
    if len(parts) not in (2, 3) or not parts[1]:
        raise ValueError(f'has the range "[{inner}]"; {_FORM}')
    begin, end, step = parts[0] or "0", parts[1], parts[2] if len(parts) == 3 else "1"
    if not step.isdecimal() or not int(step):
        raise ValueError(f'has the range "[{inner}]" with the step "{step}"; a step is a whole number from 1')
    if len(begin) == len(end) == 1 and {begin, end} <= set(string.ascii_letters):
        first, last = string.ascii_letters.index(begin), string.ascii_letters.index(end)
    elif begin.isdecimal() and end.isdecimal():
        if begin[0] == "0" and len(begin) > 1 and len(begin) != len(end):
            raise ValueError(f'has the range "[{inner}]", whose ends have different lengths; {_FORM}')
        first, last = int(begin), int(end)
    else:
        raise ValueError(f'has the range "[{inner}]", whose ends are neither numbers nor single letters; {_FORM}')
    if first > last:
        raise ValueError(f'has the range "[{inner}]", which runs backwards and gives no host; write [{end}:{begin}]')
    return (last - first) // int(step) + 1
