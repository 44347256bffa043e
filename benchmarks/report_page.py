"""How large a report is, and how fast a browser draws it: `python -m benchmarks.report_page PATH ...`.

Each PATH is a trace directory or a `.flint` file. Chromium is needed; it runs headless, asks a
server of this process for the page, and tells it when the second frame after the navigation is
drawn, and how long five zooms of the timeline take. It loads the page again for each run; the first
time, in which the browser starts, does not count.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from urllib.parse import parse_qs, urlsplit

from flint.backends.cost.estimate import Estimate
from flint.cli.inputs import load_workload
from flint.tracing import Trace

#: What tells the server; the page's own policy is taken out for it.
TELL = """<script>
requestAnimationFrame(() => requestAnimationFrame(() => {
  const drawn = performance.now();
  const canvas = document.querySelector("canvas"), pixel = () => canvas.getContext("2d").getImageData(0, 0, 1, 1);
  const start = performance.now();
  for (let i = 0; i < 5; i++) {
    canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "+"}));
    pixel();
  }
  fetch("/told?drawn=" + drawn + "&zooms=" + (performance.now() - start)).then(() => location.reload());
}));
</script>"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("-c", "--cluster", default="h100-dgx")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    empty = [ms for ms, _ in _drawn("<!DOCTYPE html><canvas></canvas><body></body>", options.runs)]
    print(f"a page with nothing on it: {statistics.median(empty):.0f} ms, at best {min(empty):.0f}")
    print("program, slices, kB, gzipped kB, made in s, drawn in ms, at best, five zooms in ms")
    for path in options.paths:
        print(measured(Trace(load_workload(path)).estimate(options.cluster), options.runs))


def measured(estimate: Estimate, runs: int) -> str:
    """A line of the table: medians of some runs."""
    start = time.process_time()
    html = estimate.to_html()
    made = time.process_time() - start
    slices = len(re.findall(r'"length":\[([^]]*)\]', html)[0].split(","))
    size, small = len(html.encode()), len(gzip.compress(html.encode()))
    told = _drawn(html, runs)
    drawn, zooms = (statistics.median(column) for column in zip(*told, strict=True))
    return (
        f"{estimate.name}, {slices:,}, {size / 1e3:.0f}, {small / 1e3:.0f}, {made:.2f}, "
        f"{drawn:.0f}, {min(ms for ms, _ in told):.0f}, {zooms:.0f}"
    )


def _drawn(html: str, runs: int) -> list[tuple[float, float]]:
    """Milliseconds from navigation to the second frame, and those of five zooms, of each run."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    with (
        _served(page.replace("</body>", f"{TELL}</body>")) as (port, told),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        command = (
            shutil.which("chromium") or "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1200,900",
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",  # without one it ends at once
            f"http://127.0.0.1:{port}/",
        )
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return [told.get(timeout=60) for _ in range(runs + 1)][1:]
        finally:
            browser.terminate()
            browser.wait()


@contextmanager
def _served(page: str) -> Iterator[tuple[int, Queue[tuple[float, float]]]]:
    """A server of one page, and what a browser tells it."""
    told: Queue[tuple[float, float]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            if asked.path == "/":
                self.wfile.write(page.encode())
            elif asked.path == "/told":
                found = parse_qs(asked.query)
                told.put((float(found["drawn"][0]), float(found["zooms"][0])))

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, told
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
