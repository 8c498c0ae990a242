"""How the turns of `benchmarks.peers` become its result."""

from benchmarks.peers.__main__ import OURS, summary


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    rates = [
        {"ours fp32": 40.0, "ours int8": 80.0, "other": 20.0},
        {"ours fp32": 10.0, "ours int8": 30.0, "other": 5.0},
    ]
    found = summary([{name: {"texts_per_second": rate} for name, rate in one.items()} for one in rates])
    assert found["texts_per_second"] == {"ours fp32": 25, "ours int8": 55, "other": 12.5}
    assert {own: found[f"{own} / peer"]["other"] for own in OURS} == {"ours fp32": 2, "ours int8": 5}
