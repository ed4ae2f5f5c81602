"""Ratios of arms: of medians, and of pairs with a bootstrap interval."""

import random
import statistics

# RULES.md 35: a bar closer than 10 % to 1 needs at least this many alternated pairs.
PAIRS_MIN = 9
RESAMPLES = 10_000


def compare(values, baseline):
    """`values` and `baseline` are of the same rounds in the same order."""
    ratios = [ours / theirs for ours, theirs in zip(values, baseline, strict=True) if theirs]
    if not ratios:
        return None
    result = {
        "ratio_of_medians": statistics.median(values) / statistics.median(baseline),
        "median_of_ratios": statistics.median(ratios),
        "pairs": len(ratios),
        "interval_95": None,
    }
    if len(ratios) >= PAIRS_MIN:
        result["interval_95"] = bootstrap(ratios)
    return result


def bootstrap(ratios):
    """The 95 % percentile interval of the median, from a fixed seed."""
    source = random.Random(35)
    medians = sorted(
        statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return [medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975) - 1]]
