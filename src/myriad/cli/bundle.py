"""`myriad bundle build|verify|serve|push`: the one way in which artifacts come to a site."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from myriad.cli.output import console, emit_json, err_console
from myriad.errors import InputError, MyriadError
from myriad.stack.build import build_bundle, lock_digest
from myriad.stack.bundle import Bundle
from myriad.stack.events import Event, plain_line
from myriad.stack.lock import default_lock_path, load_lock
from myriad.stack.push import push_bundle
from myriad.stack.settings import Settings, read_settings
from myriad.stack.sources import SourceMode

if TYPE_CHECKING:
    from myriad.stack.bundle_offline import OfflineWish
    from myriad.stack.bundle_verify import Problem

LockOption = Annotated[Path | None, typer.Option("--lock", help="The lock; by default stack.lock.yml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
#: Where `serve` listens unless told otherwise; beside the registry's 5000.
SERVE_PORT = 5080
#: Of these the lock has package sets, so a bundle holds their packages unless told otherwise.
DISTRIBUTIONS = ("debian12",)


def default_bundle_dir(settings: Settings, lock_sha256: str) -> Path:
    """Where a bundle of a lock lies by default: one directory per lock and architecture, below the cache."""
    return settings.cache / "bundles" / f"{lock_sha256[:12]}-{settings.arch}"


def register(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    bundle = typer.Typer(no_args_is_help=True, help="Make, check, serve and publish bundles.")
    bundle.command("build")(build)
    bundle.command("verify")(verify)
    bundle.command("serve")(serve)
    bundle.command("push")(push)
    app.add_typer(bundle, name="bundle")


def build(
    source: Annotated[str, typer.Option(help="auto, release or modules.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The bundle's directory.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these components (repeat it).")] = None,
    also: Annotated[list[str] | None, typer.Option("--with", help="Components on request to add.")] = None,
    without: Annotated[list[str] | None, typer.Option(help="Folders of images/ to leave out.")] = None,
    packages: Annotated[bool, typer.Option(help="Packages for nodes, as an apt repository.")] = True,
    distribution: Annotated[
        list[str] | None, typer.Option(help="Distribution of the nodes, as debian12 (repeat it).")
    ] = None,
    package: Annotated[
        list[str] | None, typer.Option(help="A further package, NAME or NAME=VERSION (repeat it).")
    ] = None,
    refresh: Annotated[bool, typer.Option("--refresh-packages", help="Resolve the frozen packages anew.")] = False,
    wheels: Annotated[bool, typer.Option(help="The wheels of uv.lock, for the controller.")] = True,
    python: Annotated[list[str] | None, typer.Option(help="Python of the controller, as 3.11 (repeat it).")] = None,
    key: Annotated[list[Path] | None, typer.Option(help="A public key file that goes along (repeat it).")] = None,
    tar: Annotated[Path | None, typer.Option(help="Write it into this tar file as well.")] = None,
    lock_path: LockOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a bundle: all that the lock names, and what a site without a network needs beside it."""
    if source not in ("auto", "release", "modules"):
        raise typer.BadParameter(f"{source!r} is not auto, release or modules", param_hint="--source")
    lock = load_lock(lock_path)
    settings = read_settings()
    directory = out or default_bundle_dir(settings, lock_digest(lock))
    wish = _wish(
        distributions=tuple(distribution or DISTRIBUTIONS) if packages and not (only and not distribution) else (),
        packages=tuple(package or ()),
        refresh=refresh,
        wheels=wheels and not only,
        pythons=tuple(python or ()),
        keys=tuple(key or ()),
        lock_path=lock_path or default_lock_path(),
    )
    started = time.monotonic()
    cached = 0
    with _progress("bundle", shown=not as_json) as show:

        def report(event: Event) -> None:
            nonlocal cached
            cached += event.state == "cached"
            if event.state == "progress":
                show(event.what, event.done_bytes, event.total_bytes)
            line = plain_line(event)
            if line is not None and not as_json:
                console.print(line, markup=False)

        bundle = build_bundle(
            lock,
            directory,
            settings,
            report,
            source=cast(SourceMode, source),
            only=only or None,
            also=also or (),
            without=without or (),
            offline=wish,
        )
    written = _write_tar(bundle, tar, shown=not as_json) if tar is not None else None
    seconds = time.monotonic() - started
    if as_json:
        more = {"tar": {"path": str(tar), "size": written}} if written is not None else {}
        emit_json(bundle.as_ansible_vars() | _counts(bundle) | more | {"seconds": round(seconds, 1)})
        return
    _tell_built(bundle, cached, seconds, tar)


