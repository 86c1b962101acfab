"""The web application: all routes over one service, guarded, with errors of one form."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from pilotfish import __version__
from pilotfish.server import access, errors, routes
from pilotfish.server.options import ServerOptions
from pilotfish.server.service import Service
from pilotfish.server.serving import Serving


def create_app(
    service: Service, options: ServerOptions | None = None, *, routers: tuple[APIRouter, ...] = ()
) -> FastAPI:
    """Return the application; the service is to be started, and drained, by the caller.

    `routers` come on top: metrics, say.
    """
    options = options or ServerOptions()
    app = FastAPI(title="pilotfish", version=__version__, docs_url=None, redoc_url=None)
    app.include_router(routes.make_router(Serving(service, options)))
    for router in routers:
        app.include_router(router)
    errors.install(app)
    access.guard(app, options)
    return app
