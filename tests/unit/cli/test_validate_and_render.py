"""`myriad validate` and `myriad render` as a person and a program use them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from myriad.cli import render, validate
from myriad.fleet import check, objects_for_cluster_policy
from myriad.fleet.access import access_objects
from myriad.inventory import read_inventory

ROOT = Path(__file__).parents[3]
EXAMPLE = "inventories/example"
BROKEN = "tests/fixtures/broken"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def myriad(*arguments: str) -> Result:
    app = typer.Typer()
    validate.register(app)
    render.register(app)
    return CliRunner().invoke(app, list(arguments))


def test_a_right_description_is_one_line() -> None:
    result = myriad("validate", "-i", EXAMPLE)
    assert result.exit_code == 0
    assert re.fullmatch(
        r"example: 3 control planes, 1,250 GPU nodes, 10,000 GPUs in 3 pools "
        r"\(h100 4,000, h200 5,000, serving 1,000\), 6 teams: valid \(\d+\.\d s\)\n",
        result.stdout,
    )


def test_problems_stand_under_their_file_with_their_line() -> None:
    result = myriad("validate", "-i", f"{BROKEN}/cohort-unknown")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{BROKEN}/cohort-unknown/group_vars/all/cluster.yml",
        '  myriad_cohorts.research.parent  "sites" is not a cohort; none is described  (line 6)',
        f"{BROKEN}/cohort-unknown/group_vars/all/teams.yml",
        '  myriad_teams.speech.cohort  "reserach" is not a cohort; did you mean "research"?  (line 3)',
        "2 errors, nothing was touched.",
    ]


def test_a_slip_in_a_thousand_hosts_is_no_thousand_lines(tmp_path: Path) -> None:
    twice = "".join(f"gpu{number:04} myriad_location=r1\n" for number in range(1250))
    (tmp_path / "hosts").write_text(
        f"[control_plane]\ncp1\n[pool_h100]\n{twice}{twice}[gpu_nodes:children]\npool_h100\n"
    )
    result = myriad("validate", "-i", str(tmp_path))
    assert result.exit_code == 1
    told = [line for line in result.stdout.splitlines() if "is listed twice in group pool_h100" in line]
    assert len(told) == validate.ALIKE
    assert "  and 1,230 more of that kind (host-twice); --json has them all" in result.stdout.splitlines()
    assert len(result.stdout.splitlines()) < 40
    document = json.loads(myriad("validate", "-i", str(tmp_path), "--json").stdout)
    assert sum(problem["rule"] == "host-twice" for problem in document["errors"]) == 1250


def test_warnings_are_printed_and_do_not_stop() -> None:
    result = myriad("validate", "-i", f"{BROKEN}/quota-above-capacity")
    assert result.exit_code == 0
    assert "warning: the quotas of pool h100 add up to 40 GPUs (vision 32, speech 8)" in result.stdout
    assert "2 teams: valid, 1 warning (" in result.stdout


def test_a_file_that_cannot_be_read_says_that_the_rest_was_not_checked() -> None:
    result = myriad("validate", "-i", f"{BROKEN}/yaml-syntax")
    assert result.exit_code == 1
    assert result.stdout.endswith("2 errors, nothing was touched. What depends on the unread part was not checked.\n")


def test_json_has_the_same_for_programs() -> None:
    result = myriad("validate", "-i", f"{BROKEN}/location-depth", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["errors"] == [
        {
            "severity": "error",
            "rule": "location-depth",
            "file": f"{BROKEN}/location-depth/hosts.yml",
            "line": 10,
            "key": "myriad_location",
            "hosts": ["gpu3"],
            "message": 'myriad_location "hall1/r2" has 2 levels; topology_levels needs 3 (room/block/rack)',
        }
    ]
    right = json.loads(myriad("validate", "-i", EXAMPLE, "--json").stdout)
    assert right["ok"] is True
    assert right["summary"]["gpus"] == 10_000


def test_render_writes_every_object_in_one_file_a_kind(tmp_path: Path) -> None:
    out = tmp_path / "new" / "objects"
    result = myriad("render", "-i", EXAMPLE, "--out", str(out))
    assert result.exit_code == 0, result.output
    written = [item for file in render.FILES.values() if (out / file).exists() for item in _load(out / file)]
    fleet = check(read_inventory(EXAMPLE)).fleet
    order = list(render.FILES)
    assert written == sorted(
        [*objects_for_cluster_policy(fleet), *access_objects(fleet)], key=lambda item: order.index(item["kind"])
    )
    for kind, file in render.FILES.items():
        assert not (out / file).exists() or {item["kind"] for item in _load(out / file)} == {kind}
    assert re.search(rf"{len(written)} objects in 17 files \(\d+\.\d s\)\n$", result.stdout)


def test_render_twice_writes_the_same_and_lists_it_as_json(tmp_path: Path) -> None:
    first = json.loads(myriad("render", "-i", EXAMPLE, "--out", str(tmp_path), "--json").stdout)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = json.loads(myriad("render", "-i", EXAMPLE, "--out", str(tmp_path), "--json").stdout)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert first["files"] == second["files"]
    assert {Path(file["path"]).name for file in first["files"]} == set(before)
    fleet = check(read_inventory(EXAMPLE)).fleet
    made = len(objects_for_cluster_policy(fleet)) + len(access_objects(fleet))
    assert sum(file["objects"] for file in first["files"]) == made > 100


def test_render_takes_away_only_what_it_wrote_itself(tmp_path: Path) -> None:
    (tmp_path / "cohorts.yml").write_text(f"{render._HEADER}---\nkind: Cohort\n", encoding="utf-8")
    (tmp_path / "volcano-queues.yml").write_text("mine: true\n", encoding="utf-8")
    (tmp_path / "notes.yml").write_text("mine: true\n", encoding="utf-8")
    objects = objects_for_cluster_policy(check(read_inventory(EXAMPLE)).fleet)
    render.write_objects([item for item in objects if item["kind"] != "Cohort"], tmp_path)
    assert not (tmp_path / "cohorts.yml").exists()
    assert (tmp_path / "volcano-queues.yml").read_text(encoding="utf-8") == "mine: true\n"
    assert (tmp_path / "notes.yml").exists()


def test_render_refuses_a_description_with_errors(tmp_path: Path) -> None:
    out = tmp_path / "objects"
    result = myriad("render", "-i", f"{BROKEN}/quota-wrong", "--out", str(out))
    assert result.exit_code == 1
    assert not out.exists()
    assert "is -8; a quota is 0 or more GPUs" in result.stdout
    as_json = myriad("render", "-i", f"{BROKEN}/quota-wrong", "--out", str(out), "--json")
    assert as_json.exit_code == 1
    assert len(json.loads(as_json.stdout)["errors"]) == 2


def test_render_into_a_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    from myriad.errors import InputError

    blocker = tmp_path / "file"
    blocker.write_text("x", encoding="utf-8")
    result = myriad("render", "-i", EXAMPLE, "--out", str(blocker))
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == f"{blocker}: cannot write the objects: File exists\n  give --out another folder"


def _load(path: Path) -> list[dict[str, object]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
