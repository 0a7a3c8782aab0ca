"""The verb `myriad topology`: from what ansible, portraits and files say to sentences and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.cli import topology as verb
from myriad.cli.topology import portrait_sightings, read_answers
from myriad.errors import InputError
from myriad.fleet.neighbours import Sighting

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "fixtures" / "neighbours"
LLDP = (RECORDED / "lldpcli-json0.json").read_text()


def answers(*parts: str) -> str:
    return "".join(part.rstrip("\n") + "\n" for part in parts)


def test_answers_of_many_hosts_are_told_apart() -> None:
    text = answers(
        f"gpu1 | CHANGED | rc=0 >>\n{LLDP}",
        'gpu2 | UNREACHABLE! => {\n    "changed": false,\n    "msg": "timed out"\n}',
        "gpu3 | FAILED | rc=2 >>\n[Errno 2] No such file or directory: b'lldpcli'",
        "gpu4 | FAILED | rc=1 >>\nunable to connect to socket /run/lldpd.socket",
        'gpu5 | CHANGED | rc=0 >>\n{"lldp": [{}]}',
        "gpu6 | CHANGED | rc=0 >>\nwhat?",
    )
    found, silent = read_answers(text, at="2026-11-29T21:03:10Z")
    assert [(one.node, one.peer, one.at) for one in found] == [("gpu1", "tor-r1", "2026-11-29T21:03:10Z")]
    assert silent["gpu2"] == "not reached over ssh"
    assert silent["gpu3"] == "lldpd is not installed; role fabric installs it (fabric_lldp_enabled)"
    assert "unable to connect" in silent["gpu4"]
    assert "sees nobody yet" in silent["gpu5"]
    assert "printed no JSON" in silent["gpu6"]


def test_a_portrait_gives_its_neighbours_and_its_nvlink_domain() -> None:
    status: dict[str, Any] = {
        "node": "gpu1",
        "observations": {"neighbours": {"source": "lldpcli", "at": "2026-11-29T21:03:10Z"}},
        "neighbours": [{"interface": "eth0", "chassis": "tor-r1", "chassisId": "02:42:0a:c7:07:02", "port": "swp1"}],
        "fabric": {"clusterUuid": "8da3b9c2-1111-4222-8333-944455566677", "clique": 3},
    }
    first, second = portrait_sightings(status)
    assert first == Sighting("gpu1", "tor-r1", "LLDP", "eth0", "swp1", "02:42:0a:c7:07:02", "2026-11-29T21:03:10Z")
    assert second.peer == "8da3b9c2-1111-4222-8333-944455566677/3"
    assert portrait_sightings({"node": "gpu1"}) == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What each node of the lab sees when it is asked over ssh."""
    peers = {"gpu1": "tor-r1", "gpu2": "tor-r1", "gpu3": "tor-r2"}

    def ask(inventory: Any) -> tuple[list[Sighting], dict[str, str]]:
        return [Sighting(node, peer, "LLDP", "eth1", at="2026-11-29T21:03:10Z") for node, peer in peers.items()], {}

    monkeypatch.setattr(verb, "ask_over_ssh", ask)
    return peers


def run(inventory: Path, *arguments: str) -> Any:
    return CliRunner().invoke(build_app("topology"), ["topology", "-i", str(inventory), *arguments])


def lab_copy(folder: Path, swap: tuple[str, str] | None = None, **topology: Any) -> Path:
    """The lab's inventory, with two nodes changing places and with switches."""
    import yaml

    hosts = yaml.safe_load((ROOT / "inventories" / "lab" / "hosts.yml").read_text())
    pool = hosts["all"]["children"]["gpu_nodes"]["children"]["pool_h100"]["hosts"]
    if swap:
        one, other = swap
        pool[one], pool[other] = pool[other], pool[one]
    (folder / "group_vars" / "all").mkdir(parents=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump(hosts))
    for name in ("cluster.yml", "teams.yml"):
        text = (ROOT / "inventories" / "lab" / "group_vars" / "all" / name).read_text()
        (folder / "group_vars" / "all" / name).write_text(text)
    if topology:
        (folder / "group_vars" / "all" / "topology.yml").write_text(yaml.safe_dump({"myriad_topology": topology}))
    return folder


SWITCHES = {"tor-r1": "hall1/b1/r1", "tor-r2": "hall1/b1/r2"}


def test_a_site_that_stands_right_ends_with_0(tmp_path: Path, asked: dict[str, str]) -> None:
    done = run(lab_copy(tmp_path, switches=SWITCHES), "--ssh")
    assert done.exit_code == 0, done.output
    assert "3 of 3 nodes stand where the description says, 0 do not, 0 not told by any cable" in done.output


def test_swapped_nodes_are_both_named_and_the_exit_code_is_4(tmp_path: Path, asked: dict[str, str]) -> None:
    done = run(lab_copy(tmp_path, swap=("gpu2", "gpu3"), switches=SWITCHES), "--ssh")
    assert done.exit_code == 4
    assert "gpu2 and gpu3 are swapped" in done.output
    assert "1 of 3 nodes stand where the description says, 2 do not" in done.output
    done = run(tmp_path, "--ssh", "--json")
    document = json.loads(done.stdout)
    assert [(row["node"], row["swapped_with"]) for row in document["mismatches"]] == [
        ("gpu2", "gpu3"),
        ("gpu3", "gpu2"),
    ]
    assert document["mismatches"][0]["sightings"][0]["peer"] == "tor-r1"


def test_an_accepted_swap_is_said_and_ends_with_0(tmp_path: Path, asked: dict[str, str]) -> None:
    inventory = lab_copy(tmp_path, swap=("gpu2", "gpu3"), switches=SWITCHES, accept=["gpu2", "gpu3"])
    done = run(inventory, "--ssh")
    assert done.exit_code == 0
    assert done.output.count("accepted: gpu") == 2


def test_without_described_switches_places_are_inferred(tmp_path: Path, asked: dict[str, str]) -> None:
    done = run(lab_copy(tmp_path), "--ssh")
    assert done.exit_code == 0
    assert "inferred from most of their nodes: tor-r1 in hall1/b1/r1, tor-r2 in hall1/b1/r2" in done.output


def test_a_file_that_is_no_ibnetdiscover_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "topology.txt"
    wrong.write_text("ibwarn: can't open UMAD port")
    done = run(lab_copy(tmp_path / "site"), "--ibnetdiscover", str(wrong))
    assert isinstance(done.exception, InputError)
    assert "no switch is in it" in str(done.exception) and done.exception.exit_code == 1


def test_leaves_of_a_file_are_compared_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    inventory = lab_copy(tmp_path, switches={"leaf-b1-0": "hall1/b1/r1", "leaf-b2-0": "hall1/b1/r1"})
    done = run(inventory, "--ibnetdiscover", str(RECORDED / "ibnetdiscover-two-racks.txt"))
    assert done.exit_code == 4
    assert "gpu3 is hall1/b1/r2 in the description; its neighbour leaf-b2-0 stands in hall1/b1/r1" in done.output
