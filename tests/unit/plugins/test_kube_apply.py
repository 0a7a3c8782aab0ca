"""myriad.kube.apply against an API server in the process."""

from __future__ import annotations

import copy

import pytest

from myriad.errors import InputError
from myriad.kube.apply import Applier, ApplyError, Options, predicted_without_cluster, workloads
from myriad.kube.client import Api
from myriad.kube.objects import identity, is_subset, not_ready, quantity, stamped, to_yaml

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "queues.example.dev"},
    "spec": {
        "group": "example.dev",
        "scope": "Cluster",
        "names": {"kind": "Queue", "plural": "queues"},
        "versions": [{"name": "v1"}],
    },
}


def config_map(name: str, namespace: str = "team", **data: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }


NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}


def run(fake, objects, **options):
    api = Api(fake.url, verify=False)
    try:
        return Applier(api, Options(set_name="policy", timeout_s=5, **options)).apply(objects)
    finally:
        api.close()


def test_first_run_creates_and_the_second_sends_nothing(fake_api):
    objects = [
        config_map("a", x="1"),
        NAMESPACE,
        {"kind": "Queue", "apiVersion": "example.dev/v1", "metadata": {"name": "q"}},
        CRD,
    ]
    first = run(fake_api, objects)
    assert first.created == [
        "ConfigMap team/a",
        "CustomResourceDefinition queues.example.dev",
        "Namespace team",
        "Queue q",
    ]
    assert fake_api.get("configmaps", "a", "team")["metadata"]["labels"] == {"myriad.dev/set": "policy"}
    writes = fake_api.count("PATCH")
    second = run(fake_api, objects)
    assert not second.is_changed
    assert len(second.unchanged) == 4
    assert fake_api.count("PATCH") == writes


def test_many_objects_cost_one_list_and_no_write_when_nothing_changed(fake_api):
    objects = [NAMESPACE] + [config_map(f"c{number}", x=str(number)) for number in range(60)]
    run(fake_api, objects)
    fake_api.requests.clear()
    run(fake_api, objects)
    # Discovery of v1, and one list each of Namespace and ConfigMap.
    assert len(fake_api.requests) == 3


