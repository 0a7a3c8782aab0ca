"""Which context of a kubeconfig is used where it has one for each control plane: the first that answers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: How long a control plane may take to take a connection.
TIMEOUT_S = 2.0


def connects(server: str) -> bool:
    """Whether somebody takes connections at an API server's URL."""
    parts = urlsplit(server)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 443), timeout=TIMEOUT_S):
            return True
    except OSError:
        return False


def servers(document: Mapping[str, Any]) -> dict[str, str]:
    """The API server of each context that is one of several ways to the same cluster, the current one first.

    Ways to one cluster have its authority and the same user. Empty where the current context has no sibling, so that
    an everyday kubeconfig with several clusters is never more than its current context.
    """
    clusters = {entry.get("name"): entry.get("cluster") or {} for entry in document.get("clusters") or []}
    contexts = {entry.get("name"): entry.get("context") or {} for entry in document.get("contexts") or []}
    current = contexts.get(document.get("current-context")) or {}
    authority = (clusters.get(current.get("cluster")) or {}).get("certificate-authority-data")
    found = {
        str(name): str(clusters[context["cluster"]].get("server", ""))
        for name, context in contexts.items()
        if authority
        and context.get("user") == current.get("user")
        and context.get("cluster") in clusters
        and clusters[context["cluster"]].get("certificate-authority-data") == authority
    }
    first = str(document.get("current-context"))
    return {first: found.pop(first), **found} if len(found) > 1 and first in found else {}


def answering(path: str, probe: Callable[[str], bool] = connects) -> str | None:
    """Name of the context to use; None for the current one.

    Args:
        path: the kubeconfig. One that cannot be read is the loader's to complain about.
        probe: whether a server answers.
    """
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text())
        ways = servers(document) if isinstance(document, Mapping) else {}
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError):
        return None
    return next((name for name, server in ways.items() if probe(server)), None)
