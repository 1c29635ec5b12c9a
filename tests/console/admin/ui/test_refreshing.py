"""A page that has not changed is not sent again: ETags and the status 304."""

import pytest
from django.test import Client

from django_skipqueue.console.admin.notices import notices_cache

from ....app.rows import make_job, make_worker
from ..conftest import LIST, QUEUES, WORKERS

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("page", [LIST, f"{LIST}dashboard/", QUEUES, WORKERS])
def test_an_unchanged_page_is_answered_with_304(operator: Client, page: str) -> None:
    make_job("failed")
    for _ in range(10):  # ages change each second: two requests in the same second show the same page
        first_response = operator.get(page)
        assert page != LIST or first_response.content != operator.get(page).content, (
            "the token of a form differs in each response"
        )
        second_response = operator.get(page, headers={"If-None-Match": first_response.headers["ETag"]})
        if second_response.status_code == 304:
            break
    assert (second_response.status_code, second_response.content) == (304, b"")
    assert second_response.headers["ETag"] == first_response.headers["ETag"]
    make_job("running")
    make_worker(name="new")
    notices_cache.clear()
    third_response = operator.get(page, headers={"If-None-Match": first_response.headers["ETag"]})
    assert third_response.status_code == 200
    assert third_response.headers["ETag"] != first_response.headers["ETag"]


def test_a_weak_etag_is_accepted(operator: Client) -> None:
    tag = operator.get(QUEUES).headers["ETag"]
    assert operator.get(QUEUES, headers={"If-None-Match": f"W/{tag}"}).status_code == 304


def test_the_response_to_a_post_has_no_etag(operator: Client) -> None:
    assert "ETag" not in operator.post(LIST, {"action": "retry_selected"}).headers


def test_a_user_who_is_logged_out_is_redirected_in_spite_of_the_etag(operator: Client) -> None:
    tag = operator.get(LIST).headers["ETag"]
    operator.logout()
    assert operator.get(LIST, headers={"If-None-Match": tag}).status_code == 302
