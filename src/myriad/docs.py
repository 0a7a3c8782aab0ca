"""The generated parts of the repository: one README a role, made from its argument spec and its meta data, the changes
since the last release, collected in CHANGELOG.md from one fragment a change, and the schemas of the NodePortrait and of
image.yml.

`python -m myriad.docs` writes them, `python -m myriad.docs --check` says which are out of date. The core turns parsed
YAML into text and touches no file; `main` is the edge.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from myriad.fleet.portrait_schema import CRD_FILE, SCHEMA_FILE, crd_text, schema_text
from myriad.images import definition as image
from myriad.roles import load_yaml

#: Entry points in the order in which a reader meets them; others follow in the order of the spec.
ENTRY_POINTS = ("main", "install", "configure", "reset")
_WIDTH = 120
_GENERATED = "<!-- Made from meta/argument_specs.yml and meta/main.yml by `python -m myriad.docs`. Change those. -->"
_CHANGES_BEGIN = "<!-- fragments -->"
_CHANGES_END = "<!-- end of fragments -->"
_BOUND = (
    "Defaults that name `site_...` are bound by playbooks/vars/stack.yml and by the inventory;"
    " where the role is used alone, set its variables instead."
)


@dataclass(frozen=True)
class RoleDoc:
    """What a README says of a role.

    Attributes:
        name: the role's short name.
        specs: entry point to its argument spec, as in meta/argument_specs.yml.
        platforms: (distribution, releases) as in meta/main.yml.
    """

    name: str
    specs: Mapping[str, Mapping[str, Any]]
    platforms: Sequence[tuple[str, Sequence[str]]]


def read_role(folder: Path) -> RoleDoc:
    """Read what the README of one role is made from.

    Args:
        folder: the role, holding meta/argument_specs.yml and meta/main.yml.

    Raises:
        FileNotFoundError: one of the two is missing.
    """
    specs = load_yaml(folder / "meta" / "argument_specs.yml")["argument_specs"]
    info = load_yaml(folder / "meta" / "main.yml")["galaxy_info"]
    platforms = [(platform["name"], platform["versions"]) for platform in info["platforms"]]
    return RoleDoc(name=folder.name, specs=specs, platforms=platforms)


def sentences(value: str | Sequence[str]) -> list[str]:
    """A description of a spec, which is a text or a list of texts, as a list."""
    return [value.strip()] if isinstance(value, str) else [text.strip() for text in value]


def default_text(option: Mapping[str, Any]) -> str:
    """The default of an option as one line of YAML, or the word required."""
    if option.get("required"):
        return "required"
    value = option.get("default")
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("...\n").strip()


def type_text(option: Mapping[str, Any]) -> str:
    """The type of an option, as `list of str` where it has elements."""
    kind = str(option.get("type", "str"))
    return f"{kind} of {option['elements']}" if option.get("elements") else kind


def _paragraph(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)


def _code(text: str) -> str:
    """Inline code that survives back quotes inside."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _option_lines(name: str, option: Mapping[str, Any]) -> list[str]:
    facts = [type_text(option)]
    if option.get("choices"):
        facts.append("one of " + ", ".join(_code(str(choice)) for choice in option["choices"]))
    text = default_text(option)
    facts.append(text if text == "required" else f"default {_code(text)}" if text else "empty by default")
    lines = [f"- **{name}** ({'; '.join(facts)})", *(f"  {line}" for line in sentences(option["description"]))]
    return [lines[0], *(_paragraph(line, "  ") if len(line) > _WIDTH else line for line in lines[1:])]


