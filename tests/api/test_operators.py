"""Roles that install other projects' operators, run by ansible against a real API server: what they apply is accepted,
a second run changes nothing, and what was left out stays out. Nothing of it runs here; molecule and the lab run it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.errors import MyriadError
from myriad.kube.client import Api
from myriad.stack.bundle import Bundle

sys.path.insert(0, str(Path(__file__).parent))
from apiserver import AT_HAND, ControlPlane, api_server

pytestmark = [AT_HAND, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "0" * 64


def bundle_with(*files: str) -> Path | None:
    """The newest bundle that holds these files: $MYRIAD_BUNDLE, or one of the cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myriad" / "bundles"
    named = [Path(os.environ["MYRIAD_BUNDLE"])] if os.environ.get("MYRIAD_BUNDLE") else []
    for folder in [*named, *sorted(home.glob("*"), key=lambda f: f.stat().st_mtime, reverse=True)]:
        try:
            bundle = Bundle.load(folder)
        except MyriadError:
            continue
        if all(bundle.has_file(name) and bundle.file_path(name).exists() for name in ("kubectl", *files)):
            return folder
    return None


VOLCANO = bundle_with("volcano-manifest")
TRAINING_OPERATOR = bundle_with("training-operator-manifests")
needs_volcano = pytest.mark.skipif(
    VOLCANO is None, reason="no bundle holds Volcano: its release page did not answer when they were built"
)
needs_training_operator = pytest.mark.skipif(
    TRAINING_OPERATOR is None,
    reason="no bundle holds the training operator: myriad bundle build --with training-operator",
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with api_server(
        tmp_path_factory.mktemp("operators") / "plane", namespaces=("myriad-system", "kueue-system", "volcano-system")
    ) as plane:
        yield plane


def run_role(plane: ControlPlane, role: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run a role as site.yml does, with these variables."""
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "vars_files": [str(ROOT / "playbooks/vars/stack.yml")],
        "vars": {
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
            "site_kubeconfig": str(plane.kubeconfig),
            "myriad_pools": {"h100": {"model": "H100-SXM5-80GB", "engine": "volcano"}},
            **variables,
        },
        "roles": [f"myriad.gpu.{role}"],
    }  # fmt: skip
    playbook = plane.work / f"{role}.yml"
    playbook.write_text(yaml.safe_dump([play]))
    return subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", str(playbook)],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"},
        capture_output=True,
        text=True,
        check=False,
    )


def applied(plane: ControlPlane, role: str, **variables: Any) -> None:
    """The first run changes something, the second one nothing."""
    first = run_role(plane, role, **variables)
    assert first.returncode == 0, first.stdout + first.stderr
    second = run_role(plane, role, **variables)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "changed=0" in second.stdout, second.stdout


def deployment(api: Api, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get_raw(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
    return found


@needs_volcano
def test_j4_volcano_comes_without_its_init_job(plane: ControlPlane, api: Api) -> None:
    applied(plane, "volcano", site_bundle=str(VOLCANO), volcano_wait_enabled=False)
    assert api.get_raw("/apis/batch/v1/namespaces/volcano-system/jobs")["items"] == []
    secret = api.get_raw("/api/v1/namespaces/volcano-system/secrets/volcano-admission-secret")
    assert {"ca.crt", "tls.crt", "tls.key"} <= set(secret["data"])
    for name in ("volcano-admission", "volcano-controllers", "volcano-scheduler"):
        spec = deployment(api, "volcano-system", name)["spec"]
        assert spec["replicas"] == 2, name
        container = spec["template"]["spec"]["containers"][0]
        assert container["image"].startswith("registry.myriad.internal/vc-") and "@sha256:" in container["image"]
        assert name == "volcano-admission" or "--leader-elect=true" in container["args"]


@needs_volcano
def test_t28_j5_volcano_is_installed_upgraded_taken_away_and_installed_again(plane: ControlPlane, api: Api) -> None:
    """What is there is told by its objects and what they run, never by the name of some pod. How Volcano is taken away
    says docs/operations.md."""
    decoy = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "volcano-scheduler-0", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": f"registry.invalid/x@{DIGEST}"}]},
    }  # fmt: skip
    plane.apply([decoy])
    applied(plane, "volcano", site_bundle=str(VOLCANO), volcano_wait_enabled=False)
    wanted = volcano_images(api)
    older = {name: image.partition("@")[0] + f"@{DIGEST}" for name, image in wanted.items()}
    for name, image in older.items():
        container = deployment(api, "volcano-system", name)["spec"]["template"]["spec"]["containers"][0]["name"]
        plane.kubectl("-n", "volcano-system", "set", "image", f"deployment/{name}", f"{container}={image}")
    left_over = {
        "apiVersion": "v1", "kind": "ConfigMap", "data": {},
        "metadata": {
            "name": "of-an-older-release", "namespace": "volcano-system", "labels": {"myriad.dev/set": "volcano"},
        },
    }  # fmt: skip
    plane.apply([left_over])
    assert volcano_images(api) == older
    applied(plane, "volcano", site_bundle=str(VOLCANO), volcano_wait_enabled=False)
    assert volcano_images(api) == wanted
    names = {c["metadata"]["name"] for c in api.get_raw("/api/v1/namespaces/volcano-system/configmaps")["items"]}
    assert "of-an-older-release" not in names and "volcano-scheduler-configmap" in names
    take_away(plane, "volcano")
    assert not plane.kubectl("get", "crd", "-l", "myriad.dev/set=volcano", "-o", "name").strip()
    assert api.get_raw("/apis/apps/v1/deployments?labelSelector=myriad.dev/set%3Dvolcano")["items"] == []
    applied(plane, "volcano", site_bundle=str(VOLCANO), volcano_wait_enabled=False)
    assert volcano_images(api) == wanted
    plane.kubectl("get", "queues.scheduling.volcano.sh", "-o", "name")  # an error where the kind is not served again
    plane.kubectl("delete", "pod", "volcano-scheduler-0", "-n", "default", "--force")


def volcano_images(api: Api) -> dict[str, str]:
    """Image by Deployment."""
    names = ("volcano-admission", "volcano-controllers", "volcano-scheduler")
    return {
        n: deployment(api, "volcano-system", n)["spec"]["template"]["spec"]["containers"][0]["image"] for n in names
    }


def take_away(plane: ControlPlane, name: str) -> None:
    """Delete all objects of a set, as docs/operations.md says; the namespace stays (nobody here would empty it)."""
    kinds = plane.kubectl("api-resources", "--verbs=list,delete", "-o", "name").split()
    kinds = [k for k in kinds if k not in ("namespaces", "events", "events.events.k8s.io")]
    plane.kubectl("delete", ",".join(kinds), "-A", "-l", f"myriad.dev/set={name}", "--ignore-not-found")


@needs_volcano
def test_a_configuration_that_volcano_would_throw_away_stops_before_anything_is_applied(plane: ControlPlane) -> None:
    done = run_role(
        plane,
        "volcano",
        site_bundle=str(VOLCANO),
        volcano_wait_enabled=False,
        volcano_actions=["enqueue", "alocate", "preempt"],
    )
    assert done.returncode != 0
    assert "alocate" in done.stdout and "preempt" in done.stdout
    assert "Volcano in the cluster" not in done.stdout


@needs_training_operator
def test_the_training_operator_may_elect_a_leader_and_pulls_nothing_from_outside(plane: ControlPlane, api: Api) -> None:
    applied(plane, "training_operator", site_bundle=str(TRAINING_OPERATOR), training_operator_wait_enabled=False)
    spec = deployment(api, "kubeflow", "training-operator")["spec"]["template"]["spec"]
    arguments = spec["containers"][0]["args"]
    assert {"--leader-elect=true", "--gang-scheduler-name=volcano"} <= set(arguments)
    rights = api.get_raw("/apis/rbac.authorization.k8s.io/v1/namespaces/kubeflow/roles/training-operator-leader")
    assert rights["rules"][0]["resources"] == ["leases"]
    waiting = api.get_raw("/api/v1/namespaces/kubeflow/configmaps/training-operator-config")["data"]
    template = waiting["initContainer.yaml"]
    for word, value in {"{{.InitContainerImage}}": "x", "{{.MaxTries}}": "3", "{{.MasterAddr}}": "job-0"}.items():
        template = template.replace(word, value)
    container = yaml.safe_load(template)[0]
    compile(container["command"][2], "initContainer", "exec")
    assert "alpine" not in template


@needs_training_operator
def test_without_volcano_nobody_binds_gangs(plane: ControlPlane, api: Api) -> None:
    pools = {"h100": {"model": "H100-SXM5-80GB"}}
    done = run_role(
        plane,
        "training_operator",
        site_bundle=str(TRAINING_OPERATOR),
        training_operator_wait_enabled=False,
        myriad_pools=pools,
    )
    assert done.returncode == 0, done.stdout
    arguments = deployment(api, "kubeflow", "training-operator")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert not [text for text in arguments if "gang" in text]


def test_metrics_with_a_prometheus_of_its_own_and_then_with_the_sites(plane: ControlPlane, api: Api) -> None:
    images = {"prometheus_image": f"x/prometheus@{DIGEST}", "dcgm_exporter_image": f"x/dcgm-exporter@{DIGEST}"}
    pools = {"h100": {"model": "H100-SXM5-80GB"}}
    applied(plane, "metrics", site_metrics=images, metrics_wait_s=0, myriad_pools=pools)
    assert deployment(api, "myriad-metrics", "prometheus")["spec"]["replicas"] == 1
    daemons = "/apis/apps/v1/namespaces/myriad-metrics/daemonsets"
    assert [item["metadata"]["name"] for item in api.get_raw(daemons)["items"]] == ["dcgm-exporter"]
    theirs = {"prometheus_url": "http://prometheus.example.com:9090"}
    done = run_role(plane, "metrics", site_metrics=theirs, metrics_wait_s=0, myriad_pools=pools)
    assert done.returncode == 0, done.stdout
    assert api.get_raw("/apis/apps/v1/namespaces/myriad-metrics/deployments")["items"] == []
    assert api.get_raw(daemons)["items"] == []
    assert api.get_raw("/api/v1/namespaces/myriad-metrics/configmaps/myriad-prometheus")["data"]["myriad-rules.yml"]
