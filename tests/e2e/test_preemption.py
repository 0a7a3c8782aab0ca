"""Two teams on the lab, borrowing, and an owner that takes its quota back: what a victim gets, loses and is told.

One run of a real gang over real kubelets, which each test looks at from another side: SIGTERM and grace, a checkpoint
in the lab's shared folder, the notice at a webhook, the preemptor that waits for the victim's end, the victim that
resumes on another node, and the ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
sys.path.insert(0, str(Path(__file__).parent))
from followed import Followed, PodSeen, until
from lab_jobs import CLONE, image_of, myriad, submit
from receiver import Lag, Receiver

from myriad.kube.client import Api, connect
from myriad.kube.kinds import CONFIG_MAPS, JOBS, LEASES, PODS
from myriad.lab.nodes import SHARED_DIR
from myriad.lab.soak.observe import LEDGER
from myriad.scheduler.notices.facts import moment

Json = dict[str, Any]
Row = tuple[int, int | None, float]
"""From, to (seconds since 1970) and GPUs of a charge."""

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.engine]

SYSTEM = "myriad-system"
KEY = "the key of the end-to-end test"
GRACE_S = 300
UPLOAD_S = 8
STEPS = 150
VICTIM, HOLDER, OWNER = "e2e-victim", "e2e-holder", "e2e-owner"
EVERYTHING = ((HOLDER, "vision"), (VICTIM, "vision"), (OWNER, "speech"))
FOLDER = f"{SHARED_DIR}/e2e-preemption"
CLAIM = "e2e-checkpoints"

UPLOADER = f"""
import signal, sys, time
def leave(*_):
    time.sleep({UPLOAD_S})
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
while True:
    signal.pause()
"""
"""Beside the training: what was saved goes to an archive, so the pod ends some seconds after its GPUs are idle."""


@dataclass
class Story:
    """What happened, as it was seen from outside.

    Attributes:
        followed: every state of the Workloads and pods.
        told, headers, body, arrived: the notice as the webhook got it, and when.
        lag_s: how late the machine let a waiting thread be, at worst.
        annotated: when the victim reported a checkpoint.
        first, second: the victim's pods before the eviction and after it.
        owner, holder_node: the pod of the preemptor, and the node that the third job held.
        saved_step: as it stands in the checkpoint.
        logs: of the victim's second run.
        submitted: what `myriad job submit` said, by job.
        events: what `kubectl describe` shows of the eviction.
        charges: rows of the ledger by job.
    """

    followed: Followed
    told: Json = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    arrived: float = 0.0
    lag_s: float = 0.0
    annotated: str = ""
    first: list[PodSeen] = field(default_factory=list)
    second: list[PodSeen] = field(default_factory=list)
    owner: list[PodSeen] = field(default_factory=list)
    holder_node: str = ""
    saved_step: int = 0
    logs: str = ""
    submitted: dict[str, str] = field(default_factory=dict)
    charges: dict[str, list[Row]] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)


def claim() -> list[Json]:
    """A claim of the lab's shared folder, as a site gives one of its parallel file system."""
    size = {"storage": "1Gi"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": CLAIM},
        "spec": {
            "capacity": size,
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": "vision", "name": CLAIM},
            "hostPath": {"path": FOLDER, "type": "Directory"},
        },
    }
    asked = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": "vision"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": CLAIM,
            "resources": {"requests": size},
        },
    }
    return [volume, asked]


def apply(lab: Any, objects: list[Json]) -> None:
    lab.kubectl("apply", "--server-side", "-f", "-", text="---\n".join(yaml.safe_dump(o) for o in objects))


def rendered(lab: Any, name: str, team: str, *, nodes: int, steps: int, claimed: str = "") -> list[Json]:
    """A job as `myriad job new` renders it for that team, with the gang check in it."""
    arguments = [
        "job", "new", "batch", "--json", "--name", name, "--team", team, "--nodes", str(nodes), "--gpus", "8",
        "--image", image_of(lab), "--cpu", "50m", "--memory", "128Mi", "--priority", "normal", "--hours", "1",
        "--checkpoint-interval", "30s", "--env", f"GANG_STEPS={steps}", "--env", "GANG_CHECKPOINT_EVERY=20",
        *(["--checkpoint-claim", claimed] if claimed else []),
    ]  # fmt: skip
    return list(json.loads(myriad(*arguments))["objects"])


