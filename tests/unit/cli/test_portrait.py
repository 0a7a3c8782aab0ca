"""`myriad portrait` from a recorded machine and from a cluster in memory, and its published schema."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from myriad.agent.collect.assemble import portrait_of
from myriad.agent.collect.source import Recorded
from myriad.cli import build_app
from myriad.cli import portrait as verb
from myriad.errors import InputError
from myriad.fleet.portrait import LEASE_PREFIX, Expected, Spec
from myriad.kube.client import ApiError
from myriad.kube.kinds import LEASES, NODE_PORTRAITS
from tests.unit.agent.fake_cluster import FakeCluster

ROOT = Path(__file__).parents[3]
MACHINES = sorted(folder for folder in (ROOT / "tests/fixtures/machines").iterdir() if folder.is_dir())
SCHEMA = json.loads((ROOT / "docs/schema/node-portrait.json").read_text())
APP = build_app("portrait")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(APP, ["portrait", *arguments])


def machine(name: str) -> str:
    return str(ROOT / "tests/fixtures/machines" / name)


@pytest.mark.parametrize("folder", MACHINES, ids=lambda folder: folder.name)
def test_json_fits_the_published_schema(folder: Path) -> None:
    done = run("--fixture", str(folder), "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    jsonschema.validate(answer, SCHEMA)
    assert all(fact["source"] and fact["at"] for fact in answer["facts"])
    assert run("--fixture", str(folder)).exit_code == 0


def test_the_schema_refuses_what_is_no_portrait() -> None:
    answer = json.loads(run("--fixture", machine("a10-x1"), "--json").output)
    for path, value in ((("portrait", "gpus"), "none"), (("facts",), [{"path": "x"}]), (("trusted",), "maybe")):
        wrong = json.loads(json.dumps(answer))
        place = wrong
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_people_see_what_is_wrong() -> None:
    text = run("--fixture", machine("h100-one-lost")).output
    assert "7 x H100-SXM5-80GB, 1 lost, 8 on the PCI bus" in text and "GPU is lost" in text
    text = run("--fixture", machine("nvml-mismatch")).output
    assert "no GPU answers" in text and "module 535.183.01" in text and "library 535.309.01" in text
    text = run("--fixture", machine("a100-sxm4-80gb-x8")).output
    assert "2 uncorrected memory errors, row remapping waits for a reset" in text
    text = run("--fixture", machine("h200-sxm-x8")).output
    assert "slowed down (hw-slowdown, hw-thermal-slowdown)" in text


def test_this_machine_can_be_recorded_and_read_again(tmp_path: Path) -> None:
    done = run("n1", "--local", "--record", str(tmp_path / "r"), "--json")
    again = run("n1", "--fixture", str(tmp_path / "r"), "--json")
    assert done.exit_code == again.exit_code == 0
    one, other = (json.loads(text)["portrait"] for text in (done.output, again.output))
    assert one["pci"] == other["pci"] and one["gpus"] == other["gpus"] and one["nics"] == other["nics"]
    files = yaml.safe_load((tmp_path / "r" / "files.yml").read_text())
    assert set(str(files.get("/etc/machine-id", "0")).strip()) == {"0"}


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(InputError, match="needs --local"):
        run_raising("--record", "x")
    with pytest.raises(InputError, match="exclude each other"):
        run_raising("--local", "--fixture", machine("a10-x1"))
    with pytest.raises(InputError, match="no recorded machine"):
        run_raising("--fixture", str(ROOT / "docs"))


def run_raising(*arguments: str) -> None:
    done = CliRunner().invoke(APP, ["portrait", *arguments])
    assert done.exception is not None
    raise done.exception


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    monkeypatch.setattr(verb.cluster, "reach", lambda _kubeconfig: fake)
    found, _ = portrait_of("gpu1", Recorded(Path(machine("l40s-x4"))), "2026-11-29T10:00:00Z")
    spec = Spec(labels={"myriad.dev/pool": "l40s"}, expected=Expected(gpus=4))
    fake.put(NODE_PORTRAITS, {"metadata": {"name": "gpu1"}, "spec": spec.document(), "status": found.document()})
    fake.put(NODE_PORTRAITS, {"metadata": {"name": "gpu2"}, "spec": spec.document()})
    return fake


def lease(fake: FakeCluster, name: str, age_s: int) -> None:
    renewed = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    fake.put(LEASES, {"metadata": {"name": LEASE_PREFIX + name},
                      "spec": {"renewTime": renewed, "leaseDurationSeconds": 40}})  # fmt: skip


def test_a_node_of_the_cluster(cluster: FakeCluster) -> None:
    lease(cluster, "gpu1", 10)
    done = run("gpu1")
    assert done.exit_code == 0 and "4 x L40S" in done.output
    answer = json.loads(run("gpu1", "--json").output)
    jsonschema.validate(answer, SCHEMA)
    assert answer["labels"]["myriad.dev/pool"] == "l40s" and answer["labels"]["myriad.dev/gpu-count"] == "4"


def test_a_stale_portrait_says_so_and_ends_with_4(cluster: FakeCluster) -> None:
    lease(cluster, "gpu1", 200)
    done = run("gpu1")
    assert done.exit_code == 4 and "not to be relied on" in done.output and "has not been heard of" in done.output
    assert json.loads(run("gpu1", "--json").output)["trusted"] is False
    done = run("gpu2")
    assert done.exit_code == 4 and "no portrait yet" in done.output


def test_all_nodes_in_one_table(cluster: FakeCluster) -> None:
    lease(cluster, "gpu1", 10)
    done = run()
    assert done.exit_code == 4 and "gpu1" in done.output and "no portrait yet" in done.output


def test_a_name_that_is_nearly_right(cluster: FakeCluster) -> None:
    with pytest.raises(InputError, match='did you mean "gpu1"'):
        run_raising("gpuu1")


def test_before_the_role_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        def find(self, *_: Any, **__: Any) -> None:
            raise ApiError(404, "NotFound", "no such kind", where="nodeportraits")

        def list(self, *_: Any, **__: Any) -> None:
            raise ApiError(404, "NotFound", "no such kind", where="nodeportraits")

    monkeypatch.setattr(verb.cluster, "reach", lambda _kubeconfig: Bare())
    with pytest.raises(InputError, match="no node has a portrait"):
        run_raising("gpu1")
