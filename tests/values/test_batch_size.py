"""`BatchSize`: half as many rows after a failure, and slowly more after that."""

from django_skipqueue.values.counting import MOST_ROWS, BatchSize


def test_it_is_halved_down_to_one_row() -> None:
    portion = BatchSize()
    sizes = []
    for _ in range(6):
        portion.failed(min(portion.rows, 9))
        sizes.append(portion.rows)
    assert sizes == [4, 2, 1, 1, 1, 1]


def test_it_grows_again_until_nothing_limits_it() -> None:
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