def _tell_built(bundle: Bundle, cached: int, seconds: float, tar: Path | None) -> None:
    manifest = bundle.manifest
    names = {"release": "releases", "module": "Go modules", "package": "Debian packages", "local": "own source"}
    counts = Counter(entry.origin.source for entry in manifest.files)
    origins = ", ".join(f"{count} from {names.get(kind, kind)}" for kind, count in sorted(counts.items()))
    console.print(
        f"{len(manifest.files)} files ({origins}) and {len(manifest.images)} images, {cached} of them cached, "
        f"{seconds:.0f} s: {bundle.directory}",
        markup=False,
    )
    if manifest.apt is not None:
        signed = f"signed by {manifest.apt.fingerprint}" if manifest.apt.fingerprint else "unsigned"
        suites = ", ".join(manifest.apt.suites)
        console.print(f"{len(manifest.packages)} packages for {suites}, an apt repository {signed}", markup=False)
    if manifest.wheels:
        console.print(f"{len(manifest.wheels)} wheels for the controller", markup=False)
    if tar is not None:
        console.print(f"{tar}: {tar.stat().st_size / 1e6:.0f} MB", markup=False)


def _counts(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    size = sum(blob.size for _, blob in bundle.blobs())
    return {"packages": len(manifest.packages), "wheels": len(manifest.wheels), "size": size}


def _wish(
    *,
    distributions: tuple[str, ...],
    packages: tuple[str, ...],
    refresh: bool,
    wheels: bool,
    pythons: tuple[str, ...],
    keys: tuple[Path, ...],
    lock_path: Path,
) -> OfflineWish:
    """What a build adds for a site without a network. The roles and uv.lock are those of the clone, or installed."""
    from myriad.roles import roles_folder
    from myriad.stack.bundle_offline import OfflineWish
    from myriad.stack.bundle_wheels import PYTHONS

    for version in pythons:
        if version not in PYTHONS:
            raise InputError(f"--python {version} is not supported", hint=f"one of {', '.join(PYTHONS)}")
    if packages and not distributions:
        raise InputError("--package needs a distribution that it is for", hint="give --distribution debian12 as well")
    uv_lock = lock_path.parent / "uv.lock"
    if wheels and not uv_lock.is_file():
        # An installed Myriad has no clone, and so no uv.lock: its own installer made its environment.
        err_console.print(f"no uv.lock beside {lock_path}: the bundle holds no wheels", markup=False)
        wheels = False
    return OfflineWish(
        distributions=distributions,
        roles=roles_folder(),
        extra_packages=packages,
        refresh=refresh,
        uv_lock=uv_lock if wheels else None,
        pythons=pythons or PYTHONS,
        keys=keys,
    )


def _write_tar(bundle: Bundle, out: Path, *, shown: bool) -> int:
    from myriad.stack.bundle_tar import write_tar

    with _progress("tar", shown=shown) as show:
        return write_tar(bundle, out, lambda done, total: show("writing", done, total))


def verify(
    path: Annotated[Path, typer.Argument(help="The bundle: its directory, or its tar.")],
    lock_path: LockOption = None,
    any_lock: Annotated[
        bool, typer.Option("--any-lock", help="Do not ask whether it holds what the lock names.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read every file, and name what is missing, changed or extra, with what to do. Exit 2 where something is."""
    from myriad.stack.bundle_verify import verify_path

    lock = None if any_lock else load_lock(lock_path)
    started = time.monotonic()
    with _progress("verify", shown=not as_json) as show:
        bundle, problems = verify_path(path, lock=lock, on_progress=lambda done, total: show("read", done, total))
    seconds = time.monotonic() - started
    if as_json:
        found = [problem.model_dump() for problem in problems]
        emit_json({"ok": not problems, "bundle": bundle.digest, "problems": found} | _counts(bundle))
        raise typer.Exit(2 if problems else 0)
    if problems:
        raise MyriadError(_told(problems), where=str(path))
    size = sum(blob.size for _, blob in bundle.blobs())
    count = sum(1 for _ in bundle.blobs())
    rate = f"{size / 1e6:.0f} MB in {seconds:.1f} s"
    console.print(
        f"{path}: {count} files, {rate}, all as the manifest says (bundle {bundle.digest[:12]})", markup=False
    )


def _told(problems: list[Problem]) -> str:
    """The problems by what is to be done about them."""
    counts = Counter(problem.problem for problem in problems)
    head = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    lines = [f"not whole: {head}"]
    for action in dict.fromkeys(problem.action for problem in problems):
        lines += [f"  {problem.sentence()}" for problem in problems if problem.action == action]
        lines.append(f"  -> {action}")
    return "\n".join(lines)


def serve(
    directory: Annotated[Path, typer.Argument(help="The bundle's directory.")],
    listen: Annotated[str, typer.Option(help="ADDRESS, :PORT or ADDRESS:PORT to listen on.")] = f":{SERVE_PORT}",
    certificate: Annotated[Path | None, typer.Option(help="Certificate chain, for HTTPS.")] = None,
    private_key: Annotated[Path | None, typer.Option("--private-key", help="Its private key.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print each request.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve a bundle read-only: images and files, apt repository, wheels. Ends with Ctrl-C."""
    from myriad.stack.serve import BundleServer, advice

    if (certificate is None) != (private_key is None):
        raise InputError("HTTPS needs both --certificate and --private-key")
    if directory.is_file():
        raise InputError("is a tar; serve reads a directory", where=str(directory), hint=f"tar -xf {directory} -C DIR")
    address, port = listen_address(listen)
    bundle = Bundle.load(directory)

    def report(client: str, method: str, status: int, path: str) -> None:
        if not quiet:
            err_console.print(f"{client} {method} {status} {path}", markup=False)

    tls = (certificate, private_key) if certificate is not None and private_key is not None else None
    server = BundleServer(bundle, address=address, port=port, tls=tls, on_request=report)
    try:
        lacking = server.site.whole()
        if lacking:
            names = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
            raise MyriadError(
                f"lacks {names}", where=str(directory), hint=f"`myriad bundle verify {directory}` tells what to do"
            )
        url = server.url(_shown_host(address))
        lines = advice(server.site, url)
        if as_json:
            emit_json({"url": url, "bundle": bundle.digest, "give": [{"to": to, "line": line} for to, line in lines]})
        else:
            console.print(f"{url} serves bundle {bundle.digest[:12]}; Ctrl-C ends it", markup=False)
            for to, line in lines:
                console.print(f"  {to:<16} {line}", markup=False)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()


def listen_address(text: str) -> tuple[str, int]:
    """`ADDRESS`, `:PORT`, `ADDRESS:PORT` or `[V6]:PORT` as address and port; every address where none is given."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = int(port) if port.isdigit() else SERVE_PORT if port == "" else -1
    if not 0 <= number <= 65535:
        raise InputError(f"--listen {text}: {port!r} is no port", hint="write ADDRESS:PORT, as 10.0.0.5:5080")
    return host or "0.0.0.0", number  # noqa: S104 (nodes have to reach it; what it gives is public to them)


def _shown_host(address: str) -> str:
    """The address under which others reach this machine, where it listens on all."""
    if not ipaddress.ip_address(address).is_unspecified if _is_ip(address) else True:
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address would be used
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def push(
    directory: Annotated[Path, typer.Argument(help="The bundle's directory.")],
    registry: Annotated[str, typer.Argument(help="The registry, host:port or a URL.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    ca: Annotated[Path | None, typer.Option("--ca", help="Certificates that vouch for it, in PEM.")] = None,
    user: Annotated[str, typer.Option("--user", help="Who publishes, where the registry knows users.")] = "publisher",
    password_file: Annotated[Path | None, typer.Option("--password-file", help="File with the password.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fill a site's registry from a bundle; only what it lacks is sent."""

    def report(name: str, size: int) -> None:
        if not as_json:
            console.print(f"sent {name} ({size / 1e6:.1f} MB)", markup=False)

    result = push_bundle(
        directory,
        registry,
        dry_run=dry_run,
        on_sent=report,
        ca=_text(ca),
        credentials=(user, _text(password_file).strip()) if password_file is not None else None,
    )
    if as_json:
        emit_json(asdict(result))
        return
    verb = "would be sent" if dry_run else "sent"
    console.print(
        f"{registry}: {len(result.sent)} {verb} ({result.sent_bytes / 1e6:.1f} MB), {result.present} were there",
        markup=False,
    )


def _text(path: Path | None) -> str:
    """The text of a file; empty for none. Raises InputError."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error


@contextmanager
def _progress(title: str, *, shown: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on a terminal's standard error; nothing where there is none."""
    if not (shown and err_console.is_terminal):
        yield lambda what, done, total: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err_console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=f"{title}: {what}"[:60], completed=done, total=total)

        yield show
