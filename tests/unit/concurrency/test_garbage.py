"""The garbage collector during a run."""

import gc
import subprocess
import sys

import pytest

from viva.concurrency.garbage import collect_less_often


def test_settings_of_the_caller_are_restored():
    before = gc.get_threshold()
    with collect_less_often():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_freeze_count() > 0
        with collect_less_often():
            pass
        assert gc.get_threshold()[0] > before[0], "the outer one is still open"
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_settings_are_restored_after_an_error():
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), collect_less_often():
        _ = 1 / 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_what_the_caller_has_chosen_stays():
    before = gc.get_threshold()
    gc.set_threshold(0)
    gc.freeze()
    try:
        with collect_less_often():
            assert gc.get_threshold()[0] == 0
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


_MANY_SHORT_RUNS = """
import gc
from weakref import WeakSet
from viva.concurrency.garbage import collect_less_often

class Node:
    def __init__(self):
        self.itself = self

nodes, most, objects = WeakSet(), 0, len(gc.get_objects())
for _ in range(200):
    with collect_less_often():
        for _ in range(objects // 50):
            nodes.add(Node())
    most = max(most, len(nodes))
print(most < objects)  # 4 times as many were created
"""


def test_the_garbage_of_many_short_runs_is_collected():
    """Each run freezes what the one before it left, which resets the counters of the collector.

    In a process of its own, which has few other objects.
    """
    done = subprocess.run([sys.executable, "-c", _MANY_SHORT_RUNS], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