def render_readme(role: RoleDoc) -> str:
    """The README of a role as Markdown, ending with a line feed.

    Options are listed once: every entry point that takes variables takes the same ones.
    """
    specs = role.specs
    order = [name for name in ENTRY_POINTS if name in specs] + [name for name in specs if name not in ENTRY_POINTS]
    main = specs["main"]
    lines = [f"# {role.name}", "", _GENERATED, "", f"{main['short_description']}.", ""]
    for text in sentences(main["description"]):
        lines += [_paragraph(text), ""]
    lines += ["## Entry points", "", "| tasks_from | outcome | |", "|---|---|---|"]
    for name in order:
        spec = specs[name]
        more = " ".join(sentences(spec["description"])) if name != "main" else "Checks its input; both halves below."
        lines.append(f"| {name} | {spec['short_description']} | {more} |")
    lines += ["", "## Variables", ""]
    if any("site_" in default_text(option) for option in (main.get("options") or {}).values()):
        lines += [_paragraph(_BOUND), ""]
    for name, option in (main.get("options") or {}).items():
        lines += _option_lines(name, option)
    if not main.get("options"):
        lines.append("None.")
    lines += ["", "## Platforms", ""]
    lines += [f"- {name}: {', '.join(releases)}" for name, releases in role.platforms]
    lines += [
        "",
        "## Use and test",
        "",
        "```yaml",
        "- hosts: all",
        "  roles:",
        f"    - myriad.gpu.{role.name}",
        "```",
        "",
        "```",
        f"molecule test -s {role.name}",
        "```",
    ]
    return "\n".join(lines) + "\n"


#: Kinds of changes in the order in which a reader wants them.
CHANGES = ("security", "removed", "changed", "added", "fixed")


def render_changes(fragments: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """The changes that are not released yet, as Markdown.

    Args:
        fragments: file name to kind of change to sentences, as the files in changelogs/fragments hold them.

    Raises:
        ValueError: a fragment has a kind that there is not.
    """
    lines: list[str] = []
    for name, fragment in fragments.items():
        unknown = sorted(set(fragment) - set(CHANGES))
        if unknown:
            raise ValueError(f"{name}: {', '.join(unknown)} is no kind of change; there are {', '.join(CHANGES)}")
    for kind in CHANGES:
        texts = [text for name in sorted(fragments) for text in fragments[name].get(kind, [])]
        if texts:
            lines += [f"### {kind.capitalize()}", "", *(_paragraph(f"- {text}", "  ") for text in texts), ""]
    return "\n".join(lines)


def changelog(text: str, fragments: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """CHANGELOG.md with its part between the two marks made new; what stands outside them is kept."""
    before, _, rest = text.partition(_CHANGES_BEGIN)
    _, _, after = rest.partition(_CHANGES_END)
    return f"{before}{_CHANGES_BEGIN}\n\n{render_changes(fragments)}{_CHANGES_END}{after}"


def role_folders(root: Path) -> list[Path]:
    """Every role of the repository that has an argument spec, by name."""
    return sorted(spec.parent.parent for spec in (root / "roles").glob("*/meta/argument_specs.yml"))


def outdated(root: Path) -> dict[Path, str]:
    """Generated files that differ from what they should be, with the right text."""
    wanted = {folder / "README.md": render_readme(read_role(folder)) for folder in role_folders(root)}
    changes = root / "CHANGELOG.md"
    if changes.is_file():
        fragments = {path.name: load_yaml(path) for path in sorted(root.glob("changelogs/fragments/*.yml"))}
        wanted[changes] = changelog(changes.read_text("utf-8"), fragments)
    if (root / "roles" / "node_portrait").is_dir():
        wanted[root / SCHEMA_FILE] = schema_text()
        wanted[root / CRD_FILE] = crd_text()
    if (root / "images").is_dir():
        wanted[root / image.SCHEMA_FILE] = image.schema_text()
    return {path: text for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the generated files, or with --check only name those that are out of date (then the exit code is 1)."""
    parser = argparse.ArgumentParser(prog="python -m myriad.docs", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name what is out of date")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the clone (default: the working directory)")
    options = parser.parse_args(arguments)
    changes = outdated(options.root)
    for path, text in changes.items():
        name = path.relative_to(options.root)
        if options.check:
            print(f"{name} is out of date; `python -m myriad.docs` writes it", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"{name} written")
    return 1 if options.check and changes else 0


if __name__ == "__main__":
    sys.exit(main())