def with_uploader(objects: list[Json]) -> list[Json]:
    job = next(o for o in objects if o["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    main = pod["containers"][0]
    requests = {"cpu": "20m", "memory": "64Mi"}
    # A sidecar of Kubernetes' own kind: it is told to end when the main container has ended, and the pod ends with it.
    pod.setdefault("initContainers", []).append(
        {
            "name": "uploader",
            "restartPolicy": "Always",
            "image": main["image"],
            "command": ["python3", "-c", UPLOADER],
            "resources": {"requests": requests, "limits": requests},
            "securityContext": main["securityContext"],
        }
    )
    return objects


def checkpoint_step(lab: Any, node: str) -> int:
    """The step in rank 0's checkpoint as one node sees the shared folder; 0 where there is none."""
    text = lab.ssh(node, f"cat {FOLDER}/rank-0.json", check=False)
    try:
        return int(json.loads(text)["step"])
    except ValueError:
        return 0


def sweep(lab: Any, api: Api) -> None:
    """Remove what the test makes, and wait until it is gone."""
    for name, namespace in EVERYTHING:
        lab.kubectl("-n", namespace, "delete", "job,service", name, "--ignore-not-found", "--wait=false")
        # Nobody needs the rest of a long grace here.
        lab.kubectl(
            "-n", namespace, "delete", "pod", "-l", f"batch.kubernetes.io/job-name={name}", "--ignore-not-found",
            "--grace-period=1", "--wait=false",
        )  # fmt: skip
    for name, namespace in EVERYTHING:
        label = f"batch.kubernetes.io/job-name={name}"
        until(lambda: not api.list(PODS, namespace=namespace, labels=label)[0], 60, f"pods of {name} are gone")  # noqa: B023
    lab.kubectl("-n", "vision", "delete", "pvc", CLAIM, "--ignore-not-found", "--wait=false")
    lab.kubectl("delete", "pv", CLAIM, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="module")
def api(lab: Any) -> Iterator[Api]:
    client = connect(CLONE / ".lab" / "kubeconfig")
    yield client
    client.close()


@pytest.fixture(scope="module")
def webhook(lab: Any, api: Api) -> Iterator[Receiver]:
    """The target that the lab's description names for vision and that only this test has."""
    receiver = Receiver(lab.state["gateway"])
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "e2e-notify", "namespace": SYSTEM},
        "stringData": {"webhook": json.dumps({"url": receiver.url, "key": KEY})},
    }
    apply(lab, [secret])
    before = api.get(CONFIG_MAPS, "myriad-policy", namespace=SYSTEM)["data"]["policy.json"]
    policy = json.loads(before)
    assert policy["teams"]["vision"]["notify"] == ["vision-oncall"]
    policy["notify_targets"]["vision-oncall"] = {"kind": "webhook", "secret": "e2e-notify/webhook"}
    _write_policy(api, json.dumps(policy))
    yield receiver
    _write_policy(api, before)
    lab.kubectl("-n", SYSTEM, "delete", "secret", "e2e-notify", "--ignore-not-found")
    receiver.close()


def _write_policy(api: Api, text: str) -> None:
    api.patch(CONFIG_MAPS, "myriad-policy", {"data": {"policy.json": text}}, namespace=SYSTEM)


@pytest.fixture(scope="module")
def story(lab: Any, api: Api, webhook: Receiver) -> Iterator[Story]:
    sweep(lab, api)
    lab.ssh("gpu1", f"rm -rf {FOLDER} && install -d -m 1777 {FOLDER}")
    seen = Story(Followed(api, ["vision", "speech"]))
    lag = Lag()
    try:
        _play(lab, api, webhook, seen)
        seen.lag_s = lag.worst
        yield seen
    finally:
        lag.close()
        seen.followed.close()
        sweep(lab, api)
        lab.ssh("gpu1", f"rm -rf {FOLDER}", check=False)


