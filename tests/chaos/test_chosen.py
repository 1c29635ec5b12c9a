"""The choice of the scenarios of a run: over many seeds each scenario is chosen."""

import re
from collections import Counter
from pathlib import Path

from .__main__ import chosen

KNOWN = re.findall(r'^    "([\w-]+)": Scenario\(', Path(__file__).with_name("scenarios.py").read_text(), re.MULTILINE)
"""The names of all scenarios, read from the source, because the module can only be imported with the chaos settings."""


def test_a_run_has_all_scenarios_or_the_named_ones() -> None:
    assert {"mixed", "relay", "one-of-three"} < set(KNOWN)
    assert chosen([], KNOWN, seed=1, others=0) == KNOWN
    assert chosen(["relay", "mixed"], KNOWN, seed=1, others=0) == ["relay", "mixed"]


def test_the_seed_chooses_further_scenarios() -> None:
    scenarios_of_seed_1 = chosen(["mixed"], KNOWN, seed=1, others=3)
    assert scenarios_of_seed_1[0] == "mixed"
    assert len(set(scenarios_of_seed_1)) == 4
    assert scenarios_of_seed_1 == chosen(["mixed"], KNOWN, seed=1, others=3)
    assert scenarios_of_seed_1 != chosen(["mixed"], KNOWN, seed=2, others=3)
    assert sorted(chosen(["mixed"], KNOWN, seed=1, others=99)) == sorted(KNOWN)


def test_over_many_seeds_each_scenario_is_chosen() -> None:
    count_by_scenario = Counter(name for seed in range(300) for name in chosen(["mixed"], KNOWN, seed=seed, others=3))
    assert count_by_scenario.keys() == set(KNOWN)
    assert min(count_by_scenario.values()) > 15, "about 40 of each"
