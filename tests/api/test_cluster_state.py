"""The look at a cluster against a real API server: fields have owners there, and a change by hand takes them over.

Objects are those of Kueue's own chart, applied as the role does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import apiserver
import pytest
import yaml
from apiserver import ControlPlane

from myriad.kube.apply import Applier, Options
from myriad.kube.certificates import Certificate
from myriad.kube.chart import render
from myriad.kube.client import Api, connect
from myriad.kube.kinds import SECRETS
from myriad.kube.objects import flatten, identity
from myriad.kube.record import Applied, look, save

pytestmark = [pytest.mark.slow, apiserver.AT_HAND]

SYSTEM = "kueue-system"
QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ClusterQueue",
    "metadata": {"name": "vision"},
    "spec": {
        "namespaceSelector": {},
        "resourceGroups": [
            {
                "coveredResources": ["nvidia.com/gpu"],
                "flavors": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]}],
            }
        ],
    },
}
QUOTA = [{"op": "replace", "path": "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota", "value": "1"}]
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu1"}}
CERTIFICATE = Certificate(SYSTEM, "kueue-webhook-server-cert", ("kueue-webhook-service.kueue-system.svc",), "kueue-ca")


class Site:
    """A cluster and the sets that a run applies to it."""

    def __init__(self, plane: ControlPlane, api: Api) -> None:
        self.plane, self.api = plane, api
        text = render(
            Path(apiserver.find("helm") or ""), Path(apiserver.find_chart() or ""), name="kueue", namespace=SYSTEM
        )
        # Nobody serves the webhooks here.
        webhooks = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "APIService")
        self.kueue = [obj for obj in yaml.load_all(text, yaml.CSafeLoader) if obj and obj["kind"] not in webhooks]
        self.kueue.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        for obj in self.kueue:
            if obj["kind"] == "CustomResourceDefinition":
                obj["spec"].pop("conversion", None)
        self.policy = [QUEUE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}]

    def run(self) -> tuple[list[str], float]:
        """Apply everything and record it; what was sent, and the seconds of applying."""
        began = time.monotonic()
        labels = {**NODE, "metadata": {"name": "gpu1", "labels": {"myriad.dev/rack": "r1"}}}
        applied, sent = [], []
        for options, objects in (
            (Options(set_name="kueue", prune=True, certificates=(CERTIFICATE,)), self.kueue),
            (Options(set_name="policy", prune=True), self.policy),
            (Options(set_name="node-labels", existing_only=True, force_conflicts=True), [labels]),
        ):
            outcome = Applier(self.api, options).apply(objects)
            sent += [*outcome.created, *outcome.changed, *outcome.pruned]
            kinds = {(key.api_version, key.kind) for key in map(identity, flatten(objects))}
            applied += [Applied(*kind, options.manager, options.existing_only) for kind in kinds]
        took = time.monotonic() - began
        save(self.api, "inputs", applied)
        return sent, took

    def drift(self) -> list[str]:
        return look(self.api, "inputs").drift


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with apiserver.api_server(tmp_path_factory.mktemp("plane") / "work") as plane:
        plane.apply([NODE])
        api = connect(plane.kubeconfig)
        made = Site(plane, api)
        made.run()
        yield made
        api.close()


def test_a_second_run_sends_nothing_and_a_look_costs_a_part_of_it(site: Site) -> None:
    began = time.monotonic()
    assert site.drift() == []
    looked = time.monotonic() - began
    sent, applied = site.run()
    assert sent == []
    assert site.drift() == []
    print(json.dumps({"look_s": round(looked, 3), "apply_unchanged_s": round(applied, 3), "objects": len(site.kueue)}))


@pytest.mark.parametrize(
    ("by_hand", "kind"),
    [
        (["patch", "clusterqueue", "vision", "--type=json", "-p", json.dumps(QUOTA)], "ClusterQueue"),
        (["delete", "clusterqueue", "vision"], "ClusterQueue"),
        (["label", "node", "gpu1", "myriad.dev/rack=elsewhere", "--overwrite"], "Node"),
        (["label", "node", "gpu1", "myriad.dev/rack-"], "Node"),
        (["scale", "deployment", "kueue-controller-manager", "-n", SYSTEM, "--replicas=0"], "Deployment"),
        (["set", "image", "deployment/kueue-controller-manager", "-n", SYSTEM, "manager=other:1"], "Deployment"),
        (["delete", "clusterrole", "kueue-manager-role"], "ClusterRole"),
        (["patch", "clusterrole", "kueue-manager-role", "--type=json", "-p", '[{"op":"remove","path":"/rules/0"}]'],
         "ClusterRole"),
        (["patch", "configmap", "kueue-manager-config", "-n", SYSTEM, "--type=merge",
          "-p", '{"data":{"controller_manager_config.yaml":"{}"}}'], "ConfigMap"),
        (["delete", "crd", "topologies.kueue.x-k8s.io"], "CustomResourceDefinition"),
        (["label", "namespace", SYSTEM, "myriad.dev/set-"], "Namespace"),
        (["annotate", "serviceaccount", "kueue-controller-manager", "-n", SYSTEM, "myriad.dev/applied=x",
          "--overwrite"], "ServiceAccount"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_change_by_hand_is_found_and_the_next_run_takes_it_back(site: Site, by_hand: list[str], kind: str) -> None:
    assert site.drift() == []
    site.plane.kubectl(*by_hand)
    assert [text for text in site.drift() if text.startswith(f"{kind} (")], site.drift()
    sent, _took = site.run()
    assert sent
    assert site.drift() == []


def test_what_others_add_and_the_status_are_no_difference(site: Site) -> None:
    site.plane.kubectl("label", "node", "gpu1", "team.example/mine=1")
    site.plane.kubectl("annotate", "clusterqueue", "vision", "team.example/note=x")
    site.plane.kubectl("create", "configmap", "mine", "-n", SYSTEM)
    ready = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    site.plane.kubectl("patch", "node", "gpu1", "--subresource=status", "--type=merge", "-p", ready)
    assert site.drift() == []
    assert site.run()[0] == []


def test_a_node_that_joined_is_a_difference(site: Site) -> None:
    site.plane.apply([{**NODE, "metadata": {"name": "gpu2"}}])
    assert site.drift() == ["Node (v1): not as applied"]
    site.run()
    assert site.drift() == []


def test_a_certificate_that_was_renewed_stays(site: Site) -> None:
    before = site.api.get(SECRETS, CERTIFICATE.name, namespace=SYSTEM)["data"]
    assert sorted(before) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    renewed = json.dumps({"data": {"tls.crt": "cmVuZXdlZA=="}})
    site.plane.kubectl("patch", "secret", CERTIFICATE.name, "-n", SYSTEM, "--type=merge", "-p", renewed)
    assert site.drift() == []
    assert site.run()[0] == []
    after = site.api.get(SECRETS, CERTIFICATE.name, namespace=SYSTEM)["data"]
    assert after == {**before, "tls.crt": "cmVuZXdlZA=="}
