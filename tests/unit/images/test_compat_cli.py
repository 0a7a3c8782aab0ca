"""`myriad image verdict`: inventories, portraits, widths, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from myriad.cli import _cluster as cluster
from myriad.cli import _image_groups as groups
from myriad.cli import build_app
from myriad.cli._image_verdict import lines
from myriad.errors import InputError, MyriadError
from myriad.fleet.portrait import Driver, Gpu, Mig, Portrait
from myriad.images.compat import NodeGroup, variant_facts, verdict
from tests.unit.agent.fake_cluster import FakeCluster

APP = build_app("image")

HOSTS = """
all:
  children:
    control_plane: {hosts: {cp1: {}}}
    gpu_nodes:
      children:
        pool_h100:
          hosts: {"gpu[1:3]": {myriad_location: hall1/b1/r1}}
          vars: {gpu_driver_versions: {driver: 580.126.20}}
        pool_v100:
          hosts: {"old[1:2]": {myriad_location: hall1/b1/r2}}
          vars: {gpu_driver_versions: {driver: 535.309.01}}
"""
POOLS = """
myriad_pools:
  h100: {model: H100-SXM5-80GB, gpus_per_node: 8}
  v100: {model: V100-SXM2-32GB, gpus_per_node: 8}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "group_vars/all").mkdir(parents=True)
    (folder / "hosts.yml").write_text(HOSTS)
    (folder / "group_vars/all/cluster.yml").write_text(POOLS)
    return folder


def run(*arguments: str) -> Any:
    return CliRunner().invoke(APP, ["image", "verdict", *arguments], catch_exceptions=True)


def test_the_tour(site: Path) -> None:
    done = run("pytorch-2.12-cu130", "-i", str(site))
    assert done.exit_code == 4
    first, second, *rest = done.stdout.splitlines()
    assert first == ("pool h100   driver 580.126.20   native    CUDA 13.0 needs >= 580.65.06; sm_90 compiled in")
    assert second.startswith(
        "pool v100   driver 535.309.01   REFUSED   torch 2.12 with CUDA 13.0 has no sm_70 for V100"
    )
    assert second.endswith("smallest fix: pytorch-2.12-cu126 (minor-version, native from 560.28.03)")
    assert "fix       pytorch-2.12-cu126 runs on all pools that can run CUDA for this processor" in rest
    assert "requires  NVIDIA_REQUIRE_CUDA=cuda>=13.0,driver>=580.65.6,arch>=7.5,arch<11" in done.stdout
    assert rest[-1] == "pytorch: runs on 3 of 5 nodes"


def test_exit_0_where_all_run_and_4_where_a_driver_is_said_that_does_not(site: Path) -> None:
    assert run("pytorch-2.12-cu126", "-i", str(site)).exit_code == 0
    done = run("pytorch-2.12-cu126", "-i", str(site), "--driver", "h100=470.82.01")
    assert done.exit_code == 4
    assert "driver 470.82.01" in done.stdout


def test_json_says_the_same(site: Path) -> None:
    done = run("pytorch-2.12-cu130", "-i", str(site), "--json")
    assert done.exit_code == 4
    told = json.loads(done.stdout)
    assert [one["verdict"] for one in told["verdicts"]] == ["native", "refused"]
    assert [one["rule"] for one in told["verdicts"]] == ["driver-floor", "arch-missing"]
    assert {one["driver_source"] for one in told["verdicts"]} == {"inventory"}
    assert [one["nodes"] for one in told["verdicts"]] == [3, 2]
    assert (told["ok"], told["runs_everywhere"], told["driver_floor"]) == (False, "pytorch-2.12-cu126", "580.65.06")
    assert told["nvidia_require_cuda"].startswith("cuda>=13.0,driver>=580.65.6,")
    assert all(one["source"] for one in told["verdicts"])


