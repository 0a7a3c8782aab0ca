"""The three jobs at the end of `make lab`: one runs, one waits for quota first, one is told that it never can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from myriad.errors import MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import JOBS, PODS, SERVICES, WORKLOADS, Resource
from myriad.lab.display import duration
from myriad.lab.state import LabPaths

Json = dict[str, Any]
#: One that runs, one that waits for quota meanwhile, one that never can.
EXAMPLES = tuple(Path("docs/examples") / f"{name}.yml" for name in ("gang", "gang-second", "gang-huge"))
TIMEOUT_S = 300.0
WEBHOOK_S = 90.0
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class JobLine:
    """One line of the report: job, size, what became of it."""

    name: str
    size: str
    text: str
    ok: bool
    seconds: float = 0.0


@dataclass(frozen=True)
class Example:
    """The objects of one example file: the Job, and what it needs beside it (a Service for its pods' names)."""

    job: Json
    others: tuple[Json, ...] = ()

    @property
    def name(self) -> str:
        """The Job's name."""
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The Job's namespace."""
        return str(self.job["metadata"].get("namespace", "default"))


def read_example(path: Path) -> Example:
    """The objects of an example file.

    Raises:
        MyriadError: when the file has no Job.
    """
    documents = [item for item in yaml.safe_load_all(path.read_text()) if isinstance(item, dict)]
    jobs = [item for item in documents if item.get("kind") == "Job"]
    if not jobs:
        raise MyriadError("there is no Job in it", where=str(path))
    return Example(jobs[0], tuple(item for item in documents if item is not jobs[0]))


def size(job: Json) -> str:
    """`2 x 8 GPUs`."""
    containers = job["spec"]["template"]["spec"]["containers"]
    gpus = sum(int(item.get("resources", {}).get("limits", {}).get(GPU, 0)) for item in containers)
    return f"{job['spec'].get('parallelism', 1)} x {gpus} GPUs"


def places(pods: list[Json], locations: dict[str, str]) -> str:
    """`gpu1 gpu2 (same rack)` for the pods of a gang. Pure.

    Args:
        pods: its Pod objects.
        locations: node -> room/block/rack.
    """
    nodes = sorted({str(pod["spec"]["nodeName"]) for pod in pods if pod.get("spec", {}).get("nodeName")})
    parts = [locations.get(node, "").split("/") for node in nodes]
    if len(nodes) < 2:
        return " ".join(nodes)
    for depth, word in ((3, "same rack"), (2, "same block"), (1, "same room")):
        if all(len(part) >= depth for part in parts) and len({tuple(part[:depth]) for part in parts}) == 1:
            return f"{' '.join(nodes)} ({word})"
    return f"{' '.join(nodes)} (several rooms)"


class Jobs:
    """Runs the three jobs on a cluster."""

    def __init__(self, api: Api, paths: LabPaths, locations: dict[str, str], detail: Callable[[str], None]) -> None:
        self.api = api
        self.paths = paths
        self.locations = locations
        self.detail = detail
        self.first, self.second, self.huge = (read_example(paths.clone / path) for path in EXAMPLES)

    def run(self) -> list[JobLine]:
        """Submit, watch, tell. Jobs of an earlier run go first."""
        for example in (self.first, self.second, self.huge):
            self._remove(example)
        started = time.monotonic()
        self._submit(self.first)
        self._until(lambda: self._condition(self.first, "QuotaReserved"), f"{self.first.name} gets quota")
        self._submit(self.second)
        waiting = time.monotonic()
        answer = self._why(self.second, "quota")
        self._submit(self.huge)
        refusal = self._why(self.huge, "never")
        self._remove(self.huge)
        lines = [self._finish(self.first, started)]
        self._until(lambda: self._condition(self.second, "QuotaReserved"), f"{self.second.name} gets quota")
        waited = time.monotonic() - waiting
        done = self._finish(self.second, waiting)
        held = f"waited {duration(waited)} for quota ({answer}), then {done.text}"
        lines.append(JobLine(done.name, done.size, held, done.ok, done.seconds))
        lines.append(JobLine(self.huge.name, size(self.huge.job), f"refused: {refusal}", "no node" in refusal))
        return lines

    def _submit(self, example: Example) -> None:
        """As `kubectl apply` does with a file whose objects are not there yet."""
        for item in example.others:
            self.api.patch(
                _resource(item), str(item["metadata"]["name"]), item, kind="apply", namespace=example.namespace,
                field_manager="myriad-lab", force=True,
            )  # fmt: skip
        # A busy machine restarts Kueue now and then; its webhook answers again within the minute.
        until = time.monotonic() + WEBHOOK_S
        while True:
            try:
                self.api.create(JOBS, example.job, namespace=example.namespace)
                return
            except ApiError as error:
                if error.status < 500 or "webhook" not in error.message or time.monotonic() > until:
                    raise
                self.detail(f"{example.name}: Kueue's webhook does not answer yet")
                time.sleep(1.0)

    def _finish(self, example: Example, started: float) -> JobLine:
        """Wait until a job has ended."""
        name, where, job = example.name, "", example.job
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            pods = self.api.list(PODS, namespace=self.first.namespace, labels=f"batch.kubernetes.io/job-name={name}")[0]
            where = places(pods, self.locations) or where
            status = (self.api.find(JOBS, name, namespace=self.first.namespace) or {}).get("status", {})
            for condition in status.get("conditions") or []:
                if condition.get("status") == "True" and condition["type"] == "Complete":
                    sums = ", all-reduce ok" if self._log_says_ok(name) else ""
                    return JobLine(name, size(job), f"ran on {where}{sums}", True, time.monotonic() - started)
                if condition.get("status") == "True" and condition["type"] == "Failed":
                    return JobLine(name, size(job), f"failed on {where}: {condition.get('message', '')}", False)
            self.detail(f"{name}: {status.get('ready', 0)} of {job['spec'].get('parallelism', 1)} pods run {where}")
            time.sleep(0.5)
        return JobLine(
            name, size(job), f"has not ended after {duration(time.monotonic() - started)}; myriad why {name}", False
        )

    def _log_says_ok(self, name: str) -> bool:
        argv = [str(self.paths.bin / "kubectl"), "--kubeconfig", str(self.paths.kubeconfig), "-n", self.first.namespace]
        argv += ["logs", f"job/{name}", "--tail=40"]
        environment = {**os.environ, "KUBECACHEDIR": str(self.paths.kube_cache)}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=30)
        return done.returncode == 0 and "all-reduce" in done.stdout and "ok" in done.stdout

    def _why(self, example: Example, state: str) -> str:
        """What `myriad why` says of a waiting job, once it is in this state, or what it says after 30 s."""
        name = example.name
        environment = {**os.environ, "KUBECONFIG": str(self.paths.kubeconfig)}
        argv = [str(Path(sys.executable).with_name("myriad")), "why", name, "-n", self.first.namespace, "--json"]
        until = time.monotonic() + 30
        text = ""
        while time.monotonic() < until:
            self.detail(f"myriad why {name}")
            done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=60)
            if done.returncode == 0:
                answer = json.loads(done.stdout)
                text = reason(answer)
                if answer.get("state") == state:
                    return text
            else:
                text = (done.stderr.strip().splitlines() or ["myriad why gave no answer"])[-1]
            time.sleep(0.5)
        return text

    def _remove(self, example: Example) -> None:
        """Delete a job and wait until its pods and Workload have gone, so that quota is free again."""
        name = example.name
        self.api.delete(JOBS, name, namespace=self.first.namespace)
        self._until(
            lambda: (
                self.api.find(JOBS, name, namespace=self.first.namespace) is None
                and not self.api.list(
                    PODS, namespace=self.first.namespace, labels=f"batch.kubernetes.io/job-name={name}"
                )[0]
                and self._workload(name) is None
            ),
            f"the earlier {name} is gone",
        )

    def _workload(self, name: str) -> Json | None:
        for item in self.api.list(WORKLOADS, namespace=self.first.namespace)[0]:
            owners = item["metadata"].get("ownerReferences") or []
            if any(owner.get("kind") == "Job" and owner.get("name") == name for owner in owners):
                return item
        return None

    def _condition(self, example: Example, kind: str) -> bool:
        conditions = ((self._workload(example.name) or {}).get("status") or {}).get("conditions") or []
        return any(item["type"] == kind and item["status"] == "True" for item in conditions)

    def _until(self, true: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + TIMEOUT_S
        self.detail(what)
        while True:
            try:
                if true():
                    return
            except ApiError as error:
                # A webhook or the API server that has just started may refuse for a moment.
                if error.status < 500:
                    raise
            if time.monotonic() > until:
                raise MyriadError(
                    f"after {duration(TIMEOUT_S)} this has not come true: {what}",
                    where=self.first.namespace,
                    hint="`. .lab/env; myriad why JOB; kubectl get workloads -A` tell more.",
                )
            time.sleep(0.3)


def _resource(item: Json) -> Resource:
    """The kind of an object that an example may hold beside its Job."""
    if item.get("kind") != "Service":
        raise MyriadError(f"an example holds a Job and Services, not a {item.get('kind')}", where="docs/examples")
    return SERVICES


def reason(answer: Json) -> str:
    """The reason in an answer of `myriad why --json`: its first cause, without the words that the report says. Pure."""
    return str(answer.get("first_cause", "")).rstrip(".").removeprefix("waits for quota: ")
