"""The digest of everything that a host's outcome follows from: its variables, the collection's content, the bundle."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible.parsing.vault import EncryptedString
from ansible_collections.myriad.gpu.plugins.plugin_utils.run_context import remember

COLLECTION = Path(__file__).resolve().parents[2]
FOLDERS = ("roles", "plugins", "playbooks")
# Parts of the Python package from which roles and filters derive what lands on a node or in the cluster.
PACKAGE_PARTS = (
    "fleet",
    "stack",
    "kube",
    "prewarm",
    "registry_site",
    "inventory.py",
    "roles.py",
    "agent/brake.py",
    "scheduler/monitoring.py",
)
SKIPPED_SUFFIXES = (".pyc", ".md", ".retry")
# Variables that ansible makes itself, or that change from run to run.
MAGIC = {
    "hostvars",
    "groups",
    "vars",
    "omit",
    "play_hosts",
    "playbook_dir",
    "inventory_dir",
    "inventory_file",
    "environment",
    "namespace",
    "role_name",
    "role_names",
    "role_path",
    "role_uuid",
}
# What only the cluster follows from: queues, priorities, admission rules. A quota that changes is no reason to go
# through every node; a test shows that no role on nodes reads them. Names of teams count where the registry has users.
CLUSTER_ONLY = ("myriad_teams", "myriad_cohorts", "myriad_priorities", "myriad_preemption", "myriad_burn_in")
# Of ansible's own variables only the address is one that templates use.
KEPT = {"ansible_host"}


def canonical(value: Any) -> Any:
    """A value with nothing but JSON's own types, the same for the same content.

    An encrypted value stands as it is stored: nothing is decrypted for a comparison.
    """
    if isinstance(value, EncryptedString):
        return f"vault:{value._ciphertext}"
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(canonical(item), sort_keys=True) for item in value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [canonical(item) for item in value]
    return str(value)


def host_digest(task_vars: Mapping[str, Any], ignored: set[str]) -> str:
    """Over the host's variables as they are written (not templated), facts and ansible's own left out."""
    kept = {}
    for name in task_vars:
        if name in ignored or name in MAGIC or name.startswith("__"):
            continue
        if name.startswith("ansible_") and name not in KEPT:
            continue
        kept[str(name)] = canonical(task_vars[name])
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def part_digests(parts: Mapping[str, Any]) -> dict[str, str]:
    """One digest for each input that a single role follows from; a part without content has none."""
    return {
        str(name): hashlib.sha256(json.dumps(canonical(value), sort_keys=True).encode()).hexdigest()
        for name, value in parts.items()
        if value
    }


def node_digest(task_vars: Mapping[str, Any], args: Mapping[str, Any]) -> str:
    """As ``run_digest``, for a node: what only the cluster follows from is left out."""
    ignored = [*(args.get("ignore_vars") or ["site_full"]), *CLUSTER_ONLY]
    teams = task_vars.get("myriad_teams") if task_vars.get("site_registry_credentials") else None
    users = sorted(map(str, teams)) if isinstance(teams, Mapping) else canonical(teams)
    return run_digest(task_vars, {**args, "ignore_vars": ignored, "inputs": [args.get("inputs"), users]})


def run_digest(task_vars: Mapping[str, Any], args: Mapping[str, Any]) -> str:
    """Over everything that an outcome follows from, as the options of a task that compares it name it."""
    cache = Path(C.DEFAULT_LOCAL_TMP)
    digest = hashlib.sha256()
    digest.update(host_digest(task_vars, set(args.get("ignore_vars") or ["site_full"])).encode())
    digest.update(collection_digest(cache).encode())
    digest.update(bundle_digest(args.get("bundle"), cache).encode())
    digest.update(json.dumps(canonical(args.get("inputs")), sort_keys=True).encode())
    return digest.hexdigest()


def collection_digest(cache: Path) -> str:
    """Over the content of roles, plugins, playbooks and what of the Python package they use.

    Reading them takes some 20 ms; the workers of one ansible-playbook process share the answer through ``cache``.
    """
    remembered = cache / "myriad-collection-digest"
    try:
        return remembered.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    folders = [COLLECTION / folder for folder in FOLDERS]
    spec = importlib.util.find_spec("myriad")
    if spec is not None and spec.origin:
        folders.extend(Path(spec.origin).parent / part for part in PACKAGE_PARTS)
    digest = hashlib.sha256()
    for folder in folders:
        for path in _files(folder):
            digest.update(f"{folder.name}/{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    answer = digest.hexdigest()
    remember(remembered, answer)
    return answer


def _files(folder: Path) -> list[Path]:
    found = [folder]
    for directory, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        found.extend(Path(directory) / name for name in sorted(names) if not name.endswith(SKIPPED_SUFFIXES))
    return [path for path in found if path.is_file()]


def bundle_digest(bundle: Any, cache: Path) -> str:
    """Over the manifest of the bundle; empty without one."""
    if not bundle:
        return ""
    manifest = Path(str(bundle)).expanduser() / "bundle.yml"
    try:
        stamp = manifest.stat()
    except OSError:
        return ""
    key = hashlib.sha256(f"{manifest} {stamp.st_mtime_ns} {stamp.st_size}".encode()).hexdigest()[:16]
    remembered = cache / f"myriad-bundle-{key}"
    try:
        return remembered.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    answer = hashlib.sha256(manifest.read_bytes()).hexdigest()
    remember(remembered, answer)
    return answer