def test_a_driver_that_only_the_lock_says_is_marked_and_one_that_nobody_says_is_unknown(site: Path) -> None:
    (site / "hosts.yml").write_text(HOSTS.replace("{gpu_driver_versions: {driver: 580.126.20}}", "{}"))
    done = run("pytorch-2.12-cu126", "-i", str(site))
    assert f"driver {groups.locked_driver('distribution')}*" in done.stdout
    assert "`myriad site` installs where a host has none" in done.stdout
    (site / "hosts.yml").write_text(
        HOSTS.replace("{gpu_driver_versions: {driver: 580.126.20}}", "{gpu_driver_existing: skip}")
    )
    done = run("pytorch-2.12-cu126", "-i", str(site))
    assert done.exit_code == 4
    assert (
        "driver not known    UNKNOWN         nobody says which driver these nodes have; next: give --driver h100="
        in (done.stdout)
    )


def test_an_image_of_a_folder_is_read(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images/train"
    folder.mkdir(parents=True)
    text = 'repo: train\ntitle: t\nentrypoint: [x]\nbudget_mb: 1\ngpu: {torch: "2.8.0", cuda: "12.8", archs: ["6.0"]}\n'
    (folder / "image.yml").write_text(text)
    done = run("train", "-i", str(site), "--images", str(folder.parent))
    assert done.exit_code == 0, done.output
    assert "warning   image.yml wants 6.0, which it has no code for" in done.stdout
    assert "but 12.x runs from 525.60.13 on" in done.stdout
    assert run(str(folder), "-i", str(site)).exit_code == 0


def test_an_image_without_cuda_runs_everywhere(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images/small"
    folder.mkdir(parents=True)
    (folder / "image.yml").write_text("repo: small\ntitle: t\nentrypoint: [x]\nbudget_mb: 1\n")
    done = run("small", "-i", str(site), "--images", str(folder.parent))
    assert done.exit_code == 0
    assert "NVIDIA_REQUIRE_CUDA" not in done.stdout
    assert "small: runs on 5 of 5 nodes" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pytroch",), 'there is no image "pytroch"'),
        (("pytorch-2.12-cu126", "--driver", "h10=580.126.20"), 'no pool "h10"; did you mean "h100"'),
        (("pytorch-2.12-cu126", "--driver", "h100"), "--driver h100"),
        (("pytorch-2.12-cu126", "--driver", "h100=1.1", "--driver", "h100=2.2"), "h100 is given twice"),
        (("pytorch-2.12-cu126", "--driver", "h100=latest"), '"latest" of pool h100 is no driver version'),
        (("pytorch-2.12-cu126", "--driver", "h100=nvidia-driver-580"), "is no driver version"),
    ],
)
def test_wrong_input_is_exit_1(site: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments, "-i", str(site))
    assert isinstance(done.exception, InputError) and done.exception.exit_code == 1
    assert words in str(done.exception)


def test_a_wrong_description_is_exit_1(site: Path) -> None:
    (site / "group_vars/all/cluster.yml").write_text(POOLS.replace("V100-SXM2-32GB", "V100"))
    done = run("pytorch-2.12-cu126", "-i", str(site))
    assert isinstance(done.exception, InputError)
    assert "V100-SXM2-32GB" in done.stderr


# Terminals


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal_but_what_is_made_to_be_copied(width: int) -> None:
    image = variant_facts("pytorch-2.12-cu130")
    assert image is not None
    found = [
        NodeGroup(pool="h100", model="H100-SXM5-80GB", driver="580.126.20", nodes=1200),
        NodeGroup(pool="v100", model="V100-SXM2-32GB", driver="535.309.01", nodes=4),
        NodeGroup(pool="b200", model="B200", driver="570.133.20", nodes=4),
    ]
    told = lines(image, [verdict(image, group) for group in found], width)
    assert all(len(line) <= width for line in told if "NVIDIA_REQUIRE_CUDA=" not in line), told
    assert told[-1] == "pytorch: runs on 1,200 of 1,208 nodes"
    words = " ".join(" ".join(told).split())
    assert "smallest fix: pytorch-2.12-cu126 (minor-version, native from 560.28.03)" in words
    assert (told[0] == "pool h100   driver 580.126.20   native") is (width < 96)


