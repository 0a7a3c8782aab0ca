"""Simulated nodes: kwok as a process, and the Stage objects that say what its nodes and pods do.

kwok does nothing without stages. These let a node be Ready until it is told to be down, run a pod the moment that it is
bound, end it after the time that it carries, and let a deleted one go.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from myriad.errors import MyriadError
from myriad.stack.build import build_bundle, lock_digest
from myriad.stack.bundle import Bundle
from myriad.stack.events import Event, plain_line
from myriad.stack.lock import load_lock
from myriad.stack.settings import read_settings

Json = dict[str, Any]

MANAGED = {"kwok.x-k8s.io/node": "fake"}
"""Annotation of the nodes that kwok plays."""
RUN_FOR = "test.myriad.dev/run-for"
"""Annotation of a pod: how long it runs, as a Go duration; without it until it is deleted."""
DOWN = "test.myriad.dev/down"
"""Label of a node that is to stay as somebody else writes it."""

_NODE_READY = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
"""

_POD_RUNS = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
"""

_POD_ENDS = """
{{ $now := Now }}
phase: Succeeded
conditions:
- {type: ContainersReady, status: "False", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "False", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: false
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, finishedAt: {{ $now | Quote }}}}
{{ end }}
"""


def stages() -> list[Json]:
    """The Stage objects."""
    not_deleted = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    runs_for = f'.metadata.annotations["{RUN_FOR}"]'
    return [
        _stage(
            "node-ready",
            "Node",
            [
                {
                    "key": '.status.conditions.[] | select( .type == "Ready" ) | .status',
                    "operator": "NotIn",
                    "values": ["True"],
                },
                {"key": f'.metadata.labels["{DOWN}"]', "operator": "DoesNotExist"},
            ],
            {"statusTemplate": _NODE_READY},
        ),
        _stage(
            "pod-runs",
            "Pod",
            [not_deleted, {"key": ".status.startTime", "operator": "DoesNotExist"}],
            {"statusTemplate": _POD_RUNS},
        ),
        _stage(
            "pod-ends",
            "Pod",
            [
                not_deleted,
                {"key": ".status.phase", "operator": "In", "values": ["Running"]},
                {"key": runs_for, "operator": "Exists"},
            ],
            {"statusTemplate": _POD_ENDS},
            {"durationFrom": {"expressionFrom": runs_for}},
        ),
        _stage(
            "pod-goes",
            "Pod",
            [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}],
            {"finalizers": {"empty": True}, "delete": True},
        ),
    ]


def _stage(name: str, kind: str, selects: list[Json], then: Json, delay: Json | None = None) -> Json:
    spec = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": selects},
        "next": then,
        **({"delay": delay} if delay else {}),
    }
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def command(program: Path, kubeconfig: Path, folder: Path) -> list[str]:
    """How kwok is started; its stages are written into the folder."""
    config = folder / "stages.yaml"
    config.write_text("---\n".join(yaml.safe_dump(stage) for stage in stages()))
    (label, value), *_ = MANAGED.items()
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--config={config}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={label}={value}",
        "--node-lease-duration-seconds=240",
    ]


def program(tell: Callable[[str], object]) -> Path:
    """kwok from a bundle of its own in the cache; built from its Go module the first time (about a minute and a half).

    Args:
        tell: is told a line at a time what is being built.
    """
    settings = read_settings()
    lock = load_lock(None)
    folder = settings.cache / "bundles" / f"kwok-{lock.component('kwok').version}-{lock_digest(lock)[:12]}"
    try:
        path = Bundle.load(folder).file_path("kwok")
        if path.exists():
            return path
    except MyriadError:
        pass  # there is none yet

    def report(event: Event) -> None:
        if (line := plain_line(event)) is not None:
            tell(line)

    built = build_bundle(lock, folder, settings, report, only=["kwok"], source="modules")
    return built.file_path("kwok")
