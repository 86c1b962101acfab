"""The programs that measure a server see what is wrong with it."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from types import ModuleType

import httpx
import pytest

import pilotfish
from pilotfish.bench.workload import own_workload

PROGRAMS = Path(pilotfish.__file__).parents[2] / "scripts" / "measure"
STREAM = (
    ": ping\n\n"
    'data: {"choices": [{"delta": {"content": "a"}, "speculation": {"tokens": [{"id": 7}]}}]}\n\n'
    'data: {"choices": [{"delta": {}, "finish_reason": "stop"}], "speculation": {"drafted": 2}}\n\n'
    'data: {"choices": [], "usage": {"completion_tokens": 1}}\n\n'
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    return importlib.import_module("load")


@pytest.fixture
def hangups(load: ModuleType) -> ModuleType:
    return importlib.import_module("hangups")


def test_requests_are_the_same_each_time_and_mixed(load: ModuleType) -> None:
    bodies = load.requests_of("own", 24, [32, 64, 96])
    assert bodies == load.requests_of("own", 24, [32, 64, 96])
    assert len({str(body["messages"]) for body in bodies}) == 24
    asked = {body["messages"][0]["content"] for body in bodies}
    kinds = {prompt.category for prompt in own_workload().prompts if prompt.content in asked}
    assert kinds == own_workload().categories.keys()
    assert len({(body["max_tokens"], body["temperature"]) for body in bodies}) == 6


@pytest.mark.parametrize(
    ("change", "value"),
    [("text", "x"), ("token_ids", [1]), ("finish_reason", "stop"), ("num_completion_tokens", 1)],
)
def test_a_reply_that_differs_in_one_mode_is_found(
    load: ModuleType, change: str, value: object
) -> None:
    by_mode = {mode: [load.Answer() for _ in range(3)] for mode in load.MODES}
    assert load.same_text(by_mode) == {"same": 3, "of": 3, "differing": []}
    setattr(by_mode["many-auto"][1], change, value)
    assert load.same_text(by_mode) == {"same": 2, "of": 3, "differing": [1]}


def test_ratios_are_those_of_the_same_round(load: ModuleType) -> None:
    rates = {"one-none": [10.0, 20.0], "one-auto": [15.0, 60.0]}
    cells = {mode: [{"tokens_per_second": rate} for rate in own] for mode, own in rates.items()}
    found = load.ratios(cells)
    assert found == {"drafting, one at a time": {"min": 1.5, "median": 2.25, "max": 3.0}}


async def asked(load: ModuleType, text: str, status: int = 200) -> object:
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text=text))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await load.ask(client, {})


def test_a_stream_is_read_to_its_end(load: ModuleType) -> None:
    answer = asyncio.run(asked(load, STREAM + "data: [DONE]\n\n"))
    assert answer.what == ("a", [7], "stop", 1)  # type: ignore[attr-defined]
    assert answer.stats == {"drafted": 2}  # type: ignore[attr-defined]
    assert answer.error is None  # type: ignore[attr-defined]


def test_a_stream_that_breaks_off_and_one_that_fails_are_no_replies(load: ModuleType) -> None:
    with pytest.raises(ValueError, match="without"):
        asyncio.run(asked(load, STREAM))
    failed = asyncio.run(asked(load, STREAM + 'data: {"error": {"message": "out of time"}}\n\n'))
    assert failed.error == "out of time"  # type: ignore[attr-defined]
    refused = asyncio.run(asked(load, "no", status=429))
    assert (refused.status, refused.error) == (429, "no")  # type: ignore[attr-defined]


QUIET = {
    "pilotfish_running_requests": 0.0,
    "pilotfish_waiting_requests": 0.0,
    "pilotfish_submitted_requests_total": 5.0,
    'pilotfish_requests_total{outcome="stop"}': 3.0,
    'pilotfish_requests_total{outcome="cancelled"}': 2.0,
}


def test_a_clean_run_has_no_faults_and_each_fault_is_found(hangups: ModuleType) -> None:
    def course() -> object:
        found = hangups.Course(health_seconds=[0.01])
        found.outcomes.update({"reply": 3, "hung up": 2, "429": 1, "503": 1})
        return found

    assert hangups.faults(course(), QUIET) == []
    slow, bad, failing = course(), course(), course()
    slow.health_seconds.append(1.5)  # type: ignore[attr-defined]
    bad.outcomes["500: broken"] += 1  # type: ignore[attr-defined]
    failing.health_failures.append("503: draining")  # type: ignore[attr-defined]
    for wrong in (slow, bad, failing, hangups.Course()):
        assert len(hangups.faults(wrong, QUIET)) == 1
    for name in QUIET:
        assert len(hangups.faults(course(), QUIET | {name: 7.0})) == 1
