"""Every broken inventory of tests/fixtures/broken, with all that is said about it: nothing less and nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from myriad.fleet import check
from myriad.inventory import read_inventory

BROKEN = Path(__file__).parents[2] / "fixtures" / "broken"

# file:line: subject: sentence
EXPECTED: dict[str, list[str]] = {
    "address-twice": [
        "hosts.yml:10: gpu3: has the address 10.4.0.12, which gpu2 has too",
    ],
    "borrow-and-lend": [
        ("group_vars/all/teams.yml:2: myriad_teams.vision.lend.h100: is 24, more than the quota of 16 that it owns"),
        (
            "group_vars/all/teams.yml:3: myriad_teams.speech.borrow: is set, but the team has no cohort to "
            "borrow from; name one or remove it"
        ),
        'group_vars/all/teams.yml:4: myriad_teams.audio.borrow.h200: "h200" is not a pool; known: h100',
        ("group_vars/all/teams.yml:4: myriad_teams.audio.lend.h100: is -2; what may be lent is 0 or more GPUs"),
    ],
    "cohort-cycle": [
        (
            "group_vars/all/cluster.yml:6: myriad_cohorts.site.parent: closes a circle: site -> research -> "
            "labs -> site; a cohort cannot be above itself: remove one of these parents"
        ),
    ],
    "cohort-unknown": [
        ('group_vars/all/cluster.yml:6: myriad_cohorts.research.parent: "sites" is not a cohort; none is described'),
        (
            'group_vars/all/teams.yml:3: myriad_teams.speech.cohort: "reserach" is not a cohort; did you '
            'mean "research"?'
        ),
    ],
    "control-plane-empty": [
        "hosts.yml:3: group control_plane: has no hosts; list the machines of the control plane in it",
    ],
    "control-plane-missing": [
        "hosts.yml:1: group control_plane: does not exist; list the machines of the control plane in it",
    ],
    "control-plane-misspelled": [
        'hosts.yml:3: group controlplane: is not a group that Myriad knows; did you mean "control_plane"?',
    ],
    "engine-and-use": [
        (
            "group_vars/all/cluster.yml:3: myriad_pools.h100.cpu_per_gpu: is 0; cpu_per_gpu is a number of "
            "cores above 0, for example 24"
        ),
        (
            'group_vars/all/cluster.yml:3: myriad_pools.h100.engine: is "vulcano"; allowed: kueue or '
            'volcano; did you mean "volcano"?'
        ),
        (
            'group_vars/all/cluster.yml:3: myriad_pools.h100.memory_per_gpu: is "lots"; memory is a quantity '
            'such as "200Gi"'
        ),
        (
            'group_vars/all/cluster.yml:3: myriad_pools.h100.resource: is "gpu"; an extended resource is '
            'written domain/name, for example "nvidia.com/gpu"'
        ),
        (
            'group_vars/all/cluster.yml:3: myriad_pools.h100.use: is "train"; allowed: training or '
            'inference; did you mean "training"?'
        ),
    ],
    "gpu-hours": [
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision.gpu_hours.h100.budget: is -5; a budget is a "
            "whole number of GPU-hours, 1 or more"
        ),
        (
            'group_vars/all/teams.yml:2: myriad_teams.vision.gpu_hours.h100.period: is "fortnight"; allowed: '
            "day, week, month, quarter or year"
        ),
        'group_vars/all/teams.yml:2: myriad_teams.vision.gpu_hours.h20: "h20" is not a pool; known: h100',
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision.gpu_hours.h20.budget: is missing; give the "
            "GPU-hours of the period, for example 5000"
        ),
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision.gpu_hours.h20.budgets: is not a key that is "
            'known here; did you mean "budget"? (allowed: budget, period, used_up)'
        ),
    ],
    "gpu-model-unknown": [
        (
            'group_vars/all/cluster.yml:3: myriad_pools.h100.model: "h100-sxm-80g" is not a known GPU model; '
            'did you mean "H100-SXM5-80GB"?'
        ),
    ],
    "gpu-nodes-misspelled": [
        'hosts.yml:4: group gpu_node: is not a group that Myriad knows; did you mean "gpu_nodes"?',
    ],
    "gpus-per-node": [
        (
            "hosts.yml:12: gpu5: myriad_gpus is 17; it is the whole number of GPUs that a smaller node of "
            "the pool has, from 1 to gpus_per_node (16)"
        ),
        (
            "group_vars/all/cluster.yml:3: myriad_pools.h100.gpus_per_node: is 0; a node has a whole number "
            "of GPUs from 1 to 32"
        ),
        (
            'group_vars/all/cluster.yml:4: myriad_pools.a100.gpus_per_node: is the text "8"; write the '
            "number without quotes"
        ),
        (
            "group_vars/all/cluster.yml:5: myriad_pools.v100.gpus_per_node: warning: is 16; V100-SXM2-32GB "
            "comes on boards of 4 or 8"
        ),
    ],
    "group-part-misspelled": [
        (
            'hosts.yml:7: group pool_h100: has a part "host", which Ansible would skip; did you mean '
            '"hosts"? (allowed: hosts, children, vars)'
        ),
    ],
    "host-in-two-pools": [
        "hosts.yml:10: gpu3: is in 2 pools (pool_h100, pool_h200); a node belongs to one",
        (
            "group_vars/all/teams.yml:3: myriad_teams.speech.quota.h200: warning: the quotas of pool h200 "
            "add up to 16 GPUs (speech 16), but its 1 host has 8: 8 of them cannot be honoured at the same "
            "time"
        ),
    ],
    "host-name": [
        (
            "hosts.yml:10: GPU_3: is not a valid node name: lower-case letters, digits and hyphens, "
            "beginning and ending with a letter or digit; rename the host in the inventory and keep "
            "ansible_host"
        ),
    ],
    "host-twice": [
        "hosts.yml:11: gpu2: is listed twice in group pool_h100 (lines 9 and 11); remove one of them",
        "hosts.yml:11: gpu3: is listed twice in group pool_h100 (lines 10 and 11); remove one of them",
    ],
    "hosts-as-list": [
        (
            "hosts.yml:3: group control_plane: lists its hosts with [ ] or dashes; write a mapping, for "
            "example hosts: {gpu1: {}}"
        ),
    ],
    "image-pool-unknown": [
        ('group_vars/all/cluster.yml:7: myriad_images.warm[0].pools: "h10" is not a pool; did you mean "h100"?'),
    ],
    "key-twice": [
        (
            "group_vars/all/teams.yml:3: myriad_teams.vision: is written twice (lines 2 and 3); the second "
            "would silently win: remove one of them"
        ),
    ],
    "keys-unknown": [
        (
            "group_vars/all/cluster.yml:1: myriad_cluster.topology_level: is not a key that is known here; "
            'did you mean "topology_levels"? (allowed: name, topology_levels)'
        ),
        (
            "group_vars/all/cluster.yml:3: myriad_pools.h100.engin: is not a key that is known here; did you "
            'mean "engine"? (allowed: model, gpus_per_node, use, engine, resource, cpu_per_gpu, '
            "memory_per_gpu, mig, sharing, alignment, default_hours, max_hours, unlimited)"
        ),
        (
            "group_vars/all/cluster.yml:5: myriad_preemption.grace: is not a key that is known here; did you "
            'mean "grace_s"? (allowed: grace_s, min_run_s, checkpoint_max_age_s)'
        ),
        (
            "group_vars/all/cluster.yml:7: myriad_images.hot: is not a key that is known here (allowed: warm, prewarm, "
            "signing_key)"
        ),
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision.wieght: is not a key that is known here; did "
            'you mean "weight"? (allowed: namespaces, quota, weight, cohort, borrow, lend, reserve, '
            "gpu_hours, projects, notify, groups, users, pod_security)"
        ),
    ],
    "location-depth": [
        ('hosts.yml:10: gpu3: myriad_location "hall1/r2" has 2 levels; topology_levels needs 3 (room/block/rack)'),
    ],
    "location-missing": [
        "hosts.yml:8: gpu1, gpu2: myriad_location is missing; write the place as room/block/rack",
    ],
    "location-not-a-label": [
        (
            'hosts.yml:8: gpu1: myriad_location "hall1/b 1/r1" has the step "b 1"; a step is letters, '
            'digits, "-" and "_" (no dots), beginning and ending with a letter or digit'
        ),
        "hosts.yml:9: gpu2: myriad_location is a list; write the place as the text room/block/rack",
        (
            "hosts.yml:10: gpu3: myriad_location "
            '"hall1/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb/r2" has 69 characters; it '
            "becomes a label value, of which Kubernetes allows 63"
        ),
    ],
    "names": [
        (
            'group_vars/all/cluster.yml:1: myriad_cluster.name: "Prod_1" is not a Kubernetes name: '
            "lower-case letters, digits and hyphens, beginning and ending with a letter or digit; for "
            'example "prod-1"'
        ),
        (
            'group_vars/all/cluster.yml:4: myriad_priorities.system-urgent: "system-urgent" begins with '
            '"system-", which Kubernetes keeps for itself; choose another name'
        ),
        (
            'group_vars/all/teams.yml:2: myriad_teams.vision.namespaces[0]: "Vision" is not a Kubernetes '
            "name: lower-case letters, digits and hyphens, beginning and ending with a letter or digit; for "
            'example "vision"'
        ),
        (
            'group_vars/all/teams.yml:2: myriad_teams.vision.namespaces[1]: "kube-vision" belongs to the '
            "system; a team needs a namespace of its own"
        ),
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision.namespaces[2]: "
            '"vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv" has 64 characters; '
            "Kubernetes allows 63"
        ),
        (
            'group_vars/all/teams.yml:3: myriad_teams.speech_team: "speech_team" is not a Kubernetes name: '
            "lower-case letters, digits and hyphens, beginning and ending with a letter or digit; for "
            'example "speech-team"'
        ),
    ],
    "namespace-in-two-teams": [
        (
            'group_vars/all/teams.yml:3: myriad_teams.speech.namespaces: "vision" belongs to team vision '
            "already; a namespace has one team"
        ),
    ],
    "no-pool": [
        ("hosts.yml:5: gpu4: in gpu_nodes but in no pool; list it in a group of a pool below gpu_nodes (pool_h100)"),
        (
            "hosts.yml:12: nfs1: warning: in none of the groups control_plane, gpu_nodes and registry: left "
            "alone by Myriad"
        ),
    ],
    "not-an-inventory": [
        (
            "hosts.yml:1: the file: is not an inventory: it holds no mapping of groups; begin with `all:` "
            "and its children"
        ),
    ],
    "pool-group-outside": [
        "hosts.yml:11: group pool_h200: is not a child of gpu_nodes; put it there",
    ],
    "pool-group-unknown": [
        (
            'hosts.yml:6: group pool_h10: stands for a pool "h10", which myriad_pools does not have; did you '
            'mean "h100"?'
        ),
        (
            "group_vars/all/cluster.yml:3: myriad_pools.h100: has no hosts: there is no group pool_h100; "
            'rename group "pool_h10" to it, or remove the pool'
        ),
    ],
    "pool-without-hosts": [
        "hosts.yml:11: group pool_l40s: has no hosts; list the machines of the pool in it",
        (
            "group_vars/all/cluster.yml:4: myriad_pools.h200: has no hosts: there is no group pool_h200; "
            "list its machines there, below gpu_nodes, or remove the pool"
        ),
    ],
    "priorities": [
        (
            'group_vars/all/cluster.yml:4: myriad_priorities.idle: is "low"; a priority is from 0 (below it '
            "ranks behind pods without a class) to 1000000000 (above belongs to Kubernetes)"
        ),
        (
            "group_vars/all/cluster.yml:4: myriad_priorities.scavenge: is -5; a priority is from 0 (below it "
            "ranks behind pods without a class) to 1000000000 (above belongs to Kubernetes)"
        ),
        (
            "group_vars/all/cluster.yml:4: myriad_priorities.urgent: is 2000000000; a priority is from 0 "
            "(below it ranks behind pods without a class) to 1000000000 (above belongs to Kubernetes)"
        ),
    ],
    "quota-above-capacity": [
        (
            "group_vars/all/teams.yml:1: myriad_teams: warning: the quotas of pool h100 add up to 40 GPUs "
            "(vision 32, speech 8), but its 3 hosts have 24: 16 of them cannot be honoured at the same time"
        ),
    ],
    "quota-pool-unknown": [
        'group_vars/all/teams.yml:2: myriad_teams.vision.quota.h200: "h200" is not a pool; known: h100',
    ],
    "quota-wrong": [
        "group_vars/all/teams.yml:2: myriad_teams.vision.quota.h100: is -8; a quota is 0 or more GPUs",
        (
            "group_vars/all/teams.yml:3: myriad_teams.speech.quota.h100: is 2.5; a quota is 0 or more GPUs, "
            "in whole numbers"
        ),
    ],
    "section-shape": [
        (
            'group_vars/all/cluster.yml:1: myriad_cluster.topology_levels: is "room/block/rack"; write a '
            "list of level names, outermost first, for example [room, block, rack]"
        ),
        ("group_vars/all/cluster.yml:6: myriad_cohorts: is a list; it is a mapping, for example {research: {}}"),
        (
            'group_vars/all/cluster.yml:7: myriad_images.warm: is "gang-check"; write a list, for example '
            "[{image: gang-check, pools: [h100]}]"
        ),
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision: is 16; it is a mapping with the keys "
            "namespaces, quota, weight, cohort, borrow, lend, reserve, gpu_hours, projects, notify, groups, users, "
            "pod_security"
        ),
    ],
    "team-without-namespace": [
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision: has no namespace; add one, for example "
            "namespaces: [vision]"
        ),
        (
            'group_vars/all/teams.yml:3: myriad_teams.speech.namespaces: is "speech"; write a list of '
            "namespaces, for example [speech]"
        ),
    ],
    "template-unresolved": [
        ("hosts.yml:10: gpu3: ansible_host cannot be resolved: 'rack_net' is undefined; define it or write the value"),
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision.quota.h100: has a template that cannot be "
            "resolved from the variables of group all: 'vision_gpus' is undefined; define it there or write "
            "the value"
        ),
    ],
    "twins": [
        "hosts.yml:9: gpu01: also listed as gpu1 with the same address 10.4.0.11; remove one of them",
        "hosts.yml:10: cp01: warning: differs from cp1 only in zeros; is one machine listed twice?",
    ],
    "two-locations": [
        (
            'hosts.yml:8: gpu2: gets two places: "hall1/b1/r1" (group rack_r1) and "hall1/b1/r2" (group '
            "rack_r2); list it in one of the groups"
        ),
    ],
    "variables-unknown": [
        ('hosts.yml:10: gpu3: sets myriad_locaton, which is not a variable of a host; did you mean "myriad_location"?'),
        (
            'group_vars/gpu_node.yml: the file: warning: belongs to no group: "gpu_node" is not in the '
            'inventory; did you mean "gpu_nodes"?'
        ),
        (
            "group_vars/gpu_nodes.yml:1: myriad_cohorts: is set for group gpu_nodes; it describes the whole "
            "site: move it to group all (group_vars/all/)"
        ),
        (
            "group_vars/all/cluster.yml:8: myriad_team: is not a variable of the description; did you mean "
            '"myriad_teams"?'
        ),
        (
            "group_vars/all/cluster.yml:9: myriad_qoutas: is not a variable of the description; known: "
            "myriad_cluster, myriad_pools, myriad_teams, myriad_cohorts, myriad_priorities, "
            "myriad_preemption, myriad_images, myriad_topology, myriad_fabric, myriad_burn_in, "
            "myriad_protection, myriad_notify, myriad_idle, myriad_admission"
        ),
    ],
    "weight": [
        (
            "group_vars/all/teams.yml:2: myriad_teams.vision.weight: is 0; a weight is a number above 0 (2 "
            "gets twice the share of 1)"
        ),
        (
            'group_vars/all/teams.yml:3: myriad_teams.speech.weight: is "heavy"; a weight is a number above '
            "0 (2 gets twice the share of 1)"
        ),
    ],
    "yaml-syntax": [
        (
            "group_vars/all/cluster.yml:7: line 7: is not valid YAML: did not find expected ',' or '}' "
            "(while parsing a flow mapping that begins on line 6)"
        ),
        "group_vars/all/teams.yml:2: myriad_teams.vision.quota.h100: is -16; a quota is 0 or more GPUs",
    ],
    "yaml-syntax-hosts": [
        (
            "hosts.yml:10: line 10: is not valid YAML: did not find expected ',' or '}' (while parsing a "
            "flow mapping that begins on line 9)"
        ),
    ],
    "yaml-tab": [
        ("group_vars/all/cluster.yml:3: line 3: is not valid YAML: the line begins with a tab; indent with spaces"),
        "group_vars/all/teams.yml:2: myriad_teams.vision.quota.h100: is -16; a quota is 0 or more GPUs",
    ],
}


def said_about(folder: Path) -> list[str]:
    lines = []
    for problem in check(read_inventory(folder)).problems:
        assert problem.origin is not None, problem
        place = problem.origin.file.removeprefix(f"{folder}/")
        place += f":{problem.origin.line}" if problem.origin.line else ""
        mark = "warning: " if problem.severity == "warning" else ""
        lines.append(f"{place}: {problem.subject}: {mark}{problem.message}")
    return lines


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_broken_inventory_is_told_whole(name: str) -> None:
    assert said_about(BROKEN / name) == EXPECTED[name]


def test_every_broken_inventory_has_its_sentences() -> None:
    assert sorted(folder.name for folder in BROKEN.iterdir()) == sorted(EXPECTED)


def test_only_quotas_above_capacity_are_no_error() -> None:
    right = [name for name in EXPECTED if not check(read_inventory(BROKEN / name)).errors]
    assert right == ["quota-above-capacity"]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_sentences_tell_what_is_allowed_or_what_to_change(name: str) -> None:
    for sentence in EXPECTED[name]:
        message = sentence.split(": ", 2)[2]
        assert not message.endswith("."), "the line goes on with the place"
        assert "Input should" not in message and "pydantic" not in message and "<class" not in message
