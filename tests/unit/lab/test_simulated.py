"""Simulated hosts: what a module says, what is remembered, and the site that is written around them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from myriad.inventory import read_inventory
from myriad.lab.simulated import answers, host, site
from myriad.stack.bundle import Bundle
from myriad.stack.bundle_verify import quick_problems


@pytest.fixture
def machine() -> host.SimulatedHost:
    return host.bare("gpu0001", "10.20.0.3")


def look(machine: host.SimulatedHost, inputs: str = "i", **parts: str) -> list[tuple[str, str]]:
    found = answers.answer("node_state", {"state": "check", "inputs_hash": inputs, "parts_hash": parts}, machine)
    return [(entry["kind"], entry["item"]) for entry in found["drift"]]


def converge(machine: host.SimulatedHost, inputs: str = "i", *, complete: bool = True, **parts: str) -> None:
    given = {"state": "converged", "inputs_hash": inputs, "parts_hash": parts, "complete": complete}
    answers.answer("node_state", given, machine)


def test_a_bare_host_has_converged_after_a_complete_run_with_these_inputs(machine: host.SimulatedHost) -> None:
    assert look(machine) == [("site", "run")]
    converge(machine, complete=False)
    assert look(machine) == [("site", "run")]
    converge(machine, pod_network="one")
    assert look(machine, pod_network="one") == []
    assert look(machine, pod_network="two") == [("part", "pod_network")]
    assert look(machine, "other", pod_network="one") == [("inputs", "inputs")]


def test_a_host_that_adopts_takes_its_first_look_for_the_last_run_and_no_later_one(machine: host.SimulatedHost) -> None:
    machine.adopts = True
    assert look(machine, "one", pod_network="x") == []
    assert look(machine, "two", pod_network="y") == [("inputs", "inputs"), ("part", "pod_network")]


def files(content: str, run: str = "1", role: str = "node_base", **more: object) -> dict[str, object]:
    return {
        "tree": "install",
        "role": role,
        "run_id": run,
        "rendered": [{"path": "/etc/a", "content": content}],
        **more,
    }


def test_what_is_asked_again_changes_nothing_and_another_content_does(machine: host.SimulatedHost) -> None:
    said = [answers.answer("files", files(*given), machine)["changed"] for given in (("a",), ("a", "2"), ("b", "2"))]
    assert said == [True, False, True]
    assert machine.roles == ["node_base"]


def test_a_prediction_changes_nothing(machine: host.SimulatedHost) -> None:
    for _time in range(2):
        assert answers.answer("files", files("a", _ansible_check_mode=True), machine)["changed"]
    assert machine.roles == []


def test_a_command_that_creates_something_runs_once_and_bringing_its_configuration_is_not_it(
    machine: host.SimulatedHost,
) -> None:
    done = "/var/lib/myriad/kubeadm-join.done"
    take, join = (
        {"argv": ["/usr/local/lib/myriad/kubeadm-once", verb, "/run/join.yaml"], "creates": done}
        for verb in ("take", "join")
    )
    assert answers.answer("command", take, machine)["changed"]
    assert not answers.answer("stat", {"path": done}, machine)["stat"]["exists"]
    assert [answers.answer("command", join, machine)["changed"] for _time in range(2)] == [True, False]
    assert answers.answer("stat", {"path": done}, machine)["stat"]["exists"]


def test_a_reset_forgets_everything(machine: host.SimulatedHost) -> None:
    answers.answer("files", files("a"), machine)
    converge(machine)
    assert answers.answer("node_state", {"state": "absent"}, machine)["changed"]
    assert not answers.answer("node_state", {"state": "absent"}, machine)["changed"]
    assert look(machine) == [("site", "run")]


def test_a_module_without_an_answer_is_an_error_and_not_a_guess(machine: host.SimulatedHost) -> None:
    with pytest.raises(answers.UnknownModuleError, match="no answer for the module copy"):
        answers.answer("copy", {}, machine)


def test_the_kubeconfig_is_the_one_file_that_can_be_read(machine: host.SimulatedHost) -> None:
    found = answers.answer("slurp", {"src": answers.ADMIN_CONF}, machine, admin_conf="users: []")
    assert base64.b64decode(found["content"]) == b"users: []"
    assert answers.answer("slurp", {"src": "/etc/shadow"}, machine, admin_conf="users: []")["failed"]


def test_a_host_is_a_file_and_another_install_is_another_machine(tmp_path: Path, machine: host.SimulatedHost) -> None:
    machine.paths.append("/x")
    host.save(tmp_path, machine)
    assert host.load(tmp_path, machine.address) == machine
    assert host.bare("gpu0001", "10.20.0.3", install=1).machine_id != machine.machine_id
    with pytest.raises(host.NoSuchHostError, match=r"10\.20\.0\.9"):
        host.load(tmp_path, "10.20.0.9")


def test_a_site_is_described_without_an_error_and_its_bundle_is_whole(tmp_path: Path) -> None:
    from myriad.fleet import check

    written = site.write_site(tmp_path / "site", 20)
    grown = site.add_nodes(written, 1, bundle=tmp_path / "site" / "bundle", network="fabric")
    found = check(read_inventory(grown.inventory))
    assert list(found.errors) == []
    assert len(found.fleet.hosts) == 22
    assert found.fleet.hosts["gpu0021"].location == ("hall1", "b1", "r003")
    assert not host.load(grown.hosts, site.address_of("gpu0021")).adopts
    assert host.load(grown.hosts, site.address_of("gpu0020")).adopts
    bundle = Bundle.load(tmp_path / "site" / "bundle")
    assert bundle.has_file("kubelet")
    assert list(quick_problems(bundle.directory, tmp_path / "cache")) == []


def test_dead_hosts_are_named_and_come_back(tmp_path: Path) -> None:
    written = site.write_site(tmp_path / "site", 3)
    site.set_dead(written, ["gpu0002"], True)
    states = [json.loads(path.read_text()) for path in sorted(written.hosts.iterdir())]
    assert [state["name"] for state in states if state["dead"]] == ["gpu0002"]
    site.set_dead(written, ["gpu0002"], False)
    assert not host.load(written.hosts, site.address_of("gpu0002")).dead
