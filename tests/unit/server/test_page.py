"""The routes of the page, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from pilotfish.accounting.cost_model import RoundCosts
from pilotfish.bench.runner import PLAIN, Mode
from pilotfish.server.page import PAGES, info, page_files
from support.page_server import PageServer
from support.scripted_pair import COSTS, ScriptedPair


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    server = PageServer(api_key="secret")
    yield server
    server.close()


def test_the_page_and_its_files_are_open_and_what_the_models_are_is_not(server: PageServer) -> None:
    for name in page_files():
        path = next((path for path, page in PAGES.items() if page == name), f"/assets/{name}")
        assert httpx.get(server.url + path).status_code == 200, path
    assert httpx.get(server.url + "/pilotfish/info").status_code == 401


def test_nothing_from_elsewhere_and_nothing_inline_may_run(server: PageServer) -> None:
    for path in ("/", "/docs", "/assets/main.js"):
        headers = httpx.get(server.url + path).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_file_that_the_reader_has_is_not_sent_again(server: PageServer) -> None:
    first = httpx.get(server.url + "/assets/style.css")
    again = httpx.get(
        server.url + "/assets/style.css", headers={"If-None-Match": first.headers["etag"]}
    )
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


@pytest.mark.parametrize(
    "name", ["index.html", "docs.html", "..%2fpage.py", "none.js", "%2e%2e/page.py"]
)
def test_only_the_files_of_the_page_are_served(server: PageServer, name: str) -> None:
    key = {"Authorization": "Bearer secret"}
    assert httpx.get(f"{server.url}/assets/{name}", headers=key).status_code == 404


def test_files_name_no_other_origin_and_each_other_correctly() -> None:
    files = page_files()
    for name, file in files.items():
        # the name of a kind of markup is no address
        text = file.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, name
        assert "https://" not in text, name
        for imported in _imports(text):
            assert imported in files, f"{name} imports {imported}"


def _imports(text: str) -> list[str]:
    return re.findall(r'from "\./([^"]+)"', text) + re.findall(r'="assets/([^"]+)"', text)


def test_info_holds_the_costs_of_rounds_as_they_were_measured() -> None:
    found = info(ScriptedPair().engine(Mode("auto")), model_name="scripted")
    rounds = RoundCosts.of_pair(COSTS, by_model=True)
    curve = found["curve"]
    assert curve["widths"] == list(COSTS.target.widths)
    for width, ratio in zip(curve["widths"], curve["ratios"], strict=True):
        assert ratio == pytest.approx(rounds.curve.at(width) / rounds.step_seconds)
    assert curve["step_seconds"] == rounds.step_seconds
    assert found["draft_cost_ratio"] == pytest.approx(rounds.draft_seconds / rounds.step_seconds)
    assert json.loads(json.dumps(found)) == found


def test_info_of_an_engine_that_measures_nothing_says_so() -> None:
    found = info(ScriptedPair().engine(Mode(PLAIN)), model_name="scripted")
    assert (found["curve"], found["draft_cost_ratio"]) == (None, None)
    assert found["sizes"] == {"target": None, "draft": None}


def test_info_does_not_say_where_files_lie(server: PageServer) -> None:
    found = info(server.engine, model_name="scripted")
    assert (found["target"], found["draft"]) == ("big", "small")
    assert "models/" not in json.dumps(found)