# Portraits


def portrait(node: str, *gpus: Gpu, driver: str = "") -> dict[str, Any]:
    body = Portrait(node=node, gpus=gpus, drivers=(Driver(vendor="nvidia", loaded=driver),) if driver else ())
    return {"metadata": {"name": node}, "spec": {}, "status": body.document()}


def gpu(index: int, **more: Any) -> Gpu:
    return Gpu(index=index, vendor="nvidia", **{"model": "H100-SXM5-80GB", **more})


def test_what_nodes_report_counts_more_than_what_is_described(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mig = Mig(mode="enabled", pending="enabled")
    items = [
        portrait("gpu1", gpu(0, driver="580.126.20"), gpu(1, driver="580.126.20")),
        portrait("gpu2", gpu(0, mig=mig), driver="535.309.01"),
        # A pool of two models, one of them not in the catalog; a card that fell off the bus does not count.
        portrait(
            "gpu3",
            gpu(0, model="", product="NVIDIA A100-SXM4-80GB"),
            gpu(1, model="", product="NVIDIA X999"),
            gpu(2, model="B200", fault="lost"),
            driver="580.126.20",
        ),
        # Its GPUs do not answer: what is described stands.
        portrait("old1"),
        portrait("elsewhere", gpu(0), driver="450.80.02"),
        {"metadata": {"name": "old2"}, "spec": {}},
    ]
    served = FakeCluster()
    monkeypatch.setattr(served, "list", lambda *_a, **_k: (items, "1"))
    monkeypatch.setattr(cluster, "reach", lambda _path: served)
    done = run("pytorch-2.12-cu130", "-i", str(site), "--kubeconfig", "x", "--json")
    assert done.exit_code == 4, done.output
    told = {(one["pool"], one["model"], one["driver"], one["mig"]): one for one in json.loads(done.stdout)["verdicts"]}
    assert {key: (one["verdict"], one["driver_source"], one["nodes"]) for key, one in told.items()} == {
        ("h100", "H100-SXM5-80GB", "580.126.20", False): ("native", "portrait", 1),
        ("h100", "H100-SXM5-80GB", "535.309.01", True): ("refused", "portrait", 1),
        ("h100", "A100-SXM4-80GB", "580.126.20", False): ("native", "portrait", 1),
        ("h100", "NVIDIA X999", "580.126.20", False): ("unknown", "portrait", 1),
        ("v100", "V100-SXM2-32GB", "535.309.01", False): ("refused", "inventory", 2),
    }
    text = run("pytorch-2.12-cu130", "-i", str(site), "--kubeconfig", "x").stdout
    assert "pool h100 (1 node, H100-SXM5-80GB, MIG)" in text
    assert "pool v100  " in text


def test_a_cluster_without_portraits_says_what_to_do(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from myriad.kube.client import ApiError

    class Bare:
        base_url = "https://api"

        def list(self, *_a: Any, **_k: Any) -> Any:
            raise ApiError(404, "NotFound", "no such kind", where="x")

    monkeypatch.setattr(cluster, "reach", lambda _path: Bare())
    done = run("pytorch-2.12-cu126", "-i", str(site), "--kubeconfig", "x")
    assert isinstance(done.exception, MyriadError)
    assert "the cluster has no NodePortraits" in str(done.exception)
    assert "--driver POOL=VERSION" in str(done.exception)


def test_a_described_mig_pool_asks_for_a_driver_that_can_cut(site: Path) -> None:
    (site / "group_vars/all/cluster.yml").write_text(
        POOLS.replace(
            "{model: H100-SXM5-80GB,", "{model: H100-SXM5-80GB, mig: {layout: {1g.10gb: 7}, training_allowed: true},"
        )
    )
    done = run("pytorch-2.12-cu126", "-i", str(site), "--driver", "h100=525.85.05", "--json")
    told = json.loads(done.stdout)["verdicts"][0]
    assert (told["mig"], told["rule"], told["fix"]) == (True, "driver-before-mig", "driver >= 525.85.12")
