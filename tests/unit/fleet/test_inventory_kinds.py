"""Inventories that Ansible would read without a word, or refuse without a line: what is told of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader

from myriad.fleet import check
from myriad.inventory import read_inventory
from myriad.inventory_ranges import MOST_HOSTS, expand

SITE = """\
myriad_cluster: {name: site, topology_levels: [rack]}
myriad_pools: {h100: {model: H100-SXM5-80GB}}
myriad_cohorts: {research: {}}
myriad_teams:
  vision: {namespaces: [vision], quota: {h100: 24}, cohort: research}
"""
INI = "[control_plane]\ncp1\n[pool_h100]\n%s\n[gpu_nodes:children]\npool_h100\n"
YAML = (
    "all:\n  children:\n    control_plane: {hosts: {cp1: {}}}\n    gpu_nodes:\n      children:\n"
    "        pool_h100: {hosts: {%s: {}}, vars: {myriad_location: r1}}\n"
)
SCRIPT = "#!/bin/sh\n"


def site(
    folder: Path, hosts: str, *, name: str = "hosts", mode: int = 0o644, more: dict[str, str] | None = None
) -> Path:
    """An inventory with one file of hosts."""
    for path, text in {"group_vars/all.yml": SITE, name: hosts, **(more or {})}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    (folder / name).chmod(mode)
    return folder


def told(folder: Path) -> list[str]:
    """`line: subject: sentence` of every error."""
    return [
        f"{problem.origin.line or '' if problem.origin else ''}: {problem.subject}: {problem.message}"
        for problem in check(read_inventory(folder)).errors
    ]


@pytest.mark.parametrize(
    ("pattern", "begin", "end", "count"),
    [
        ("gpu1", "gpu1", "gpu1", 1),
        ("gpu[001:128]", "gpu001", "gpu128", 128),
        ("gpu[1:9:2].example.com", "gpu1.example.com", "gpu9.example.com", 5),
        ("r[a:c]-[01:04]", "ra-01", "rc-04", 12),
        ("gpu[:3]", "gpu0", "gpu3", 4),
        ("gpu[1:2]:2222", "gpu1", "gpu2", 2),
        ("gpu7:22", "gpu7", "gpu7", 1),
        ("10.0.0.[5:6]", "10.0.0.5", "10.0.0.6", 2),
        ("2001:db8::5", "2001:db8::5", "2001:db8::5", 1),
    ],
)
def test_ranges_are_ansibles(pattern: str, begin: str, end: str, count: int) -> None:
    hosts = expand(pattern)
    assert (hosts[0], hosts[-1], len(hosts)) == (begin, end, count)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("gpu[9:1]", "runs backwards and gives no host; write [1:9]"),
        ("gpu[1:", "is not closed; a range is written [01:16]"),
        ("gpu[5]", 'has the range "[5]"; a range is written'),
        ("gpu[1:]", 'has the range "[1:]"; a range is written'),
        ("gpu[01:10:0]", 'with the step "0"; a step is a whole number from 1'),
        ("gpu[a:zz]", "whose ends are neither numbers nor single letters"),
        ("gpu[001:10]", "whose ends have different lengths"),
        ("gpu[1:2000000]", f"stands for 2,000,000 hosts; {MOST_HOSTS:,} are the most"),
        ("r[1:1000]g[1:1000]", "stands for 1,000,000 hosts"),
    ],
)
@pytest.mark.parametrize("form", ["ini", "yaml"])
def test_a_range_that_means_nothing_is_told_with_its_line(tmp_path: Path, pattern: str, said: str, form: str) -> None:
    ini, name = form == "ini", {"ini": "hosts", "yaml": "hosts.yml"}[form]
    text = INI % f"{pattern} myriad_location=r1" if ini else YAML % f'"{pattern}"'
    (sentence,) = told(site(tmp_path, text, name=name))
    assert sentence.startswith(f'{4 if ini else 6}: {"line 4" if ini else "group pool_h100"}: "{pattern}" ')
    assert said in sentence


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "gpu1 myriad_location=r1\ngpu1 myriad_location=r2",
            "5: gpu1: is listed twice in group pool_h100 (lines 4 and 5)",
        ),
        ("gpu[1:4]\ngpu[3:6]", "5: gpu3, gpu4: is listed twice in group pool_h100 (lines 4 and 5)"),
        ("gpu1 myriad_location=r1 myriad_location=r2", "4: gpu1.myriad_location: is written twice (line 4)"),
        ("gpu1 myriad_location", '4: line 4: has "myriad_location" behind the host; write myriad_location=VALUE'),
        ("gpu1 myriad_location='r1", "4: line 4: has a quote that is not closed"),
        ("[pool_h200", '4: line 4: "[pool_h200" is no heading; a heading is [group]'),
        ("[pool h200]", '4: line 4: "[pool h200]" is no heading'),
        ("[pool_h100:child]", '4: line 4: [pool_h100:child] is no heading; did you mean "children"?'),
        (
            "gpu1\n[pool_h100:vars]\nmyriad_location=r1\nmyriad_location=r2",
            "7: group pool_h100.vars.myriad_location: is written twice (lines 6 and 7)",
        ),
        ("gpu1\n[pool_h100:vars]\nmyriad_location", '6: line 6: has "myriad_location" among the variables of a group'),
    ],
)
def test_a_wrong_line_of_ini_is_told_with_its_number(tmp_path: Path, line: str, said: str) -> None:
    sentences = told(site(tmp_path, INI % line, name="hosts.ini"))
    assert any(sentence.startswith(said) for sentence in sentences), sentences


def test_hosts_of_ini_are_known_with_their_lines(tmp_path: Path) -> None:
    text = "# all\n[control_plane]\ncp1\n\n; racks\n[pool_h100]\ngpu[1:3]\n[gpu_nodes:children]\npool_h100\n"
    raw = read_inventory(site(tmp_path, text))
    assert {name: host.origin.line for name, host in raw.hosts.items() if host.origin} == {
        "cp1": 3, "gpu1": 7, "gpu2": 7, "gpu3": 7,
    }  # fmt: skip
    assert {name: group.origin.line for name, group in raw.groups.items() if group.origin} == {
        "control_plane": 2, "pool_h100": 6, "gpu_nodes": 8,
    }  # fmt: skip
    assert told(tmp_path) == ["7: gpu1..gpu3 (3 hosts): myriad_location is missing; write the place as rack"]


def test_yaml_without_a_suffix_is_looked_at_as_yaml(tmp_path: Path) -> None:
    (sentence,) = told(site(tmp_path, YAML % '"gpu[9:1]"'))
    assert sentence.startswith("6: group pool_h100: ")


def test_numbers_as_names_of_hosts_are_told_with_their_line(tmp_path: Path) -> None:
    assert told(site(tmp_path, YAML % "7", name="hosts.yml")) == [
        '6: host: "7" is no text for YAML: write it in quotes'
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'the token has expired' >&2; exit 3", "exit code 3: it said: the token has expired"),
        ("echo hello", "could not be parsed as JSON"),
        ("echo '[1, 2]'", "instead of"),
    ],
)
def test_a_script_that_fails_is_never_read_as_a_list_of_hosts(tmp_path: Path, body: str, said: str) -> None:
    """Ansible goes on to its plugin for INI, to which `echo hello` is a host with a variable too few, or a host."""
    (sentence,) = told(site(tmp_path, f"{SCRIPT}{body}\n", name="nodes.sh", mode=0o755))
    assert sentence.startswith(": the inventory: cannot be read as an inventory: ")
    assert said in sentence
    assert f"{tmp_path / 'nodes.sh'} --list` by hand prints what it should" in sentence


def test_a_script_that_may_not_be_executed_is_told(tmp_path: Path) -> None:
    (sentence,) = told(site(tmp_path, f"{SCRIPT}echo\n", name="nodes.sh"))
    assert sentence.endswith("so Ansible reads its lines as hosts: chmod +x it")


def test_what_ansible_deprecates_is_a_warning_and_nothing_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site(tmp_path, f'{SCRIPT}echo \'{{"pool_h100": ["gpu1"]}}\'\n', name="nodes.sh", mode=0o755)
    warnings = [problem.message for problem in check(read_inventory(tmp_path)).warnings]
    assert capfd.readouterr() == ("", "")
    assert any("Group 'pool_h100' was converted" in message for message in warnings), warnings
    assert not any("deprecation_warnings=False" in message for message in warnings)


def test_an_encrypted_list_of_hosts_is_told_as_that(tmp_path: Path) -> None:
    vault = "$ANSIBLE_VAULT;1.1;AES256\n33363965326261303234\n"
    for name in ("hosts.yml", "hosts"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (sentence,) = told(site(folder, vault, name=name))
        assert "is encrypted as a whole; hosts are no secret" in sentence


@pytest.mark.parametrize(("written", "read"), [("010", 8), ("07", 7), ("12:30", 750)])
def test_numbers_that_yaml_reads_otherwise_are_told(tmp_path: Path, written: str, read: int) -> None:
    hosts = YAML.replace("r1", written) % "gpu1"
    (sentence,) = told(site(tmp_path, hosts, name="hosts.yml"))
    assert sentence == (
        f'6: myriad_location: is written {written}, and YAML reads the number {read}; write "{written}" in quotes, '
        f"or {read}"
    )


def test_numbers_that_look_as_they_are_read_are_left_alone(tmp_path: Path) -> None:
    hosts = (
        "control_plane: {hosts: {cp1: {}}}\n"
        "gpu_nodes: {children: {pool_h100: {hosts: {gpu1: {myriad_location: '010', file_mode: 0644}, "
        "gpu2: {myriad_location: 7}, gpu3: {myriad_location: 08}}}}}\n"
    )
    found = read_inventory(site(tmp_path, hosts, name="hosts.yml"))
    assert told(tmp_path) == []
    assert [found.hosts[name].variables["myriad_location"] for name in ("gpu1", "gpu2", "gpu3")] == ["010", 7, "08"]


def test_a_folder_without_hosts_is_told_with_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text(SITE)
    assert told(tmp_path) == [
        ": the inventory: holds no file that lists hosts; write hosts.yml there (inventories/example has one)"
    ]


def test_a_file_of_another_kind_is_one_sentence(tmp_path: Path) -> None:
    makefile = "all: build\n" + "".join(f"step{number}:\n\techo {number} done && exit\n" for number in range(20))
    (sentence,) = told(site(tmp_path, makefile, name="Makefile"))
    assert sentence.startswith("1: the file: is no inventory: ") and sentence.endswith("; move it elsewhere")


def test_a_path_may_hold_a_comma(tmp_path: Path) -> None:
    folder = tmp_path / "hall1,hall2"
    folder.mkdir()
    assert told(site(folder, INI % "gpu1 myriad_location=r1")) == []
    assert set(read_inventory(folder).hosts) == {"cp1", "gpu1"}
    assert set(read_inventory("gpu1,gpu2").hosts) == {"gpu1", "gpu2"}


def test_a_description_in_an_encrypted_file_is_not_taken_for_a_site_without_teams(tmp_path: Path) -> None:
    """A site run would take the queues of all teams away."""
    vault = "$ANSIBLE_VAULT;1.1;AES256\n33363965326261303234\n"
    site(tmp_path, INI % "gpu1 myriad_location=r1", more={"group_vars/all/teams.yml": vault})
    (tmp_path / "group_vars" / "all.yml").rename(tmp_path / "group_vars" / "all" / "site.yml")
    assert told(tmp_path) == [], "secrets beside a description that is whole are left alone"
    (tmp_path / "group_vars" / "all" / "site.yml").write_text(SITE.partition("myriad_teams")[0])
    (sentence,) = told(tmp_path)
    assert sentence.startswith(": myriad_teams: is nowhere in the open, and ")
    assert "teams.yml is encrypted as a whole" in sentence


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("10.0.0.256", 'ansible_host "10.0.0.256" is no IPv4 address'),
        ("10.0.1", 'ansible_host "10.0.1" is no IPv4 address'),
        ("10.0.0.2 ", "has a space in it"),
        ("2001:DB8:0::1", "has the address 2001:DB8:0::1, which gpu1 has too"),
        ("Node.Example.com.", None),
        ("fe80::1%eth0", None),
    ],
)
def test_addresses_are_compared_as_what_they_are(tmp_path: Path, address: str, said: str | None) -> None:
    hosts = f"gpu1 myriad_location=r1 ansible_host=2001:db8::1\ngpu2 myriad_location=r1 ansible_host='{address}'"
    sentences = told(site(tmp_path, INI % hosts))
    assert len(sentences) == (said is not None) and (said is None or said in sentences[0])
    twice = f"gpu1 myriad_location=r1 ansible_host=node.example.com\ngpu2 myriad_location=r1 ansible_host='{address}'"
    (tmp_path / "hosts").write_text(INI % twice)
    assert any("which gpu1 has too" in sentence for sentence in told(tmp_path)) == address.startswith("Node")


@pytest.mark.parametrize("levels", ["rack", "[]", "7"])
def test_levels_that_were_refused_make_no_place_wrong(tmp_path: Path, levels: str) -> None:
    text = SITE.replace("[rack]", levels)
    site(tmp_path, INI % "gpu1 myriad_location=r1", more={"group_vars/all.yml": text})
    (sentence,) = told(tmp_path)
    assert sentence.startswith("1: myriad_cluster.topology_levels: is ")


EVERYDAY = """\
# As other projects write theirs.
[all]
cp1     ansible_host=10.0.0.1  # the first
gpu1    ansible_host=10.0.0.11 ansible_ssh_common_args='-o ProxyJump=jump -o "A B=c"' note="{'a': 'b=c'}"
gpu2    ansible_host=10.0.0.12 myriad_location="r2"
gpu[3:4] ansible_port=2222
node-[a:b].example.com:5309

