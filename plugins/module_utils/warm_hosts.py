"""The runtime's own settings for a registry (hosts.toml), narrowed to the one registry that a pull is to use.

containerd tries the hosts of a file one after the other by itself. A rollout that counts how many nodes each registry
serves must know which one it is, so every pull gets a file of its own with one host. What the site set for that host
(certificates, credentials in headers) is taken over word for word.
https://github.com/containerd/containerd/blob/main/docs/hosts.md
"""

from __future__ import annotations

import os
import re

_TABLE = re.compile(r"^\s*\[+\s*host\s*\.\s*(?:\"(?P<double>[^\"]+)\"|'(?P<single>[^']+)')(?P<rest>[^\]]*)\]+")
_ANY_TABLE = re.compile(r"^\s*\[")
_SERVER = re.compile(r"^\s*server\s*=")


def narrowed(text, endpoint):
    """The text with `endpoint` as the only host.

    Args:
        text: the site's own file; empty where it has none.
        endpoint: address of the registry, with scheme.
    """
    kept = [f'server = "{endpoint}"']
    inside = False
    named = False
    for line in text.splitlines():
        table = _TABLE.match(line)
        if table:
            inside = same(table["double"] or table["single"], endpoint)
            named = named or inside
        elif _ANY_TABLE.match(line):
            inside = False
        if inside:
            kept.append(line)
    if not named:
        kept += [f'[host."{endpoint}"]', '  capabilities = ["pull", "resolve"]']
    return "\n".join(kept) + "\n"


def endpoints(text):
    """The hosts that a file names, in its order."""
    found = []
    for line in text.splitlines():
        table = _TABLE.match(line)
        name = table and (table["double"] or table["single"])
        if name and name not in found:
            found.append(name)
    return found


def same(one, other):
    return one.rstrip("/").lower() == other.rstrip("/").lower()


def write(directory, registry, text):
    """Write the file for one pull, readable by root alone: it may hold credentials. Returns the folder to name."""
    folder = os.path.join(directory, registry.replace(":", "_") if os.sep in registry else registry)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, "hosts.toml")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    return directory


def read(config_path, registry):
    """The site's own file for a registry; empty where it has none.

    `config_path` may be several folders joined by colons, as containerd takes it.
    """
    for folder in (config_path or "").split(":"):
        for name in (registry, "_default"):
            path = os.path.join(folder, name, "hosts.toml")
            if folder and os.path.exists(path):
                with open(path, encoding="utf-8") as stream:
                    return stream.read()
    return ""
