"""The causal model of programs, step by step: PyTorch trains it, numpy alone writes with it."""

from flint.sharing.synth.model.row_model import RowModel as RowModel
from flint.sharing.synth.model.row_model import untrained as untrained
from flint.sharing.synth.model.sequence import Sequence as Sequence
from flint.sharing.synth.model.state import State as State
from flint.sharing.synth.model.weights import Sizes as Sizes
