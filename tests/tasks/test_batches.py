"""Mini-batches: every one full, every example once per epoch, a function of seed and step."""

from zo.tasks.batches import BatchOrder


def test_every_example_comes_once_before_any_comes_twice():
    order = BatchOrder(n=10, batch_size=4, seed=0)
    drawn = [i for step in range(5) for i in order.indices(step)]  # 20 = two epochs
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]


def test_a_batch_depends_on_seed_and_step_alone():
    forwards = BatchOrder(10, 4, seed=3)
    backwards = BatchOrder(10, 4, seed=3)
    steps = list(range(30))
    there = {s: forwards.indices(s) for s in steps}
    back = {s: backwards.indices(s) for s in reversed(steps)}
    assert there == back
    assert there[0] != BatchOrder(10, 4, seed=4).indices(0)
