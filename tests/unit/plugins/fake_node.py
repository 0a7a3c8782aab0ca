"""A node of fake programs on PATH: they keep their state in one JSON file and count their calls.

The fake systemctl knows unit files below ``<node>/etc/systemd/system``. It reads them when a unit is looked at for the
first time or after daemon-reload (NeedDaemonReload says yes when they changed since), and "starts" a unit by noting the
time.
A unit file that holds the word BROKEN does not start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

# -S -E: no site-packages to look through, a call takes some 20 ms.
PROGRAM = """#!{python} -SE
import sys
sys.path.insert(0, {folder!r})
import fake_node
sys.exit(fake_node.main({state!r}, {name!r}, sys.argv[1:]))
"""


class FakeNode:
    """The node, seen from a test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.state_file = folder / "state.json"
        self.units = folder / "etc" / "systemd" / "system"
        self.units.mkdir(parents=True)
        (folder / "bin").mkdir()
        self.write(units={}, packages={}, images=[], modules=[], calls=[])
        for name in ("systemctl", "journalctl", "dpkg-query", "crictl", "modprobe"):
            path = folder / "bin" / name
            path.write_text(
                PROGRAM.format(
                    python=sys.executable, folder=str(Path(__file__).parent), state=str(self.state_file), name=name
                )
            )
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.state_file.read_text()))

    def write(self, **values: Any) -> None:
        known = self.read() if self.state_file.exists() else {}
        self.state_file.write_text(json.dumps({**known, **values}))

    def calls(self, *words: str) -> list[str]:
        """Calls that begin with these words; the list is emptied."""
        state = self.read()
        found = [call for call in state["calls"] if call.startswith(" ".join(words))]
        self.write(calls=[])
        return found

    def unit_file(self, name: str, text: str = "[Service]\n") -> Path:
        path = self.units / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def unit(self, name: str) -> dict[str, Any]:
        return dict(self.read()["units"].get(name, {}))

    def set_unit(self, name: str, **values: Any) -> None:
        units = self.read()["units"]
        units.setdefault(name, {}).update(values)
        self.write(units=units)


def main(state_file: str, name: str, arguments: list[str]) -> int:
    path = Path(state_file)
    state = json.loads(path.read_text())
    words = [word for word in arguments if word != "--"]
    state["calls"].append(" ".join([name, *[word for word in words if not word.startswith("-")]]))
    code = {
        "systemctl": systemctl,
        "journalctl": journalctl,
        "dpkg-query": dpkg_query,
        "crictl": crictl,
        "modprobe": modprobe,
    }[name](state, path.parent, words)
    path.write_text(json.dumps(state))
    return code


def files_of(folder: Path, name: str) -> list[Path]:
    units = folder / "etc" / "systemd" / "system"
    found = [units / name] if (units / name).exists() else []
    return found + sorted((units / f"{name}.d").glob("*.conf"))


def stamp(files: list[Path]) -> list[Any]:
    return [[str(file), file.read_text()] for file in files]


def properties(state: dict[str, Any], folder: Path, name: str) -> dict[str, str]:
    files = files_of(folder, name)
    unit = state["units"].setdefault(name, {})
    if unit.get("loaded") is None and files:
        unit["loaded"] = stamp(files)
    load = "masked" if unit.get("masked") else "loaded" if files or unit.get("foreign") else "not-found"
    enabled = "masked" if unit.get("masked") else "enabled" if unit.get("enabled") else "disabled"
    return {
        "Id": name,
        "LoadState": load,
        "ActiveState": unit.get("active", "inactive"),
        "SubState": "running" if unit.get("active") == "active" else "dead",
        "UnitFileState": "" if load == "not-found" else unit.get("file_state", enabled),
        "FragmentPath": str(files[0]) if files and not files[0].name.endswith(".conf") else "",
        "DropInPaths": " ".join(str(file) for file in files if file.name.endswith(".conf")),
        "NeedDaemonReload": "yes" if unit.get("loaded") is not None and unit["loaded"] != stamp(files) else "no",
        "ActiveEnterTimestampMonotonic": str(int(unit.get("since", 0) * 1e6)),
        "Type": unit.get("type", "notify"),
        "Result": unit.get("result", "success"),
        "ExecMainStatus": unit.get("status", "0"),
    }


def systemctl(state: dict[str, Any], folder: Path, words: list[str]) -> int:
    flags = [word for word in words if word.startswith("-")]
    verb, *names = [word for word in words if not word.startswith("-")]
    if verb == "show":
        blocks = [
            "\n".join(f"{key}={value}" for key, value in properties(state, folder, name).items()) for name in names
        ]
        print("\n\n".join(blocks))
        return 0
    if verb == "daemon-reload":
        for name, unit in state["units"].items():
            files = files_of(folder, name)
            unit["loaded"] = stamp(files) if files else None
        return 0
    for name in names:
        unit = state["units"].setdefault(name, {})
        if verb in ("start", "restart"):
            files = files_of(folder, name)
            if not files and not unit.get("foreign"):
                print(f"Unit {name} not found.", file=sys.stderr)
                return 5
            if any("BROKEN" in file.read_text() for file in files):
                unit.update(active="failed", result="exit-code", status="1")
                print(f"Job for {name} failed.", file=sys.stderr)
                return 1
            unit.update(active="active", since=time.monotonic(), starts=unit.get("starts", 0) + 1)
        elif verb == "stop":
            unit["active"] = "inactive"
        elif verb in ("enable", "disable"):
            assert "--no-reload" in flags or verb == "disable" or unit.get("foreign"), "a reload nobody asked for"
            unit["enabled"] = verb == "enable"
        elif verb in ("mask", "unmask"):
            unit["masked"] = verb == "mask"
        elif verb == "is-enabled":
            print(properties(state, folder, name)["UnitFileState"])
    return 0


def journalctl(state: dict[str, Any], _folder: Path, _words: list[str]) -> int:
    print(state.get("journal", 'level=error msg="listen tcp :10250: bind: address already in use"'))
    return 0


def dpkg_query(state: dict[str, Any], _folder: Path, words: list[str]) -> int:
    missing = 0
    for name in [word for word in words if not word.startswith("-")]:
        version = state["packages"].get(name)
        if version is None:
            print(f"dpkg-query: no packages found matching {name}", file=sys.stderr)
            missing = 1
        else:
            print(f"{name}\tamd64\t{version}\tinstalled")
    return missing


def crictl(state: dict[str, Any], _folder: Path, words: list[str]) -> int:
    if state.get("runtime_down"):
        print("connect: connection refused", file=sys.stderr)
        return 1
    if words[0] == "pull":
        # The registry of the fake node serves what `registry` lists, by name and by digest.
        served = [image for image in state.get("registry", []) if words[1] in image["repoTags"] + image["repoDigests"]]
        if not served:
            print(f"rpc error: code = NotFound desc = {words[1]}: not found", file=sys.stderr)
            return 1
        kept = [image for image in state["images"] if image["repoTags"] != served[0]["repoTags"]]
        state["images"] = [*kept, served[0]]
        return 0
    print(json.dumps({"images": state["images"]}))
    return 0


def modprobe(state: dict[str, Any], _folder: Path, words: list[str]) -> int:
    name = words[-1]
    if name not in state["modules"]:
        print(f"modprobe: FATAL: Module {name} not found", file=sys.stderr)
        return 1
    return 0
