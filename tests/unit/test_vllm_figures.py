"""What an engine counted between two moments is the difference of its sums."""

from __future__ import annotations

from raygam.adapters.vllm_figures import EngineFigures, Figures


def test_steps_are_summed_up_and_those_with_a_queue_apart() -> None:
    figures = Figures()
    assert figures.so_far() == EngineFigures()
    for running, waiting in ((2, 0), (16, 5), (15, 1), (3, 0)):
        figures.step(running, waiting)
    assert figures.so_far() == EngineFigures(
        steps=4, running_sum=36, waiting_steps=2, waiting_running_sum=31, running=3, waiting=0
    )