def _play(lab: Any, api: Api, webhook: Receiver, seen: Story) -> None:
    followed = seen.followed
    apply(lab, claim())
    # vision fills the cluster: 8 of its own on one node, then 16 of which 8 are speech's.
    seen.submitted[HOLDER] = submit(rendered(lab, HOLDER, "vision", nodes=1, steps=100_000))
    (holder,) = until(lambda: followed.running(HOLDER, 1), 90, "the holder runs")
    seen.holder_node = holder.node
    owner = rendered(lab, OWNER, "speech", nodes=1, steps=60)
    gang = with_uploader(rendered(lab, VICTIM, "vision", nodes=2, steps=STEPS, claimed=CLAIM))
    seen.submitted[VICTIM] = submit(gang)
    seen.first = until(lambda: followed.running(VICTIM, 2), 90, "the victim runs")
    until(lambda: checkpoint_step(lab, seen.first[0].node) >= 20, 60, "it has saved once")
    # What a training loop does after each checkpoint.
    seen.annotated = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lab.kubectl("-n", "vision", "annotate", "job", VICTIM, f"myriad.dev/last-checkpoint={seen.annotated}")

    seen.submitted[OWNER] = submit(owner)
    until(lambda: followed.is_true(VICTIM, "Evicted"), 60, "the victim is evicted")
    until(lambda: webhook.of(VICTIM), 20, "the notice arrives")
    seen.arrived, seen.headers, seen.body = next(e for e in webhook.got if VICTIM.encode() in e[2])
    seen.told = json.loads(seen.body)
    seen.owner = until(lambda: followed.running(OWNER, 1), 90, "the owner runs")
    until(lambda: all(p.gone for p in seen.first), 30, "the victim's pods are gone")
    seen.saved_step = checkpoint_step(lab, seen.holder_node)
    seen.events = [
        e for e in json.loads(lab.kubectl("-n", "vision", "get", "events", "-o", "json"))["items"]
        if e["reason"] == "MyriadPreempted" and VICTIM in e["involvedObject"]["name"]
        and e["metadata"]["creationTimestamp"] >= seen.annotated  # Events of an earlier run are kept for an hour.
    ]  # fmt: skip

    # The first holder goes, so the victim comes back while the owner still has the node that it took.
    api.delete(JOBS, HOLDER, namespace="vision")
    seen.second = until(lambda: followed.running(VICTIM, 2), 120, "the victim runs again")
    label = f"batch.kubernetes.io/job-name={VICTIM}"
    until(
        lambda: "resuming after step" in lab.kubectl("-n", "vision", "logs", "-l", label, "-c", "main", check=False),
        60, "it has resumed",
    )  # fmt: skip
    until(lambda: _ended(followed), 240 + STEPS, "both have ended")  # a step takes a second
    seen.logs = lab.kubectl("-n", "vision", "logs", "-l", label, "-c", "main", "--tail=-1")
    seen.charges = until(lambda: closed_rows(lab, api, followed), 30, "the ledger has closed its rows")


def _ended(followed: Followed) -> bool:
    return followed.is_true(OWNER, "Finished") and followed.is_true(VICTIM, "Finished")


def closed_rows(lab: Any, api: Api, followed: Followed) -> dict[str, list[Row]] | None:
    """What the leader's database says of the victim and the owner; None while a row is missing or open."""
    leader = api.get(LEASES, "myriad-scheduler", namespace=SYSTEM)["spec"]["holderIdentity"]
    rows = json.loads(lab.kubectl("-n", SYSTEM, "exec", leader, "--", "python3", "-c", LEDGER))
    found: dict[str, list[Row]] = {}
    for job in (VICTIM, OWNER):
        uid = followed.workloads[job]["metadata"]["uid"]
        mine = [(begin, end, gpus) for of, begin, end, gpus, _basis in rows if of == uid]
        if len(mine) < len(followed.charged(job)) or any(end is None for _, end, _ in mine):
            return None
        found[job] = mine
    return found


def test_the_owner_reclaims_what_was_lent_and_the_victim_is_the_borrower(story: Story) -> None:
    """The numbers that both sides are told are Kueue's own accounts at the moment of the eviction."""
    assert "Admitted" in story.submitted[HOLDER] and "fits now" in story.submitted[VICTIM], story.submitted
    eviction = story.told["eviction"]
    assert story.told["kind"] == "preemption" and eviction["policy"] == "InCohortReclamation"
    assert eviction["victim"]["gpus"] == 16 and eviction["preemptor"]["job"] == OWNER
    # 24 held of 16 that are vision's own.
    assert eviction["borrowed"] == 8 and eviction["reclaimed"] == 8
    assert (
        f"to make room for speech/{OWNER} (priority normal, reclaiming its own quota: 8 of the 8 H100 that vision "
        "borrowed)" in story.told["text"]
    )