;[nothing]
[control_plane]
cp1

[pool_h100]
gpu1
gpu2
gpu[3:4]

[gpu_nodes:children]
pool_h100

[pool_h100:vars]
myriad_location = r1
path="a b # c"
empty=
table={"a": [1, 2]}

[all:vars]
ansible_user=ubuntu
"""


def test_everyday_ini_is_read_as_ansible_reads_it(tmp_path: Path) -> None:
    raw = read_inventory(site(tmp_path, EVERYDAY.replace("\n", "\r\n")))
    assert raw.problems == []
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(tmp_path / "hosts")])
    assert {name: host.variables.get("ansible_host") for name, host in raw.hosts.items()} == {
        str(host.name): host.vars.get("ansible_host") for host in manager.hosts.values()
    }
    assert {"node-a.example.com", "node-b.example.com", "gpu3"} <= set(raw.hosts)
    assert all(host.origin is not None for host in raw.hosts.values()), "every host with its line"
    assert told(tmp_path) == []


def test_hosts_that_are_merged_in_are_hosts(tmp_path: Path) -> None:
    hosts = (
        "all:\n  hosts: &everyone\n    cp1: {}\n    gpu1: {myriad_location: r1}\n  children:\n"
        "    control_plane: {hosts: {cp1: {}}}\n    gpu_nodes: {children: {pool_h100: {hosts: {gpu1: {}}}}}\n"
        "    backed_up: {hosts: {<<: *everyone}}\n"
    )
    raw = read_inventory(site(tmp_path, hosts, name="hosts.yml"))
    assert told(tmp_path) == []
    assert set(raw.groups["backed_up"].hosts) == {"cp1", "gpu1"}
