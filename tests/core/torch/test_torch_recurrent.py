"""What cuDNN's recurrent networks multiply, backward."""

import pytest

from flint.frontends.torch_world.program.cuda_kernels import recurrent_products
from tests.recordings import event, tensor

#: An LSTM of 8 features and 16 units over 5 steps of 3 rows: 15 rows meet both matrices.
FORWARD = 2 * 15 * (64 * 8 + 64 * 16)


@pytest.mark.parametrize("wants_data", [False, True])
@pytest.mark.parametrize("wants_weights", [False, True])
def test_gradients_always_run_back_through_time(wants_data: bool, wants_weights: bool) -> None:
    """Features that come from data want no gradient, but the states between steps do."""
    e = event(
        "aten._cudnn_rnn_backward.default",
        [tensor(0, 5, 3, 8), tensor(1, 64, 8), tensor(2, 64, 16), tensor(3, 64), tensor(4, 64)],
        attributes={"output_mask": [wants_data, False, False, wants_weights], "num_layers": 1},
    )
    assert recurrent_products(e) == FORWARD * (1 + wants_weights)
