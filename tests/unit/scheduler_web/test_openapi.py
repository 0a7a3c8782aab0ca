"""The description of the API is true: it names every route, and what the routes answer has the shape that it says."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from myriad.bench.page_serve import Served
from myriad.scheduler.server import OPEN_ROUTES, STREAM
from myriad.scheduler.web.endpoint import openapi

HEADERS = {"Authorization": "Bearer admin-token-1"}


def test_it_names_every_route_and_nothing_else(served: Served) -> None:
    described = httpx.get(served.url + "/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    assert set(described["paths"]) == {e.path for e in served.server.endpoints}
    assert not set(described["paths"]) & OPEN_ROUTES
    assert described == openapi(served.server.endpoints, version=described["info"]["version"])


def test_answers_have_the_described_shape(served: Served) -> None:
    described = httpx.get(served.url + "/openapi.json").json()
    view = next(v for v in served.cache.views() if v.waiting)
    seen = 0
    for path, item in described["paths"].items():
        content = item["get"]["responses"]["200"]["content"]
        # Inputs of a decision are asked for by a hash, and this server keeps none.
        if "application/json" not in content or path == "/v1/decisions/inputs":
            continue
        asked = path.replace("{namespace}", view.gang.namespace).replace("{job}", view.gang.name)
        answer = httpx.get(served.url + asked, headers=HEADERS)
        assert answer.status_code == 200, asked
        schema = {**content["application/json"]["schema"], "components": described["components"]}
        jsonschema.validate(answer.json(), schema)
        seen += 1
    assert seen >= 8


def test_requests_that_nobody_thought_of(served: Served) -> None:
    """What the description allows is answered, what it does not is refused, and nothing is a fault of the server."""
    schema = schemathesis.openapi.from_url(served.url + "/openapi.json").exclude(path=STREAM)
    seen: set[int] = set()
    quiet = settings(
        max_examples=5, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    with httpx.Client(base_url=served.url, headers=HEADERS, timeout=20) as client:

        def ask(case: Any) -> None:
            path = case.formatted_path
            answer = client.request(case.method, path, params=case.query or None)
            seen.add(answer.status_code)
            assert answer.status_code in (200, 400, 404, 405, 413, 414), (path, case.query, answer.text[:200])

        for found in schema.get_all_operations():
            operation = found.ok()
            # Without inputs there is nothing that could be wrong.
            wrong = [GenerationMode.NEGATIVE] if operation.definition.raw["parameters"] else []
            for mode in (GenerationMode.POSITIVE, *wrong):
                quiet(given(case=operation.as_strategy(generation_mode=mode))(lambda case: ask(case)))()
    assert {200, 400} <= seen
