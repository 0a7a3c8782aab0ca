"""Images that were proven warm are there, pinned, and looked after by the node itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host

testinfra_hosts = ["ansible://gpu_nodes"]

RECORD = "/var/lib/myriad/images/warm.json"
PROGRAM = "/usr/local/lib/myriad/images"


def images(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.file(RECORD).content_string)["images"]
    return found


def test_every_recorded_image_is_warm(host: Host) -> None:
    found = images(host)
    assert found, "a record without an image proves nothing"
    assert {digest: image["cause"] for digest, image in found.items() if not image["warm"]} == {}


def test_the_runtime_reports_each_with_its_digest_and_as_pinned(host: Host) -> None:
    for digest, image in images(host).items():
        status = json.loads(host.check_output("crictl inspecti --output json %s", image["ref"]))["status"]
        assert status["pinned"] is True, image["ref"]
        assert digest in {name.rpartition("@")[2] for name in status["repoDigests"]}


def test_a_container_starts_from_each(host: Host) -> None:
    dump = host.check_output("containerd config dump")
    runc = next((line.split("'")[1] for line in dump.splitlines() if "BinaryName" in line and line.count("'") == 2), "")
    for digest, image in images(host).items():
        name = f"state-test-{digest[7:19]}"
        mount = "type=bind,src=/usr/local/bin/crictl,dst=/dev/probe,options=bind:ro"
        options = f"--rm --read-only --mount {mount}" + (f" --runc-binary {runc}" if runc else "")
        said = host.check_output(f"ctr --namespace k8s.io run {options} {image['ref']} {name} /dev/probe --version")
        assert "crictl version" in said


def test_the_node_itself_finds_nothing_that_differs(host: Host) -> None:
    done = host.run(f"{PROGRAM} check")
    assert (done.rc, done.stdout) == (0, "")


@pytest.mark.parametrize("unit", ["myriad-images.path", "myriad-images.timer"])
def test_its_units_are_right(host: Host, unit: str) -> None:
    assert host.service(unit).is_enabled
    assert host.run(f"systemd-analyze verify {unit}").rc == 0


def test_pins_are_looked_after_whenever_the_runtime_starts(host: Host) -> None:
    for unit in ("myriad-images.path", "myriad-images.timer"):
        assert host.service(unit).is_running
        assert host.check_output(f"systemctl show --property=Triggers --value {unit}") == "myriad-images.service"
