"""Reading inventories: the same values that ansible-core gives, with the place where each was written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager

from myriad.fleet import Origin, check
from myriad.inventory import read_inventory

EXAMPLE = Path(__file__).parents[3] / "inventories" / "example"

CLUSTER = """\
myriad_cluster: {name: site}
myriad_pools: {h100: {model: H100-SXM5-80GB}}
myriad_cohorts: {research: {}}
myriad_teams:
  vision: {namespaces: [vision], quota: {h100: 24}, cohort: research}
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def told_by_ansible(*sources: Path) -> dict[str, dict[str, Any]]:
    """Description variables and address of each host as VariableManager.get_vars gives them, templates resolved."""
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(source) for source in sources])
    manager = VariableManager(loader=loader, inventory=inventory)
    told = {}
    for host in inventory.hosts.values():
        variables = manager.get_vars(host=host)
        templar = Templar(loader=loader, variables=variables)
        told[str(host.name)] = {
            name: templar.template(variables[name])
            for name in ("ansible_host", "myriad_location", "myriad_gpus")
            if name in variables
        }
    return told


def told_by_myriad(*sources: Path) -> dict[str, dict[str, Any]]:
    raw = read_inventory(*sources)
    assert raw.problems == []
    return {name: host.variables for name, host in raw.hosts.items()}


# The same variable at every level at which Ansible looks for it, and hosts that get it from each of them.
LAYERED = {
    "hosts.yml": """\
all:
  vars: {myriad_location: all/inline/x}
  children:
    control_plane: {hosts: {cp1: {}}}
    gpu_nodes:
      vars: {myriad_location: nodes/inline/x, octet: 4}
      children:
        pool_h100:
          children:
            rack_a: {hosts: {"gpu[01:03]": {}}, vars: {myriad_location: rack/inline/a}}
            rack_b:
              hosts:
                gpu04: {}
                gpu05: {myriad_location: host/inline/b, myriad_gpus: 4}
                gpu06: {ansible_host: "10.{{ octet }}.0.{{ inventory_hostname[-2:] | int }}"}
            rack_c: {hosts: {gpu07: {}}}
        pool_a100: {hosts: {gpu08: {}}, vars: {myriad_location: pool/inline/x}}
""",
    "group_vars/all.yml": CLUSTER + "myriad_location: all/file/x\n",
    "group_vars/rack_b/place.yml": "myriad_location: rack/file/b\n",
    "group_vars/rack_b/more/gpus.yml": "myriad_gpus: 6\n",
    "group_vars/gpu_nodes": "myriad_location: nodes/file/x\n",
    "host_vars/gpu03.yml": "myriad_location: host/file/a\nansible_host: 10.0.0.3\n",
    "host_vars/gpu05/place.yml": "myriad_location: host/file/b\n",
}


def test_variables_equal_those_of_ansible_at_every_level(tmp_path: Path) -> None:
    site = write(tmp_path, LAYERED)
    told = told_by_ansible(site)
    assert told_by_myriad(site) == told
    assert len({values.get("myriad_location") for values in told.values()}) >= 5, "the levels are really different"
    assert told["gpu06"]["ansible_host"] == "10.4.0.6"


def test_variables_equal_those_of_ansible_for_several_sources(tmp_path: Path) -> None:
    first = write(tmp_path / "first", LAYERED)
    second = write(
        tmp_path / "second",
        {
            "more.yml": "gpu_nodes: {children: {pool_h100: {hosts: {gpu01: {myriad_gpus: 2}, gpu20: {}}}}}\n",
            "group_vars/rack_b.yml": "myriad_location: second/file/b\n",
            "group_vars/all/x.yml": "myriad_location: second/all/x\n",
        },
    )
    assert told_by_myriad(first, second) == told_by_ansible(first, second)
    assert told_by_myriad(second, first) == told_by_ansible(second, first)


def test_variables_equal_those_of_ansible_for_ini_and_scripts(tmp_path: Path) -> None:
    site = write(
        tmp_path,
        {
            "hosts": "[control_plane]\ncp1\n[pool_h100]\ngpu[1:3] myriad_location=hall1/b1/r1\n"
            "[gpu_nodes:children]\npool_h100\n",
            "addresses.sh": """#!/bin/sh
echo '{"_meta": {"hostvars": {"gpu1": {"ansible_host": "10.0.0.1"}, "gpu2": {"ansible_host": "10.0.0.2"}}}, \
"pool_h100": {"hosts": ["gpu1", "gpu2"]}}'
""",
            "group_vars/all.yml": CLUSTER,
        },
    )
    (site / "addresses.sh").chmod(0o755)
    told = told_by_ansible(site)
    assert told_by_myriad(site) == told
    assert told["gpu2"] == {"ansible_host": "10.0.0.2", "myriad_location": "hall1/b1/r1"}
    assert check(read_inventory(site)).problems == ()


def test_a_single_file_takes_the_group_vars_beside_it(tmp_path: Path) -> None:
    site = write(tmp_path, LAYERED)
    assert told_by_myriad(site / "hosts.yml") == told_by_ansible(site / "hosts.yml")


