"""Hosts that differ are told apart by the look itself; a part of the inputs that one role follows from stands alone."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def action(plugin):
    return plugin("action.node_state")


@pytest.fixture
def inputs(plugin):
    return plugin("plugin_utils.inputs")


GROUPS = {"differs": "site_plain_mig", "parents": ["site_work", "site_mig"], "part": "site_part"}


def drift(kind, item="x"):
    return {"kind": kind, "item": item}


def test_a_host_that_has_converged_goes_to_no_group(action):
    assert action._grouped({"drift": []}, GROUPS, full=False) == {}


@pytest.mark.parametrize(("found", "full"), [([drift("files")], False), ([], True), ([drift("part")], True)])
def test_a_host_that_differs_or_is_to_be_looked_at_goes_to_the_work(action, found, full):
    assert action._grouped({"drift": found}, GROUPS, full=full) == {
        "add_group": "site_plain_mig",
        "parent_groups": ["site_work", "site_mig"],
    }


def test_a_part_beside_anything_else_is_the_work_of_all_roles(action):
    found = [drift("part", "pod_network"), drift("inputs")]
    assert action._grouped({"drift": found}, GROUPS, full=False)["add_group"] == "site_plain_mig"


def test_parts_alone_have_a_group_each(action):
    found = [drift("part", "b"), drift("part", "a")]
    assert action._grouped({"drift": found}, GROUPS, full=False) == {
        "add_group": "site_part_only_a_b",
        "parent_groups": ["site_part_a", "site_part_b"],
    }


def test_a_part_without_content_has_no_digest(inputs):
    assert inputs.part_digests({"pod_network": [], "other": ""}) == {}
    one, other = (inputs.part_digests({"pod_network": peers}) for peers in (["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]))
    assert set(one) == set(other) == {"pod_network"}
    assert one != other


def test_a_part_that_changed_is_found_and_recorded(plugin, tmp_path):
    module = plugin("modules.node_state")
    params = {
        "root": "/",
        "state_dir": str(tmp_path),
        "full": False,
        "inputs_hash": "i",
        "complete": True,
        "run_id": "r",
    }

    def look(**parts):
        return [(e["kind"], e["item"]) for e in module.check({**params, "parts_hash": parts})["drift"]]

    module.converged({**params, "parts_hash": {"pod_network": "one"}}, False)
    assert look(pod_network="one") == []
    assert look(pod_network="two") == [("part", "pod_network")]
    # A record from before there were parts is looked at once more.
    site = tmp_path / module.SITE_FILE
    site.write_text(json.dumps({key: value for key, value in json.loads(site.read_text()).items() if key != "parts"}))
    assert look(pod_network="one") == [("part", "pod_network")]
    assert look() == []


def test_peers_are_the_addresses_of_all_nodes_of_a_routed_network_alone(plugin, tmp_path):
    from myriad.lab.simulated.site import write_site

    filters = plugin("filter.fleet").FilterModule().filters()
    sources = [str(write_site(tmp_path / "site", 2).inventory)]
    assert filters["network_peers"](sources, "routed") == ["10.20.0.2", "10.20.0.3", "10.20.0.4"]
    assert filters["network_peers"](sources, "fabric") == []
