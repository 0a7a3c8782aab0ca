"""Plays the kubelets of fake nodes: keeps nodes Ready, starts bound pods, ends them, and lets deleted ones go.

    python kubelets.py KUBECONFIG [RUN_SECONDS]

With RUN_SECONDS the pods of Jobs end well after about that time; without they run until they are deleted.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from myriad.errors import MyriadError
from myriad.kube.client import Api, connect
from myriad.kube.kinds import NODES, PODS
from myriad.kube.watch import Watch

Json = dict[str, Any]

log = logging.getLogger("kubelets")
HEARTBEAT_S = 20.0
ENDS_AFTER = "test.myriad.dev/ends-after"
"""Annotation of a pod: seconds that it takes to end once it is told to; without it a pod ends at once."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Pods:
    """Pods that are bound go through their life."""

    def __init__(self, api: Api, run_s: float) -> None:
        self._api = api
        self._run_s = run_s
        self._work: SimpleQueue[Json] = SimpleQueue()
        self._ends: dict[str, threading.Timer] = {}
        self._stopping: set[str] = set()
        for _ in range(4):
            threading.Thread(target=self._serve, daemon=True).start()

    def replace(self, items: list[Json]) -> None:
        for item in items:
            self.upsert(item)

    def upsert(self, obj: Json) -> None:
        if obj["spec"].get("nodeName"):
            self._work.put(obj)

    def remove(self, obj: Json) -> None:
        timer = self._ends.pop(obj["metadata"]["uid"], None)
        if timer:
            timer.cancel()

    def _serve(self) -> None:
        while True:
            pod = self._work.get()
            try:
                self._live(pod)
            except MyriadError as error:
                # Deleted or changed meanwhile: its next change comes by the watch.
                log.info("%s: %s", pod["metadata"]["name"], error)

    def _live(self, pod: Json) -> None:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        if metadata.get("deletionTimestamp"):
            if metadata["uid"] in self._stopping:
                return
            self._stopping.add(metadata["uid"])
            takes_s = float((metadata.get("annotations") or {}).get(ENDS_AFTER) or 0)
            if takes_s:
                timer = threading.Timer(takes_s, self._gone, (pod,))
                timer.daemon = True
                timer.start()
            else:
                self._gone(pod)
        elif phase in (None, "", "Pending"):
            self._say(pod, "Running", {"running": {"startedAt": now()}}, ready=True)
            of_job = any(o["kind"] == "Job" for o in metadata.get("ownerReferences") or [])
            if self._run_s and of_job and metadata["uid"] not in self._ends:
                after = self._run_s * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
                ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now()}}
                timer = threading.Timer(after, self._end, (pod, ended))
                timer.daemon = True
                self._ends[metadata["uid"]] = timer
                timer.start()

    def _gone(self, pod: Json) -> None:
        metadata = pod["metadata"]
        try:
            path = PODS.path(metadata["namespace"], metadata["name"])
            self._api._json("DELETE", path, body={"gracePeriodSeconds": 0})
        except MyriadError as error:
            # Its next change brings it here again.
            self._stopping.discard(metadata["uid"])
            log.info("%s: %s", metadata["name"], error)

    def _end(self, pod: Json, ended: Json) -> None:
        try:
            self._say(pod, "Succeeded", ended, ready=False)
        except MyriadError as error:
            log.info("%s: %s", pod["metadata"]["name"], error)

    def _say(self, pod: Json, phase: str, state: Json, *, ready: bool) -> None:
        truth = "True" if ready else "False"
        containers = [
            {
                "name": c["name"], "image": c["image"], "imageID": "", "ready": ready, "restartCount": 0, "state": state
            }
            for c in pod["spec"]["containers"]
        ]  # fmt: skip
        status = {
            "phase": phase,
            "startTime": now(),
            "conditions": [
                {"type": kind, "status": truth, "lastTransitionTime": now()} for kind in ("Ready", "ContainersReady")
            ]
            + [{"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}],
            "containerStatuses": containers,
        }
        self._api.patch(
            PODS,
            pod["metadata"]["name"],
            {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status},
            namespace=pod["metadata"]["namespace"],
            subresource="status",
        )


class Nodes:
    """Nodes are Ready as long as they exist."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def replace(self, items: list[Json]) -> None:
        with self._lock:
            self._names = {i["metadata"]["name"] for i in items}
        self.beat()

    def upsert(self, obj: Json) -> None:
        name = obj["metadata"]["name"]
        with self._lock:
            new = name not in self._names
            self._names.add(name)
        if new:
            self._ready(name)

    def remove(self, obj: Json) -> None:
        with self._lock:
            self._names.discard(obj["metadata"]["name"])

    def beat(self) -> None:
        with self._lock:
            names = sorted(self._names)
        for name in names:
            self._ready(name)

    def _ready(self, name: str) -> None:
        condition = {
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now()
        }  # fmt: skip
        try:
            body = {"status": {"conditions": [{**condition, "lastTransitionTime": now()}]}}
            self._api.patch(NODES, name, body, subresource="status")
        except MyriadError as error:
            log.info("%s: %s", name, error)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    api = connect(Path(sys.argv[1]))
    nodes = Nodes(api)
    stop = threading.Event()
    Watch(api, NODES, nodes, stop=stop).start()
    Watch(api, PODS, Pods(api, float(sys.argv[2]) if len(sys.argv) > 2 else 0.0), stop=stop).start()
    while True:
        time.sleep(HEARTBEAT_S)
        nodes.beat()


if __name__ == "__main__":
    main()
