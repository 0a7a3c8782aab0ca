"""What a module says on a simulated host. Pure: the host that is given is changed, nothing is read or written.

A task that asks for what was asked before changes nothing; any other one changes something, and its arguments are
remembered. So a run that would change something twice does so here too.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from myriad.lab.simulated.host import SimulatedHost

Json = dict[str, Any]

#: Arguments that differ between two runs which ask for the same.
PASSING = {"run_id", "predicted", "inputs_hash", "parts_hash", "complete", "transferred"}
ADMIN_CONF = "/etc/kubernetes/admin.conf"


class UnknownModuleError(Exception):
    """A module that the simulation has no answer for."""


def answer(module: str, arguments: Mapping[str, Any], host: SimulatedHost, *, admin_conf: str = "") -> Json:
    """The result of a module.

    Args:
        module: its name without collection.
        arguments: its arguments; names that begin with `_ansible_` are ansible's own.
        host: the host; what the module would do to it is done.
        admin_conf: the administrator's kubeconfig, as a control plane has it.

    Raises:
        UnknownModuleError: there is no answer for it.
    """
    own = {key: value for key, value in arguments.items() if not key.startswith("_ansible_")}
    check_mode = bool(arguments.get("_ansible_check_mode"))
    found = _ANSWERS.get(module)
    if found is None:
        raise UnknownModuleError(f"a simulated host has no answer for the module {module}")
    host.tasks += 1
    if module == "slurp":
        return _slurp(own, admin_conf)
    return found(own, host, check_mode)


def _once(key: str, own: Json, host: SimulatedHost, check_mode: bool) -> bool:
    """Whether these arguments are new to the host; they are remembered, except in a prediction."""
    kept = {name: value for name, value in own.items() if name not in PASSING}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()
    if host.done.get(key) == digest:
        return False
    if not check_mode:
        host.done[key] = digest
        role = str(own.get("role") or "")
        if role and role not in host.roles:
            host.roles.append(role)
    return True


def _facts(host: SimulatedHost) -> Json:
    return {
        "distribution": "Debian",
        "distribution_version": "12",
        "distribution_major_version": "12",
        "distribution_release": "bookworm",
        "os_family": "Debian",
        "pkg_mgr": "apt",
        "service_mgr": "systemd",
        "system": "Linux",
        "architecture": "x86_64",
        "kernel": "6.1.0-57-amd64",
        "hostname": host.name,
        "nodename": host.name,
        "machine_id": host.machine_id,
        "boot_id": hashlib.sha256(host.machine_id.encode()).hexdigest()[:32],
        "default_ipv4": {"address": host.address, "interface": "eth0", "gateway": "10.20.0.1"},
        "processor_vcpus": 192,
        "memtotal_mb": 2_000_000,
        "swaptotal_mb": 0,
        "cgroup_version": 2,
        "python_version": "3.11.2",
        "python": {"executable": "/usr/bin/python3", "version": {"major": 3, "minor": 11}},
    }


def _node_state(own: Json, host: SimulatedHost, check_mode: bool) -> Json:
    state = own.get("state", "present")
    if state == "check":
        return _look(own, host)
    if state == "converged":
        recorded = bool(own.get("complete") and own.get("inputs_hash"))
        if recorded and not check_mode:
            host.inputs_hash, host.parts = str(own["inputs_hash"]), dict(own.get("parts_hash") or {})
        return {"changed": False, "recorded": recorded, "notes": []}
    if state == "absent":
        removed = [f"what {role} recorded" for role in host.roles]
        if not check_mode:
            host.roles, host.done, host.paths, host.inputs_hash = [], {}, [], ""
        return {"changed": bool(removed), "removed": removed, "leftovers": [], "kept": []}
    parts = [unit.get("name", "") for unit in own.get("units") or []]
    key = f"node_state {own.get('role')} {' '.join(parts)}"
    changed = _once(key, own, host, check_mode)
    return {
        "changed": changed,
        "changed_items": [f"unit {name} started" for name in parts] if changed else [],
        "started": parts if changed else [],
        "restarted": [],
        "stopped": [],
        "enabled": [],
        "disabled": [],
        "notes": [],
    }


def _look(own: Json, host: SimulatedHost) -> Json:
    asked, parts = str(own.get("inputs_hash") or ""), dict(own.get("parts_hash") or {})
    if host.adopts:
        host.adopts, host.inputs_hash, host.parts = False, asked, parts
        host.roles = host.roles or ["node_base"]
    drift = []
    if not host.inputs_hash:
        drift = [_differs("site", "run", "a complete run", "none yet, or one that was broken off")]
    elif asked and host.inputs_hash != asked:
        drift = [_differs("inputs", "inputs", host.inputs_hash, asked)]
    if host.inputs_hash:
        others = [name for name in sorted(parts) if host.parts.get(name) != parts[name]]
        drift += [_differs("part", name, host.parts.get(name, ""), parts[name]) for name in others]
    facts = _facts(host)
    facts["myriad_node"] = {
        "inputs_hash": asked,
        "parts_hash": parts,
        "converged": not drift,
        "roles": sorted(host.roles),
        "last_run": 0 if host.inputs_hash else None,
    }
    return {"changed": False, "converged": not drift, "drift": drift, "ansible_facts": facts}


def _differs(kind: str, item: str, expected: str, found: str) -> Json:
    return {"role": "_site", "kind": kind, "item": item, "expected": expected, "found": found}


def _listed(result: str, paths: Callable[[Json], list[str]]) -> Callable[[Json, SimulatedHost, bool], Json]:
    """A module that brings a list of things."""

    def run(own: Json, host: SimulatedHost, check_mode: bool) -> Json:
        named = paths(own)
        key = f"{result} {own.get('role')} {own.get('tree', '')} {' '.join(named[:3])}"
        changed = _once(key, own, host, check_mode)
        return {"changed": changed, result: named if changed else [], "diff": [], "content": {}, "notes": []}

    return run


def _runtime_facts(own: Json, host: SimulatedHost, _check_mode: bool) -> Json:
    runs = "container_runtime" in host.roles
    unit = {
        "load": "loaded",
        "active": "active",
        "enabled": "enabled",
        "fragment": "/etc/systemd/system/containerd.service",
        "package": "",
        "program": "/usr/local/bin/containerd",
    }
    found = {
        "units": {"containerd.service": unit} if runs else {},
        "sockets": ["/run/containerd/containerd.sock"] if runs else [],
        "versions": {"/usr/local/bin/containerd": "2.3.4"} if runs else {},
        "kubelet": {"running": False, "endpoint": "", "source": ""},
        "config": "",
        "own": runs,
    }
    return {"changed": False, "runtime": found}


def _image_prewarm(own: Json, host: SimulatedHost, check_mode: bool) -> Json:
    images = list(own.get("images") or [])
    kept = {key: own.get(key) for key in ("images", "role")}
    known = host.done.get("image_prewarm")
    cold = known is None and bool(images)
    outcome = "cold" if cold else "warm"
    changed = False
    if cold and own.get("state", "present") == "present" and own.get("fetch", True):
        changed, outcome = _once("image_prewarm", kept, host, check_mode), "pulled"
    told = [{"ref": image.get("ref"), "outcome": outcome, "sentence": "", "bytes": 0} for image in images]
    return {
        "changed": changed,
        "changed_items": [str(image.get("ref")) for image in images] if changed else [],
        "images": told,
        "outcome": outcome,
        "elsewhere": False,
    }


def _command(own: Json, host: SimulatedHost, check_mode: bool) -> Json:
    words = own.get("argv") or str(own.get("_raw_params") or "").split()
    line = " ".join(map(str, words))
    result: Json = {"cmd": line, "rc": 0, "stdout": "", "stderr": "", "changed": True}
    created, removed = own.get("creates"), own.get("removes")
    if created in host.paths or (removed and not host.roles):
        return {**result, "changed": False}
    if line.startswith("kubeadm token create"):
        join = "kubeadm join 10.20.0.2:6443 --token abcdef.0123456789abcdef"
        result["stdout"] = f"{join} --discovery-token-ca-cert-hash sha256:{'0' * 64}"
    # `take` only brings the configuration; what is waited for comes with the command after it.
    if created and " take " not in line and not check_mode:
        host.paths.append(str(created))
    return result


def _stat(own: Json, host: SimulatedHost, _check_mode: bool) -> Json:
    path = str(own.get("path"))
    if path in host.paths or path == ADMIN_CONF:
        return {"changed": False, "stat": {"exists": True, "path": path, "isdir": False, "readable": True}}
    return {"changed": False, "stat": {"exists": False}}


def _slurp(own: Json, admin_conf: str) -> Json:
    path = str(own.get("src") or own.get("path"))
    if path != ADMIN_CONF or not admin_conf:
        return {"failed": True, "msg": f"file not found: {path}"}
    return {
        "changed": False,
        "source": path,
        "encoding": "base64",
        "content": base64.b64encode(admin_conf.encode()).decode(),
    }


def _program(_own: Json, _host: SimulatedHost, _check_mode: bool) -> Json:
    """One of Myriad's programs that had nothing to do, and says nothing."""
    return {"changed": False, "answer": {}, "stdout": "", "rc": 0}


def _nothing(_own: Json, _host: SimulatedHost, _check_mode: bool) -> Json:
    return {"changed": False}


_ANSWERS: dict[str, Callable[[Json, SimulatedHost, bool], Json]] = {
    "node_state": _node_state,
    "files": _listed("changed_paths", lambda own: [str(item["path"]) for item in own.get("rendered") or []]),
    "artifacts": _listed("changed_paths", lambda own: [str(item["path"]) for item in own.get("items") or []]),
    "packages": _listed(
        "changed_items", lambda own: [*map(str, own.get("packages") or {}), *map(str, own.get("present") or [])]
    ),
    "runtime_facts": _runtime_facts,
    "image_prewarm": _image_prewarm,
    "command": _command,
    "stat": _stat,
    "host_program": _program,
    "slurp": _nothing,
    "ping": _nothing,
}
