"""The policy on a real API server with Kueue: `myriad policy diff` and `preview`, and a person's own kubeconfig."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import pytest
import yaml
from apiserver import ControlPlane, fake_node, gang_job

from myriad.fleet import check, objects_for_cluster_policy
from myriad.fleet.access import access_objects
from myriad.inventory import read_inventory
from myriad.kube.apply import Applier, Options
from myriad.kube.client import connect

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [apiserver.AT_HAND, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example of two teams that share 24 GPUs."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "tests/fixtures/broken/weight", folder / "site")
    teams = folder / "site/group_vars/all/teams.yml"
    teams.write_text(
        "myriad_teams:\n"
        "  vision: {namespaces: [vision], quota: {h100: 16}, cohort: research}\n"
        "  speech: {namespaces: [speech], quota: {h100: 8}, cohort: research}\n"
    )
    return folder / "site"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Iterator[ControlPlane]:
    with apiserver.control_plane(tmp_path_factory.mktemp("policy") / "plane") as running:
        running.start(
            "signer",
            [
                apiserver.find("kube-controller-manager") or "",
                f"--kubeconfig={running.kubeconfig}",
                "--leader-elect=false",
                "--controllers=certificatesigningrequest-signing-controller",
                f"--cluster-signing-cert-file={running.work}/pki/tls.crt",
                f"--cluster-signing-key-file={running.work}/pki/tls.key",
                f"--secure-port={apiserver._free_port()}",
            ],
        )
        nodes = [fake_node(f"g{i}", ("hall1", "b1", f"r{i // 2}")) for i in range(3)]
        running.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}, *nodes])
        fleet = check(read_inventory(site)).fleet
        sets = (("cluster-policy", objects_for_cluster_policy(fleet)), ("team-access", access_objects(fleet)))
        with contextlib.closing(connect(running.kubeconfig)) as api:
            for name, objects in sets:
                Applier(api, Options(set_name=name, prune=True)).apply(objects)
        yield running


def myriad(plane: ControlPlane, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("myriad")), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def changed(site: Path, tmp_path: Path, old: str, new: str) -> Path:
    copy = tmp_path / "changed"
    shutil.copytree(site, copy)
    teams = copy / "group_vars/all/teams.yml"
    assert old in teams.read_text()
    teams.write_text(teams.read_text().replace(old, new))
    return copy


def test_a_cluster_as_described_has_no_difference_and_each_change_is_one(plane: ControlPlane, site: Path) -> None:
    assert myriad(plane, "policy", "diff", "-i", str(site)) == "the cluster is as described\n"
    # What others own is none of ours: the extension's field of a ClusterQueue, an annotation of somebody's.
    check_field = '{"spec":{"admissionChecksStrategy":{"admissionChecks":[{"name":"myriad"}]}}}'
    plane.apply([apiserver.check_object()])
    plane.kubectl("patch", "clusterqueue", "vision-h100", "--type=merge", "-p", check_field)
    plane.kubectl("annotate", "clusterqueue", "vision-h100", "someone=else")
    assert myriad(plane, "policy", "diff", "-i", str(site)) == "the cluster is as described\n"
    plane.kubectl(
        "patch", "clusterqueue", "vision-h100", "--type=merge", "-p", '{"spec":{"fairSharing":{"weight":"7"}}}'
    )
    plane.kubectl("delete", "rolebinding", "myriad-team", "-n", "speech")
    said = myriad(plane, "policy", "diff", "-i", str(site), code=4)
    assert "ClusterQueue vision-h100\n  spec.fairSharing.weight: 7, described 1" in said
    assert "RoleBinding speech/myriad-team: is described and not there" in said
    assert "2 objects differ" in said
    plane.kubectl(
        "patch", "clusterqueue", "vision-h100", "--type=merge", "-p", '{"spec":{"admissionChecksStrategy":null}}'
    )


def test_a_team_that_goes_is_named_object_by_object(plane: ControlPlane, site: Path, tmp_path: Path) -> None:
    without = changed(site, tmp_path, "  speech: {namespaces: [speech], quota: {h100: 8}, cohort: research}\n", "")
    found = json.loads(myriad(plane, "policy", "diff", "-i", str(without), "--json", code=4))["differences"]
    gone = {entry["object"] for entry in found if entry["change"] == "not described"}
    assert {"ClusterQueue speech-h100", "LocalQueue speech/h100", "NetworkPolicy speech/myriad-team"} <= gone


def test_a_quota_change_names_whom_it_preempts(plane: ControlPlane, site: Path, tmp_path: Path) -> None:
    jobs = [gang_job(f"v{i}", pods=1, gpus=8, namespace="vision") for i in range(3)]
    plane.apply(jobs)
    plane.kubectl("wait", "--for=condition=Admitted", "workload", "--all", "-n", "vision", "--timeout=60s")
    plane.apply([gang_job("asr", pods=2, gpus=8, namespace="speech")])
    swapped = changed(site, tmp_path, "quota: {h100: 16}", "quota: {h100: 8}")
    teams = swapped / "group_vars/all/teams.yml"
    teams.write_text(
        teams.read_text().replace(
            "speech: {namespaces: [speech], quota: {h100: 8}", "speech: {namespaces: [speech], quota: {h100: 16}"
        )
    )
    said = myriad(plane, "policy", "preview", "-i", str(swapped))
    assert "speech-h100: quota 8 -> 16 GPUs" in said and "vision-h100: quota 16 -> 8 GPUs" in said
    assert said.count("would be preempted for speech/asr of speech-h100") == 2
    assert "speech/asr would start" in said
    # And the real Kueue does what was said.
    fleet = check(read_inventory(swapped)).fleet
    with contextlib.closing(connect(plane.kubeconfig)) as api:
        Applier(api, Options(set_name="cluster-policy")).apply(objects_for_cluster_policy(fleet))
    plane.kubectl("wait", "--for=condition=Admitted", "workload", "--all", "-n", "speech", "--timeout=60s")
    workloads = json.loads(plane.kubectl("get", "workloads", "-n", "vision", "-o", "json"))["items"]
    evicted: list[Any] = [
        w
        for w in workloads
        if any(c["type"] == "Preempted" and c["status"] == "True" for c in w["status"].get("conditions") or [])
    ]
    assert len(evicted) == 2


def test_a_person_gets_a_kubeconfig_that_only_opens_the_teams_namespace(
    plane: ControlPlane, site: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bob.conf"
    said = myriad(plane, "access", "grant", "bob", "-i", str(site), "--team", "vision", "--hours", "2", "-o", str(out))
    assert "bob in myriad:vision, namespace vision, until" in said
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    secret = out.read_text().split("client-key-data: ")[1].split()[0]
    assert secret not in said

    def may(*question: str) -> bool:
        done = subprocess.run(
            [apiserver.find("kubectl") or "kubectl", f"--kubeconfig={out}", "auth", "can-i", *question],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() == "yes"

    assert may("create", "jobs.batch") and may("list", "clusterqueues.kueue.x-k8s.io")
    assert not may("create", "jobs.batch", "-n", "speech") and not may("get", "secrets", "-n", "kube-system")

    # What a new member does first: submit, look, ask why it waits. Nothing is lent by an admin for it.
    def bob(program: str, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "KUBECONFIG": str(out)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    kubectl = apiserver.find("kubectl") or "kubectl"
    job = yaml.safe_dump(gang_job("bobs", pods=3, gpus=8, namespace="vision"))
    told = bob(kubectl, "create", "-f", "-", stdin=job)
    assert "job.batch/bobs created" in told and "Warning" in told and "terminationGracePeriodSeconds: 300" in told
    bob(kubectl, "get", "workloads,localqueues,events", "-n", "vision")
    wanted = "insufficient unused quota for nvidia.com/gpu in flavor h100, 24 more needed"
    said, end = "", time.monotonic() + 30
    while wanted not in said and time.monotonic() < end:
        said = bob(str(Path(sys.executable).with_name("myriad")), "why", "bobs", "-n", "vision")
    assert "bobs (vision, 3 pods x 8 GPUs, waiting" in said and wanted in said, said
    myriad(plane, "access", "grant", "bob", "-i", str(site), "--team", "vision", "-o", str(out), code=1)
    myriad(plane, "access", "grant", "bob", "-i", str(site), "--team", "visions", code=1)
    assert plane.kubectl("get", "csr", "-o", "name") == ""
