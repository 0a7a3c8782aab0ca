"""The digest of a host's inputs, and what action plugins of one process share."""

from __future__ import annotations

import ast
import shutil
from functools import partial
from pathlib import Path

import pytest
from ansible.parsing.vault import EncryptedString

import myriad


@pytest.fixture
def inputs(plugin):
    return plugin("plugin_utils.inputs")


REPOSITORY = Path(__file__).parents[3]
BASE = {"myriad_teams": {"b": 1, "a": [1, 2]}, "ansible_host": "10.0.0.1", "inventory_hostname": "gpu1"}


def test_order_facts_magic_and_ignored_names_do_not_count(inputs):
    first = inputs.host_digest(BASE, set())
    noisy = {
        "inventory_hostname": "gpu1",
        "ansible_host": "10.0.0.1",
        "myriad_teams": {"a": [1, 2], "b": 1},
        "ansible_facts": {"memfree_mb": 3},
        "ansible_check_mode": True,
        "hostvars": object(),
        "groups": {"all": ["gpu1", "gpu2"]},
        "__site_look": {"changed": False},
        "site_full": True,
    }
    assert inputs.host_digest(noisy, {"site_full"}) == first


@pytest.mark.parametrize("change", [{"ansible_host": "10.0.0.2"}, {"myriad_teams": {"b": 2, "a": [1, 2]}}, {"new": 1}])
def test_a_variable_that_changes_counts(inputs, change):
    assert inputs.host_digest({**BASE, **change}, set()) != inputs.host_digest(BASE, set())


def test_templates_are_compared_as_they_are_written_and_secrets_as_they_are_stored(inputs):
    secret = EncryptedString(ciphertext="$ANSIBLE_VAULT;1.1;AES256\n6162")
    # Decrypting would fail here: there is no vault password.
    assert inputs.canonical({"x": secret, "t": "{{ lookup('pipe', 'date') }}", 1: {2, 1}}) == {
        "x": "vault:$ANSIBLE_VAULT;1.1;AES256\n6162",
        "t": "{{ lookup('pipe', 'date') }}",
        "1": ["1", "2"],
    }


def test_a_changed_template_of_a_role_counts_and_the_answer_is_shared(inputs, tmp_path, monkeypatch):
    collection = tmp_path / "collection"
    (collection / "roles" / "r" / "templates").mkdir(parents=True)
    template = collection / "roles" / "r" / "templates" / "a.j2"
    template.write_text("a")
    monkeypatch.setattr(inputs, "COLLECTION", collection)
    caches = [tmp_path / name for name in ("one", "two", "three")]
    for cache in caches:
        cache.mkdir()
    first = inputs.collection_digest(caches[0])
    (collection / "roles" / "r" / "README.md").write_text("words")
    (collection / "roles" / "r" / "__pycache__").mkdir()
    (collection / "roles" / "r" / "__pycache__" / "x.py").write_text("noise")
    assert inputs.collection_digest(caches[1]) == first
    template.write_text("b")
    assert inputs.collection_digest(caches[0]) == first
    assert inputs.collection_digest(caches[2]) != first


# What only says whether something is right, or how a failure reads, makes nothing that lands anywhere.
SAY_ONLY = {"errors", "lint", "symptoms"}