def test_the_notice_arrives_within_a_second_signed_and_says_until_when(story: Story) -> None:
    evicted = next(t for t in story.followed.transitions[VICTIM] if t.type == "Evicted")
    took = story.arrived - evicted.seen
    print(f"from the eviction to the webhook: {took:.3f} s (this machine let others wait up to {story.lag_s:.3f} s)")
    assert took < 1.0 + 10 * story.lag_s
    signed = hmac.new(KEY.encode(), story.headers["Myriad-Timestamp"].encode() + b"." + story.body, hashlib.sha256)
    assert story.headers["Myriad-Signature"] == f"sha256={signed.hexdigest()}"
    eviction = story.told["eviction"]
    assert eviction["grace_s"] == GRACE_S and f"It has {GRACE_S} s to save" in story.told["text"]
    assert eviction["last_checkpoint"] == story.annotated
    # The time at which the kubelet would kill them is on the pods; the notice says the same, or "at about" before.
    kill = max(p.told_at for p in story.first if p.told_at)
    said = moment(eviction["kill_at"])
    assert said and abs((said - kill).total_seconds()) <= (0 if eviction.get("exact") else 3), (said, kill)
    # An estimate that would delay the notice on a busy machine is left out.
    assert re.search(r"It goes back to the queue \(1st(, about [^)]+)?\)", story.told["text"]), story.told["text"]
    kinds = {e["involvedObject"]["kind"] for e in story.events}
    assert kinds == {"Job", "Workload"} and len(story.events) == 2


def test_the_victim_has_its_grace_saves_and_ends_by_itself(story: Story) -> None:
    assert len(story.first) == 2
    for pod in story.first:
        assert pod.grace_s == GRACE_S and pod.told_at is not None
        sigterm = pod.told_at - timedelta(seconds=GRACE_S)
        trained, code = pod.ended["main"]
        archived, left = pod.ended["uploader"]
        print(
            f"{pod.name} on {pod.node}: SIGTERM {sigterm:%H:%M:%S}, saved {trained:%H:%M:%S}, gone {archived:%H:%M:%S}"
        )
        assert code == 143, "asked to stop, and saved"
        assert left == 0 and (archived - sigterm).total_seconds() >= UPLOAD_S - 1
        assert archived < pod.told_at, "nobody was killed"
    assert 20 <= story.saved_step < STEPS


def test_the_preemptors_pod_starts_when_the_victims_has_ended_and_not_before(story: Story) -> None:
    (owner,) = story.owner
    before = [p for p in story.first if p.node == owner.node]
    assert before, f"the owner runs on {owner.node}, the victim had {[p.node for p in story.first]}"
    ended = max(at for p in before for at, _ in p.ended.values())
    started = owner.started["main"]
    print(f"on {owner.node} the victim ended at {ended:%H:%M:%S}, the owner's container started at {started:%H:%M:%S}")
    assert started >= ended
    admitted = story.followed.last(OWNER, "Admitted")
    assert admitted is not None and admitted.at <= ended, "its quota came first, its node when it was free"


def test_the_victim_resumes_from_its_checkpoint_on_another_node(story: Story) -> None:
    first, second = {p.node for p in story.first}, {p.node for p in story.second}
    print(f"ran on {sorted(first)}, saved step {story.saved_step}, went on on {sorted(second)}")
    assert len(second) == 2 and story.holder_node in second and story.holder_node not in first
    assert f"resuming after step {story.saved_step}" in story.logs, story.logs[-2000:]
    assert f"step {story.saved_step + 1}/{STEPS}  sum ok" in story.logs
    assert "\nstep 1/" not in story.logs, "nothing is done twice"
    assert f"all-reduce ok: {STEPS} steps, 2 ranks" in story.logs
    assert all(p.restarts == 0 for p in story.second)


def test_the_ledger_charges_from_admitted_to_evicted_or_finished_to_the_second(story: Story) -> None:
    for job, gpus, times in ((VICTIM, 16, 2), (OWNER, 8, 1)):
        spans = story.followed.charged(job)
        assert len(spans) == times
        expected = [(int(begin.timestamp()), int(end.timestamp()), float(gpus)) for begin, end in spans]
        hours = sum((end - begin) * g for begin, end, g in expected) / 3600
        print(f"{job}: {hours:.4f} GPU-hours in {times} admissions")
        assert story.charges[job] == expected
