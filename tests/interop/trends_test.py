"""bench/trends.py: slopes, intervals and verdicts on series whose truth is known."""

import random
import sys

import harness
import pytest

sys.path.insert(0, str(harness.ROOT / "bench"))

import trends


def series(value_of, minutes=50, per_minute=12):
    """Samples of `value_of(hours)` in KiB."""
    times = [number / (60 * per_minute) for number in range(minutes * per_minute)]
    return [(time, value_of(time)) for time in times]


def trend(samples):
    return trends.trend_of(trends.medians_of_parts(samples))


def drifting(generator, share, size):
    """Noise in which each value keeps a share of the one before, as memory that is taken and returned does."""
    value = 0.0

    def next_value():
        nonlocal value
        value = share * value + generator.gauss(0, size)
        return value

    return next_value


def test_a_straight_line_has_its_slope_and_no_interval():
    found = trends.trend_of([(hour, 100 + 30 * hour) for hour in range(12)])

    assert found.slope == pytest.approx(30) and found.low == pytest.approx(30) and found.high == pytest.approx(30)
    assert (found.points, found.span) == (12, 11)


def test_peaks_do_not_change_the_slope():
    peaks = series(lambda hour: 20_000 + (5_000 if int(3600 * hour) % 600 < 10 else 0))

    found = trend(peaks)

    assert (found.slope, found.low, found.high) == (0, 0, 0) and trends.verdict_of(found) == "flat"


def test_a_leak_is_found_in_noise_and_its_interval_contains_it():
    def leak(seed):
        generator = random.Random(seed)
        return trend(series(lambda hour: 30_000 + 300 * hour + generator.gauss(0, 60)))

    found = [leak(seed) for seed in range(40)]

    assert sum(one.low < 300 < one.high for one in found) >= 35  # of 40; 38 are expected
    assert all(one.high - one.low < 120 and one.slope > trends.noise_of(one) for one in found)
    assert {trends.verdict_of(one) for one in found} == {"grows"}


def test_noise_alone_does_not_grow():
    for seed in range(20):
        generator = random.Random(seed)

        found = trend(series(lambda hour: 30_000 + generator.gauss(0, 60)))

        assert trends.verdict_of(found) == "flat" and found.slope <= trends.noise_of(found)


def test_drifting_memory_seldom_seems_to_grow():
    def grows(seed):
        noise = drifting(random.Random(seed), 0.99, 40)  # its time constant is 8 minutes
        return trends.verdict_of(trend(series(lambda hour: 30_000 + noise()))) == "grows"

    assert sum(grows(seed) for seed in range(60)) <= 12


@pytest.mark.parametrize("at", [0.1, 0.3, 0.4, 0.7])
def test_a_single_step_is_not_a_slope(at):
    found = trend(series(lambda hour: 30_000 + (132 if hour > at else 0)))

    assert found.low <= 0 and found.slope <= trends.noise_of(found) and trends.verdict_of(found) != "grows"


def test_many_small_steps_are_a_slope():
    found = trend(series(lambda hour: 30_000 + 132 * int(4 * hour * 3)))

    assert found.low < 4 * 3 * 132 < found.high and trends.verdict_of(found) == "grows"


def test_small_growth_does_not_count_even_if_it_is_certain():
    found = trend(series(lambda hour: 30_000 + 12 * hour))

    assert found.low > 0 and trends.verdict_of(found) == "flat" and trends.noise_of(found) == trends.SMALL


def test_shrinking_memory_does_not_grow():
    found = trend(series(lambda hour: 30_000 - 500 * hour))

    assert found.high < 0 and trends.verdict_of(found) == "flat" and found.slope <= trends.noise_of(found)


def test_samples_that_could_hide_a_leak_are_undecided():
    generator = random.Random(2)

    found = trend(series(lambda hour: 30_000 + generator.gauss(0, 6_000)))

    assert found.low < 0 and found.high > trends.RESOLUTION and trends.verdict_of(found) == "undecided"


def test_few_or_short_samples_are_undecided():
    assert trends.verdict_of(None) == "undecided"
    assert trends.verdict_of(trends.trend_of([(hour, 5) for hour in range(9)])) == "undecided"
    assert trends.verdict_of(trend(series(lambda hour: 30_000, minutes=20))) == "undecided"


def test_samples_are_reduced_to_medians_of_equal_parts():
    samples = [(number, number % 10) for number in range(600)]

    points = trends.medians_of_parts(samples, 6)

    assert len(points) == 6 and {value for _, value in points} == {4.5}
    assert trends.medians_of_parts([(1, 2)]) == [(1, 2)] and trends.medians_of_parts([]) == []


def test_autocorrelation_enlarges_the_variance_and_independence_does_not():
    generator = random.Random(3)
    noise = drifting(generator, 0.9, 1)

    limit = (1 + trends.MOST_CORRELATION) / (1 - trends.MOST_CORRELATION)
    assert 2 < trends.autocorrelation_factor([noise() for _ in range(60)]) <= limit
    assert trends.autocorrelation_factor([generator.gauss(0, 1) for _ in range(60)]) < 2
    assert trends.autocorrelation_factor([1.0] * 60) == 1
    assert trends.ranks_of([5, 1, 5, 7]) == [2.5, 1, 2.5, 4]
    assert trends.kendall_variance([1, 1, 1]) == 0 and trends.kendall_variance([1, 2, 3]) == pytest.approx(66 / 18)
