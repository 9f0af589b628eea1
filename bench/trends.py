"""Whether a figure that is sampled over time grows: a robust slope, its 95 % interval, and a verdict. Pure.

The slope is the one of Theil and Sen, the median of the slopes of all pairs of points, so single peaks do not change
it. Its interval is the one of Sen, from the variance of Kendall's score. Each sample of memory depends on the one
before, so samples are reduced to medians of a few parts of the time. The dependence that remains between these medians
enlarges the variance as in an autoregressive process of order 1. A drift that lasts longer than about a quarter of the
time cannot be distinguished from growth: in simulations, a tenth of such drifts was taken for growth, but only one of
75 series of independent noise.
"""

import dataclasses
import itertools
import math
import statistics

POINTS = 12            # at most; samples are reduced to medians of equal parts of the time
LEAST_POINTS = 10
LEAST_H = 0.4          # shorter samples show caches and pools of threads that fill, not leaks
Z_95 = 1.959964        # the two-sided 95 % quantile of the normal distribution
MOST_CORRELATION = 0.5  # of neighbouring parts; POINTS parts are too few to show a larger one
# Growth in KiB per hour that does not count, even if it is certain: 384 KiB per day, so a program that holds 30 MiB
# needs more than two months to double.
SMALL = 16
# If the interval contains growth above this, in KiB per hour (6 MiB per day), the samples do not rule out that memory
# grows.
RESOLUTION = 256


@dataclasses.dataclass(frozen=True)
class Trend:
    """Slope and the ends of its interval, in units of the values per unit of the times."""

    slope: float
    low: float
    high: float
    points: int
    span: float  # of the times


def medians_of_parts(samples, parts=POINTS):
    """Reduces (time, value) samples to at most `parts` points: the medians of equal parts of the time."""
    if not samples:
        return []
    began, took = samples[0][0], samples[-1][0] - samples[0][0]
    part_of = (lambda time: min(parts - 1, int(parts * (time - began) / took))) if took > 0 else (lambda time: 0)
    groups = itertools.groupby(samples, key=lambda sample: part_of(sample[0]))
    return [tuple(map(statistics.median, zip(*group))) for _, group in groups]


def ranks_of(values):
    """Ranks from 1; equal values share the mean of their ranks."""
    order = sorted(values)
    first, last = {}, {}
    for rank, value in enumerate(order, 1):
        first.setdefault(value, rank)
        last[value] = rank
    return [(first[value] + last[value]) / 2 for value in values]


def autocorrelation_factor(residuals):
    """By how much autocorrelation enlarges the variance of Kendall's score; 1: not at all."""
    count, ranks = len(residuals), ranks_of(residuals)
    mean = statistics.fmean(ranks)
    power = sum((rank - mean)**2 for rank in ranks)
    if power == 0:
        return 1.0
    correlation = sum((one - mean) * (other - mean) for one, other in itertools.pairwise(ranks)) / power
    correlation += (1 + 4 * correlation) / count
    if correlation < Z_95 / math.sqrt(count):
        return 1.0
    correlation = min(correlation, MOST_CORRELATION)
    return (1 + correlation) / (1 - correlation)


def kendall_variance(values):
    """The variance of Kendall's score of independent values; equal values reduce it."""
    def term(count):
        return count * (count - 1) * (2 * count + 5)

    ties = [values.count(value) for value in set(values)]
    return (term(len(values)) - sum(map(term, ties))) / 18


def trend_of(points):
    """REQUIRES: three points or more, with increasing times."""
    slopes = sorted((later[1] - earlier[1]) / (later[0] - earlier[0])
                    for earlier, later in itertools.combinations(points, 2))
    slope = statistics.median(slopes)
    values = [value for _, value in points]
    residuals = [value - slope * time for time, value in points]
    variance = kendall_variance(values) * autocorrelation_factor(residuals)
    half = Z_95 * math.sqrt(variance)
    low = max(0, math.floor((len(slopes) - half) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + half) / 2))
    return Trend(slope, min(slope, slopes[low]), max(slope, slopes[high]), len(points), points[-1][0] - points[0][0])


def verdict_of(trend, small=SMALL):
    """The verdict on a trend in KiB per hour: "grows", "flat", or "undecided" if the samples are too few or too noisy.
    Growth of at most `small` does not count."""
    if trend is None or trend.points < LEAST_POINTS or trend.span < LEAST_H:
        return "undecided"
    if trend.low > 0 and trend.slope > small:
        return "grows"
    return "flat" if trend.high <= RESOLUTION else "undecided"


def noise_of(trend, small=SMALL):
    """The largest slope in KiB per hour that cannot be distinguished from 0 in the noise of these samples. A trend
    grows if its slope is larger."""
    return max(small, trend.slope - trend.low)