@pytest.mark.parametrize("converged", [False, True])
def test_prediction_equals_what_the_run_then_does(fake_api, converged):
    start = [NAMESPACE, config_map("a", x="1", y="2"), config_map("gone", x="1"), CRD]
    if converged:
        run(fake_api, start)
    objects = [NAMESPACE, config_map("a", x="1"), config_map("new", x="1"), CRD]
    objects.append({"apiVersion": "example.dev/v1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {"n": 1}})
    version = fake_api.version
    predicted = run(fake_api, objects, dry_run=True, prune=True)
    assert fake_api.version == version
    done = run(fake_api, objects, prune=True)
    for name in ("created", "changed", "pruned"):
        assert getattr(predicted, name) == getattr(done, name), name
    assert [entry["after_header"] for entry in predicted.diff] == [entry["after_header"] for entry in done.diff]
    assert predicted.is_changed
    again = run(fake_api, objects, prune=True, dry_run=True)
    assert not again.is_changed


def test_a_field_that_is_no_longer_wanted_is_removed(fake_api):
    run(fake_api, [NAMESPACE, config_map("a", x="1", y="2")])
    outcome = run(fake_api, [NAMESPACE, config_map("a", x="1")])
    assert outcome.changed == ["ConfigMap team/a"]
    assert fake_api.get("configmaps", "a", "team")["data"] == {"x": "1"}
    (entry,) = outcome.diff
    assert "y: '2'" in entry["before"]
    assert "y: '2'" not in entry["after"]


def test_a_change_by_hand_is_found_and_taken_back(fake_api):
    objects = [NAMESPACE, config_map("a", x="1")]
    run(fake_api, objects)
    fake_api.seed("v1", "configmaps", config_map("a", x="by hand"), manager="kubectl")
    assert run(fake_api, objects, dry_run=True).changed == ["ConfigMap team/a"]
    assert run(fake_api, objects).changed == ["ConfigMap team/a"]
    assert fake_api.get("configmaps", "a", "team")["data"] == {"x": "1"}


def test_prune_removes_what_left_the_set_shows_it_and_keeps_protected_kinds(fake_api):
    run(fake_api, [NAMESPACE, config_map("a", x="1"), config_map("b", x="1")])
    fake_api.seed("v1", "configmaps", config_map("foreign", x="1"))
    outcome = run(fake_api, [config_map("a", x="1")], prune=True, prune_kinds=(("v1", "Namespace"),))
    assert outcome.pruned == ["ConfigMap team/b"]
    assert outcome.kept == ["Namespace team (no longer wanted; objects of this kind are never pruned)"]
    assert fake_api.get("configmaps", "b", "team") is None
    assert fake_api.get("configmaps", "foreign", "team") is not None
    assert fake_api.get("namespaces", "team") is not None
    assert [(entry["before_header"], entry["after"]) for entry in outcome.diff] == [("ConfigMap team/b", "")]


def test_prune_reaches_a_kind_of_which_nothing_is_wanted_any_more(fake_api):
    run(fake_api, [NAMESPACE, config_map("b", x="1")])
    outcome = run(fake_api, [NAMESPACE], prune=True, prune_kinds=(("v1", "ConfigMap"),))
    assert outcome.pruned == ["ConfigMap team/b"]


def test_existing_only_changes_labels_and_takes_back_what_it_set(fake_api):
    node = {
        "kind": "Node",
        "metadata": {"name": "gpu1", "labels": {"kubernetes.io/hostname": "gpu1"}},
        "spec": {"podCIDR": "x"},
    }
    fake_api.seed("v1", "nodes", node)

    def wanted(name, **labels):
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}

    outcome = run(fake_api, [wanted("gpu1", rack="r1", old="x"), wanted("gpu2", rack="r1")], existing_only=True)
    assert outcome.changed == ["Node gpu1"]
    assert outcome.missing == ["Node gpu2"]
    again = run(fake_api, [wanted("gpu1", rack="r1", old="x")], existing_only=True)
    assert again.unchanged == ["Node gpu1"]
    run(fake_api, [wanted("gpu1", rack="r1")], existing_only=True)
    live = fake_api.get("nodes", "gpu1")
    assert live["metadata"]["labels"] == {"kubernetes.io/hostname": "gpu1", "rack": "r1"}
    assert live["spec"] == {"podCIDR": "x"}


def test_a_foreign_field_is_a_conflict_that_names_the_way_out(fake_api):
    fake_api.seed("v1", "namespaces", {"kind": "Namespace", **copy.deepcopy(NAMESPACE)})
    fake_api.seed("v1", "configmaps", {"kind": "ConfigMap", **config_map("a", x="theirs")}, manager="helm")
    with pytest.raises(ApplyError, match=r'conflict with "helm"') as caught:
        run(fake_api, [config_map("a", x="ours")])
    assert "force_conflicts" in str(caught.value)
    assert run(fake_api, [config_map("a", x="ours")], force_conflicts=True).changed == ["ConfigMap team/a"]


def test_a_webhook_that_comes_up_late_is_waited_for(fake_api):
    fake_api.webhook_down.add("configmaps")
    fake_api.webhook_failures_left = 2
    outcome = run(fake_api, [NAMESPACE, config_map("a", x="1")])
    assert "ConfigMap team/a" in outcome.created


def test_a_webhook_that_never_answers_is_named_at_the_deadline(fake_api):
    fake_api.webhook_down.add("configmaps")
    api = Api(fake_api.url, verify=False)
    with pytest.raises(ApplyError, match=r"v.kueue.x-k8s.io"):
        Applier(api, Options(set_name="policy", timeout_s=0.6)).apply([NAMESPACE, config_map("a", x="1")])
    api.close()


def test_a_kind_that_nothing_defines_is_an_error_at_once(fake_api):
    with pytest.raises(ApplyError, match="does not serve Cohort"):
        run(fake_api, [{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "c"}}])


def test_all_failures_of_a_batch_are_told_together(fake_api):
    with pytest.raises(ApplyError) as caught:
        run(fake_api, [config_map("a", "nowhere", x="1"), config_map("b", "nowhere", x="1")])
    assert "2 of 2 objects" in str(caught.value)
    assert "the namespace does not exist" in str(caught.value)


