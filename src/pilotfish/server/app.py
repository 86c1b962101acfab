"""The web application: all routes over one service, guarded, with errors of one form."""

from __future__ import annotations

from fastapi import FastAPI

from pilotfish import __version__
from pilotfish.server import access, description, errors, metrics, page, routes
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.options import ServerOptions
from pilotfish.server.service import Service
from pilotfish.server.serving import Serving


def create_app(
    service: Service,
    options: ServerOptions | None = None,
    *,
    metrics_of: ServerMetrics | None = None,
) -> FastAPI:
    """Return the application; the service is to be started, and drained, by the caller.

    `metrics_of` is the watcher of the service, for `GET /metrics`; without one there is none.
    """
    options = options or ServerOptions()
    app = FastAPI(
        title="pilotfish",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(routes.make_router(Serving(service, options)))
    app.include_router(page.make_router(service, options))
    if metrics_of is not None:
        app.include_router(metrics.make_router(metrics_of, service))
    errors.install(app)
    description.install(app, needs_key=options.api_key is not None)
    access.guard(app, options)
    return app
