"""Start `curve_worker.py` processes and give them turns; a worker that waits is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = Path(__file__).with_name("curve_worker.py")
PLACED = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}


class WorkerProcess:
    """One engine in a process of its own."""

    def __init__(
        self,
        engine: str,
        path: Path,
        *,
        context: int,
        threads: int,
        environment: Mapping[str, str],
        python: str = sys.executable,
    ) -> None:
        """Start the process, wait until its file is loaded, and stop it."""
        self.engine = engine
        options = ["--context", str(context), "--threads", str(threads)]
        self._process = subprocess.Popen(
            [python, str(PROGRAM), engine, str(path), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if engine == "ik" else None,
            env={**os.environ, **environment},
            text=True,
        )
        self._reply()

    def ask(self, do: str, **values: int) -> dict[str, Any]:
        """Carry out one command and return its reply; the process runs only meanwhile."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        print(json.dumps({"do": do, **values}), file=self._process.stdin, flush=True)
        return self._reply()

    def close(self) -> None:
        """End the process."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> WorkerProcess:
        """Return the worker itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"error: the worker of {self.engine} ended")
        # idle threads of some engines spin, and would take the cores of whoever is next
        self._process.send_signal(signal.SIGSTOP)
        reply: dict[str, Any] = json.loads(line)
        return reply
