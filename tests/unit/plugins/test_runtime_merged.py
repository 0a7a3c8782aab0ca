"""What a program makes of several files: how it is asked, whose fault a refusal is, which keys differ."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

# As `containerd config dump` of 2.3 prints it (shortened), with a table in an array as the transfer service has it.
DUMP = """version = 4
imports = ['/etc/containerd/conf.d/*.toml']

[plugins]
  [plugins.'io.containerd.cri.v1.runtime']
    enable_cdi = true
    cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']

    [plugins.'io.containerd.cri.v1.runtime'.cni]
      bin_dirs = ['/opt/cni/bin']

  [[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
    platform = 'linux/amd64'

  [[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
    platform = 'linux/arm64'
"""
CNI = "plugins.'io.containerd.cri.v1.runtime'.cni.bin_dirs"


@pytest.fixture
def merged(plugin, monkeypatch):
    """The module; its program is asked without a mount namespace: `key = value` lines of main, then of conf.d."""
    module = plugin("module_utils.merged")

    def ask(self, staged):
        values = {}
        for path in sorted(module.inside(staged), key=lambda path: ("conf.d" in path, path)):
            for line in Path(path).read_text().splitlines():
                key, separator, value = line.partition(" = ")
                if line.startswith("#") or not line:
                    continue
                if not separator:
                    raise module.Refused(f"no value for {line}")
                values[key] = value
        if values.get("default") not in (None, *values):
            raise module.Refused("the default is not there")
        return "".join(f"{key} = {value}\n" for key, value in sorted(values.items()))

    monkeypatch.setattr(module.Directory, "ask", ask)
    return module


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "etc" / "demo"
    (home / "conf.d").mkdir(parents=True)
    (home / "main").write_text("one = 1\n")
    return home


def test_settings_are_read_with_tables_and_arrays_of_tables(merged):
    found = merged.settings(DUMP)
    assert found["version"] == "4"
    assert found[CNI] == "['/opt/cni/bin']"
    transfer = "plugins.'io.containerd.transfer.v1.local'.unpack_config"
    assert (found[f"{transfer}.0.platform"], found[f"{transfer}.1.platform"]) == ("'linux/amd64'", "'linux/arm64'")


def test_t04_a_difference_names_the_key_and_both_values(merged):
    changed = DUMP.replace("/opt/cni/bin", "/usr/local/nvidia/cni")
    (item,) = merged.differences(DUMP, changed)
    assert merged.told(item) == f"changes {CNI} from ['/opt/cni/bin'] to ['/usr/local/nvidia/cni']"
    assert merged.told((CNI, None, "[]")) == f"sets {CNI} to []"
    assert merged.told((CNI, "[]", None)) == f"takes away {CNI}, which was []"


@pytest.mark.parametrize(
    ("key", "is_allowed"),
    [
        ("a.runtimes.nvidia.options.BinaryName", True),
        ("a.runtimes.runc.options.SystemdCgroup", False),
        ("a.cni.bin_dirs", False),
        ("a.enable_cdi", True),
        ("a.enable_cdi_more", False),
    ],
)
def test_t04_a_pattern_with_an_exclamation_mark_takes_back(merged, key, is_allowed):
    assert merged.allowed(key, ["a.runtimes.*", "!a.runtimes.runc.*", "a.enable_cdi"]) is is_allowed


def test_files_are_put_and_left_out_without_touching_the_directory(merged, folder):
    (folder / "conf.d" / "90").write_text("two = 2\n")
    directory = merged.Directory(
        str(folder), "demo", {f"{folder}/main": b"one = 7\n", f"{folder}/conf.d/50": b"three = 3\n"}
    )
    assert directory.output() == "one = 7\nthree = 3\ntwo = 2\n"
    assert directory.without([f"{folder}/conf.d/90", f"{folder}/conf.d/50"]).output() == "one = 7\n"
    assert (folder / "main").read_text() == "one = 1\n"


def test_a_directory_that_is_not_there_yet_leaves_no_trace(merged, tmp_path):
    home = tmp_path / "new" / "deep"
    assert merged.Directory(str(home), "demo", {f"{home}/main": b"one = 1\n"}).output() == "one = 1\n"
    assert not (tmp_path / "new").exists()


def test_a2_the_file_at_fault_is_the_one_without_which_the_rest_is_taken(merged, folder):
    (folder / "conf.d" / "10").write_text("two = 2\n")
    (folder / "conf.d" / "90").write_text("broken\n")
    directory = merged.Directory(str(folder), "/usr/bin/demo --check")
    with pytest.raises(merged.Refused) as refused:
        directory.output()
    said = merged.refusal(directory, refused.value)
    assert said.startswith(f"/usr/bin/demo refuses the files of {folder} together:\n  no value for broken\n")
    assert f"Without {folder}/conf.d/90 it takes the rest" in said
    assert "did not write it" not in merged.refusal(directory, refused.value, written={f"{folder}/conf.d/90"})


def test_hidden_files_and_sockets_are_not_read(merged, folder):
    (folder / "conf.d" / ".half.tmp").write_text("broken\n")
    os.mkfifo(folder / "pipe")
    assert merged.Directory(str(folder), "demo").output() == "one = 1\n"


# --- through the module files ---------------------------------------------------------------------------------------


@pytest.fixture
def land(plugin, merged, tmp_path):
    """The module files over a live root, with the files below tmp_path."""
    module = plugin("modules.files")

    def run(folder, files, *, check=False, **together):
        asked = {
            "directory": str(folder),
            "command": "/bin/true",
            "own_keys": None,
            "other_keys": None,
            "hint": "",
            **together,
        }
        rendered = [
            {
                "path": str(path), "content": text, "encoding": "text", "mode": "0644", "validate": None,
                "secret": False, "owner": str(os.getuid()), "group": str(os.getgid()),
            }
            for path, text in files.items()
        ]  # fmt: skip
        params = {
            "tree": "configure", "role": "demo", "run_id": "r1", "state_dir": str(tmp_path / "state"), "root": "/",
            "directories": {}, "absent": [], "predicted": {}, "rendered": rendered, "together": [asked],
        }  # fmt: skip
        tree = module.Tree(params, check)
        tree.run()
        return tree

    run.Failure = module.Failure
    return run


def test_a2_nothing_lands_when_the_files_are_refused_together(land, folder):
    (folder / "conf.d" / "90").write_text("default = nowhere\n")
    with pytest.raises(land.Failure, match="No file of this task was changed"):
        land(folder, {folder / "main": "one = 2\n"})
    assert (folder / "main").read_text() == "one = 1\n"


def test_a2_a_strangers_broken_file_is_found_also_when_nothing_has_to_land(land, folder):
    land(folder, {folder / "main": "one = 1\n"})
    (folder / "conf.d" / "90").write_text("broken\n")
    with pytest.raises(land.Failure, match=r"Without .*conf\.d/90 it takes the rest"):
        land(folder, {folder / "main": "one = 1\n"})


def test_t04_own_files_change_only_own_keys(land, folder):
    mine = folder / "conf.d" / "50"
    with pytest.raises(land.Failure, match=r"50 changes one from 1 to 9, which is not its to change\.\nAsk first\."):
        land(folder, {mine: "one = 9\nmine = 1\n"}, own_keys=["mine"], hint="Ask first.")
    assert not mine.exists()
    assert land(folder, {mine: "mine = 1\n"}, own_keys=["mine"]).changed_paths == [str(mine)]


def test_t04_files_of_others_change_only_keys_of_drop_ins(land, folder):
    (folder / "conf.d" / "80").write_text("extra = 1\n")
    (folder / "conf.d" / "90").write_text("one = 9\n")
    with pytest.raises(land.Failure) as failure:
        land(folder, {folder / "main": "one = 2\n"}, other_keys=["extra"])
    assert f"{folder}/conf.d/90 changes one from 2 to 9" in str(failure.value)
    assert "conf.d/80" not in str(failure.value)
    (folder / "conf.d" / "90").unlink()
    assert land(folder, {folder / "main": "one = 2\n"}, other_keys=["extra"]).changed_paths == [str(folder / "main")]


def test_a_prediction_asks_too_and_says_when_it_cannot(land, folder, tmp_path):
    (folder / "conf.d" / "90").write_text("broken\n")
    with pytest.raises(land.Failure):
        land(folder, {folder / "main": "one = 2\n"}, check=True)
    tree = land(folder, {folder / "main": "one = 2\n"}, check=True, command="/nowhere/demo")
    assert tree.notes == [f"{folder}: not validated, /nowhere/demo is not installed yet"]
    with pytest.raises(land.Failure, match="/nowhere/demo is not on this node"):
        land(folder, {folder / "main": "one = 2\n"}, command="/nowhere/demo")


# --- who holds devices ------------------------------------------------------------------------------------------------


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def answer(*parts: bytes) -> str:
    return base64.b64encode(b"".join(parts)).decode()


@pytest.fixture
def busy(plugin, monkeypatch, tmp_path):
    """The module; the kubelet's checkpoint and crictl's answer are files below tmp_path."""
    module = plugin("module_utils.busy")
    checkpoint = tmp_path / module.CHECKPOINT.lstrip("/")
    checkpoint.parent.mkdir(parents=True)
    crictl = tmp_path / "crictl"
    monkeypatch.setattr(module, "CRICTL", str(crictl))

    def write(pods, *entries):
        items = [{"metadata": {"uid": uid, "namespace": "vision", "name": name}} for uid, name in pods.items()]
        crictl.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps({'items': items})}\nEND\n")
        crictl.chmod(0o755)
        checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": list(entries)}, "Checksum": 1}))

    module.write, module.checkpoint, module.home = write, checkpoint, str(tmp_path)
    module.crictl = crictl
    return module


def entry(uid: str, response: str, count: int = 2) -> dict:
    ids = {"0": [f"GPU-{number}" for number in range(count)]}
    return {
        "PodUID": uid,
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": ids,
        "AllocResp": response,
    }


ENVIRONMENT = answer(field(1, field(1, b"NVIDIA_VISIBLE_DEVICES") + field(2, b"0")))
BY_CDI = answer(field(5, field(1, b"nvidia.com/gpu=0")))
BY_ANNOTATION = answer(field(4, field(1, b"cdi.k8s.io/nvidia-device-plugin_0") + field(2, b"nvidia.com/gpu=0")))


def test_d4_no_kubelet_no_holder(busy):
    assert busy.holders(busy.home) == []


def test_d4_only_pods_that_run_count(busy):
    busy.write({"u1": "bert-0"}, entry("u1", BY_CDI), entry("u2", BY_CDI))
    assert [str(holder) for holder in busy.holders(busy.home)] == ["vision/bert-0 (2 nvidia.com/gpu)"]


def test_d4_a_runtime_that_does_not_answer_frees_nobody(busy):
    busy.write({}, entry("u1", BY_CDI))
    busy.crictl.write_text("#!/bin/sh\nexit 1\n")
    assert [str(holder) for holder in busy.holders(busy.home)] == ["pod u1 (2 nvidia.com/gpu)"]


def test_d4_a_checkpoint_that_cannot_be_read_frees_nobody(busy):
    busy.checkpoint.write_text("{")
    (holder,) = busy.holders(busy.home)
    assert holder.exposed and "cannot be read" in str(holder)


@pytest.mark.parametrize(
    ("response", "exposed"),
    [
        (BY_CDI, False),
        (BY_ANNOTATION, False),
        (ENVIRONMENT, True),
        ("", True),
        ("no base64!", True),
        ("/////w==", True),
    ],
)
def test_a11_only_devices_by_cdi_survive_a_reload(busy, response, exposed):
    busy.write({"u1": "bert-0"}, entry("u1", response))
    (holder,) = busy.holders(busy.home)
    assert holder.exposed is exposed


def test_a11_device_nodes_survive_where_systemd_finds_them_by_number(busy, tmp_path):
    spec = field(1, b"/dev/nvidia0") + field(2, b"/dev/nvidia0") + field(3, b"rw")
    busy.write({"u1": "bert-0"}, entry("u1", answer(field(3, spec))))
    assert busy.holders(busy.home)[0].exposed is True, "no such device"
    (tmp_path / "dev" / "char").mkdir(parents=True)
    (tmp_path / "dev" / "nvidia0").symlink_to("/dev/null")
    assert busy.holders(busy.home)[0].exposed is True, "no link in /dev/char"
    number = Path("/dev/null").stat().st_rdev
    (tmp_path / "dev" / "char" / f"{os.major(number)}:{os.minor(number)}").symlink_to("../nvidia0")
    assert busy.holders(busy.home)[0].exposed is False