def test_a_sample_of_the_example_equals_ansible() -> None:
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(EXAMPLE)])
    manager = VariableManager(loader=loader, inventory=inventory)
    raw = read_inventory(EXAMPLE)
    for name in ("cp1", "gpu0001", "gpu0500", "gpu0501", "gpu0625", "gpu0626", "gpu1250"):
        variables = manager.get_vars(host=inventory.hosts[name])
        assert raw.hosts[name].variables.get("myriad_location") == variables.get("myriad_location")
        for variable, value in raw.variables.items():
            assert variables[variable] == value


def test_the_example_is_the_site_that_it_says() -> None:
    checked = check(read_inventory(EXAMPLE))
    fleet = checked.fleet
    assert checked.problems == ()
    assert sum(1 for host in fleet.hosts.values() if host.pool) == 1250
    assert fleet.gpus == 10_000
    assert len({host.gpu_model for host in fleet.hosts.values() if host.pool}) == 2
    assert [len(fleet.places(level)) for level in range(3)] == [2, 10, 160]
    assert len(fleet.control_plane) == 3
    assert len(fleet.teams) == 6
    assert len(fleet.cohorts) == 2
    assert {pool.use for pool in fleet.pools.values()} == {"training", "inference"}


def test_t23_g1_cost_grows_with_the_number_of_hosts_and_not_faster(tmp_path: Path) -> None:
    """Twice the hosts, each with an address, cost about twice the calls: seconds would depend on the machine."""

    def calls(count: int) -> int:
        lines = "".join(
            f"            n{number:05d}: {{ansible_host: 10.{number // 65536}.{number // 256 % 256}.{number % 256}, "
            f"myriad_location: h/b{number // 128}/r{number // 8}}}\n"
            for number in range(count)
        )
        head = "all:\n  children:\n    control_plane: {hosts: {cp1: {}}}\n    gpu_nodes:\n      children:\n"
        site = write(
            tmp_path / str(count),
            {"hosts.yml": f"{head}        pool_h100:\n          hosts:\n{lines}", "group_vars/all.yml": CLUSTER},
        )
        counted = 0

        def count_call(_frame: object, event: str, _argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count_call)
        try:
            checked = check(read_inventory(site))
        finally:
            sys.setprofile(before)
        assert len(checked.fleet.hosts) == count + 1
        assert checked.errors == []
        return counted

    assert calls(600) < 2.5 * calls(300)


def test_every_value_knows_its_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "inventories" / "site", LAYERED)
    monkeypatch.chdir(tmp_path)
    raw = read_inventory("inventories/site")
    assert raw.origin_of(("myriad_teams", "vision", "quota", "h100")) == Origin(
        "inventories/site/group_vars/all.yml", 5
    )
    assert raw.origin_of(("myriad_teams", "vision", "nothing")) == Origin("inventories/site/group_vars/all.yml", 5)
    assert raw.groups["rack_b"].origin == Origin("inventories/site/hosts.yml", 11)
    assert raw.hosts["gpu02"].origin == Origin("inventories/site/hosts.yml", 10)
    assert raw.hosts["gpu05"].origins["myriad_location"] == Origin("inventories/site/host_vars/gpu05/place.yml", 1)
    assert raw.hosts["gpu04"].origins["myriad_location"] == Origin("inventories/site/group_vars/rack_b/place.yml", 1)


def test_templates_of_the_description_are_resolved(tmp_path: Path) -> None:
    site = write(
        tmp_path,
        {
            "hosts.yml": "control_plane: {hosts: {cp1: {}}}\n"
            "gpu_nodes: {children: {pool_h100: {hosts: {'gpu[1:3]': {myriad_location: '{{ room }}/b/r'}}}}}\n",
            "group_vars/all/site.yml": CLUSTER.replace("{h100: 24}", '{h100: "{{ gpus_of_vision }}"}'),
            "group_vars/all/numbers.yml": "gpus_of_vision: 24\nroom: hall9\n",
        },
    )
    checked = check(read_inventory(site))
    assert checked.problems == ()
    assert checked.fleet.teams["vision"].quota == {"h100": 24}
    assert checked.fleet.hosts["gpu3"].location == ("hall9", "b", "r")


def test_encrypted_files_are_left_alone(tmp_path: Path) -> None:
    site = write(
        tmp_path,
        {
            "hosts.yml": "control_plane: {hosts: {cp1: {}}}\n"
            "gpu_nodes: {children: {pool_h100: {hosts: {'gpu[1:3]': {myriad_location: a/b/c}}}}}\n",
            "group_vars/all/site.yml": CLUSTER,
            "group_vars/all/secrets.yml": "$ANSIBLE_VAULT;1.1;AES256\n33363965326261303234\n",
        },
    )
    assert check(read_inventory(site)).problems == ()


def test_a_missing_inventory_is_told_with_what_to_give() -> None:
    checked = check(read_inventory("no/such/place"))
    assert [problem.message for problem in checked.problems] == [
        "does not exist; give -i the path of an inventory (a folder with hosts.yml, or one file)"
    ]
    assert not checked.complete


