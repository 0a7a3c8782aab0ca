"""Kueue's webhooks as the role renders them, on the real API server, while Kueue is away: what the cluster itself needs
is never refused (cases J2 and J3), a team's job is, with words, and Kueue can be applied again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import pytest
import yaml
from apiserver import ControlPlane, until
from jinja2 import Environment, FileSystemLoader

from myriad.kube.client import Api
from myriad.kube.spread import spread

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
SYSTEM_NAMESPACES = ("kube-system", "kueue-system", "myriad-system")
pytestmark = [apiserver.AT_HAND, pytest.mark.slow]


def values() -> Json:
    """The chart's values, from the role's template and its own defaults."""
    environment = Environment(loader=FileSystemLoader(ROOT / "roles/kueue/templates"), autoescape=False)  # noqa: S701 - YAML, no page
    environment.filters |= {"to_nice_yaml": yaml.safe_dump, "myriad.gpu.spread": spread}
    given = yaml.safe_load((ROOT / "roles/kueue/defaults/main.yml").read_text())
    given |= {
        "kueue_image_repository": "registry.invalid/kueue", "kueue_image_tag": "v0", "kueue_grace_s": 300,
        "kueue_integrations": ["batch/job"], "kueue_spread_required": False, "kueue_tolerations": [],
    }  # fmt: skip
    found: Json = yaml.safe_load(environment.get_template("values.yaml.j2").render(given))
    return found


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane on which Kueue ran, and is away now."""
    with apiserver.control_plane(
        tmp_path_factory.mktemp("webhooks") / "plane", kubelets=False, values=values()
    ) as running:
        namespaces = ("myriad-system", "vision")
        running.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n}} for n in namespaces])
        # The API server has taken the webhooks' configuration when it asks Kueue and Kueue answers.
        until(lambda: not refusal(running, job("vision", "probe"), "--dry-run=server"), what="Kueue takes a job")
        running.stop("kueue")
        yield running


def job(namespace: str, name: str) -> Json:
    """A Job without GPUs, as charts bring them along as hooks."""
    container = {"name": "main", "image": "registry.invalid/hook", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": template},
    }


def refusal(plane: ControlPlane, body: Json, *options: str) -> str:
    """What kubectl says where the object is refused; empty where it is taken."""
    done = subprocess.run(
        [apiserver.find("kubectl") or "kubectl", f"--kubeconfig={plane.kubeconfig}", "create", "-f", "-", *options],
        input=yaml.safe_dump(body),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("namespace", SYSTEM_NAMESPACES)
def test_j2_hook_jobs_of_the_cluster_itself_do_not_wait_for_kueue(plane: ControlPlane, namespace: str) -> None:
    assert refusal(plane, job(namespace, "hook")) == ""


def test_j3_pods_and_deployments_start_while_kueue_is_away(plane: ControlPlane) -> None:
    container = {"name": "main", "image": "registry.invalid/x"}
    for namespace in (*SYSTEM_NAMESPACES, "vision"):
        name = {"name": "away", "namespace": namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": name, "spec": {"containers": [container]}}
        labels = {"app": "away"}
        spec = {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        }
        assert refusal(plane, pod) == "", namespace
        assert refusal(plane, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": name, "spec": spec}) == ""


def test_j3_a_team_s_job_is_refused_with_the_webhook_s_name_and_kueue_can_be_applied_again(
    plane: ControlPlane, api: Api
) -> None:
    """A job that went past Kueue would take cards from others; that Kueue is away must not keep it away."""
    said = refusal(plane, job("vision", "late"))
    assert "mjob.kb.io" in said, said
    hooks = api.get_raw("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations")["items"]
    again = [h for h in hooks if "kueue" in h["metadata"]["name"]]
    assert again
    for body in again:
        labels = {**body["metadata"]["labels"], "again": "yes"}
        body["metadata"] = {"name": body["metadata"]["name"], "labels": labels}
        body |= {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    plane.apply(again)
    # What docs/operations.md says where Kueue cannot come back at all.
    kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
    plane.kubectl("delete", kinds, "-l", "app.kubernetes.io/name=kueue")
    until(lambda: "mjob.kb.io" not in refusal(plane, job("vision", "late"), "--dry-run=server"), what="hooks are gone")
    assert plane.kubectl("get", kinds, "-o", "name").count("kueue-") == 0
