"""What is read: YAML and JSON of every shape, with the line of each key; and what is refused, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from myriad.cli import build_app
from myriad.errors import InputError
from myriad.lint.documents import read_text

RUNNER = CliRunner()


def lint(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    """Exit code and output of `myriad lint`."""
    done = RUNNER.invoke(build_app("lint"), ["lint", *arguments], input=stdin)
    if isinstance(done.exception, InputError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_empty_documents_are_left_out_and_lines_go_on() -> None:
    found = read_text(
        "---\n---\n# only a comment\n---\nkind: Job\napiVersion: batch/v1\nspec:\n  parallelism: 2\n---\n", "f.yml"
    )
    assert [d.body["kind"] for d in found] == ["Job"]
    assert found[0].line(("spec", "parallelism")) == 8
    assert found[0].line(("spec", "template", "spec")) == 7  # the nearest part that was written
    assert read_text("", "f.yml") == [] and read_text("\n# nothing\n", "f.yml") == []


def test_lists_are_taken_apart_with_their_lines() -> None:
    text = (
        "apiVersion: v1\nkind: List\nitems:\n- kind: Job\n  apiVersion: batch/v1\n- kind: Pod\n  "
        "apiVersion: v1\n  spec: {}\n"
    )
    found = read_text(text, "f.yml")
    assert [d.body["kind"] for d in found] == ["Job", "Pod"]
    assert found[1].line(("spec",)) == 8


def test_json_may_indent_with_tabs_and_follow_each_other() -> None:
    text = (
        '{\n\t"kind": "Job",\n\t"apiVersion": "batch/v1",\n\t"spec": {\n\t\t"parallelism": '
        '2\n\t}\n}\n{"kind": "Pod", "apiVersion": "v1"}\n'
    )
    found = read_text(text, "f.json")
    assert [d.body["kind"] for d in found] == ["Job", "Pod"]
    assert found[0].line(("spec", "parallelism")) == 5
    assert found[1].line() == 8


def test_anchors_and_merge_keys_lead_to_the_line_where_a_key_stands() -> None:
    text = "base: &b\n  cpu: 1\n  gpu: 8\nuse:\n  <<: *b\n  gpu: 4\nalias: *b\n"
    found = read_text(text, "f.yml")[0]
    assert found.body["use"] == {"cpu": 1, "gpu": 4}
    assert found.line(("use", "gpu")) == 6 and found.line(("use", "cpu")) == 2 and found.line(("alias", "gpu")) == 3


def test_dates_stay_texts_as_kubernetes_has_none() -> None:
    assert read_text("when: 2026-11-30\n", "f.yml")[0].body == {"when": "2026-11-30"}


def test_a_thousand_aliases_of_aliases_are_read_at_once() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    assert len(read_text("\n".join(lines), "f.yml")[0].body) == 40


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "f.yml:3", "not valid YAML"),
        ("a: 1\n\tb: 2\n", "f.yml:2", "begins with a tab"),
        ("kind: Job\nname: {{ .Values.name }}\n", "f.yml:2", "not valid YAML"),
        ("kind: Job\n---\n- a\n- b\n", "f.yml:3", "a list, not an object"),
        ("just words\n", "f.yml:1", "a text, not an object"),
        ("42\n", "f.yml:1", "a number, not an object"),
        ("a: !Ref x\n", "f.yml:1", "constructor for the tag"),
        ("a: \x01\n", "f.yml:1", "0x01"),
        ("kind: List\napiVersion: v1\nitems:\n- kind: Job\n- 3\n", "f.yml:5", "not an object"),
        ("? [a, b]\n: 1\n", "f.yml:1", "unhashable"),
        ("a: &a [*a]\nb: *missing\n", "f.yml:2", "undefined alias"),
    ],
)  # fmt: skip
def test_garbage_is_refused_with_file_and_line(text: str, where: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(text, "f.yml")
    assert caught.value.where == where
    assert says in caught.value.message and caught.value.hint


def test_a_template_is_told_to_be_rendered_first() -> None:
    with pytest.raises(InputError, match="render it first"):
        read_text("kind: Job\nname: {{ .Values.name }}\n", "f.yml")


def test_the_command_names_every_broken_file(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("a: [\n")
    (tmp_path / "b.yml").write_bytes(b"kind: Job\n\xff\xfe\n")
    (tmp_path / "c.yml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")
    code, text = lint(str(tmp_path))
    assert code == 1
    assert f"{tmp_path}/a.yml:2: is not valid YAML" in text and f"{tmp_path}/b.yml:2: is not text (UTF-8)" in text


@pytest.mark.parametrize("name", ["missing.yml", "folder"])
def test_a_path_that_holds_nothing_is_wrong_input(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    code, text = lint(str(tmp_path / name))
    assert code == 1 and name in text


def test_a_named_file_without_an_object_is_refused_and_in_a_folder_it_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "values.yml"
    file.write_text("# values\nreplicas: 3\n")
    code, text = lint(str(file))
    assert code == 1 and f"{file}:2: this is no Kubernetes object: it has no apiVersion and no kind" in text
    code, text = lint(str(tmp_path))
    assert code == 0 and "1 file without Kubernetes objects" in text


def test_standard_input_and_hidden_folders(tmp_path: Path) -> None:
    code, text = lint("-", stdin="apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {}\n")
    assert code == 4 and "<stdin>:4: error: Job a has no containers" in text
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.yml").write_text("a: [\n")
    (tmp_path / "ok.json").write_text('{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}')
    assert lint(str(tmp_path))[0] == 0


def test_a_configuration_of_volcano_may_stand_alone(tmp_path: Path) -> None:
    file = tmp_path / "volcano-scheduler.conf"
    file.write_text('actions: "enqueue, alloc, backfill"\ntiers:\n- plugins:\n  - name: gang\n')
    code, text = lint(str(file))
    assert code == 4 and f"{file}:1: error:" in text and "'alloc'" in text


def test_rules_are_listed_asked_and_left_out(tmp_path: Path) -> None:
    code, text = lint("--rules")
    assert code == 0 and "volcano-unknown-action" in text and "volcano#5827" in text
    file = tmp_path / "job.yml"
    file.write_text("apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {}\n")
    assert lint(str(file), "--rule", "image-latest")[0] == 0
    assert lint(str(file), "--skip", "no-containers")[0] == 0
    code, text = lint(str(file), "--rule", "image-latst")
    assert code == 1 and "did you mean image-latest?" in text


def test_warnings_count_only_when_they_are_asked_to(tmp_path: Path) -> None:
    file = tmp_path / "queue.yml"
    file.write_text(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: a}\nspec: {minMember: 2}\n"
    )
    assert lint(str(file))[0] == 0
    assert lint(str(file), "--strict")[0] == 4


def test_patches_beside_manifests_are_left_out_and_a_list_among_objects_is_not(tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text("- op: remove\n  path: /spec\n")
    (tmp_path / "ok.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")
    code, text = lint(str(tmp_path))
    assert code == 0 and "1 file without Kubernetes objects" in text
    (tmp_path / "mixed.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: b}\n---\n- op: remove\n")
    code, text = lint(str(tmp_path))
    assert code == 1 and "mixed.yaml:5: this is a list" in text
    assert lint(str(tmp_path / "patch.yaml"))[0] == 1


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n# here\n...\n---\n", "\ufeff"])
def test_a_named_file_that_holds_nothing_is_a_pipe_that_failed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.yml"
    file.write_text(text)
    code, said = lint(str(file))
    assert code == 1 and "holds nothing: no object is in it" in said
    code, said = lint(str(tmp_path))
    assert code == 0, "beside others it is no mistake"


def test_an_empty_answer_of_kubectl_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "a.yml"
    file.write_text("apiVersion: v1\nkind: List\nitems: []\n")
    assert lint(str(file))[0] == 0


def test_a_file_in_utf_16_is_told_how_to_save_it(tmp_path: Path) -> None:
    file = tmp_path / "a.yml"
    file.write_bytes("apiVersion: v1\nkind: Namespace\n".encode("utf-16"))
    code, said = lint(str(file))
    assert code == 1 and "is written in UTF-16" in said and "UTF-8" in said


@pytest.mark.parametrize("text", ['""\n', "---\n''\n---\n", '"\\n"\n', "|\n"])
def test_a_document_that_is_an_empty_text_is_no_object(text: str) -> None:
    with pytest.raises(InputError, match="this is a text, not an object"):
        read_text(text, "f")
