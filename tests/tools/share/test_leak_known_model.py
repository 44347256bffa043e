"""A public model that is captured now, its names taken away, is recognised by what Flint ships.

It fails when captures change: then `benchmarks/sharing/known_models.py` is to be run again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from flint.capturing import capture
from flint.ir.workload import Workload
from flint.requests.capture import CaptureRequest
from flint.tools.share.leaks.fingerprints import fingerprint_of, together
from flint.tools.share.leaks.report import leaks_of
from flint.tools.share.redact import redacted

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def decode() -> Workload:
    """Llama-3-8B decoding a token on eight devices."""
    pytest.importorskip("jax", reason="captures a JAX program")
    options = CaptureRequest(str(EXAMPLES / "decode_jax.py"), "1x8", settings=("model=8b",))
    return capture(options).workload


def test_a_known_model_is_recognised_without_names(decode: Workload):
    """Family by nearest neighbour, model by totals, with no string left."""
    leaks = leaks_of(redacted(decode), decode)
    assert not leaks.survivors
    assert {g.nearest.family for g in leaks.families} == {"llama"}
    assert "Llama-3-8B" in leaks.membership.model.models


def test_redaction_changes_no_fingerprint(decode: Workload):
    """Which is why it hides nothing but names."""
    before, after = (
        together([*map(fingerprint_of, decode.programs)]),
        together([*map(fingerprint_of, redacted(decode).programs)]),
    )
    assert before.hash == after.hash
    for view, histogram in before.histograms.items():
        assert (after.histograms[view] == histogram).all()


def test_the_original_has_survivors(decode: Workload):
    """The same report of what was not anonymised."""
    assert leaks_of(decode).survivors
