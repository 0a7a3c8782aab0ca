"""The action cluster_state through ansible-playbook, and the record of a cluster, against an API server in the test."""

from __future__ import annotations

import json

import pytest
import yaml

from myriad.kube.apply import Applier, Options
from myriad.kube.client import Api
from myriad.kube.objects import Identity
from myriad.kube.record import Applied, look, save

SYSTEM = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "myriad-system"}}
NODE = {"kind": "Node", "metadata": {"name": "gpu1"}}
SETS = [
    Applied("v1", "ConfigMap", "myriad-policy"),
    Applied("v1", "Namespace", "myriad-policy"),
    Applied("v1", "Node", "myriad-node-labels", existing_only=True),
]
DEPLOYMENT = Identity("apps/v1", "Deployment", "myriad-system", "kueue")

PLAY = """
- name: cluster
  hosts: all
  gather_facts: false
  vars: {color: red}
  tasks:
    - name: Look
      myriad.gpu.cluster_state:
        kubeconfig: KUBECONFIG
        inputs: {color: "{{ color }}"}
        full: "{{ full | default(false) }}"
        ignore_vars: [color, full]
      register: found

    - name: Objects
      myriad.gpu.kube_objects:
        kubeconfig: KUBECONFIG
        set: policy
        objects:
          - {apiVersion: v1, kind: Namespace, metadata: {name: myriad-system}}
          - apiVersion: v1
            kind: ConfigMap
            metadata: {name: a, namespace: myriad-system}
            data: {color: "{{ color }}"}
      when: not found.converged

    - name: Record
      myriad.gpu.cluster_state: {kubeconfig: KUBECONFIG, state: converged}
      when: not found.converged
      tags: [record]

    - name: Tell
      ansible.builtin.debug: {msg: "{{ found.converged }} {{ found.drift }}"}
"""


def config_map(name: str, **data: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "myriad-system"},
        "data": data,
    }


@pytest.fixture
def api(fake_api):
    client = Api(fake_api.url, verify=False)
    yield client
    client.close()


@pytest.fixture
def recorded(fake_api, api):
    """A cluster with two sets, as a complete run left it."""
    fake_api.seed("v1", "nodes", NODE)
    Applier(api, Options(set_name="policy")).apply([SYSTEM, config_map("a", x="1", y="2")])
    labels = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu1", "labels": {"myriad.dev/rack": "r1"}}}
    Applier(api, Options(set_name="node-labels", existing_only=True, force_conflicts=True)).apply([labels])
    save(api, "inputs", SETS)
    return fake_api


def test_a_cluster_that_nobody_touched_is_as_recorded_in_a_few_calls(recorded, api):
    recorded.requests.clear()
    assert look(api, "inputs").converged
    assert recorded.count("PATCH") == 0
    # The record, the discovery of v1, and one list for each of three kinds.
    assert len(recorded.requests) == 5


def by_hand(fake, plural, name, manager="kubectl", namespace="", **changes):
    """Change fields as somebody else does, taking them over."""
    api_version = "v1"
    kind = {"configmaps": "ConfigMap", "nodes": "Node"}[plural]
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **changes.pop("metadata", {})}
    obj = {"kind": kind, "metadata": metadata, **changes}
    fake.seed(api_version, plural, obj, manager=manager)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda fake: by_hand(fake, "configmaps", "a", namespace="myriad-system", data={"x": "other"}),
            "ConfigMap (v1): not as applied",
        ),
        (lambda fake: fake.objects.pop(("configmaps", "myriad-system", "a")), "ConfigMap (v1): not as applied"),
        (
            lambda fake: by_hand(fake, "nodes", "gpu1", metadata={"labels": {"myriad.dev/rack": "r9"}}),
            "Node (v1): not as applied",
        ),
        (lambda fake: fake.seed("v1", "nodes", {"kind": "Node", "metadata": {"name": "gpu2"}}), "Node (v1)"),
        (
            lambda fake: fake.objects[("configmaps", "myriad-system", "a")]["metadata"]["annotations"].clear(),
            "ConfigMap (v1): not as applied",
        ),
        (lambda fake: fake.objects.pop(("configmaps", "myriad-system", "myriad-site")), "no record"),
    ],
    ids=["a value", "an object gone", "a label of a node", "a new node", "an annotation", "the record"],
)
def test_a_change_by_hand_is_found(recorded, api, change, sentence):
    change(recorded)
    found = look(api, "inputs")
    assert not found.converged
    assert any(sentence in text for text in found.drift), found.drift


def test_what_others_add_is_theirs(recorded, api):
    by_hand(recorded, "configmaps", "a", namespace="myriad-system", data={"z": "mine"})
    by_hand(recorded, "nodes", "gpu1", metadata={"labels": {"team.example/x": "1"}})
    assert look(api, "inputs").converged


def test_a_value_that_is_applied_anew_is_another_one(recorded, api):
    """A run that was broken off after its objects came, and then the old description again."""
    Applier(api, Options(set_name="policy")).apply([SYSTEM, config_map("a", x="changed", y="2")])
    assert not look(api, "inputs").converged


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("version", "0", "another version"), ("digests", "{", "cannot be read"), ("applied", "[[1]]", "cannot be read")],
)
def test_a_record_that_does_not_fit_counts_as_none(recorded, api, key, value, words):
    recorded.get("configmaps", "myriad-site", "myriad-system")["data"][key] = value
    assert words in look(api, "inputs").drift[0]


def test_other_inputs_and_what_is_not_ready_are_told(recorded, api):
    assert "description" in look(api, "others").drift[0]
    assert look(api, "inputs", [DEPLOYMENT]).drift == ["Deployment myriad-system/kueue: it does not exist"]


@pytest.fixture
def kubeconfig(fake_api, tmp_path):
    path = tmp_path / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": fake_api.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_second_run_applies_nothing_and_a_partial_one_records_nothing(ansible, fake_api, kubeconfig, tmp_path):
    play = PLAY.replace("KUBECONFIG", str(kubeconfig))

    def run(*arguments):
        done = ansible(play, "-v", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "False ['the cluster has no record" in run("--skip-tags", "nothing")
    assert fake_api.get("configmaps", "myriad-site", "myriad-system") is None
    assert "no record" in run()
    assert fake_api.get("configmaps", "myriad-site", "myriad-system") is not None
    writes = fake_api.count("PATCH")
    assert "True []" in run()
    assert "True []" in run("--check")
    assert "everything was asked" in run("-e", "full=true")
    assert "another one than in the last" in run("-e", "color=blue")
    assert fake_api.get("configmaps", "a", "myriad-system")["data"]["color"] == "blue"
    # The blue object, and the record twice.
    assert fake_api.count("PATCH") == writes + 3
    kubeconfig.unlink()
    assert "there is no cluster yet" in run("--check")
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    looks = [row for row in rows if row.get("task") == "Look"]
    assert not any(row["changed"] for row in looks)
