"""`myriad init`: the real probe on machines that are folders, reached by an `ssh` that is a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from myriad.fleet import Checked, check
from myriad.inventory import read_inventory
from myriad.onboard.facts import HostFacts, inventory_names

from .conftest import DEBIAN, L40S

ROOT = Path(__file__).parents[3]
CENTOS = 'PRETTY_NAME="CentOS Linux 7 (Core)"\nID="centos"\nVERSION_ID="7"\n'
UBUNTU = 'PRETTY_NAME="Ubuntu {0} LTS"\nID=ubuntu\nVERSION_ID="{0}"\n'


def described(path: Path) -> Checked:
    checked = check(read_inventory(path))
    assert checked.errors == []
    return checked


def test_two_gpu_nodes_become_a_site_whose_control_plane_is_one_of_them(
    machines: Any, myriad: Any, tmp_path: Path
) -> None:
    machines.add("10.0.0.5", hostname="gpu1")
    machines.add("10.0.0.6", hostname="gpu2.example.com")
    out = tmp_path / "mine"
    done = myriad("init", "--hosts", "10.0.0.5,10.0.0.6", "--out", str(out))
    assert done.returncode == 0, done.stderr
    fleet = described(out).fleet
    assert sorted(fleet.hosts) == ["gpu1", "gpu2"]
    first = fleet.hosts["gpu1"]
    assert first.is_control_plane and first.pool == "h100" and first.gpus == 8 and first.address == "10.0.0.5"
    assert not fleet.hosts["gpu2"].is_control_plane
    assert fleet.pools["h100"].model == "H100-SXM5-80GB" and fleet.gpus == 16
    assert fleet.teams["research"].quota == {"h100": 16}
    site = yaml.safe_load((out / "group_vars/all/site.yml").read_text())
    assert site["site_node_network"] == "10.0.0.0/24" and site["site_kubeconfig"].endswith("/mine.kubeconfig")
    assert "8 x H100-SXM5-80GB" in done.stdout and "control plane" in done.stdout
    assert f"myriad validate -i {out}" in done.stdout and f"myriad site -i {out} --check --diff" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lan", "mine"], "nothing is left beside it"


def test_inventories_small_is_what_it_writes(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.5", hostname="gpu1")
    machines.add("10.0.0.6", hostname="gpu2")
    out = tmp_path / "small"
    assert myriad("init", "--hosts", "10.0.0.5,10.0.0.6", "--out", str(out)).returncode == 0
    small = ROOT / "inventories" / "small"
    made = {str(p.relative_to(out)): p.read_text() for p in out.rglob("*") if p.is_file()}
    assert made == {str(p.relative_to(small)): p.read_text() for p in small.rglob("*.yml")}


def test_validate_accepts_what_it_writes(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.5", hostname="gpu1")
    out = str(tmp_path / "mine")
    assert myriad("init", "--hosts", "10.0.0.5", "--out", out).returncode == 0
    done = myriad("validate", "-i", out, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["warnings"] == []


def test_a_machine_without_gpus_becomes_the_control_plane(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.5", hostname="gpu1")
    machines.add("10.0.0.9", hostname="head", gpus=0)
    out = tmp_path / "mine"
    assert myriad("init", "--hosts", "10.0.0.5,10.0.0.9", "--out", str(out)).returncode == 0
    fleet = described(out).fleet
    assert [host.name for host in fleet.control_plane] == ["head"] and fleet.hosts["head"].pool is None


def test_the_control_plane_may_be_chosen(machines: Any, myriad: Any, tmp_path: Path) -> None:
    for last in (5, 6, 7):
        machines.add(f"10.0.0.{last}", hostname=f"gpu{last}")
    out = tmp_path / "mine"
    hosts = "10.0.0.5,10.0.0.6,10.0.0.7"
    assert myriad("init", "--hosts", hosts, "--out", str(out), "--control-plane", hosts).returncode == 0
    assert [host.name for host in described(out).fleet.control_plane] == ["gpu5", "gpu6", "gpu7"]
    done = myriad("init", "--hosts", hosts, "--out", str(tmp_path / "other"), "--control-plane", "10.0.0.8")
    assert done.returncode == 1 and "10.0.0.8 is not among the hosts" in done.stderr


def test_models_and_counts_become_pools(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.5", hostname="gpu1", gpus=8)
    machines.add("10.0.0.6", hostname="gpu2", gpus=4)
    machines.add("10.0.0.7", hostname="gpu3", gpus=2, model=L40S)
    out = tmp_path / "mine"
    done = myriad("init", "--hosts", "10.0.0.5,10.0.0.6,10.0.0.7", "--out", str(out), "--team", "vision")
    assert done.returncode == 0, done.stderr
    fleet = described(out).fleet
    assert {host.name: (host.pool, host.gpus) for host in fleet.hosts.values()} == {
        "gpu1": ("h100", 8), "gpu2": ("h100", 4), "gpu3": ("l40s", 2),
    }  # fmt: skip
    assert fleet.teams["vision"].quota == {"h100": 12, "l40s": 2}


def test_how_the_hosts_are_reached_is_written_and_used(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.5", hostname="gpu1")
    machines.add("gpu2.lan", hostname="gpu2", address="10.0.0.6")
    key = tmp_path / "key"
    key.write_text("a key")
    out = tmp_path / "mine"
    done = myriad(
        "init", "--hosts", "10.0.0.5,root@gpu2.lan", "--out", str(out), "--user", "ubuntu", "--port", "2222",
        "--key", str(key), "--ssh-option", "UserKnownHostsFile=/known", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hosts"][1]["name"] == "gpu2"
    hosts = yaml.safe_load((out / "hosts.yml").read_text())["all"]
    assert hosts["vars"] == {
        "ansible_user": "ubuntu", "ansible_become": True, "ansible_port": 2222,
        "ansible_ssh_private_key_file": str(key), "ansible_ssh_common_args": "-o UserKnownHostsFile=/known",
    }  # fmt: skip
    # A name is kept out of the cluster: its API server announces an address.
    assert hosts["hosts"]["gpu2"] == {"ansible_host": "10.0.0.6", "ansible_user": "root", "ansible_become": False}
    first = next(words for words in machines.calls() if words[-2] == "10.0.0.5")
    assert (
        "BatchMode=yes" in first and first[first.index("-p") + 1] == "2222" and first[first.index("-l") + 1] == "ubuntu"
    )
    assert first[first.index("-i") + 1] == str(key) and "UserKnownHostsFile=/known" in first


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_nothing_is_written_over_what_is_there(machines: Any, myriad: Any, tmp_path: Path, there: str) -> None:
    machines.add("10.0.0.5", hostname="gpu1")
    out = tmp_path / "mine"
    if there == "folder":
        out.mkdir()
        (out / "hosts.yml").write_text("mine\n")
    elif there == "file":
        out.write_text("mine\n")
    else:
        out.symlink_to(tmp_path / "nowhere")
    done = myriad("init", "--hosts", "10.0.0.5", "--out", str(out))
    assert done.returncode == 1 and "exists already" in done.stderr
    assert machines.calls() == [], "it is refused before anybody is asked"
    if there == "folder":
        assert (out / "hosts.yml").read_text() == "mine\n"


def test_every_host_that_cannot_be_described_is_named_at_once(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.5", hostname="gpu1")
    machines.add("10.0.0.6", hostname="gpu2", release=CENTOS)
    machines.add("10.0.0.7", hostname="gpu3", model=("0x10de", "0xfffe", "0x030200"), gpus=1)
    machines.add("10.0.0.8", runs=("kubelet",), files={"etc/kubernetes/kubelet.conf": "{}"})
    machines.fails("10.0.0.9", 255, "ssh: connect to host 10.0.0.9 port 22: Connection timed out\r\n")
    machines.fails("10.0.0.10", 255, "Host key verification failed.\n")
    machines.fails("10.0.0.11", 255, "root@10.0.0.11: Permission denied (publickey).\n")
    machines.fails("10.0.0.12", 127, "sh: 1: python3: not found\n")
    out = tmp_path / "mine"
    hosts = ",".join(f"10.0.0.{last}" for last in range(5, 13))
    done = myriad("init", "--hosts", hosts, "--out", str(out))
    assert done.returncode == 3, "some were not reached"
    assert done.stderr.startswith("7 of 8 hosts cannot be described; nothing was written\n")
    said = {line.split()[0]: line for line in done.stderr.splitlines()[1:]}
    assert "10.0.0.5" not in said and not out.exists()
    assert "runs CentOS Linux 7 (Core); Myriad takes Debian 12 or Ubuntu 22.04" in said["10.0.0.6"]
    assert "10de:fffe" in said["10.0.0.7"]
    assert "`myriad adopt`" in said["10.0.0.8"]
    assert "does not answer" in said["10.0.0.9"] and "Connection timed out" in said["10.0.0.9"]
    assert "`ssh root@10.0.0.10` once" in said["10.0.0.10"]
    assert "`ssh-copy-id root@10.0.0.11`" in said["10.0.0.11"]
    assert "apt-get install python3" in said["10.0.0.12"]


def test_unsupported_alone_is_wrong_input(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.6", hostname="gpu2", release=CENTOS)
    done = myriad("init", "--hosts", "10.0.0.6", "--out", str(tmp_path / "mine"))
    assert done.returncode == 1 and done.stderr.startswith("1 of 1 host cannot be described")


@pytest.mark.parametrize(("version", "fits"), [("20.04", False), ("22.04", True), ("24.04", True)])
def test_releases(machines: Any, myriad: Any, tmp_path: Path, version: str, fits: bool) -> None:
    machines.add("10.0.0.5", hostname="gpu1", release=UBUNTU.format(version))
    done = myriad("init", "--hosts", "10.0.0.5", "--out", str(tmp_path / "mine"))
    assert (done.returncode == 0) is fits


def test_a_node_that_myriad_set_up_is_described_again(machines: Any, myriad: Any, tmp_path: Path) -> None:
    files = {"etc/kubernetes/kubelet.conf": "{}", "var/lib/myriad/state/kubernetes_node.json": "{}"}
    machines.add("10.0.0.5", hostname="gpu1", runs=("kubelet", "containerd"), files=files)
    done = myriad("init", "--hosts", "10.0.0.5", "--out", str(tmp_path / "mine"))
    assert done.returncode == 0 and "was set up by Myriad before" in done.stdout


def test_what_runs_already_is_told(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add(
        "10.0.0.5", hostname="gpu1", runs=("dockerd", "slurmd"),
        files={
            "sys/module/nvidia/version": "535.309.01",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
            "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        },
    )  # fmt: skip
    done = myriad("init", "--hosts", "10.0.0.5", "--out", str(tmp_path / "mine"), "--json")
    told = " ".join(json.loads(done.stdout)["hosts"][0]["notes"])
    for word in ("runs dockerd already", "runs Slurm", "driver 535.309.01", "mlx5_0 (InfiniBand"):
        assert word in told


def test_clones_of_one_image_are_told_apart_or_refused(machines: Any, myriad: Any, tmp_path: Path) -> None:
    for last in (5, 6):
        machines.add(f"10.0.0.{last}", hostname="template", machine_id="cd" * 16)
    done = myriad("init", "--hosts", "10.0.0.5,10.0.0.6", "--out", str(tmp_path / "mine"))
    assert done.returncode == 1 and "10.0.0.6  has the machine-id of 10.0.0.5" in done.stderr


def test_machines_of_one_name_get_names_of_their_own(machines: Any, myriad: Any, tmp_path: Path) -> None:
    for last in (5, 6):
        machines.add(f"10.0.0.{last}", hostname="localhost")
    out = tmp_path / "mine"
    assert myriad("init", "--hosts", "10.0.0.5,10.0.0.6", "--out", str(out)).returncode == 0
    assert sorted(described(out).fleet.hosts) == ["node1", "node2"]


def test_a_site_without_a_gpu_is_refused(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.5", gpus=0)
    done = myriad("init", "--hosts", "10.0.0.5", "--out", str(tmp_path / "mine"))
    assert done.returncode == 1 and "no host has a GPU" in done.stderr


def test_an_address_that_only_this_machine_reaches_is_refused(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("localhost", hostname="gpu1", address="127.0.0.1")
    done = myriad("init", "--hosts", "localhost", "--out", str(tmp_path / "mine"))
    assert done.returncode == 1 and "loopback" in done.stderr


@pytest.mark.parametrize(
    ("hosts", "word"),
    [("10.0.0.5,10.0.0.5", "named twice"), (" , ", "names no host"), ("-oProxyCommand=x", "is not a host"),
     ("a;reboot", "is not a host"), ("10.0.0.5 10.0.0.6", "is not a host"),
     ("gpu[9:1]", "runs backwards and gives no host; write [1:9]"), ("gpu[1:", "a range that is not closed"),
     ("gpu[1:3],gpu2", "gpu2 is named twice"), ("GPU1,root@gpu1", "gpu1 is named twice"),
     ("2001:db8::1,[2001:DB8:0::1]", "2001:db8::1 is named twice"), ("10.0.0.5:2222", "--port 2222 says it for all"),
     ("[2001:db8::1]:22", "--port 22 says it"), ("gpu[1:2]:22", "--port 22 says it"),
     ("999.0.0.1", "is no IPv4 address"), ("10.0.0", "is no IPv4 address"),
     ("fe80::1%eth0", "behind one interface only"),
     ("2001:db8::zz", "is not a host"), ("a b@10.0.0.5", "is not a host")],
)  # fmt: skip
def test_hosts_are_checked_before_anybody_is_asked(
    machines: Any, myriad: Any, tmp_path: Path, hosts: str, word: str
) -> None:
    done = myriad("init", f"--hosts={hosts}", "--out", str(tmp_path / "mine"))
    assert done.returncode == 1 and word in done.stderr and machines.calls() == []


@pytest.mark.parametrize(
    ("flags", "word"),
    [(["--control-plane", "10.0.0.7"], "10.0.0.7 is not among the hosts"), (["--name", "My_Site"], '"my-site"'),
     (["--team", "A Team"], '"a-team"'), (["--user", "a b"], "is no name of an account"),
     (["--key", "id.pub"], "the private one: id"), (["--out", "/etc/hostname/mine"], "/etc/hostname is no folder"),
     (["--out", "My_Site"], '"my-site"')],
)  # fmt: skip
def test_flags_are_judged_before_anybody_is_asked(
    machines: Any, myriad: Any, tmp_path: Path, flags: list[str], word: str
) -> None:
    machines.add("10.0.0.5", hostname="gpu1")
    out = [] if "--out" in flags else ["--out", str(tmp_path / "mine")]
    done = myriad("init", "--hosts", "10.0.0.5", *out, *flags)
    assert done.returncode == 1 and word in done.stderr and machines.calls() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lan"]


def test_ranges_are_hosts_also_of_the_control_plane(machines: Any, myriad: Any, tmp_path: Path) -> None:
    for last in (5, 6, 7):
        machines.add(f"10.0.0.{last}", hostname=f"gpu{last}")
    out = tmp_path / "mine"
    done = myriad("init", "--hosts", "10.0.0.[5:7]", "--control-plane", "10.0.0.[5:6],10.0.0.6,", "--out", str(out))
    assert done.returncode == 1 and "10.0.0.6 is named twice" in done.stderr
    done = myriad("init", "--hosts", "10.0.0.[5:7]", "--control-plane", "10.0.0.[5:7]", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert [host.name for host in described(out).fleet.control_plane] == ["gpu5", "gpu6", "gpu7"]


@pytest.mark.parametrize(
    ("hostnames", "called"),
    [
        (["node2", "gpu_1"], ["node2", "node1"]),
        (["gpu_1", "node1"], ["node2", "node1"]),
        (["a.x", "a.y", "A"], ["a.x", "a.y", "a"]),
        (["", "localhost", "node1.lan"], ["node2", "node3", "node1"]),
    ],
)
def test_a_made_up_name_is_never_one_that_a_machine_has(hostnames: list[str], called: list[str]) -> None:
    hosts = [HostFacts(asked=str(number), hostname=name) for number, name in enumerate(hostnames)]
    assert list(inventory_names(hosts).values()) == called


def test_a_login_script_that_prints_is_no_trouble(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.add("10.0.0.5", hostname="gpu1", release=DEBIAN)
    machines.banner("10.0.0.5", "Welcome to the {cluster}!\n")
    assert myriad("init", "--hosts", "10.0.0.5", "--out", str(tmp_path / "mine")).returncode == 0


def test_an_answer_that_is_no_probes_is_told(machines: Any, myriad: Any, tmp_path: Path) -> None:
    machines.fails("10.0.0.5", 0, "")
    done = myriad("init", "--hosts", "10.0.0.5", "--out", str(tmp_path / "mine"))
    assert done.returncode == 3 and "instead of the probe" in done.stderr
