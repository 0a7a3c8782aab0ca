"""Time limits, reserves, protection, notices, idle GPUs, admission rules and members: defaults and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from myriad.fleet import Checked
from myriad.fleet.site_policy import policy_document, policy_text

Said = Callable[..., list[str]]
H100 = {"model": "H100-SXM5-80GB"}
BURIED = "hunter2-very-secret"


def team(**values: Any) -> dict[str, Any]:
    return {"namespaces": ["vision"], "quota": {"h100": 24}, **values}


def test_every_key_of_the_document_has_a_default(checked: Callable[..., Checked]) -> None:
    document = policy_document(checked({"myriad_pools": {"h100": H100}, "myriad_teams": {"vision": team()}}).fleet)
    assert document["protection"] == {"after_s": 7200, "max_domains": 1, "max_share": 0.25, "level": "block"}
    assert document["idle"] == {"threshold_percent": 5, "after_s": 1800}
    pool = document["pools"]["h100"]
    assert (pool["default_hours"], pool["max_hours"], pool["unlimited"]) == (None, None, "allow")
    assert document["teams"]["vision"]["gpu_hours"] == {} and document["notify_targets"] == {}


def test_the_document_says_what_was_described(checked: Callable[..., Checked]) -> None:
    result = checked(
        myriad_cluster={"topology_levels": ["room", "block", "rack"]},
        myriad_pools={"h100": H100 | {"default_hours": 1.5, "max_hours": 72}},
        myriad_teams={"vision": team(notify=["oncall"], groups=["oidc:vision"], cohort="research")},
        myriad_notify={"oncall": {"kind": "apprise", "secret": "notify/vision"}},
        myriad_protection={"level": "rack", "max_share": 0.5},
        myriad_idle={"threshold_percent": 10},
    )
    assert result.problems == ()
    document = policy_document(result.fleet)
    assert document["pools"]["h100"]["unlimited"] == "default"
    assert (document["pools"]["h100"]["default_hours"], document["pools"]["h100"]["max_hours"]) == (1.5, 72.0)
    assert document["notify_targets"] == {"oncall": {"kind": "apprise", "secret": "notify/vision"}}
    assert document["protection"]["level"] == "rack"
    assert policy_text(result.fleet) == policy_text(result.fleet)


def test_one_level_is_protected_where_there_is_only_one(checked: Callable[..., Checked]) -> None:
    result = checked(myriad_cluster={"topology_levels": ["rack"]}, locations={"gpu1": "r1", "gpu2": "r1", "gpu3": "r2"})
    assert policy_document(result.fleet)["protection"]["level"] == "rack"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"myriad_pools": {"h100": H100 | {"default_hours": 100, "max_hours": 72}}},
            "myriad_pools.h100.default_hours: is 100, more than max_hours, which is 72",
        ),
        (
            {"myriad_pools": {"h100": H100 | {"unlimited": "default"}}},
            "myriad_pools.h100.unlimited: is default, but the pool has no default_hours; add it, or write refuse",
        ),
        (
            {"myriad_pools": {"h100": H100 | {"unlimited": "refused"}}},
            'myriad_pools.h100.unlimited: is "refused"; allowed: default, refuse or allow; did you mean "refuse"?',
        ),
        (
            {"myriad_pools": {"h100": H100 | {"max_hours": "3d"}}},
            'myriad_pools.h100.max_hours: is "3d"; hours are a number above 0, up to 8760 (a year)',
        ),
        (
            {"myriad_pools": {"h100": H100 | {"alignment": {"cpu_manager": "static"}}}},
            "myriad_pools.h100.alignment.cpu_manager: is static, and a kubelet that keeps no CPU for the system",
        ),
        (
            {"myriad_pools": {"h100": H100 | {"alignment": {"cpu_manager": "static", "reserved_cpus": 2}}}},
            "myriad_pools.h100.alignment.reserved_cpus: is 2; write CPUs by number in quotes, for example",
        ),
        (
            {"myriad_pools": {"h100": H100 | {"alignment": {"topology_manager": "single-numa"}}}},
            'myriad_pools.h100.alignment.topology_manager: is "single-numa"; allowed: none, best-effort, restricted',
        ),
        (
            {"myriad_protection": {"level": "blok"}},
            'myriad_protection.level: "blok" is not a level of the topology; did you mean "block"?',
        ),
        (
            {"myriad_protection": {"max_share": 25}},
            "myriad_protection.max_share: is 25; max_share is a part of a pool above 0, up to 1, such as 0.25",
        ),
        (
            {"myriad_idle": {"threshold_percent": 0.05}},
            "myriad_idle.threshold_percent: is 0.05; a threshold is a percentage from 0 to 100, in whole numbers",
        ),
        (
            {"myriad_teams": {"vision": team(notify=["oncal"])}, "myriad_notify": {"oncall": {"secret": "a/b"}}},
            'myriad_teams.vision.notify[0]: "oncal" is not a target of myriad_notify, so nobody would be told; '
            'did you mean "oncall"?',
        ),
        ({"myriad_notify": {"oncall": {}}}, "myriad_notify.oncall: has no address; give secret: NAME/KEY of a Secret "),
        (
            {"myriad_notify": {"oncall": {"kind": "apprise", "secret": "a/b", "url": "https://x.example.com"}}},
            "myriad_notify.oncall: has both secret and url; keep the one that is meant",
        ),
        (
            {"myriad_notify": {"oncall": {"url": "mailto://oncall@example.com"}}},
            "myriad_notify.oncall.url: is not of http or https, which a webhook is; write kind: apprise for others",
        ),
        (
            {"myriad_admission": {"rules": {"image-digests": "deny"}}},
            'myriad_admission.rules: names the rule "image-digests", which is none; did you mean "image-digest"?',
        ),
        (
            {"myriad_admission": {"rules": {"image-digest": False}}},
            "myriad_admission.rules.image-digest: is false; allowed: deny, warn or ignore",
        ),
        (
            {"myriad_admission": {"registries": ["https://r.example.com"]}},
            'myriad_admission.registries[0]: is "https://r.example.com"; write how an image\'s name begins',
        ),
        (
            {"myriad_teams": {"vision": team(groups=["system:authenticated"])}},
            'myriad_teams.vision.groups[0]: "system:authenticated" belongs to Kubernetes itself',
        ),
        (
            {"myriad_teams": {"vision": team(reserve={"h100": 8})}},
            "myriad_teams.vision.reserve.h100: is set for a training pool, where jobs wait",
        ),
        (
            {"myriad_teams": {"vision": team(projects={"p": {"gpu_hours": {"h10": {"budget": 5}}}})}},
            'myriad_teams.vision.projects.p.gpu_hours.h10: "h10" is not a pool; did you mean "h100"?',
        ),
        (
            {"myriad_teams": {"vision": team(projects={"p": {"gpu_hours": {"h100": {"used_up": "stop"}}}})}},
            'myriad_teams.vision.projects.p.gpu_hours.h100.used_up: is "stop"; allowed: finish or leave',
        ),
        (
            {"myriad_teams": {"vision": team(projects={"p": {"budget": 5}})}},
            "myriad_teams.vision.projects.p.budget: is not a key that is known here (allowed: gpu_hours)",
        ),
        (
            {"myriad_teams": {"vision": team(reserve={"h200": 8})}},
            'myriad_teams.vision.reserve.h200: "h200" is not a pool; known: h100',
        ),
        (
            {
                "myriad_pools": {"h100": H100 | {"use": "inference"}},
                "myriad_teams": {"vision": team(reserve={"h100": 25}, cohort="research")},
            },
            "myriad_teams.vision.reserve.h100: is 25, more than the quota of 24 that the team owns",
        ),
        (
            {
                "myriad_pools": {"h100": H100 | {"use": "inference"}},
                "myriad_teams": {"vision": team(reserve={"h100": 16}, lend={"h100": 9}, cohort="research")},
            },
            "myriad_teams.vision.reserve.h100: keeps 16 of 24 GPUs, but lend.h100 gives away 9: 8 at most",
        ),
    ],
)
def test_what_does_not_fit_is_said(said: Said, given: dict[str, Any], told: str) -> None:
    lines = said(**given)
    assert any(line.startswith(told) for line in lines), lines


def test_a_refused_value_is_told_once(said: Said) -> None:
    assert said(myriad_pools={"h100": H100 | {"unlimited": "default", "default_hours": -1}}) == [
        "myriad_pools.h100.default_hours: is -1; hours are a number above 0, up to 8760 (a year)"
    ]
    assert said(myriad_notify={"oncall": {"secret": BURIED}}) == [
        "myriad_notify.oncall.secret: is not NAME/KEY: name a Secret of namespace myriad-system and its key, "
        "for example notify/vision-oncall"
    ]


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{BURIED}@alerts.example.com/x",
        f"https://alerts.example.com/x?token={BURIED}",
        f"https://hooks.slack.com/services/T0/B0/{BURIED}",
        f"slack://{BURIED}/a/b",
        f"mailto://user:{BURIED}@mail.example.com",
        f"mailto://mail.example.com?user=x&pass={BURIED}",
        f"tgram://{BURIED}/chat",
        f"https://[{BURIED}",
        BURIED,
    ],
)
def test_an_address_that_is_a_password_is_refused_and_never_repeated(said: Said, url: str) -> None:
    (line,) = said(myriad_notify={"oncall": {"kind": "apprise", "url": url}})
    assert line.startswith("myriad_notify.oncall.url: ") and BURIED not in line


@pytest.mark.parametrize(
    "url", ["https://alerts.example.com/x", "mailto://oncall@example.com", "jsons://a.example.com/x"]
)
def test_an_open_address_may_stand_in_the_description(said: Said, url: str) -> None:
    assert said(myriad_notify={"oncall": {"kind": "apprise", "url": url}}) == []


def test_names_of_teams_are_not_checked_where_no_targets_are_described(said: Said) -> None:
    assert said(myriad_teams={"vision": team(notify=["oncall"], cohort="research")}) == []
