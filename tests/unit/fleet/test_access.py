"""What the people of a team may do, as objects. tests/api asks the API server whether it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from myriad.fleet import Checked
from myriad.fleet.access import ACCESS_LABELS, access_objects


def team(**values: Any) -> dict[str, Any]:
    return {"namespaces": ["vision"], "quota": {"h100": 24}, "cohort": "research", **values}


def subjects(checked: Callable[..., Checked], **values: Any) -> list[tuple[str, str]]:
    made = access_objects(checked(myriad_teams={"vision": team(**values)}).fleet)
    (binding,) = [o for o in made if o["metadata"]["name"] == "myriad-team" and o["kind"] == "RoleBinding"]
    return [(one["kind"], one["name"]) for one in binding["subjects"]]


def test_a_team_is_its_groups_and_users_or_a_group_of_its_name(checked: Callable[..., Checked]) -> None:
    assert subjects(checked) == [("Group", "myriad:vision")]
    assert subjects(checked, groups=["oidc:v"], users=["alice"]) == [("Group", "oidc:v"), ("User", "alice")]
    assert subjects(checked, users=["alice"]) == [("User", "alice")]


def test_every_namespace_has_its_objects_and_no_name_stands_twice(checked: Callable[..., Checked]) -> None:
    teams = {
        "vision": team(namespaces=["vision-a", "vision-b"], groups=["both"]),
        "speech": team(namespaces=["speech"], quota={"h100": 0}, groups=["both"]),
    }
    made = access_objects(checked(myriad_teams=teams).fleet)
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in made]
    assert len(set(names)) == len(names)
    for namespace in ("vision-a", "vision-b", "speech"):
        kinds = [kind for kind, where, _ in names if where == namespace]
        assert kinds == ["RoleBinding", "NetworkPolicy", "NetworkPolicy", "LimitRange"]
    assert all(ACCESS_LABELS.items() <= o["metadata"]["labels"].items() for o in made)
    (everybody,) = [o for o in made if o["kind"] == "ClusterRoleBinding"]
    assert [one["name"] for one in everybody["subjects"]] == ["both"], "a group of two teams is bound once"


def test_no_right_reaches_what_belongs_to_the_site(checked: Callable[..., Checked]) -> None:
    made = access_objects(checked().fleet)
    rules = [rule for o in made if o["kind"] in ("ClusterRole", "Role") for rule in o["rules"]]
    assert not any("*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"]) for rule in rules)
    writes = [rule for rule in rules if {"create", "update", "patch", "delete"} & set(rule["verbs"])]
    site = {"rbac.authorization.k8s.io", "kueue.x-k8s.io", "networking.k8s.io", "myriad.dev", "scheduling.volcano.sh"}
    assert not any(site & set(rule["apiGroups"]) for rule in writes)


def test_a_site_without_teams_has_no_objects(checked: Callable[..., Checked]) -> None:
    assert access_objects(checked({"myriad_pools": {"h100": {"model": "H200"}}}).fleet) == []
