"""Creating a job and what it needs beside it: tried whole on the server first, so that nothing is left half made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import (
    CONFIG_MAPS,
    MPI_JOBS_V1,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLUME_CLAIMS,
    WORK,
    Resource,
)
from myriad.lint.documents import Document

Json = dict[str, Any]

#: Kinds that a job file may hold: the job, and what its pods need.
KINDS: tuple[Resource, ...] = (
    CONFIG_MAPS, SECRETS, SERVICES, VOLUME_CLAIMS, SERVICE_ACCOUNTS, MPI_JOBS_V1, *WORK,
)  # fmt: skip
_BESIDE = 5


def resource_of(document: Document) -> Resource:
    """The kind of an object of a job file.

    Raises:
        InputError: it is no job and nothing that a job needs.
    """
    body = document.body
    for resource in KINDS:
        if (body.get("apiVersion"), body.get("kind")) == (resource.api_version, resource.kind):
            return resource
    line = document.line()
    raise InputError(
        f"a job file holds a job and what its pods need, not a {body.get('kind')} ({body.get('apiVersion')})",
        where=f"{document.file}:{line}" if line else document.file,
        hint="kubectl apply makes other objects",
    )


def in_order(documents: Sequence[Document]) -> list[tuple[Resource, Document]]:
    """The objects with what a job needs before the job."""
    pairs = [(resource_of(document), document) for document in documents]
    return sorted(pairs, key=lambda pair: KINDS.index(pair[0]) >= _BESIDE)


def create(api: Api, documents: Sequence[Document], *, namespace: str | None, dry_run: bool) -> list[str]:
    """Create the objects.

    Each is tried by a dry run first, so that what the server refuses is known before anything is there. What is beside
    a job and exists already with the same name is left as it is.

    Returns:
        `Job vision/bert` for each object that was made (or would have been).

    Raises:
        MyriadError: the server refuses one; then nothing is left of the others.
    """
    pairs = in_order(documents)
    made: list[tuple[Resource, str, str]] = []
    skip: set[int] = set()
    for index, (resource, document) in enumerate(pairs):
        try:
            api.create(resource, document.body, namespace=_namespace(document.body, namespace), dry_run=True)
        except ApiError as error:
            if error.status == 409 and KINDS.index(resource) < _BESIDE:
                skip.add(index)
                continue
            raise _refused(document, resource, error) from error
    for index, (resource, document) in enumerate(pairs):
        name, where = str(document.body["metadata"]["name"]), _namespace(document.body, namespace)
        if index in skip:
            continue
        if not dry_run:
            try:
                api.create(resource, document.body, namespace=where)
            except MyriadError as error:
                for other, other_name, other_where in reversed(made):
                    api.delete(other, other_name, namespace=other_where)
                raise (_refused(document, resource, error) if isinstance(error, ApiError) else error) from error
        made.append((resource, name, where))
    return [f"{resource.kind} {where}/{name}" for resource, name, where in made]


def _namespace(body: Json, default: str | None) -> str:
    return str((body.get("metadata") or {}).get("namespace") or default or "default")


def _refused(document: Document, resource: Resource, error: ApiError) -> MyriadError:
    name = (document.body.get("metadata") or {}).get("name")
    if error.status == 409:
        return InputError(
            f"there is already a {resource.kind} {name}",
            where=document.file or None,
            hint=f"delete it first, or give the new one another name; `myriad why {name}` tells how the old one is",
        )
    if error.status in (400, 403, 422):
        return InputError(
            f"the server refuses {resource.kind} {name}: {error.message}",
            where=document.file or None,
            hint="correct what it names; nothing was created",
        )
    if error.is_not_found:
        return InputError(
            f"the cluster has no {resource.plural} ({resource.api_version}), or namespace "
            f"{_namespace(document.body, None)} does not exist",
            where=document.file or None,
            hint="`myriad job new` renders a form that the cluster knows",
        )
    return error