def test_all_that_filters_derive_from_counts(inputs):
    """Else newer alert rules would not reach a cluster that was right with the older ones."""
    package = Path(myriad.__file__).parent
    plugins = Path(__file__).parents[3] / "plugins"
    used = set()
    for path in [*plugins.glob("filter/*.py"), *plugins.glob("lookup/*.py"), plugins / "plugin_utils/described.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("myriad."):
                names = node.module.split(".")[1:]
                folder = package.joinpath(*names)
                used.add("/".join(names) + ("" if folder.is_dir() else ".py"))
    missing = {
        name
        for name in used
        if name.split("/")[0].removesuffix(".py") not in SAY_ONLY
        and not any(name == part or name.startswith(f"{part}/") for part in inputs.PACKAGE_PARTS)
    }
    assert missing == set()
    assert [part for part in inputs.PACKAGE_PARTS if not (package / part).exists()] == []


def test_a_file_of_the_package_counts_as_its_folders_do(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "COLLECTION", tmp_path)
    monkeypatch.setattr(inputs, "PACKAGE_PARTS", ())
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    before = inputs.collection_digest(tmp_path / "one")
    monkeypatch.setattr(inputs, "PACKAGE_PARTS", ("scheduler/monitoring.py",))
    assert inputs.collection_digest(tmp_path / "two") != before


def test_another_bundle_is_another_input(inputs, tmp_path):
    assert inputs.bundle_digest(None, tmp_path) == ""
    assert inputs.bundle_digest(str(tmp_path), tmp_path) == ""
    (tmp_path / "bundle.yml").write_text("a: 1\n")
    first = inputs.bundle_digest(str(tmp_path), tmp_path)
    (tmp_path / "bundle.yml").write_text("a: 22\n")
    assert inputs.bundle_digest(str(tmp_path), tmp_path) != first
    assert first


PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  vars: {color: red}
  tasks:
    - name: Look
      myriad.gpu.node_state: {state: check, state_dir: "TMP/state"}
      register: __look
    - name: Tell
      ansible.builtin.debug: {msg: "converged={{ __look.converged }} {{ ansible_facts['distribution'] | length > 0 }}"}
    - name: Record
      myriad.gpu.node_state: {state: converged, state_dir: "TMP/state"}
"""


def test_the_second_run_is_converged_and_another_variable_is_not(ansible, tmp_path):
    # A copy, so that an editor at work on the repository does not change the inputs between two runs.
    copy = tmp_path / "copy" / "ansible_collections" / "myriad" / "gpu"
    shutil.copytree(REPOSITORY / "plugins", copy / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
    ansible = partial(ansible, ANSIBLE_COLLECTIONS_PATH=str(tmp_path / "copy"))
    play = PLAY.replace("TMP", str(tmp_path))
    assert "converged=False True" in ansible(play, "-v").stdout
    assert "converged=True True" in ansible(play, "-v").stdout
    assert "converged=False" in ansible(play, "-v", "-e", "color=blue", "--check").stdout
    assert "converged=True" in ansible(play, "-v").stdout
    shutil.rmtree(tmp_path / "state")
    assert ansible(play, "--skip-tags", "none").returncode == 0
    assert not (tmp_path / "state" / "_site.json").exists()


@pytest.fixture
def node_digest(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "collection_digest", lambda _cache: "collection")

    def digest(**changes):
        return inputs.node_digest({**BASE, **changes}, {"inputs": ["cp1"]})

    return digest


def test_a_quota_is_no_input_of_a_node_and_a_pool_is(node_digest):
    before = node_digest(myriad_teams={"vision": {"quota": {"h100": 8}}}, myriad_pools={"h100": {"gpus_per_node": 8}})
    assert before == node_digest(
        myriad_teams={"vision": {"quota": {"h100": 16}}}, myriad_pools={"h100": {"gpus_per_node": 8}}
    )
    assert before != node_digest(
        myriad_teams={"vision": {"quota": {"h100": 8}}}, myriad_pools={"h100": {"gpus_per_node": 4}}
    )


def test_a_team_is_an_input_where_the_registry_has_a_user_for_it(node_digest):
    one, two = {"vision": {"quota": {}}}, {"vision": {"quota": {}}, "speech": {}}
    assert node_digest(myriad_teams=one) == node_digest(myriad_teams=two)
    credentials = {"site_registry_credentials": True}
    assert node_digest(myriad_teams=one, **credentials) != node_digest(myriad_teams=two, **credentials)
    more = {"vision": {"quota": {"h100": 8}}}
    assert node_digest(myriad_teams=one, **credentials) == node_digest(myriad_teams=more, **credentials)
