"""Every judgement of the preflight, on machines that the tests describe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from myriad.lab import preflight
from myriad.lab.preflight import GIB, Engine, Facts, Interpreter, classify_engine, judge, summary

GOOD = Facts(
    os_id="debian",
    os_version="12",
    os_name="Debian",
    machine="x86_64",
    kernel="6.1.0-18-amd64",
    pythons=(Interpreter("/usr/bin/python3", (3, 11)),),
    disk_path="/home/ada",
    disk_free=71 * GIB,
    warm=False,
    memory_available=20 * GIB,
    memory_total=24 * GIB,
    engine=Engine("docker", "26.1.4", 2, (("bridge", "172.17.0.0/16"),)),
    cgroup=2,
    routes=("192.168.1.0/24",),
    root=False,
    sudo="free",
    terminal=False,
    programs=("git", "make", "ssh", "ssh-keygen", "apt-get"),
    network="myriad-000000",
)


def check(name: str, **changes: Any) -> preflight.Check:
    """The check of this name for a machine that differs from the good one in these facts."""
    return next(item for item in judge(GOOD._replace(**changes)).checks if item.name == name)


def test_a_good_machine_is_one_line() -> None:
    verdict = judge(GOOD)
    assert not verdict.errors
    assert summary(verdict) == (
        "preflight        Debian 12, x86_64, Python 3.11, 24 GiB memory, 71 GB free, Docker 26.1.4, cgroup v2, "
        "10.77.0.0/24 free   ok"
    )


@pytest.mark.parametrize(
    ("os_id", "version", "level"),
    [
        ("debian", "11", "error"),
        ("debian", "12", "ok"),
        ("debian", "13", "ok"),
        ("debian", "", "note"),
        ("ubuntu", "20.04", "error"),
        ("ubuntu", "22.04", "ok"),
        ("ubuntu", "23.10", "note"),
        ("ubuntu", "24.04", "ok"),
        ("ubuntu", "26.04", "ok"),
        ("fedora", "41", "error"),
        ("", "", "error"),
    ],
)
def test_system(os_id: str, version: str, level: str) -> None:
    found = check("system", os_id=os_id, os_version=version, os_name=os_id.title())
    assert found.level == level
    assert bool(found.fix) == (level == "error")


def test_architecture() -> None:
    assert check("architecture", machine="aarch64").level == "error"


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        ([(3, 9)], None),
        ([(3, 14)], None),
        ([(3, 11), (3, 13), (3, 12)], (3, 13)),
        ([(3, 14), (3, 12)], (3, 12)),
        ([], None),
    ],
)
def test_python(versions: list[tuple[int, int]], chosen: tuple[int, int] | None) -> None:
    pythons = tuple(Interpreter(f"/usr/bin/python{a}.{b}", (a, b)) for a, b in versions)
    verdict = judge(GOOD._replace(pythons=pythons))
    assert verdict.python == ("" if chosen is None else "/usr/bin/python{}.{}".format(*chosen))
    assert bool(verdict.errors) == (chosen is None)


def test_python_names_ubuntus_own_package_where_the_default_is_too_old() -> None:
    old = (Interpreter("/usr/bin/python3", (3, 10)),)
    assert "python3.11" in check("python", os_id="ubuntu", os_version="22.04", pythons=old).fix
    new = (Interpreter("/usr/bin/python3", (3, 14)),)
    assert "newer than" in check("python", pythons=new).text


def test_memory_and_disk_say_what_is_needed_and_what_is_free() -> None:
    assert check("memory", memory_available=1 * GIB).text == "1.0 GiB of memory is available, 4 GiB is needed"
    assert check("disk", disk_free=9 * GIB).text == "9 GB is free below /home/ada, 25 GB is needed"
    assert check("disk", disk_free=9 * GIB, warm=True).level == "ok"


@pytest.mark.parametrize("kind", ["rootless", "podman", "podman-alias", "desktop", "remote"])
def test_engines_that_cannot_carry_nodes_get_a_sentence_and_a_way_out(kind: str) -> None:
    found = check("engine", engine=Engine(kind, detail="tcp://far:2375"))
    assert found.level == "error"
    assert found.fix.endswith((".", "lab"))


@pytest.mark.parametrize(
    ("engine", "changes", "level", "words"),
    [
        (Engine("docker", "20.10.24+dfsg1", 1), {}, "ok", "Docker 20.10.24"),
        (Engine("docker", "19.3.1", 1), {}, "error", "too old"),
        (Engine("stopped"), {}, "ok", "started, not replaced"),
        (Engine("none"), {}, "ok", "will be installed"),
        (Engine("none"), {"programs": ("git",)}, "error", "no apt-get"),
        (Engine("denied", detail="/run/docker.sock"), {"sudo": "free"}, "note", "through sudo"),
        (Engine("denied", detail="/run/docker.sock"), {"sudo": "none"}, "error", "/run/docker.sock"),
    ],
)
def test_engine(engine: Engine, changes: dict[str, Any], level: str, words: str) -> None:
    found = check("engine", engine=engine, **changes)
    assert found.level == level
    assert words in found.text


@pytest.mark.parametrize(
    ("engine", "root", "sudo", "terminal", "level"),
    [
        ("docker", False, "none", False, None),
        ("none", True, "none", False, None),
        ("none", False, "free", False, None),
        ("none", False, "password", True, "note"),
        ("none", False, "password", False, "error"),
        ("stopped", False, "none", True, "error"),
        ("podman", False, "none", False, None),
    ],
)
def test_root_is_asked_for_only_where_the_engine_must_be_set_up(
    engine: str, root: bool, sudo: str, terminal: bool, level: str | None
) -> None:
    facts = GOOD._replace(engine=Engine(engine), root=root, sudo=sudo, terminal=terminal)
    found = [item for item in judge(facts).checks if item.name == "root"]
    assert [item.level for item in found] == ([level] if level else [])


def test_cgroup() -> None:
    assert check("cgroup", engine=Engine("none"), cgroup=1).text == "cgroup v1"
    assert check("cgroup", engine=Engine("none"), cgroup=0).level == "error"


def test_a_taken_subnet_is_replaced_and_said() -> None:
    verdict = judge(GOOD._replace(routes=("10.77.0.0/16", "10.78.0.128/25")))
    assert verdict.subnet == "10.79.0.0/24"
    assert "10.79.0.0/24 free (10.77.0.0/24 is taken by a route to 10.77.0.0/16)" in summary(verdict)
    engine = Engine("docker", "26.1.4", 2, (("other", "10.77.0.0/24"),))
    assert "is taken by Docker's network other" in summary(judge(GOOD._replace(engine=engine)))


def test_the_labs_own_network_keeps_its_subnet() -> None:
    engine = Engine("docker", "26.1.4", 2, (("myriad-000000", "10.77.0.0/24"), ("other", "10.78.0.0/24")))
    verdict = judge(GOOD._replace(engine=engine, routes=("10.77.0.0/24",)))
    assert verdict.subnet == "10.77.0.0/24"


def test_no_free_subnet_and_networks_of_other_kinds() -> None:
    verdict = judge(GOOD._replace(routes=("10.0.0.0/8",)))
    assert verdict.subnet == ""
    assert [item.name for item in verdict.errors] == ["subnet"]
    strange = Engine("docker", "26.1.4", 2, (("v6", "fd00::/64"), ("odd", "not a network")))
    assert judge(GOOD._replace(engine=strange)).subnet == "10.77.0.0/24"


def test_k5_missing_programs_name_their_packages() -> None:
    found = check("programs", programs=("make", "apt-get"))
    assert found.text == "missing on PATH: git, ssh, ssh-keygen"
    assert found.fix == "apt-get install git openssh-client"


def test_wsl_is_a_note() -> None:
    assert check("wsl", kernel="5.15.153.1-microsoft-standard-WSL2").level == "note"


def test_everything_wrong_is_told_at_once() -> None:
    facts = GOOD._replace(os_id="fedora", machine="riscv64", pythons=(), memory_available=0, disk_free=0)
    text = summary(judge(facts))
    assert text.endswith("5 things to put right, nothing was changed.")
    for name in ("system", "architecture", "python", "memory", "disk"):
        assert f"\n  {name:<13} " in text


@pytest.mark.parametrize(
    ("version", "info", "kind"),
    [
        ({"Version": "20.10.24", "Components": [{"Name": "Engine"}]}, {"CgroupVersion": "1"}, "docker"),
        ({"Version": "5.0", "Components": [{"Name": "Podman Engine"}]}, {}, "podman"),
        ({"Version": "27.0"}, {"OperatingSystem": "Docker Desktop"}, "desktop"),
        ({"Version": "27.0"}, {"SecurityOptions": ["name=seccomp", "name=rootless"]}, "rootless"),
    ],
)
def test_engines_are_told_apart_by_their_own_answers(version: Any, info: Any, kind: str) -> None:
    networks = [{"Name": "bridge", "IPAM": {"Config": [{"Subnet": "172.17.0.0/16"}]}}, {"Name": "host", "IPAM": {}}]
    engine = classify_engine(version, info, networks)
    assert engine.kind == kind
    assert engine.networks == (("bridge", "172.17.0.0/16"),)


def test_a_remote_engine_and_a_missing_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight.probe_engine({"DOCKER_HOST": "ssh://ada@far"}).kind == "remote"
    monkeypatch.setattr(preflight.shutil, "which", lambda name: None)
    monkeypatch.setattr(preflight.os.path, "exists", lambda path: False)
    assert preflight.probe_engine({}).kind == "none"


def test_podmans_alias_is_seen_as_link_and_as_script(tmp_path: Path) -> None:
    podman = tmp_path / "podman"
    podman.write_text("")
    (tmp_path / "docker").symlink_to(podman)
    assert preflight._is_podman(str(tmp_path / "docker"))
    script = tmp_path / "docker2"
    script.write_text('#!/bin/sh\nexec /usr/bin/podman "$@"\n')
    assert preflight._is_podman(str(script))
    script.write_text("#!/bin/sh\nexec /opt/docker\n")
    assert not preflight._is_podman(str(script))


def test_two_clones_have_two_labs() -> None:
    assert preflight.lab_name("/home/ada/one") != preflight.lab_name("/home/ada/two")
    assert preflight.lab_name("/home/ada/one").startswith("myriad-")


def test_the_file_runs_alone_and_in_an_old_python() -> None:
    path = Path(preflight.__file__)
    compile(path.read_text(), str(path), "exec", dont_inherit=True)
    import ast

    # Parsed by the grammar of 3.7, the oldest one that ast still knows; the file promises 3.6 and uses less than that.
    ast.parse(path.read_text(), feature_version=(3, 7))
    done = subprocess.run(
        [sys.executable, "-I", str(path), "--pick-python"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).exists()
