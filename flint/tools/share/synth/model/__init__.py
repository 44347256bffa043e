"""The causal model of programs, step by step: PyTorch trains it, numpy alone writes with it."""

from flint.tools.share.synth.model.row_model import RowModel as RowModel
from flint.tools.share.synth.model.row_model import untrained as untrained
from flint.tools.share.synth.model.sequence import Sequence as Sequence
from flint.tools.share.synth.model.state import State as State
from flint.tools.share.synth.model.weights import Sizes as Sizes
