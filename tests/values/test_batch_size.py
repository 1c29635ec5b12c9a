"""`BatchSize` halves the number of rows after a failure, and raises it slowly after successes."""

from django_skipqueue.values.counting import MOST_ROWS, BatchSize


def test_a_batch_size_is_halved_down_to_one_row() -> None:
    batch_size = BatchSize()
    sizes = []
    for _ in range(6):
        batch_size.failed(min(batch_size.rows, 9))  # nine rows are left to write
        sizes.append(batch_size.rows)
    assert sizes == [4, 2, 1, 1, 1, 1]


def test_a_batch_size_grows_again_to_its_maximum() -> None:
    batch_size = BatchSize()
    batch_size.failed(1)
    sizes = []
    while batch_size.rows < MOST_ROWS:
        batch_size.succeeded()
        sizes.append(batch_size.rows)
    assert sizes[:9] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert len(sizes) < 100
    batch_size.succeeded()
    assert batch_size.rows == sizes[-1]
