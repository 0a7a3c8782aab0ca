"""Which backup is restored, and what a restored cluster has lost. Pure: what hosts said comes in, decisions go out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

#: Restore what a member that is left holds, rather than an archive.
SURVIVOR = "survivor"
NEWEST = "newest"


@dataclass(frozen=True)
class Choice:
    """What is restored.

    Attributes:
        host: control plane that has the archive; empty where the controller has it.
        path: the archive there.
        meta: what it says of itself; empty for one of the controller, which is looked at on the hosts.
        problem: why nothing can be restored; empty otherwise.
    """

    host: str = ""
    path: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def choose(looks: Mapping[str, Mapping[str, Any]], wanted: str, *, cluster: str) -> Choice:
    """The archive that a restore takes.

    Args:
        looks: by control plane the document of `etcd-backup list`; empty for a machine without the program.
        wanted: `newest`, `survivor`, or a file on the controller.
        cluster: the cluster's name; archives of another one are not looked at.
    """
    if wanted not in (NEWEST, SURVIVOR):
        return Choice(path=wanted)
    found = [
        (host, archive)
        for host, look in sorted(looks.items())
        for archive in look.get("archives", ())
        if archive.get("cluster") == cluster and (wanted == NEWEST) == (archive.get("source") == "snapshot")
    ]
    if not found:
        reached = ", ".join(sorted(looks)) or "none"
        if wanted == SURVIVOR:
            return Choice(
                problem=f"no member that is left has given its data (control planes that were reached: {reached}). "
                "Name an archive: -e restore_archive=FILE"
            )
        return Choice(
            problem=f"no control plane that was reached ({reached}) has an archive of the cluster {cluster}. "
            "Fetch one from where copies are kept and name it: -e restore_archive=FILE"
        )
    # A member's data is as new as its revision; archives of one moment differ by nothing else.
    host, archive = max(found, key=lambda item: _newness(item[1], by_revision=wanted == SURVIVOR))
    return Choice(host=host, path=str(archive["path"]), meta={k: v for k, v in archive.items() if k != "path"})


def _newness(archive: Mapping[str, Any], *, by_revision: bool) -> tuple[int, int]:
    taken, revision = int(archive.get("taken_at") or 0), int(archive.get("revision") or 0)
    return (revision, taken) if by_revision else (taken, revision)


@dataclass(frozen=True)
class Lost:
    """How what runs and what the restored cluster knows differ.

    Attributes:
        unknown: pods that ran when the control plane was stopped and that the cluster knows nothing of: their kubelet
            ends them. NAMESPACE/NAME on NODE.
        again: pods that the cluster takes for running and whose node does not run them: their kubelet starts them anew.
        same: how many run and are known.
    """

    unknown: tuple[str, ...]
    again: tuple[str, ...]
    same: int


def compare(running: Mapping[str, Mapping[str, str]], pods: Iterable[Mapping[str, Any]]) -> Lost:
    """Hold what runs against what the restored cluster knows.

    Args:
        running: by node the pods that its runtime ran: uid to NAMESPACE/NAME. Nodes that were not asked are absent.
        pods: Pod objects of the restored cluster.
    """
    known: set[str] = set()
    again: list[str] = []
    here = {uid for found in running.values() for uid in found}
    for pod in pods:
        metadata, node = pod.get("metadata", {}), pod.get("spec", {}).get("nodeName", "")
        # A static pod has a copy in the API under another uid; its own is the hash of its manifest.
        uid = metadata.get("annotations", {}).get("kubernetes.io/config.hash") or metadata.get("uid", "")
        known.add(uid)
        if node in running and uid not in here and pod.get("status", {}).get("phase") == "Running":
            again.append(f"{metadata.get('namespace')}/{metadata.get('name')} on {node}")
    unknown = [
        f"{name} on {node}" for node, found in running.items() for uid, name in found.items() if uid not in known
    ]
    return Lost(tuple(sorted(unknown)), tuple(sorted(again)), len(here & known))


def read_running(text: str) -> dict[str, str]:
    """uid to NAMESPACE/NAME, from what `crictl pods -o json` prints; nothing from a node that was not asked."""
    items = json.loads(text).get("items") or [] if text else []
    found = [item["metadata"] for item in items]
    return {metadata["uid"]: f"{metadata['namespace']}/{metadata['name']}" for metadata in found}


def sentences(lost: Lost, meta: Mapping[str, Any], *, revisions: Sequence[int] = (), at: float) -> list[str]:
    """What people are told after a restore.

    Args:
        lost: the comparison.
        meta: what the archive says of itself.
        revisions: revision of each member's data when it was stopped; empty where nobody could say.
        at: seconds since the epoch at which the control plane was stopped.
    """
    taken = int(meta.get("taken_at") or 0)
    when = f"{datetime.fromtimestamp(taken, UTC):%Y-%m-%d %H:%M:%S} UTC" if taken else "an unknown time"
    what = "what a member that was left held" if meta.get("source") == "member" else f"the archive of {when}"
    lines = [f"the cluster is back from {what}"]
    if meta.get("source") != "member" and taken:
        lines.append(f"everything that was written in the {max(0, round(at - taken))} s after it is lost")
    revision = int(meta.get("revision") or 0)
    if revision and max(revisions, default=0) >= revision:
        lines.append(f"{max(revisions) - revision} writes are lost")
    elif revision:
        # A member without its data starts anew and counts from one.
        lines.append("how many writes is unknown: no member had the data that the archive was taken from")
    lines.append(f"{lost.same} pods run on as before")
    lines += [f"unknown to the cluster now, and ended: {name}" for name in lost.unknown]
    lines += [f"had ended since then, and is started again: {name}" for name in lost.again]
    return lines
