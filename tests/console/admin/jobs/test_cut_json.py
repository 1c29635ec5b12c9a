"""`cut_json`: the beginning of a JSON text as a value."""

import pytest

from django_skipqueue.console.admin.jobs import job_cells as cut_json


class TestCutJson:
    WHOLE = '{"a":1,"bb":[true,null,-1.5e3,"x\\"\\\\y\\n\\u00e9"],"password":"hunter22","c":{"d":{}}}'

    def test_every_beginning_of_a_json_text_is_decoded_without_cut_names(self, subtests: pytest.Subtests) -> None:
        for length in range(1, len(self.WHOLE)):
            with subtests.test(length=length):
                found = cut_json.decoded(self.WHOLE[:length])
                assert isinstance(found, dict)
                if length > 7:
                    assert found["a"] == 1
                assert not any("hunter" in str(value) for name, value in found.items() if name != "password")

    def test_a_whole_json_text_is_decoded_unchanged(self) -> None:
        assert cut_json.decoded(self.WHOLE)["c"] == {"d": {}}

    def test_a_text_that_is_no_json_is_no_error(self, subtests: pytest.Subtests) -> None:
        for text in ("}", "]]", "nonsense", '"', "\\"):
            with subtests.test(text=text):
                assert not isinstance(cut_json.decoded(text), dict | list)
