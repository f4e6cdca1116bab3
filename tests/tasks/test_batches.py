"""Mini-batches: every one full, every example once per epoch, a function of seed and step."""

from zo.tasks.batches import batch_indices


def test_every_example_comes_once_before_any_comes_twice_in_an_order_of_the_seed():
    first, other = ([batch_indices(10, 4, seed, step) for step in range(5)] for seed in (0, 1))
    drawn = [i for batch in first for i in batch]  # 20 = two epochs
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert first != other
    assert first[::-1] == [batch_indices(10, 4, 0, step) for step in reversed(range(5))]
