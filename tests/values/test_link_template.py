"""`link_template`: which texts are valid templates of links, and which address results from the values of a job."""

import pytest

from django_skipqueue.values.link_template import address, template_problem


@pytest.mark.parametrize(
    "template",
    [
        "https://logs.example/?q=job_id%3D{job_id}&from={started_at_ms}",
        "http://localhost:3000/{metadata[order id]}#{task}",
        "https://logs.example",
    ],
)
def test_an_http_address_with_known_fields_is_a_valid_template(template: str) -> None:
    assert template_problem(template) is None


@pytest.mark.parametrize(
    "template",
    [
        "javascript:alert(1)", "//logs.example/{job_id}", "ftp://x/", "https://{queue_name}.example/", "https://x{task}/",
        "https://ann@x/", "https://x/{id}", "https://x/{job_id.real}", "https://x/{job_id!r}", "https://x/{metadata}",
        "https://x/{", "https://x/}", "https://x/a b", "https://x/{{job_id}}", "", None, 3,
    ],
)  # fmt: skip
def test_an_invalid_template_has_a_problem(template: object) -> None:
    assert template_problem(template)


def test_values_are_url_quoted_in_the_address() -> None:
    values = {"task": 'a/b?c=d&e#f"<é', "job_id": 0}
    assert address("https://x/{task}?{job_id}", values, {}) == "https://x/a%2Fb%3Fc%3Dd%26e%23f%22%3C%C3%A9?0"
    assert address("https://x/{metadata[a b]}", {}, {"a b": "../"}) == "https://x/..%2F"


@pytest.mark.parametrize("value", [None, "", [1], {"a": 1}])
def test_there_is_no_address_if_a_field_has_no_value(value: object) -> None:
    assert address("https://x/{task}", {"task": value}, {}) is None
    assert address("https://x/{metadata[a]}", {}, {"a": value}) is None
    assert address("https://x/{metadata[b]}", {}, {"a": 1}) is None


@pytest.mark.parametrize(
    ("template", "value", "expected"),
    [
        ("https://logs.example/a/{metadata[x]}/b", "..", None),
        ("https://logs.example/a/{metadata[x]}", ".", None),
        ("https://logs.example/a/{metadata[x]}{metadata[x]}", ".", None),
        ("https://logs.example/a/{metadata[x]}/b", "...", "https://logs.example/a/.../b"),
        ("https://logs.example/a?b=/{metadata[x]}", "..", "https://logs.example/a?b=/.."),
    ],
)
def test_a_value_of_dots_does_not_change_the_path_of_the_address(
    template: str, value: str, expected: str | None
) -> None:
    assert address(template, {}, {"x": value}) == expected
