"""Rules between the parts of a description that no broken inventory of tests/fixtures shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from myriad.fleet import Checked, model, model_policy
from myriad.fleet.model import Fleet, pool_group, pool_of_group
from myriad.fleet.source import inventory_from_groups

Said = Callable[..., list[str]]


def team(**values: Any) -> dict[str, Any]:
    return {"namespaces": ["vision"], "quota": {"h100": 24}, **values}


def test_the_small_site_is_right(checked: Callable[..., Checked]) -> None:
    result = checked()
    assert result.problems == ()
    assert result.fleet.capacity == {"h100": 24}
    assert result.fleet.gpus == 24
    assert [host.name for host in result.fleet.control_plane] == ["cp1"]
    assert result.fleet.hosts["gpu3"].location == ("hall1", "b1", "r2")
    assert result.fleet.places(2) == (("hall1", "b1", "r1"), ("hall1", "b1", "r2"))


def test_everything_but_pools_and_teams_has_a_default(checked: Callable[..., Checked]) -> None:
    variables = {"myriad_pools": {"h100": {"model": "H200"}}, "myriad_teams": {"vision": team()}}
    result = checked(variables)
    assert result.problems == ()
    fleet = result.fleet
    assert fleet.priorities == {"urgent": 1000, "normal": 500, "scavenge": 100}
    assert fleet.cluster.topology_levels == ("room", "block", "rack")
    assert (fleet.preemption.grace_s, fleet.preemption.min_run_s) == (300, 1800)
    assert (fleet.pools["h100"].gpus_per_node, fleet.pools["h100"].engine) == (8, "kueue")
    assert fleet.teams["vision"].weight == 1


def test_sections_that_are_empty_are_as_good_as_absent(said: Said) -> None:
    assert said(myriad_cluster=None, myriad_priorities=None, myriad_images=None, myriad_preemption=None) == []


def test_a_site_without_pools_and_teams(said: Said) -> None:
    assert said({}) == [
        'group pool_h100: stands for a pool "h100", which myriad_pools does not have; none is described',
        "myriad_pools: is missing; describe at least one pool: {h100: {model: H100-SXM5-80GB}}",
        "myriad_teams: is missing, so nobody may run anything; describe the teams",
    ]


def test_a_control_plane_may_be_a_gpu_node(checked: Callable[..., Checked]) -> None:
    groups = {"control_plane": ["gpu1"], "gpu_nodes": ["gpu1"], "pool_h100": ["gpu1"]}
    result = checked(groups=groups, myriad_teams={"vision": team(quota={"h100": 8}, cohort="research")})
    assert result.problems == ()
    host = result.fleet.hosts["gpu1"]
    assert host.is_control_plane
    assert host.gpus == 8


def test_a_smaller_node_counts_with_what_it_has() -> None:
    from myriad.fleet import check

    groups = {"control_plane": ["cp1"], "gpu_nodes": ["gpu1", "gpu2"], "pool_h100": ["gpu1", "gpu2"]}
    variables = {"myriad_pools": {"h100": {"model": "H200"}}, "myriad_teams": {"vision": team(quota={"h100": 15})}}
    raw = inventory_from_groups(
        variables,
        groups,
        locations={"gpu1": "a/b/c", "gpu2": "a/b/c"},
        gpus={"gpu2": 7},
        addresses={"gpu1": "10.0.0.1"},
    )
    result = check(raw)
    assert result.problems == ()
    assert result.fleet.capacity == {"h100": 15}
    assert result.fleet.hosts["gpu1"].address == "10.0.0.1"


def test_one_level_of_places_is_enough(checked: Callable[..., Checked]) -> None:
    result = checked(myriad_cluster={"topology_levels": ["rack"]}, locations={"gpu1": "r1", "gpu2": 2, "gpu3": "r3"})
    assert result.problems == ()
    assert result.fleet.hosts["gpu2"].location == ("2",)


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("hall1//r1", 'gpu1: myriad_location "hall1//r1" has an empty step'),
        (True, "gpu1: myriad_location is true; write the place as the text room/block/rack"),
        ("a/b/c/d", 'gpu1: myriad_location "a/b/c/d" has 4 levels; topology_levels needs 3 (room/block/rack)'),
    ],
)
def test_places_that_cannot_be(said: Said, location: object, sentence: str) -> None:
    assert said(locations={"gpu1": location, "gpu2": "a/b/c", "gpu3": "a/b/c"}) == [sentence]


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        ([], "myriad_cluster.topology_levels: is empty; name at least one level, for example [room, block, rack]"),
        (["room", "hostname", "rack"], '"hostname" is a label that Myriad sets itself'),
        (["room", "my block", "rack"], '"my block" cannot be a label name'),
        ([f"l{number}" for number in range(16)], "has too many levels"),
    ],
)
def test_levels_that_cannot_be(said: Said, levels: list[str], sentence: str) -> None:
    assert any(sentence in line for line in said(myriad_cluster={"topology_levels": levels}))


def test_levels_are_different(said: Said) -> None:
    (line,) = said(myriad_cluster={"topology_levels": ["room", "rack", "rack"]})
    assert line == 'myriad_cluster.topology_levels: names "rack" twice; every level has a name of its own'


def test_pool_names_with_hyphens_have_groups_with_underscores() -> None:
    pools = {"a100-80": {}, "h100": {}}
    assert pool_group("a100-80") == "pool_a100_80"
    assert pool_of_group("pool_a100_80", pools) == "a100-80"
    assert pool_of_group("pool_h100", pools) == "h100"
    assert pool_of_group("pool_b200", pools) is None


@pytest.mark.parametrize(
    ("teams", "sentence"),
    [
        ({"vision": team(quota={})}, "myriad_teams.vision: has no quota in any pool, so it can run nothing"),
        (
            {"vision": team(), "guest": {"namespaces": ["guest"], "quota": {"h100": 0}}},
            "myriad_teams.guest.quota.h100: is 0 and the team has no cohort to borrow from, so nothing can run there",
        ),
        (
            {"vision": team(quota={"h100": 16}, cohort="research")},
            "myriad_pools.h100: has 24 GPUs, but the quotas of all teams add up to 16: 8 GPUs belong to nobody and "
            "cannot be used",
        ),
        (
            {"vision": team(cohort="research", namespaces=["vision", "vision"])},
            'myriad_teams.vision.namespaces: "vision" is listed twice',
        ),
    ],
)
def test_what_is_odd_is_a_warning(checked: Callable[..., Checked], teams: dict[str, Any], sentence: str) -> None:
    result = checked(myriad_teams=teams, myriad_cohorts={"research": {}})
    assert result.errors == []
    assert sentence in [f"{problem.subject}: {problem.message}" for problem in result.warnings]


def test_cohorts_and_priorities_that_do_nothing_are_told(said: Said) -> None:
    assert said(myriad_cohorts={"research": {}, "idle": {}}, myriad_priorities={"a": 5, "b": 5}) == [
        "myriad_cohorts.idle: has no team and no cohort in it",
        "myriad_priorities.b: is 5, as a is: neither can preempt the other",
    ]


def test_a_cohort_may_not_be_its_own_parent(said: Said) -> None:
    (line,) = said(myriad_cohorts={"research": {"parent": "research"}})
    assert line.startswith("myriad_cohorts.research.parent: closes a circle: research -> research")


def test_two_circles_are_told_once_each_and_what_hangs_below_is_not(said: Said) -> None:
    cohorts = {
        "research": {"parent": "a"},
        "a": {"parent": "b"},
        "b": {"parent": "a"},
        "c": {"parent": "d"},
        "d": {"parent": "c"},
    }
    lines = [line for line in said(myriad_cohorts=cohorts) if "circle" in line]
    assert [line.split(";")[0] for line in lines] == [
        "myriad_cohorts.a.parent: closes a circle: a -> b -> a",
        "myriad_cohorts.c.parent: closes a circle: c -> d -> c",
    ]


def test_parts_that_would_share_a_kubernetes_object(said: Said) -> None:
    groups = {
        "control_plane": ["cp1"],
        "gpu_nodes": ["gpu1", "gpu2"],
        "pool_c": ["gpu1"],
        "pool_b_c": ["gpu2"],
    }
    teams = {
        "a-b": {"namespaces": ["x"], "quota": {"c": 8}},
        "a": {"namespaces": ["y"], "quota": {"b-c": 8}},
    }
    pools = {"c": {"model": "H200"}, "b-c": {"model": "H200"}}
    assert said({"myriad_pools": pools, "myriad_teams": teams}, groups=groups) == [
        'myriad_teams.a: with pool b-c makes the queue "a-b-c", as team a-b with pool c does; rename one of the teams'
    ]
    cohorts = {"research": {}, "research-inference": {"parent": "research"}}
    assert (
        "myriad_cohorts.research-inference: has the name that Myriad gives the inference side of cohort research; "
        "choose another" in said(myriad_cohorts=cohorts)
    )


def test_names_that_are_too_long_together(said: Said) -> None:
    long = "v" * 60
    lines = said(myriad_teams={long: team(cohort="research")})
    assert lines == [
        f'myriad_teams.{long}: makes the queue "{long}-h100" of 65 characters; Kubernetes allows 63: shorten the name '
        "of the team or the pool"
    ]


def test_places_that_volcano_cannot_tell_apart(said: Said) -> None:
    pools = {"h100": {"model": "H200", "engine": "volcano"}}
    places = {"gpu1": "hall/b1/R_1", "gpu2": "hall/b1/r-1", "gpu3": "hall/b1/r2"}
    assert said(myriad_pools=pools, locations=places) == [
        'gpu2: is in "hall/b1/r-1", which Volcano cannot tell from "hall/b1/R_1": rename one of them'
    ]
    assert said(locations=places) == [], "labels alone can tell them apart"


def test_a_wrong_value_never_hides_another_one_of_the_same_team(said: Said) -> None:
    wrong = team(quota={"h100": -8, "h20": 4}, cohort="reserach", weight="heavy", spam=1)
    assert said(myriad_teams={"vision": wrong}) == [
        'myriad_teams.vision.cohort: "reserach" is not a cohort; did you mean "research"?',
        "myriad_teams.vision.quota.h100: is -8; a quota is 0 or more GPUs",
        'myriad_teams.vision.quota.h20: "h20" is not a pool; known: h100',
        "myriad_teams.vision.spam: is not a key that is known here (allowed: namespaces, quota, weight, cohort, "
        "borrow, lend, reserve, gpu_hours, projects, notify, groups, users, pod_security)",
        'myriad_teams.vision.weight: is "heavy"; a weight is a number above 0 (2 gets twice the share of 1)',
    ]


def test_wrong_items_of_a_list_are_told_by_their_place(said: Said) -> None:
    lines = said(myriad_teams={"vision": team(namespaces=["default", "good", "B", 7], cohort="research")})
    assert [line.split(":")[0] for line in lines] == [
        "myriad_teams.vision.namespaces[0]",
        "myriad_teams.vision.namespaces[2]",
        "myriad_teams.vision.namespaces[3]",
    ]


@pytest.mark.parametrize("value", [None, 7, "text", ["list"], {"a": {"b": 1}}, {7: {}}, True, 1.5])
@pytest.mark.parametrize(
    "variable",
    [
        "myriad_cluster",
        "myriad_pools",
        "myriad_teams",
        "myriad_cohorts",
        "myriad_priorities",
        "myriad_preemption",
        "myriad_images",
        "myriad_topology",
        "myriad_fabric",
        "myriad_burn_in",
        "myriad_protection",
        "myriad_notify",
        "myriad_idle",
        "myriad_admission",
    ],
)
def test_no_shape_of_a_section_breaks_the_check(checked: Callable[..., Checked], variable: str, value: Any) -> None:
    result = checked(**{variable: value})
    assert isinstance(result.fleet, Fleet)
    if value is not None:
        assert result.errors, "nothing of this is a right section"


@pytest.mark.parametrize("value", [None, 7, "text", ["list"], {"a": {"b": 1}}, {7: 7}, [{}], [None], True])
@pytest.mark.parametrize("field", list(model.Team.model_fields))
def test_no_shape_of_a_team_breaks_the_check(checked: Callable[..., Checked], field: str, value: Any) -> None:
    result = checked(myriad_teams={"vision": team(**{field: value})})
    assert all(problem.message for problem in result.problems)


@pytest.mark.parametrize("value", [None, 7, "text", ["list"], {"a": 1}, [{}], [{"image": 1, "pools": "x"}], [7], True])
def test_no_shape_of_images_breaks_the_check(checked: Callable[..., Checked], value: Any) -> None:
    result = checked(myriad_images={"warm": value})
    assert isinstance(result.fleet, Fleet)


@pytest.mark.parametrize("value", [None, 7, "text", ["list"], {"a": 1}, {"rack_gbit": "fast"}, {7: 7}, True])
@pytest.mark.parametrize("field", ["prewarm", "signing_key"])
def test_no_shape_of_a_prewarm_breaks_the_check(checked: Callable[..., Checked], field: str, value: Any) -> None:
    result = checked(myriad_images={"warm": [{"image": "gang-check"}], field: value})
    assert isinstance(result.fleet, Fleet)
    assert bool(result.errors) == (value is not None and not (field == "signing_key" and value == "text"))


def test_a_prewarm_whose_cap_is_below_one_node_is_refused(said: Callable[..., list[str]]) -> None:
    assert said(myriad_images={"prewarm": {"rack_gbit": 10, "node_gbit": 2.5}}) == []
    (told,) = said(myriad_images={"prewarm": {"rack_gbit": 1}})
    assert "below the 2.5 Gbit/s that a single node draws" in told


SHAPES: list[Any] = [
    None,
    7,
    -1,
    1.5,
    float("nan"),
    "text",
    "",
    ["list"],
    [7],
    [None],
    [{}],
    {"a": 1},
    {7: 7},
    {None: {}},
    True,
]


@pytest.mark.parametrize("value", SHAPES, ids=repr)
@pytest.mark.parametrize(
    ("variable", "field"),
    [
        *(("myriad_topology", field) for field in model.Topology.model_fields),
        *(("myriad_fabric", field) for field in model.Fabric.model_fields),
        *(("rails", field) for field in model.Rail.model_fields),
        *(("myriad_burn_in", field) for field in model.BurnIn.model_fields),
        *(("myriad_protection", field) for field in model_policy.Protection.model_fields),
        *(("myriad_notify", field) for field in model_policy.NotifyTarget.model_fields),
        *(("myriad_idle", field) for field in model_policy.Idle.model_fields),
        *(("myriad_admission", field) for field in model_policy.Admission.model_fields),
        *(("myriad_pools", field) for field in model.Pool.model_fields),
        *(("sharing", field) for field in model.Sharing.model_fields),
        *(("mig", field) for field in ("layout", "gpus", "hosts", "strategy", "training_allowed")),
    ],
)
def test_no_shape_of_a_field_breaks_the_check(
    checked: Callable[..., Checked], variable: str, field: str, value: Any
) -> None:
    pool = {"model": "H100-SXM5-80GB", "use": "inference"}
    result = checked(
        **{
            "myriad_topology": {"myriad_topology": {field: value}},
            "myriad_fabric": {"myriad_fabric": {"h100": {"rails": [{"interface": "ens1"}]} | {field: value}}},
            "rails": {"myriad_fabric": {"h100": {"rails": [{"interface": "ens1"} | {field: value}]}}},
            "myriad_burn_in": {"myriad_burn_in": {"h100": {field: value}}},
            "myriad_protection": {"myriad_protection": {field: value}},
            "myriad_notify": {"myriad_notify": {"oncall": {field: value}}},
            "myriad_idle": {"myriad_idle": {field: value}},
            "myriad_admission": {"myriad_admission": {field: value}},
            "myriad_pools": {"myriad_pools": {"h100": pool | {field: value}}},
            "sharing": {"myriad_pools": {"h100": pool | {"sharing": {field: value}}}},
            "mig": {"myriad_pools": {"h100": pool | {"mig": {field: value}}}},
        }[variable]
    )
    for problem in result.problems:
        assert "Input should" not in problem.message, "a library's words, and no sentence of ours"
        assert problem.subject and len(problem.message) < 1000


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"myriad_topology": {"accept": [1]}}, "accept[0]: is 1; write the name of a node, for example gpu1"),
        ({"myriad_topology": {"switches": {"": "hall1"}}}, 'switches: names a switch ""; write its name in LLDP'),
        ({"myriad_topology": {"switches": {"GPU1.lan": "hall1"}}}, "switches.GPU1.lan: is a host of the inventory"),
        ({"myriad_topology": {"switches": {"T1": "hall1/b1/r1", "t1": "hall1/b1"}}}, "is hall1/b1, but T1 is"),
        ({"myriad_fabric": {"h100": {"rails": "ens1"}}}, 'h100.rails: is "ens1"; write a list'),
        ({"myriad_fabric": {"h100": {"rails": [{"interface": ".."}]}}}, 'interface: is ".."; write the name of a'),
        ({"myriad_burn_in": {"h100": {"of_median": 80}}}, "of_median: is 80; a part of the median is a number"),
        (
            {"myriad_pools": {"h100": {"model": "H100-SXM5-80GB", "sharing": {"replica": 1}}}},
            'sharing.replica: is not a key that is known here; did you mean "replicas"? (allowed: replicas)',
        ),
        *(
            (
                {"myriad_fabric": {"h100": {"rails": [{"interface": "e", "address": f"10.{{{field}}}.0.1/24"}]}}},
                f"{{{field}}} is no number: write {{",
            )
            for field in ("rail!x", "rail:zz", "number:99999999", "rail:{number}")
        ),
    ],
)  # fmt: skip
def test_cables_and_sharing_are_told_in_one_sentence_each(said: Said, given: dict[str, Any], told: str) -> None:
    (sentence,) = [line for line in said(**given) if "belong to nobody" not in line]
    assert told in sentence


def test_switches_whose_names_are_numbers_are_switches(checked: Callable[..., Checked]) -> None:
    result = checked(myriad_topology={"switches": {17: "hall1/b1/r1"}})
    assert dict(result.fleet.topology.switches) == {"17": "hall1/b1/r1"}


def test_description_variables_of_a_play_alone_are_read() -> None:
    raw = inventory_from_groups({"myriad_teams": {}, "other": 1}, {"all": ["a"], "gpu_nodes": ["a"], "pool_x": ["a"]})
    assert raw.variables == {"myriad_teams": {}}
    assert raw.groups["pool_x"].parents == ("gpu_nodes",)
    assert raw.groups["gpu_nodes"].children == ("pool_x",)


def test_an_even_control_plane_is_odd(said: Said) -> None:
    groups = {"control_plane": ["cp1", "cp2"], "gpu_nodes": ["gpu1"], "pool_h100": ["gpu1"]}
    teams = {"vision": team(quota={"h100": 8}, cohort="research")}
    assert said(groups=groups, myriad_teams=teams) == [
        "group control_plane: has 2 hosts; etcd needs a majority, so 2 survive no more failures than 1: use 1, 3 or 5"
    ]


def test_hosts_without_a_role_are_left_alone_but_not_localhost(said: Said) -> None:
    groups = {
        "ungrouped": ["localhost", "jump"],
        "storage": ["nfs1", "nfs2"],
        "control_plane": ["cp1"],
        "gpu_nodes": ["gpu1"],
        "pool_h100": ["gpu1"],
    }
    teams = {"vision": team(quota={"h100": 8}, cohort="research")}
    assert said(groups=groups, myriad_teams=teams) == [
        "jump, nfs1, nfs2 (3 hosts): in none of the groups control_plane, gpu_nodes and registry: left alone by Myriad"
    ]


def test_what_was_refused_leads_to_no_false_warning(said: Said) -> None:
    teams = {"vision": team(quota={"h100": 40}, cohort="research")}
    assert said(myriad_teams=teams, myriad_pools={"h100": {"model": "H100-SXM", "gpus_per_node": 16}}) == [
        'myriad_pools.h100.model: "H100-SXM" is not a known GPU model; did you mean "H100-SXM5-80GB"?'
    ]
    assert said(myriad_teams=teams, myriad_pools={"h100": {"model": "H200", "gpus_per_node": 160}}) == [
        "myriad_pools.h100.gpus_per_node: is 160; a node has a whole number of GPUs from 1 to 32"
    ]


def test_groups_that_are_meant_to_be_pools(said: Said) -> None:
    groups = {
        "control_plane": ["cp1"],
        "gpu_nodes": ["gpu1", "gpu2"],
        "pools": ["gpu1"],
        "pool-h200": ["gpu2"],
        "pool_h100": ["gpu1"],
    }
    teams = {"vision": team(quota={"h100": 8}, cohort="research")}
    assert said(groups=groups, myriad_teams=teams) == [
        "gpu2: in gpu_nodes but in no pool; list it in a group of a pool below gpu_nodes (pool_h100)",
        "group pool-h200: is not a group that Myriad knows; groups of pools are named pool_<name>, for example "
        "pool_h200",
    ]


def test_every_problem_has_a_rule_that_programs_can_tell(checked: Callable[..., Checked]) -> None:
    wrong = team(quota={"h100": -8}, weight="heavy", spam=1, gpu_hours={"h100": {}}, namespaces=["A"])
    rules = [problem.rule for problem in checked(myriad_teams={"vision": wrong}).problems]
    assert sorted(rules) == ["missing", "namespaces", "quota", "unknown-key", "weight"]
