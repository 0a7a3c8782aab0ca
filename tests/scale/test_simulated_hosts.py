"""What `make bench-scale` measures, at a size that a test may have: the real playbooks over a few simulated hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from myriad.lab.simulated import host, site
from myriad.runs import HostResult, RunResult
from tests.scale.bench_scale import WrongRunError, judge, play

pytestmark = pytest.mark.slow
SETTINGS = {"MYRIAD_SIMULATED_ANSWER_S": "0", "MYRIAD_SIMULATED_TIMEOUT_S": "1"}
ONLY = ("--limit", "gpu_nodes")


def run(made: site.SimulatedSite, *, dead: tuple[str, ...] = (), changing: tuple[str, ...] = ()) -> RunResult:
    code, found, _cost = play(made, "site", ONLY, SETTINGS)
    judge(found, code, dead=dead, changing=changing, log=made.folder / "site.log")
    return found


def test_t23_g1_a_dead_host_blocks_nobody_and_a_new_one_touches_nobody(tmp_path: Path) -> None:
    made = site.write_site(tmp_path / "site", 3)
    assert {name: one.tasks for name, one in run(made).hosts.items() if name != "gpu0001"} == {
        "gpu0002": 1,
        "gpu0003": 1,
    }
    site.set_dead(made, ["gpu0002"], True)
    assert run(made, dead=("gpu0002",)).exit_code == 3
    site.set_dead(made, ["gpu0002"], False)
    grown = site.add_nodes(made, 1, bundle=made.folder / "bundle", network="fabric")
    found = run(grown, changing=("gpu0004",))
    assert found.hosts["gpu0003"].tasks == 1
    assert found.hosts["gpu0004"].tasks > 20
    # It has joined and recorded the run: there is nothing left to do.
    assert host.load(made.hosts, site.address_of("gpu0004")).paths == ["/var/lib/myriad/kubeadm-join.done"]
    run(grown)


def test_in_a_routed_network_the_others_get_the_route_and_nothing_else(tmp_path: Path) -> None:
    made = site.write_site(tmp_path / "site", 2, network="routed")
    run(made)
    grown = site.add_nodes(made, 1, bundle=made.folder / "bundle", network="routed")
    found = run(grown, changing=grown.names)
    assert {role for role, _task in found.hosts["gpu0002"].changed} == {"pod_network"}
    assert found.hosts["gpu0002"].tasks < 8
    run(grown)


def test_a_run_that_does_something_else_gives_no_figures(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("what it said\n")
    found = RunResult(hosts={"gpu0001": HostResult("gpu0001", changed=[("node_base", "x")])}, is_finished=True)
    with pytest.raises(WrongRunError, match="changed gpu0001"):
        judge(found, 0, log=log)
    judge(found, 0, changing=["gpu0001"], log=log)
    with pytest.raises(WrongRunError, match="0 hosts were not reached, 1 are dead"):
        judge(found, 4, dead=["gpu0002"], changing=["gpu0001"], log=log)
