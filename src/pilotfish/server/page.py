"""The page at `/`, with what it is told of the models and of what passes cost, and the API in words
at `/docs`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from pilotfish import __version__
from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.accounting.cost_model import RoundCosts
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.generation import TextEngine
from pilotfish.server.options import ServerOptions
from pilotfish.server.service import Service

# by path
PAGES = {"/": "index.html", "/docs": "docs.html"}
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# nothing from elsewhere, nothing inline: a reply that looks like markup can do no harm
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # asked again each time, and sent again only when it has changed
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page: its bytes, what they are, and a tag that changes with them."""

    content: bytes
    media_type: str
    tag: str

    def response_to(self, request: Request) -> Response:
        """Return the file, or that the reader's copy is still good."""
        headers = {**HEADERS, "ETag": self.tag}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def make_router(service: Service, options: ServerOptions) -> APIRouter:
    """Return the routes of the pages. They and their files hold no data and need no key;
    `GET /pilotfish/info` does."""
    files = page_files()
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def read_page(request: Request) -> Response:
        return files[PAGES["/"]].response_to(request)

    @router.get("/docs", include_in_schema=False)
    async def read_docs(request: Request) -> Response:
        if request.scope.get("raw_path", b"").endswith(b"/"):
            # its files would be looked for below it; relative, as a proxy may have a prefix
            return Response(status_code=307, headers={"Location": "../docs"})
        return files[PAGES["/docs"]].response_to(request)

    @router.get("/assets/{name}", include_in_schema=False)
    async def read_asset(name: str, request: Request) -> Response:
        if name not in files or name in PAGES.values():
            raise HTTPException(404, "the page has no such file")
        return files[name].response_to(request)

    @router.get("/pilotfish/info", summary="What is loaded, and what passes cost here")
    async def read_info() -> dict[str, Any]:
        return info(service.engine, model_name=options.model_name)

    return router


def page_files() -> dict[str, PageFile]:
    """Return the files of the pages by name."""
    folder = resources.files("pilotfish.server") / "web"
    files = {}
    for entry in folder.iterdir():
        media_type = MEDIA_TYPES.get(PurePath(entry.name).suffix)
        if media_type is not None:
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            files[entry.name] = PageFile(content, media_type, tag)
    return files


def info(engine: TextEngine, *, model_name: str) -> dict[str, Any]:
    """Return what an engine is made of, as plain JSON values; what is not known is None.

    `curve` is what rounds of single requests cost by width, in steps of plain decoding, as the
    calibration found them at its shortest context; None where nothing is decided by cost.
    """
    facts, controller = engine.facts, engine.engine.controller
    costs = controller.costs.calibrated if isinstance(controller, CostAwareController) else None
    sizes = {"target": facts.target_size, "draft": facts.draft_size}
    return {
        "version": __version__,
        "model": model_name,
        "target": _file_name(facts.models.get("target")),
        "draft": _file_name(facts.models.get("draft")),
        "speculation": facts.speculation,
        "curve": None if costs is None else _curve(costs),
        "draft_cost_ratio": None if costs is None else _draft_cost_ratio(costs),
        "sizes": {side: None if size is None else asdict(size) for side, size in sizes.items()},
    }


def _rounds(costs: PairCosts) -> RoundCosts:
    return RoundCosts.of_pair(costs, by_model=True, context=costs.target.contexts[0])


def _curve(costs: PairCosts) -> dict[str, Any]:
    rounds = _rounds(costs)
    ratios = rounds.curve.ratios(rounds.context)
    return {
        "widths": list(ratios),
        "ratios": list(ratios.values()),
        "context": rounds.context,
        "step_seconds": rounds.step_seconds,
    }


def _draft_cost_ratio(costs: PairCosts) -> float | None:
    rounds = _rounds(costs)
    return None if costs.draft is None else rounds.draft_seconds / rounds.step_seconds


def _file_name(facts: Mapping[str, Any] | None) -> str | None:
    """Return the name of a model's file; where it lies is nobody's business."""
    return None if facts is None else PurePath(str(facts.get("path", ""))).stem or None
