"""When the service is ready, and when its process should end."""

from service.engine.canary import Health


def health(**calibration: object) -> Health:
    return Health(stale_seconds=30, tolerance=0.1, loading=False, **calibration)  # type: ignore[arg-type]


def test_it_is_ready_when_a_run_went_well_lately():
    assert health().reason(since_answer=29) == ""
    assert health().reason(since_answer=31) == "no run has succeeded for 31 s"


def test_it_is_not_ready_while_loading_or_draining():
    assert Health(stale_seconds=30, tolerance=0.1).reason(since_answer=0) == "loading"
    assert health(draining=True).reason(since_answer=0) == "draining"


def test_a_wrong_canary_makes_it_not_ready_until_one_is_right_again():
    one = health()
    one.canary_answered(0.2)
    assert one.reason(since_answer=0) == "the canary's vector is wrong by 0.2"
    one.canary_answered(0.05)
    assert one.reason(since_answer=0) == ""


def test_a_canary_that_is_not_a_number_is_wrong():
    one = health()
    one.canary_answered(float("nan"))
    assert "wrong" in one.reason(since_answer=0)


def test_three_failed_canaries_in_a_row_end_the_process_and_two_with_a_good_one_between_do_not():
    one = health()
    assert [one.canary_failed("x"), one.canary_failed("x")] == [False, False]
    one.canary_answered(0)
    assert [one.canary_failed("x"), one.canary_failed("x"), one.canary_failed("x")] == [False, False, True]


def test_a_fault_is_for_good():
    one = health(fault="stuck")
    one.canary_answered(0)
    assert one.reason(since_answer=0) == "stuck"
