"""containerd with runc, the CNI plugins and crictl, ready for a kubelet."""

import json
import re
from typing import Any

import pytest
from testinfra.host import Host

testinfra_hosts = ["ansible://control_plane", "ansible://gpu_nodes"]

CRICTL = "/usr/local/bin/crictl"
SANDBOX = {"metadata": {"name": "state-test", "namespace": "state-test", "uid": "state-test", "attempt": 1}}


def configuration(host: Host) -> str:
    return str(host.check_output("/usr/local/bin/containerd config dump"))


def test_it_runs_and_starts_at_boot(host: Host) -> None:
    service = host.service("containerd")
    assert service.is_running
    assert service.is_enabled


def test_the_socket_answers_and_the_runtime_is_ready(host: Host) -> None:
    status = json.loads(host.check_output(f"{CRICTL} info"))["status"]
    assert {item["type"]: item["status"] for item in status["conditions"]}["RuntimeReady"] is True


def test_server_and_program_are_the_same_version(host: Host) -> None:
    program = host.check_output("/usr/local/bin/containerd --version").split()[2]
    server = re.search(r"RuntimeVersion:\s+(\S+)", host.check_output(f"{CRICTL} version"))
    assert server and server.group(1) == program


def test_the_configuration_parses_and_drop_ins_are_read(host: Host) -> None:
    assert "/etc/containerd/conf.d/*.toml" in host.file("/etc/containerd/config.toml").content_string
    assert host.file("/etc/containerd/conf.d").is_directory
    assert "io.containerd.cri.v1.runtime" in configuration(host)


def test_the_sandbox_image_comes_from_the_site_and_can_be_pulled(host: Host) -> None:
    image = re.search(r"sandbox = ['\"](registry\.myriad\.internal/pause:[^'\"]+)['\"]", configuration(host))
    assert image, "the sandbox image is not of the site's registry"
    pulled = host.run(f"{CRICTL} pull %s", image.group(1))
    assert pulled.rc == 0, pulled.stderr


def test_images_that_are_to_be_warm_are_on_the_node(host: Host, variables: dict[str, Any]) -> None:
    """The sandbox on every node, and what the description wants warm in the node's pool."""
    pools = {name.removeprefix("pool_") for name in variables["group_names"] if name.startswith("pool_")}
    warm = variables.get("myriad_images", {}).get("warm", [])
    wanted = {"pause", *(item["image"] for item in warm if pools & set(item.get("pools", pools)))}
    images = json.loads(host.check_output(f"{CRICTL} images -o json"))["images"]
    tags = {tag for image in images for tag in image["repoTags"]}
    names = {tag.rpartition(":")[0].rpartition("/")[2] for tag in tags if tag.startswith("registry.myriad.internal/")}
    assert wanted <= names


def test_runc_starts_a_sandbox(host: Host) -> None:
    """With the network of the host, so that no pod network is needed."""
    linux = {"security_context": {"namespace_options": {"network": 2}}}
    text = json.dumps(SANDBOX | {"log_directory": "/tmp", "linux": linux})
    started = host.run(f"printf '%%s' %s > /tmp/state-test.json && {CRICTL} runp /tmp/state-test.json", text)
    try:
        assert started.rc == 0, started.stderr
    finally:
        host.run(f"{CRICTL} pods -q --namespace state-test | xargs -r {CRICTL} rmp -f; rm -f /tmp/state-test.json")


@pytest.mark.parametrize("plugin", ["bridge", "host-local", "loopback", "portmap"])
def test_a_network_plugin_tells_its_versions(host: Host, plugin: str) -> None:
    answer = host.check_output(f"CNI_COMMAND=VERSION /opt/cni/bin/{plugin}")
    assert "1.0.0" in json.loads(answer)["supportedVersions"]
