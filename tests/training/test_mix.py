"""The weights of two models are mixed by a share."""

import numpy as np
import pytest

from training.run.mix import mix

FIRST = {"words": np.array([0.0, 4.0]), "bias": np.array([1.0])}
SECOND = {"words": np.array([8.0, 0.0]), "bias": np.array([1.0])}


def test_each_weight_is_the_weighted_mean() -> None:
    mixed = mix(FIRST, SECOND, share=0.75)
    assert mixed["words"].tolist() == [6.0, 1.0]
    assert mixed["bias"].tolist() == [1.0]


def test_the_ends_are_the_models_themselves() -> None:
    for share, model in ((0.0, FIRST), (1.0, SECOND)):
        assert {name: weights.tolist() for name, weights in mix(FIRST, SECOND, share=share).items()} == {
            name: weights.tolist() for name, weights in model.items()
        }


def test_models_with_other_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"only one of the two models has \['bias'\]"):
        mix(FIRST, {"words": SECOND["words"]}, share=0.5)


def test_a_share_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the share of the second model is 1\.5; allowed are 0 to 1"):
        mix(FIRST, SECOND, share=1.5)
