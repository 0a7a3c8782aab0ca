"""A role's README says everything that its spec says, and `--check` tells when it does not."""

from pathlib import Path

import pytest

from myriad import docs

SPEC = """\
---
argument_specs:
  main:
    short_description: A door that closes
    description: [Hinges and a lock., Nothing else.]
    options: &options
      door_colour: {type: str, choices: [red, blue], default: red, description: Colour of the door.}
      door_keys: {type: list, elements: str, default: [], description: Who has a key.}
      door_house: {type: str, default: !unsafe "{{ site_house }}", description: The house.}
      door_number: {type: int, required: true, description: Its number.}
  install:
    short_description: The hinges
    description: [Screwed on.]
    options: *options
"""
META = """\
galaxy_info:
  description: A door that closes
  platforms: [{name: Debian, versions: [bookworm, trixie]}]
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "roles" / "door" / "meta"
    folder.mkdir(parents=True)
    (folder / "argument_specs.yml").write_text(SPEC)
    (folder / "main.yml").write_text(META)
    return tmp_path


def test_every_variable_stands_with_type_choices_default_and_text(clone: Path) -> None:
    text = docs.render_readme(docs.read_role(clone / "roles" / "door"))
    assert "- **door_colour** (str; one of `red`, `blue`; default `red`)\n  Colour of the door.\n" in text
    assert "- **door_keys** (list of str; default `[]`)\n  Who has a key.\n" in text
    assert "- **door_house** (str; default `{{ site_house }}`)\n" in text
    assert "- **door_number** (int; required)\n" in text
    assert "| install | The hinges | Screwed on. |" in text
    assert "- Debian: bookworm, trixie" in text
    assert "bound by playbooks/vars/stack.yml" in text


def test_a_role_that_binds_nothing_needs_no_word_about_it(clone: Path) -> None:
    path = clone / "roles" / "door" / "meta" / "argument_specs.yml"
    path.write_text(SPEC.replace("site_house", "house"))
    assert "bound by playbooks" not in docs.render_readme(docs.read_role(path.parent.parent))


def test_a_role_without_variables_says_so() -> None:
    main = {"short_description": "A hole", "description": "Empty."}
    text = docs.render_readme(docs.RoleDoc(name="hole", specs={"main": main}, platforms=[]))
    assert "## Variables\n\nNone.\n" in text


def test_check_names_what_is_out_of_date_and_writes_nothing(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = clone / "roles" / "door" / "README.md"
    assert docs.main(["--check", "--root", str(clone)]) == 1
    assert "roles/door/README.md is out of date" in capsys.readouterr().err
    assert not readme.exists()

    assert docs.main(["--root", str(clone)]) == 0
    assert docs.main(["--check", "--root", str(clone)]) == 0
    readme.write_text(readme.read_text() + "by hand\n")
    assert docs.main(["--check", "--root", str(clone)]) == 1


def test_changes_are_collected_by_kind_and_the_released_part_is_kept(clone: Path) -> None:
    folder = clone / "changelogs" / "fragments"
    folder.mkdir(parents=True)
    (folder / "0002-b.yml").write_text("fixed: [A hole is closed.]\nadded: [Wheels.]\n")
    (folder / "0001-a.yml").write_text("added: [A door.]\n")
    path = clone / "CHANGELOG.md"
    path.write_text("# Changelog\n\n## 2\n\n<!-- fragments -->\nold\n<!-- end of fragments -->\n\n## 1\n\nFirst.\n")
    assert docs.main(["--root", str(clone)]) == 0
    text = path.read_text()
    assert "### Added\n\n- A door.\n- Wheels.\n\n### Fixed\n\n- A hole is closed.\n" in text
    assert "old" not in text
    assert text.endswith("\n## 1\n\nFirst.\n")
    assert docs.main(["--check", "--root", str(clone)]) == 0


def test_an_unknown_kind_of_change_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a\.yml: new is no kind of change; there are security"):
        docs.render_changes({"a.yml": {"new": ["A door."]}})
