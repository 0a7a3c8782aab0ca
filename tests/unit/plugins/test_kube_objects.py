"""The action kube_objects through ansible-playbook, against an API server in the process of the test."""

from __future__ import annotations

import json

import pytest
import yaml

CHART = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Objects
      myriad.gpu.kube_objects:
        kubeconfig: KUBECONFIG
        set: queues
        objects: [{apiVersion: v1, kind: Namespace, metadata: {name: team}}]
        chart:
          program: HELM
          path: CHART
          name: queues
          namespace: team
          values: "color: red"
        certificates:
          - {namespace: team, name: cert, dns_names: [queues.team.svc], authority: queues-ca}
"""
HELM = """#!/bin/sh
# template NAME CHART --namespace NAMESPACE --include-crds --values -
if ! grep -q "color: red"; then echo "Error: values don't meet the specifications" >&2; exit 1; fi
cat <<END
---
apiVersion: v1
kind: ConfigMap
metadata: {name: $2, namespace: $5}
data: {chart: "$3"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: $2, namespace: $5}
spec: {replicas: 1}
END
"""
PLAY = """
- name: cluster
  hosts: all
  gather_facts: false
  vars: {color: red}
  tasks:
    - name: Objects
      myriad.gpu.kube_objects:
        kubeconfig: KUBECONFIG
        set: policy
        objects:
          - {apiVersion: v1, kind: Namespace, metadata: {name: team}}
        text: |
          ---
          {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: team}, data: {color: "{{ color }}"}}
          ---
        prune: true
"""


@pytest.fixture
def kubeconfig(fake_api, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": fake_api.url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path


def items(tmp_path):
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    return next(row for row in rows if row["event"] == "result")["changed_items"]


def test_predicts_applies_and_then_changes_nothing(ansible, fake_api, kubeconfig, tmp_path):
    play = PLAY.replace("KUBECONFIG", str(kubeconfig))
    # No connection is made to the host: the API is asked from the controller.
    assert ansible(play, "--check").returncode == 0
    predicted = items(tmp_path)
    assert fake_api.get("namespaces", "team") is None
    done = ansible(play, "--diff")
    assert done.returncode == 0, done.stdout + done.stderr
    assert items(tmp_path) == predicted == ["ConfigMap team/a", "Namespace team"]
    assert "+  color: red" in done.stdout
    writes = fake_api.count("PATCH")
    assert "ok 1" in ansible(play).stdout
    # Nothing is sent either: values from ansible compare with what the server says.
    assert fake_api.count("PATCH") == writes


def test_a_cluster_that_is_not_there_yet_is_predicted_and_an_error_in_a_run(ansible, tmp_path):
    play = PLAY.replace("KUBECONFIG", str(tmp_path / "nowhere"))
    assert ansible(play, "--check").returncode == 0
    assert items(tmp_path) == ["ConfigMap team/a", "Namespace team"]
    done = ansible(play)
    assert done.returncode == 2
    assert "nowhere" in done.stdout


def test_text_that_is_no_yaml_is_told(ansible, kubeconfig):
    done = ansible(
        PLAY.replace("KUBECONFIG", str(kubeconfig)).replace("{apiVersion: v1, kind: ConfigMap", "{apiVersion: [v1")
    )
    assert done.returncode == 2
    assert "the option text is not valid YAML" in done.stdout


@pytest.fixture
def chart_play(kubeconfig, tmp_path):
    helm, chart = tmp_path / "helm", tmp_path / "chart.tgz"
    helm.write_text(HELM)
    helm.chmod(0o755)
    chart.write_text("")
    return CHART.replace("KUBECONFIG", str(kubeconfig)).replace("HELM", str(helm)).replace("CHART", str(chart))


def test_a_chart_and_its_first_certificate(ansible, fake_api, chart_play, tmp_path):
    assert ansible(chart_play, "--check").returncode == 0
    predicted = items(tmp_path)
    done = ansible(chart_play, "--diff")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        items(tmp_path)
        == predicted
        == ["ConfigMap team/queues", "Deployment team/queues", "Namespace team", "certificate in Secret team/cert"]
    )
    assert fake_api.get("configmaps", "queues", "team")["data"]["chart"].endswith("chart.tgz")
    secret = fake_api.get("secrets", "cert", "team")
    assert sorted(secret["data"]) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
    # Before the workload that mounts it, and never on a screen.
    writes = [path.rpartition("/")[2] for method, path in fake_api.requests if method == "PATCH"]
    assert writes.index("cert") < writes.index("queues", writes.index("cert"))
    assert secret["data"]["tls.key"] not in done.stdout
    # It belongs to the program that renews it by now.
    secret["data"]["tls.crt"] = "renewed"
    assert "ok 1" in ansible(chart_play).stdout
    assert fake_api.get("secrets", "cert", "team")["data"]["tls.crt"] == "renewed"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("color: red", "color: blue", "helm does not render it:\n  Error: values don't meet the specifications"),
        ("chart.tgz", "none.tgz", "the chart is not at"),
        ("/helm", "/none", "helm is not at"),
    ],
    ids=["values", "no chart", "no helm"],
)
def test_a_chart_that_is_not_rendered_is_told(ansible, chart_play, old, new, words):
    done = ansible(chart_play.replace(old, new))
    assert done.returncode == 2
    assert words in done.stdout.replace("\n    ", "\n  ").replace("\n      ", "\n  ")
