"""Which modules of Myriad an image needs: the ones it names and all that they import, found by reading the source.

So an image changes when its own code changes, and not when another part of Myriad does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from myriad.errors import InputError


def needed_files(root: Path, modules: Sequence[str]) -> list[Path]:
    """The files below `root` (the folder that holds `myriad/`), sorted, as paths relative to it.

    A package that is named comes whole, with its data files; of an imported one come only the modules that are
    imported, and the data files beside a module that it names in a string.

    Raises:
        InputError: a module that is named or imported does not exist.
    """
    found: set[Path] = set()
    queue: list[Path] = []

    def add(path: Path) -> None:
        if path not in found:
            found.add(path)
            queue.append(path)

    for module in modules:
        files = list(_whole(root, module))
        if not files:
            raise InputError(f"no module {module}", where=str(root), hint="correct source.modules in image.yml")
        for path in files:
            add(path)
    while queue:
        path = queue.pop()
        for parent in path.relative_to(root).parents[:-1]:
            if (root / parent / "__init__.py").is_file():
                add(root / parent / "__init__.py")
        if path.suffix == ".py":
            nodes = list(ast.walk(ast.parse(path.read_bytes(), filename=str(path))))
            for needed in (*_imports(root, path, nodes), *_data(path, nodes)):
                add(needed)
    return sorted(path.relative_to(root) for path in found)


def _whole(root: Path, module: str) -> Iterator[Path]:
    """A module's file, or all files of a package."""
    place = root.joinpath(*module.split("."))
    if place.with_suffix(".py").is_file():
        yield place.with_suffix(".py")
    elif place.is_dir():
        for path in sorted(place.rglob("*")):
            if path.is_file() and path.suffix != ".pyc" and not path.name.startswith("."):
                yield path


def _imports(root: Path, path: Path, nodes: Sequence[ast.AST]) -> Iterator[Path]:
    """The files of the top package's modules that this file imports, wherever in it the statement stands."""
    top = path.relative_to(root).parts[0]
    package = path.relative_to(root).parent.parts
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == top:
                    yield _required(root, alias.name, path, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            parts = (*start, *(node.module.split(".") if node.module else ()))
            if not parts or parts[0] != top:
                continue
            module = ".".join(parts)
            yield _required(root, module, path, node.lineno)
            for alias in node.names:
                submodule = _module_file(root, f"{module}.{alias.name}")
                if submodule is not None:
                    yield submodule


def _data(path: Path, nodes: Sequence[ast.AST]) -> Iterator[Path]:
    """Files beside a module that are no code and whose name stands in it as a string: `catalogue.yml`."""
    beside = {one.name: one for one in path.parent.iterdir() if one.is_file() and one.suffix not in {".py", ".pyc"}}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in beside:
            yield beside[node.value]


def _module_file(root: Path, module: str) -> Path | None:
    place = root.joinpath(*module.split("."))
    for candidate in (place.with_suffix(".py"), place / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _required(root: Path, module: str, importer: Path, line: int) -> Path:
    path = _module_file(root, module)
    if path is None:
        raise InputError(f"imports {module}, which does not exist", where=f"{importer}:{line}")
    return path