def test_wait_is_over_when_ready_and_tells_why_not(fake_api):
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": "d"}}, "replicas": 1},
    }
    api = Api(fake_api.url, verify=False)
    applier = Applier(api, Options(set_name="policy", timeout_s=1.0))
    applier.apply([NAMESPACE, deployment])
    applier.wait_for([(key, None) for key in workloads([NAMESPACE, deployment])])
    fake_api.objects[("deployments", "team", "d")]["status"]["availableReplicas"] = 0
    fake_api.objects[("pods", "team", "d-1")] = {
        "kind": "Pod",
        "metadata": {"name": "d-1", "namespace": "team", "labels": {"app": "d"}},
        "status": {
            "containerStatuses": [
                {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
            ]
        },
    }
    applier.deadline = 0
    with pytest.raises(ApplyError) as caught:
        applier.wait_for([(identity(deployment), None)])
    assert "1 of 1 pods are updated, 0 are ready" in str(caught.value)
    assert "pod d-1, container c: ImagePullBackOff no such image" in str(caught.value)
    api.close()


def test_wait_dry_run_waits_for_the_webhook_of_the_object(fake_api):
    fake_api.seed("v1", "namespaces", {"kind": "Namespace", **copy.deepcopy(NAMESPACE)})
    fake_api.webhook_down.add("configmaps")
    fake_api.webhook_failures_left = 2
    api = Api(fake_api.url, verify=False)
    Applier(api, Options(set_name="policy", timeout_s=5)).wait_dry_run([config_map("probe", x="1")])
    assert fake_api.get("configmaps", "probe", "team") is None
    api.close()


def test_without_a_cluster_everything_is_predicted_as_new():
    outcome = predicted_without_cluster([NAMESPACE, CRD], Options(set_name="policy"), "connection refused")
    assert outcome.created == ["CustomResourceDefinition queues.example.dev", "Namespace team"]
    assert "connection refused" in outcome.notes[0]


@pytest.mark.parametrize(
    ("wanted", "live", "same"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"cpu": "1000m"}, {"cpu": "1"}, True),
        ({"memory": "1024Mi"}, {"memory": "1Gi"}, True),
        ({"cpu": 1}, {"cpu": "1"}, True),
        ({"flag": True}, {"flag": 1}, False),
        ({"flag": "true"}, {"flag": True}, False),
        ({"list": [1, 2]}, {"list": [2, 1]}, False),
        ({"list": [{"name": "a"}]}, {"list": [{"name": "a", "defaulted": 1}]}, True),
        ({"list": []}, {}, True),
        ({"empty": {}}, {}, True),
        ({"gone": None}, {}, True),
        ({"a": {"b": 1}}, {"a": None}, False),
        ({"name": "x1"}, {"name": "x2"}, False),
    ],
)
def test_subset(wanted, live, same):
    assert is_subset(wanted, live) is same


def test_quantity_reads_what_kubernetes_writes():
    assert quantity("100m") == quantity("0.1")
    assert quantity("2Ki") == 2048
    assert quantity("1e3") == 1000
    assert quantity("eight") is None
    assert quantity(True) is None


def test_digest_does_not_depend_on_an_earlier_stamp():
    once = stamped(NAMESPACE, set_name="policy", annotation="myriad.dev/applied")
    twice = stamped(once, set_name="policy", annotation="myriad.dev/applied")
    assert once == twice


def test_content_of_a_secret_is_never_shown():
    text = to_yaml({"kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "hunter2"}})
    assert "hunter2" not in text
    assert "token" in text


def test_an_object_without_a_name_is_named_in_the_error():
    with pytest.raises(InputError, match=r"metadata\.name"):
        identity({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "x-"}})


def test_daemonset_without_nodes_is_ready_and_a_stale_status_is_not():
    assert not_ready({"kind": "DaemonSet", "metadata": {"generation": 1}, "status": {"observedGeneration": 1}}) is None
    stale = {"kind": "DaemonSet", "metadata": {"generation": 2}, "status": {"observedGeneration": 1}}
    assert "has not seen" in not_ready(stale)


def test_a_cluster_wide_object_with_a_namespace_is_found_again_and_not_pruned(fake_api):
    """Charts write the release's namespace on objects that have none."""
    webhook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "w", "namespace": "team"},
        "webhooks": [{"name": "v.example.dev"}],
    }
    run(fake_api, [NAMESPACE, webhook], prune=True)
    again = run(fake_api, [NAMESPACE, webhook], prune=True)
    assert not again.is_changed
    assert fake_api.get("validatingwebhookconfigurations", "w") is not None
