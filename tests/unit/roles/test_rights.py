"""What every account of the platform and every team may do, as the roles render it: the table of docs/rights.md."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from .rendering import ROOT, rendered

Json = dict[str, Any]
Right = tuple[str, str, str]

TABLE = ROOT / "docs/rights.md"
IMAGE = f"registry.invalid/x@sha256:{'0' * 64}"
#: Roles with accounts of their own, and what a bundle would give them.
GIVEN: dict[str, Json] = {
    "node_portrait": {"node_portrait_image": IMAGE},
    "scheduler_extension": {"scheduler_extension_image": IMAGE},
    "metrics": {"metrics_prometheus_image": IMAGE, "metrics_dcgm_exporter_image": IMAGE},
    "training_operator": {"training_operator_image": IMAGE, "training_operator_init_image": IMAGE},
    "device_plugin": {"device_plugin_image": IMAGE},
}
#: With these an account gives itself every other right.
NEVER = {"escalate", "bind", "impersonate"}


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    """Everything that the roles send, and what a description with teams becomes."""
    found: list[Json] = []
    for role, given in GIVEN.items():
        said = rendered(
            tmp_path_factory.mktemp(role),
            role=role,
            inventory="lab-ha",
            templates={"objects": "objects.yaml.j2"},
            expressions={"described": "site_fleet.access"},
            given=given,
        )
        found += [item for item in yaml.safe_load_all(said["objects"]) if item]
    return found + list(said["described"])


def accounts(objects: list[Json]) -> Iterator[tuple[str, str, Json]]:
    """(account, where, rule) of every rule that a binding gives somebody; teams are all called `a team`."""
    roles = {
        (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o
        for o in objects
        if "Role" in o["kind"]
    }
    for binding in objects:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        namespace = binding["metadata"].get("namespace", "")
        ref = binding["roleRef"]
        role = roles[ref["kind"], namespace if ref["kind"] == "Role" else "", ref["name"]]
        for subject in binding["subjects"]:
            is_account = subject["kind"] == "ServiceAccount"
            who = f"{subject['namespace']}/{subject['name']}" if is_account else "a team"
            if subject["name"].startswith("system:"):
                who = subject["name"]
            where = namespace or "cluster"
            if who == "a team" and namespace and namespace != "myriad-system":
                where = "its namespaces"
            for rule in role["rules"]:
                yield who, where, rule


def things(rule: Json) -> Iterator[str]:
    """What a rule is about, one by one: `jobs.batch`, `configmaps: myriad-policy`, `/metrics`."""
    yield from rule.get("nonResourceURLs", [])
    names = rule.get("resourceNames")
    for group, resource in itertools.product(rule.get("apiGroups", []), rule.get("resources", [])):
        thing = f"{resource}.{group}" if group else resource
        yield thing + (f": {', '.join(sorted(names))}" if names else "")


def rights(objects: list[Json]) -> dict[Right, set[str]]:
    """The verbs by (account, where, thing)."""
    found: dict[Right, set[str]] = defaultdict(set)
    for who, where, rule in accounts(objects):
        for thing in things(rule):
            found[who, where, thing] |= set(rule["verbs"])
    return dict(found)


def rows(found: dict[Right, set[str]]) -> list[str]:
    return [
        f"| {who} | {where} | {thing} | {' '.join(sorted(v))} |" for (who, where, thing), v in sorted(found.items())
    ]


def test_the_table_says_what_each_may_do_and_nobody_may_more(objects: list[Json]) -> None:
    wanted = [
        line for line in TABLE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| account")
    ]
    now = rows(rights(objects))
    more = "\n".join(row for row in now if row not in wanted)
    less = "\n".join(row for row in wanted if row not in now)
    assert now == wanted, f"may do more than {TABLE.name} says:\n{more}\nmay not do what it says:\n{less}"


def test_nobody_may_do_everything_or_give_rights(objects: list[Json]) -> None:
    found = rights(objects)
    assert len(found) > 60
    assert {who for who, _, _ in found} >= {"myriad-system/myriad-scheduler", "myriad-system/myriad-agent", "a team"}
    for (who, where, thing), verbs in found.items():
        assert not {"*", *NEVER} & verbs, f"{who} may {verbs} {thing}"
        assert "*" not in thing and not thing.startswith("nodes/proxy"), f"{who}: {thing}"
        assert ".rbac.authorization" not in thing, f"{who} may {verbs} {thing} ({where})"


@pytest.mark.parametrize("thing", ["secrets", "pods/exec", "pods/attach", "serviceaccounts/token", "configmaps"])
def test_nobody_has_it_in_every_namespace(objects: list[Json], thing: str) -> None:
    assert [right for right in rights(objects) if right[1:] == ("cluster", thing)] == []


def test_nobody_runs_pods_in_the_namespaces_of_others(objects: list[Json]) -> None:
    runs = {("cluster", kind) for kind in ("pods", "jobs.batch", "deployments.apps", "daemonsets.apps")}
    assert [right for right, verbs in rights(objects).items() if right[1:] in runs and "create" in verbs] == []


def test_a_pod_without_an_account_of_its_own_has_no_token(objects: list[Json]) -> None:
    specs = {
        f"{o['kind']} {o['metadata']['name']}": (o["spec"].get("jobTemplate") or o)["spec"]["template"]["spec"]
        for o in objects
        if o["kind"] in ("Deployment", "DaemonSet", "CronJob", "StatefulSet", "Job")
    }
    assert len(specs) >= 6, sorted(specs)
    for name, spec in specs.items():
        assert spec.get("serviceAccountName") or spec.get("automountServiceAccountToken") is False, name


def test_a_right_that_is_new_would_be_found() -> None:
    role = {
        "kind": "ClusterRole",
        "metadata": {"name": "r"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    }
    subject = {"kind": "ServiceAccount", "namespace": "n", "name": "a"}
    bound = {"kind": "ClusterRoleBinding", "metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}}
    found: list[Json] = [role, {**bound, "subjects": [subject]}]
    assert rows(rights(found)) == ["| n/a | cluster | *.* | * |"]
    with pytest.raises(AssertionError):
        test_nobody_may_do_everything_or_give_rights(found * 2)
