"""What the verbs about GPU-hours share: the question to the extension, and hours as people read them."""

from __future__ import annotations

import json
from typing import Any

from myriad.cli import _cluster as cluster
from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api, ApiError
from myriad.scheduler.quota_view import Balance

Json = dict[str, Any]


def ask(api: Api, path: str, params: dict[str, str]) -> Json:
    """An answer of the extension about its ledger.

    Raises:
        InputError: the extension says that the question is wrong.
        MyriadError: it does not answer, or its database does not.
    """
    # Tells a cluster that does not answer from an extension that does not.
    api.get_raw("/version")
    given = {name: value for name, value in params.items() if value}
    try:
        answer: Any = api.get_raw(f"{cluster.SERVICE}{path}", params=given, headers=cluster.extension_headers(api))
    except ApiError as error:
        said = _said(error)
        if error.status == 400 and said:
            raise InputError(said) from error
        raise MyriadError(
            said or f"the scheduler extension, which keeps the ledger, does not answer: {error.message[:200]}",
            where=f"{api.base_url}{path}",
            hint="`myriad status` shows whether it runs; `kubectl -n myriad-system get pods` which replica does not",
        ) from error
    except json.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise MyriadError(
            "what answers is not this version of the extension",
            where=f"{api.base_url}{path}",
            hint="`myriad site` brings the extension to the version of this command",
        )
    return answer


def _said(error: ApiError) -> str:
    """What the extension itself said; "" where the API server speaks, which reached none."""
    try:
        document = json.loads(error.message)
    except ValueError:
        return ""
    said = document.get("error") if isinstance(document, dict) else None
    return said if isinstance(said, str) else ""


def balances(api: Api, team: str = "") -> dict[tuple[str, str], Balance]:
    """GPU-hours by team and pool; none where the extension does not answer."""
    answer = cluster.ask_extension(api, "/v1/budgets", {"team": team} if team else None)
    found = {}
    for row in answer.get("budgets", []) if isinstance(answer, dict) else []:
        if not row["project"]:
            found[row["team"], row["pool"]] = Balance(
                float(row["budget_h"]), float(row["used_h"]), float(row["left_h"]), str(row["period_end"])[:10]
            )
    return found


def hours(value: float | None) -> str:
    """`4,210`, `96.5`, `0`; nothing where it is not known."""
    if value is None:
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
