"""Admission rules as objects: which are made, with which effect, for whom. What they refuse is in tests/api."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from myriad.fleet import Checked
from myriad.fleet.admission import DEFAULT_EFFECTS, admission_objects
from myriad.fleet.model_policy import RULES

H100 = {"model": "H100-SXM5-80GB"}


def effects(checked: Callable[..., Checked], **variables: Any) -> dict[str, str]:
    """Effect by rule."""
    made = admission_objects(checked(**variables).fleet, labels={})
    policies = [o["metadata"]["name"] for o in made if o["kind"] == "ValidatingAdmissionPolicy"]
    bindings = {
        o["spec"]["policyName"]: o["spec"]["validationActions"][0]
        for o in made
        if o["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert sorted(policies) == sorted(bindings)
    return {name.removeprefix("myriad-"): effect for name, effect in bindings.items()}


def test_every_rule_that_can_be_named_has_an_effect() -> None:
    assert set(RULES) == set(DEFAULT_EFFECTS)


def test_rules_are_made_where_a_pool_can_break_them(checked: Callable[..., Checked]) -> None:
    plain = effects(checked)
    assert plain["queue"] == "Deny" and plain["grace"] == "Warn"
    assert not {"inference-queue", "time-limit", "time-limit-default"} & set(plain)
    limits = {"unlimited": "refuse", "max_hours": 10}
    assert effects(checked, myriad_pools={"h100": H100 | limits})["time-limit"] == "Deny"
    assert "whole-gpus" not in effects(checked, myriad_pools={"h100": H100 | {"use": "inference"}})


def test_the_description_changes_an_effect_or_takes_a_rule_out(checked: Callable[..., Checked]) -> None:
    found = effects(checked, myriad_admission={"rules": {"image-digest": "deny", "queue": "ignore", "grace": "warn"}})
    assert found["image-digest"] == "Deny" and "queue" not in found and found["grace"] == "Warn"
    assert "image-registry" not in effects(checked, myriad_admission={"registries": []})


def test_no_rule_reaches_beyond_teams_or_refuses_by_its_own_fault(checked: Callable[..., Checked]) -> None:
    for made in admission_objects(checked().fleet, labels={"a": "b"}):
        assert made["metadata"]["labels"] == {"a": "b"}
        if made["kind"] == "ValidatingAdmissionPolicy":
            assert made["spec"]["failurePolicy"] == "Ignore"
            assert [c["name"] for c in made["spec"]["matchConditions"]] == ["by-a-person", "asks-for-gpus"]
            assert all(rule["operations"] == ["CREATE"] for rule in made["spec"]["matchConstraints"]["resourceRules"])
        else:
            (only,) = made["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
            assert only == {"key": "myriad.dev/team", "operator": "Exists"}


def test_a_thousand_teams_make_no_expression_longer(checked: Callable[..., Checked]) -> None:
    def longest(count: int) -> int:
        teams = {f"t{i}": {"namespaces": [f"n{i}"], "quota": {"h100": 0}, "cohort": "research"} for i in range(count)}
        made = admission_objects(checked(myriad_teams=teams).fleet, labels={})
        return max(len(str(o)) for o in made)

    assert longest(1000) == longest(1)


def test_a_site_without_inference_has_no_services_with_gpus(checked: Callable[..., Checked]) -> None:
    def checks(use: str) -> str:
        made = admission_objects(checked(myriad_pools={"h100": H100 | {"use": use}}).fleet, labels={})
        (queue,) = [o for o in made if o["metadata"]["name"] == "myriad-queue" and "validations" in o["spec"]]
        return str(queue["spec"]["validations"])

    assert "is a service with GPUs, and this site has no inference pool" in checks("training")
    assert "is a service" not in checks("inference")
