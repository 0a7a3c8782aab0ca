"""What the reader of inventories needs of ansible-core: its manager, strict about scripts, and what it says, kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible import constants as ansible_constants
from ansible.inventory.manager import InventoryManager
from ansible.utils.display import Display

_SAID = "Standard error from inventory script:"


def is_script(path: Path) -> bool:
    """Whether a file of an inventory is a program that prints it: it begins with its interpreter.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        return stream.read(3) in (b"#!/", b"#! ")


class Manager(InventoryManager):  # type: ignore[misc]  # ansible-core is untyped
    """Ansible's own, but a script that fails has failed.

    Ansible goes on to read the script's own lines as an inventory in INI, of which nearly everything is one:
    `print(hosts)` becomes a host.
    """

    _is_script = False

    def parse_source(self, source: str, cache: bool = False) -> bool:
        """Read one source; called for each file of a folder."""
        path = Path(source)
        self._is_script = path.is_file() and is_script(path)
        return bool(super().parse_source(source, cache=cache))

    def _fetch_inventory_plugins(self) -> list[Any]:
        plugins: list[Any] = super()._fetch_inventory_plugins()
        return [plugin for plugin in plugins if not self._is_script or plugin.NAME == "script"]


def sentence(error: BaseException) -> str:
    """What an error says, with its causes, as one sentence without the full stop."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        text = " ".join(str(getattr(seen, "message", "") or seen).split()).rstrip(".")
        if text and not any(text in part for part in parts):
            parts.append(text)
        # What an inventory script wrote to its standard error stands here, and nowhere else.
        help_text = " ".join(str(getattr(seen, "_help_text", None) or "").split())
        if help_text.startswith(_SAID):
            parts.append(f"it said: {help_text.removeprefix(_SAID).strip()[:300]}".rstrip("."))
        seen = seen.__cause__
    return ": ".join(parts)


class Said:
    """What ansible said while something ran."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.failures: list[tuple[str, BaseException]] = []


def best_reasons(failures: Sequence[tuple[str, BaseException]]) -> list[BaseException]:
    """Every plugin that tries a file gives a reason; the one that knows the file's form is worth telling."""
    for plugin in ("'script'", "'auto'", "'yaml'", "'toml'"):
        named = [
            error
            for message, error in failures
            # `auto` tries every YAML file; where there is no plugin configured its refusal means nothing.
            if plugin in message and "no root 'plugin' key" not in str(error)
        ]
        if named:
            return named[:1]
    return [error for _message, error in failures[-1:]]


@contextmanager
def captured() -> Iterator[Said]:
    """Keep ansible's warnings off the terminal, and let it refuse what it cannot parse instead of skipping it."""
    said = Said()
    display = Display()
    strict = ansible_constants.INVENTORY_ANY_UNPARSED_IS_FAILED

    def warning(msg: str, *_args: Any, **_kwargs: Any) -> None:
        said.warnings.append(" ".join(str(msg).split()))

    def deprecated(msg: str, *_args: Any, **_kwargs: Any) -> None:
        warning(msg)

    def failure(msg: str | None, exception: BaseException, **_kwargs: Any) -> None:
        said.failures.append((str(msg), exception))

    saved: dict[str, Callable[..., Any]] = {}
    for name, replacement in (("warning", warning), ("deprecated", deprecated), ("error_as_warning", failure)):
        saved[name] = getattr(display, name)
        setattr(display, name, replacement)
    ansible_constants.INVENTORY_ANY_UNPARSED_IS_FAILED = True
    try:
        yield said
    finally:
        ansible_constants.INVENTORY_ANY_UNPARSED_IS_FAILED = strict
        for name, original in saved.items():
            setattr(display, name, original)