def test_a_script_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    site = write(tmp_path, {"nodes.sh": "#!/bin/sh\nexit 3\n", "group_vars/all.yml": CLUSTER})
    (site / "nodes.sh").chmod(0o755)
    (problem,) = check(read_inventory(site)).problems
    assert problem.origin == Origin(str(site / "nodes.sh"))
    assert "exit code 3; `" in problem.message


def test_nothing_of_ansible_reaches_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    site = write(
        tmp_path,
        {
            "hosts.yml": "control_plane: {hosts: {cp1: {}}}\ngpu-nodes: {hosts: {gpu1: {}, gpu1: {}}}\n",
            "group_vars/all.yml": CLUSTER + "myriad_cohorts: {research: {}}\n",
        },
    )
    problems = check(read_inventory(site)).problems
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err == ""
    said = "\n".join(problem.message for problem in problems)
    assert "is written twice (lines 3 and 6)" in said
    assert "is listed twice in group gpu-nodes (both on line 2)" in said


def test_reading_leaves_the_strictness_of_ansible_as_it_was(tmp_path: Path) -> None:
    from ansible import constants

    before = constants.INVENTORY_ANY_UNPARSED_IS_FAILED
    read_inventory(write(tmp_path, LAYERED))
    assert before == constants.INVENTORY_ANY_UNPARSED_IS_FAILED


READ = """
import sys
from myriad.fleet import check
from myriad.inventory import read_inventory
checked = check(read_inventory(sys.argv[1]))
print(*(problem.message for problem in checked.errors), sep="\\n")
print(*checked.fleet.hosts["gpu2"].location if "gpu2" in checked.fleet.hosts else "")
"""


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("rack_of | default('r1')", "hall1 b1 r1"),
        ("rack_of", "'rack_of' is undefined"),  # strict, and cp1 has no rack
    ],
)
def test_inventory_plugins_are_run_and_not_taken_for_groups(tmp_path: Path, expression: str, printed: str) -> None:
    site = write(
        tmp_path,
        {
            "1-hosts.yml": "control_plane: {hosts: {cp1: {}}}\n"
            "gpu_nodes: {children: {pool_h100: {hosts: {'gpu[1:3]': {rack_of: r1}}}}}\n",
            "2-places.yml": "plugin: ansible.builtin.constructed\nstrict: true\n"
            f"compose: {{myriad_location: \"'hall1/b1/' ~ ({expression})\"}}\ngroups: {{storage: false}}\n",
            "group_vars/all.yml": CLUSTER,
        },
    )
    # In a process of its own: ansible's loader for collections is global and cannot be taken back.
    result = subprocess.run(
        [sys.executable, "-c", READ, site], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert printed in result.stdout


HOSTS = (
    "control_plane: {hosts: {cp1: {}}}\n"
    "gpu_nodes: {children: {pool_h100: {hosts: {'gpu[1:3]': {myriad_location: a/b/c}}}}}\n"
)


def test_encrypted_values_of_the_description_are_told(tmp_path: Path) -> None:
    vault = "!vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  33363965326261303234\n"
    site = write(
        tmp_path,
        {
            "hosts.yml": HOSTS,
            "group_vars/all/site.yml": CLUSTER + f"myriad_preemption: {vault}password: {vault}",
            "host_vars/gpu2.yml": f"ansible_host: {vault}",
            "host_vars/gpu3.yml": "ansible_host: '10.0.0.{{ password }}'",
        },
    )
    encrypted_address, needs_password, encrypted_section = [
        f"{problem.subject} {problem.message}" for problem in check(read_inventory(site)).problems
    ]
    assert encrypted_address.startswith("gpu2 ansible_host cannot be resolved: it is encrypted")
    assert "gpu3 ansible_host cannot be resolved" in needs_password
    assert "undecryptable" in needs_password
    assert encrypted_section == (
        "myriad_preemption is encrypted; the description is no secret: write the value in the open"
    )


def test_notes_beside_the_variables_are_no_error_and_broken_files_without_suffix_are(tmp_path: Path) -> None:
    site = write(
        tmp_path,
        {"hosts.yml": HOSTS, "group_vars/all/site.yml": CLUSTER, "group_vars/README": "- notes: [\n"},
    )
    checked = check(read_inventory(site))
    assert checked.errors == []
    assert [problem.rule for problem in checked.warnings] == ["stray-variables"]
    write(tmp_path, {"group_vars/gpu_nodes": "a: [\n"})
    (problem,) = check(read_inventory(site)).errors
    assert problem.origin == Origin(str(tmp_path / "group_vars" / "gpu_nodes"))
    assert problem.message.startswith("cannot be read: ")


@pytest.mark.parametrize("name", ["hosts.yml", "group_vars/all/site.yml"])
def test_files_that_may_not_be_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    site = write(tmp_path, {"hosts.yml": HOSTS, "group_vars/all/site.yml": CLUSTER})
    really_open = Path.open

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == site / name:
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    checked = check(read_inventory(site))
    assert [(problem.origin, problem.message) for problem in checked.problems] == [
        (Origin(str(site / name)), "cannot be read: Permission denied")
    ]
    assert not checked.complete
