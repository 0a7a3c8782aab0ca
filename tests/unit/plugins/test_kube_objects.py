"""The action kube_objects through ansible-playbook, against an API server in the process of the test."""

from __future__ import annotations

import json

import pytest
import yaml

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
    assert "ok 1" in ansible(play).stdout


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
