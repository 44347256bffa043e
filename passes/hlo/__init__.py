"""XLA HLO modules, as text or protobuf, to Programs."""

from flint.passes.hlo.walk import module_to_program as module_to_program
