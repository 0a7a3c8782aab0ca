"""Objects of a kind for somebody who perhaps may not read them."""

from __future__ import annotations

from myriad.kube.client import Api, ApiError, Json
from myriad.kube.kinds import Resource


def listed(
    api: Api, resource: Resource, *, namespace: str | None = None, labels: str | None = None
) -> list[Json] | None:
    """The objects; None where these credentials may not list them, or the kind is not served (no Kueue yet). Raises
    ApiError for everything else."""
    try:
        return api.list(resource, namespace=namespace, labels=labels)[0]
    except ApiError as error:
        if error.status in (401, 403, 404):
            return None
        raise
