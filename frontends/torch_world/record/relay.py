"""Recording ranks one after the other, each process told what those before it found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flint.errors import FlintError
from flint.frontends.torch_world.record.handover import wrong_assumptions
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.recording import Recording


class Relay:
    """Records ranks of a job with `record`, which runs several jobs at once.

    What processes find out is passed to later ones. A rank whose process assumed something that
    turned out to be wrong is recorded again.
    """

    def __init__(self, job: Job, record: Callable[[Sequence[Job]], list[Recording]]) -> None:
        self._job = job
        self._record = record
        self._known: dict[str, bytes] = {}

    def __call__(self, ranks: Sequence[int]) -> list[Recording]:
        """Recordings of `ranks`, in their order. Raises what `record` raises."""
        recordings = dict(zip(ranks, self._together(ranks), strict=True))
        for _ in ranks:
            wrong = [
                rank
                for rank, recording in recordings.items()
                if wrong_assumptions(recording.assumed, self._known)
            ]
            if not wrong:
                break
            recordings.update(zip(wrong, self._run(wrong), strict=True))
        return [recordings[rank] for rank in ranks]

    def _together(self, ranks: Sequence[int]) -> list[Recording]:
        """All at once; where one needs what another finds out (FL235), one by one, upwards."""
        try:
            return self._run(ranks)
        except FlintError as error:
            if error.code != "FL235" or len(ranks) == 1:
                raise
        recordings = {rank: self._run([rank])[0] for rank in sorted(ranks)}
        return [recordings[rank] for rank in ranks]

    def _run(self, ranks: Sequence[int]) -> list[Recording]:
        known = dict(self._known)
        recordings = self._record([replace(self._job, rank=rank, known=known) for rank in ranks])
        for recording in recordings:
            for name, fact in recording.found.items():
                self._known.setdefault(name, fact)
        return recordings
