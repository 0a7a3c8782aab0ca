"""An elastic job on the lab loses a worker twice: to an eviction, and to a crash. The others go on, it comes back, and
nobody else starts again; the gang check of each worker checks every sum meanwhile."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from followed import Followed, PodSeen, until
from lab_jobs import CLONE, image_of, myriad, submit

from myriad.kube.client import Api, connect
from myriad.kube.kinds import PODS

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.engine]

JOB = "e2e-elastic"
TEAM = "vision"
LABEL = f"batch.kubernetes.io/job-name={JOB}"
STEPS = 480
STEP_S = 0.25
SIGTERM_EXIT, SIGKILL_EXIT = 143, 137


@dataclass
class Story:
    """What happened.

    Attributes:
        followed: every state of the Workload and its pods.
        said: by `myriad job submit`.
        log: of the first worker, from its start to its end.
        back: the log of the worker that came back first.
    """

    followed: Followed
    said: str = ""
    log: str = ""
    back: str = ""
    evicted: list[PodSeen] = field(default_factory=list)
    crashed: list[PodSeen] = field(default_factory=list)

    def of(self, index: str) -> list[PodSeen]:
        """Every pod that had this place in the gang."""
        return [pod for pod in self.followed.of(JOB) if pod.index == index]


def sweep(lab: Any, api: Api) -> None:
    lab.kubectl("-n", TEAM, "delete", "job,service", JOB, "--ignore-not-found", "--wait=false")
    lab.kubectl(
        "-n", TEAM, "delete", "pod", "-l", LABEL, "--ignore-not-found", "--grace-period=1", "--wait=false",
    )  # fmt: skip
    until(lambda: not api.list(PODS, namespace=TEAM, labels=LABEL)[0], 60, "its pods are gone")


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    client = connect(CLONE / ".lab" / "kubeconfig")
    yield client
    client.close()


@pytest.fixture(scope="module")
def story(lab: Any, api: Api) -> Iterator[Story]:
    sweep(lab, api)
    seen = Story(Followed(api, [TEAM]))
    try:
        _play(lab, api, seen)
        yield seen
    finally:
        seen.followed.close()
        sweep(lab, api)


def _play(lab: Any, api: Api, seen: Story) -> None:
    rendered = myriad(
        "job", "new", "batch", "--json", "--name", JOB, "--team", TEAM, "--elastic", "2:3", "--gpus", "8",
        "--image", image_of(lab), "--cpu", "50m", "--memory", "128Mi", "--priority", "normal", "--hours", "1",
        "--env", f"GANG_STEPS={STEPS}", "--env", f"GANG_STEP_SECONDS={STEP_S}", "--env", "GANG_PEER_SECONDS=20",
        # Shorter than a pod needs to come back, longer than those who are there need to meet.
        "--env", "GANG_LAST_CALL_SECONDS=2",
    )  # fmt: skip
    seen.said = submit(list(json.loads(rendered)["objects"]))
    until(lambda: seen.followed.running(JOB, 3), 120, "three workers run")
    first = seen.of("0")[0].name
    says(lab, first, "sum ok over 3 ranks")

    # As a drain of its node would have it: SIGTERM, and its grace.
    (one,) = seen.of("1")
    api.evict(one.name, namespace=TEAM)
    says(lab, first, "with 2 of 3 ranks")
    until(lambda: seen.followed.running(JOB, 3), 120, "it is back")
    seen.evicted = seen.of("1")
    until(lambda: sizes(log(lab, first))[-3:] == [3, 2, 3], 90, "it is let in")
    seen.back = says(lab, seen.evicted[-1].name, "resuming after step")

    # As a fault of its own: no signal that it could answer.
    (two,) = seen.of("2")
    container = f"$(crictl ps -q --name '^main$' --pod $(crictl pods -q --name '^{two.name}$'))"
    lab.ssh(two.node, f"kill -9 $(crictl inspect -o go-template --template '{{{{.info.pid}}}}' {container})")
    until(lambda: len(seen.of("2")) == 2 and seen.followed.running(JOB, 3), 180, "it is back")
    seen.crashed = seen.of("2")
    until(lambda: sizes(log(lab, first))[-5:] == [3, 2, 3, 2, 3], 90, "it is let in")
    until(lambda: seen.followed.is_true(JOB, "Finished"), 240 + STEPS, "the job is done")
    seen.log = log(lab, first)


def log(lab: Any, pod: str) -> str:
    return str(lab.kubectl("-n", TEAM, "logs", pod, "--tail=-1", check=False))


def sizes(text: str) -> list[int]:
    """With how many ranks it summed, each change once."""
    found = [int(ranks) for ranks in re.findall(r"sum ok over (\d) ranks", text)]
    return [size for at, size in enumerate(found) if at == 0 or found[at - 1] != size]


def says(lab: Any, pod: str, text: str) -> str:
    """Wait until a worker has said so; all that it has said."""
    return str(until(lambda: (found := log(lab, pod)) and text in found and found, 90, f"{pod} says {text!r}"))


def test_p10_the_others_are_the_same_pods_from_the_beginning_to_the_end(story: Story) -> None:
    assert [len(story.of(index)) for index in "012"] == [1, 2, 2]
    assert all(pod.restarts == 0 for pod in story.followed.of(JOB)), "a lost worker is a new pod, none is restarted"
    steps = [int(step) for step in re.findall(rf"step (\d+)/{STEPS} ", story.log)]
    assert steps == list(range(1, STEPS + 1)), "each step once: nothing was done again"


def test_p10_they_go_on_in_a_smaller_ring_and_take_it_back(story: Story) -> None:
    changes = sizes(story.log)
    # Before all have started for the first time it may begin with two.
    assert changes[-5:] == [3, 2, 3, 2, 3] and len(changes) <= 6, changes
    assert f"all-reduce ok: {STEPS} steps, 3 ranks" in story.log, "the sums over all sizes were right"
    assert int(re.findall(r"resuming after step (\d+)", story.back)[0]) > 0, "its state came from the others"


def test_p10_a_lost_worker_comes_back_to_its_own_place(story: Story) -> None:
    for pods, code in ((story.evicted, SIGTERM_EXIT), (story.crashed, SIGKILL_EXIT)):
        lost, back = pods
        assert lost.ended["main"][1] == code
        assert back.node == lost.node, "Kueue keeps its place; nothing else has moved"


def test_p10_the_workload_stays_admitted(story: Story) -> None:
    changes = [(t.type, t.status) for t in story.followed.transitions[JOB]]
    assert changes.count(("Admitted", "True")) == 1 and ("Evicted", "True") not in changes, changes
    assert changes[-1][0] == "Finished"
