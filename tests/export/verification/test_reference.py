"""The arithmetic of the float64 reference."""

import math

import numpy as np

from packbert.model_export.verification.reference import erf


def test_erf_equals_the_standard_librarys() -> None:
    points = np.concatenate([np.linspace(-7, 7, 20001), [0.0, -0.0, 1e-12, 6.0, 1e300, -1e300]])
    assert np.abs(erf(points) - np.array([math.erf(x) for x in points])).max() < 5e-14
