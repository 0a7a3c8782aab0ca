"""Kueue runs, serves its webhooks, and speaks the version that the policy is written in."""

from collections.abc import Callable
from typing import Any

testinfra_hosts = ["ansible://control_plane"]

FLAVOR = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: state-test}
spec: {nodeLabels: {a: b}}
"""
#: borrowingLimit without a cohort: only the webhook or the schema of Kueue itself can know that this is wrong.
WRONG = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: state-test}
spec:
  resourceGroups:
    - coveredResources: [cpu]
      flavors:
        - name: state-test
          resources: [{name: cpu, nominalQuota: 1, borrowingLimit: 1}]
"""


def test_it_runs(cluster: Any, eventually: Callable[..., None]) -> None:
    def check() -> None:
        found = cluster.get("deployment", "kueue-controller-manager", "kueue-system")
        assert found["status"].get("readyReplicas", 0) == found["spec"]["replicas"] > 0

    eventually(check)


def test_the_resources_of_the_policy_are_served(cluster: Any) -> None:
    served = cluster.kubectl("api-resources --api-group=kueue.x-k8s.io -o name").split()
    wanted = ["topologies", "resourceflavors", "cohorts", "clusterqueues", "localqueues", "admissionchecks"]
    assert {f"{name}.kueue.x-k8s.io" for name in wanted} <= set(served)


def test_the_webhook_accepts_what_is_right(cluster: Any) -> None:
    assert "created" in cluster.kubectl("create --dry-run=server -f -", stdin=FLAVOR)


def test_and_refuses_what_is_wrong(cluster: Any) -> None:
    done = cluster.run("create --dry-run=server -f -", stdin=WRONG)
    assert done.rc != 0
    assert "borrowingLimit" in done.stderr


def test_nothing_stays_behind_from_a_dry_run(cluster: Any) -> None:
    assert "state-test" not in cluster.names("resourceflavors.kueue.x-k8s.io")


def test_the_system_namespaces_are_left_alone(cluster: Any) -> None:
    text = cluster.kubectl("get configmap kueue-manager-config -n kueue-system -o jsonpath='{.data}'")
    for namespace in ("kube-system", "kueue-system", "myriad-system"):
        assert namespace in text
