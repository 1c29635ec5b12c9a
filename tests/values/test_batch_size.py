"""`BatchSize` halves the number of rows after a failure, and raises it slowly after successes."""

from django_skipqueue.values.counting import MOST_ROWS, BatchSize


def test_a_batch_size_is_halved_down_to_one_row() -> None:
    portion = BatchSize()
    sizes = []
    for _ in range(6):
        portion.failed(min(portion.rows, 9))
        sizes.append(portion.rows)
    assert sizes == [4, 2, 1, 1, 1, 1]


def test_a_batch_size_grows_again_to_its_maximum() -> None:
    portion = BatchSize()
    portion.failed(1)
    sizes = []
    while portion.rows < MOST_ROWS:
        portion.succeeded()
        sizes.append(portion.rows)
    assert sizes[:9] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert len(sizes) < 100
    portion.succeeded()
    assert portion.rows == sizes[-1]
