"""Which scenarios a run has: over many seeds each of them has its turn."""

import re
from collections import Counter
from pathlib import Path

from .__main__ import chosen

KNOWN = re.findall(r'^    "([\w-]+)": Scenario\(', Path(__file__).with_name("scenarios.py").read_text(), re.MULTILINE)
"""Read from the text: the module needs the settings of the chaos suite."""


def test_all_or_those_that_are_named() -> None:
    assert {"mixed", "relay", "one-of-three"} < set(KNOWN)
    assert chosen([], KNOWN, seed=1, others=0) == KNOWN
    assert chosen(["relay", "mixed"], KNOWN, seed=1, others=0) == ["relay", "mixed"]


def test_the_seed_chooses_others() -> None:
    first = chosen(["mixed"], KNOWN, seed=1, others=3)
    assert first[0] == "mixed"
    assert len(set(first)) == 4
    assert first == chosen(["mixed"], KNOWN, seed=1, others=3)
    assert first != chosen(["mixed"], KNOWN, seed=2, others=3)
    assert sorted(chosen(["mixed"], KNOWN, seed=1, others=99)) == sorted(KNOWN)


def test_over_many_runs_each_scenario_has_its_turn() -> None:
    ran = Counter(name for seed in range(300) for name in chosen(["mixed"], KNOWN, seed=seed, others=3))
    assert ran.keys() == set(KNOWN)
    assert min(ran.values()) > 15, "about 40 of each"
