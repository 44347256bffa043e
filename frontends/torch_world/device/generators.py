"""Random number generators of the virtual device: seed and offset, as CUDA's Philox has them.

Nothing is drawn on the device, but programs save, compare and restore the states.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Self

import torch

from flint.frontends.torch_private import without_modes

#: Bytes of a state: the seed and the offset, each of eight.
STATE = struct.Struct("<Qq")
_DEFAULT_SEED = 67280421310721  # c10's, which every generator of PyTorch starts with


#: The values of a tensor as a real one, None where they are not known.
Known = Callable[[torch.Tensor], torch.Tensor | None]


def host_generator(base: type[torch.Generator], known: Known) -> torch.Generator:
    """A generator of the host, which draws, and takes states that the program made."""

    class HostGenerator(base):
        def set_state(self, new_state: torch.Tensor) -> torch.Generator:
            """Take what `get_state` gave; a state that another rank sent has no values to take."""
            real = known(new_state)
            if real is not None:
                super().set_state(real)
            return self

    return HostGenerator()


class DeviceGenerator(torch.Generator):
    """What `torch.Generator("cuda")` is to a program: a state of 16 bytes."""

    _shown: torch.device
    _seed: int
    _offset: int
    _known: Known

    def __new__(cls, device: torch.device, known: Known) -> Self:
        made: Self = super().__new__(cls, "cpu")
        made._shown, made._seed, made._offset = device, _DEFAULT_SEED, 0
        made._known = known
        return made

    @property
    def device(self) -> torch.device:
        return self._shown

    def get_state(self) -> torch.Tensor:
        """Seed and offset, in 16 bytes of the host."""
        with without_modes():
            packed = bytearray(STATE.pack(self._seed % 2**64, self._offset))
            return torch.frombuffer(packed, dtype=torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> Self:
        """Take what `get_state` gave; a state that another rank sent has no values to take.

        Raises RuntimeError for another size, as CUDA's does.
        """
        if new_state.numel() != STATE.size:
            raise RuntimeError("RNG state is wrong size")
        real = self._known(new_state)
        if real is not None:
            with without_modes():
                self._seed, self._offset = STATE.unpack(bytes(real.tolist()))
        return self

    def graphsafe_get_state(self) -> Self:
        """The generator itself holds its state."""
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> Self:
        self._seed, self._offset = state.initial_seed(), state.get_offset()
        return self

    def clone_state(self) -> Self:
        return type(self)(self._shown, self._known).graphsafe_set_state(self)

    def manual_seed(self, seed: int) -> Self:
        self._seed, self._offset = seed, 0
        return self

    def seed(self) -> int:
        """Start again; from the default seed, so that a capture is the same every time."""
        return self.manual_seed(_DEFAULT_SEED)._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> Self:
        self._offset = offset
        return self
