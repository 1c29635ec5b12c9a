"""`decoded`, which decodes a JSON text whose end was cut off."""

import pytest

from django_skipqueue.console.admin.jobs import job_cells


class TestCutJson:
    WHOLE_TEXT = '{"a":1,"bb":[true,null,-1.5e3,"x\\"\\\\y\\n\\u00e9"],"password":"hunter22","c":{"d":{}}}'

    def test_every_beginning_of_a_json_text_is_decoded_without_cut_names(self, subtests: pytest.Subtests) -> None:
        for length in range(1, len(self.WHOLE_TEXT)):
            with subtests.test(length=length):
                arguments = job_cells.decoded(self.WHOLE_TEXT[:length])
                assert isinstance(arguments, dict)
                if length > 7:
                    assert arguments["a"] == 1
                assert not any("hunter" in str(value) for name, value in arguments.items() if name != "password")

    def test_a_whole_json_text_is_decoded_unchanged(self) -> None:
        assert job_cells.decoded(self.WHOLE_TEXT)["c"] == {"d": {}}

    def test_a_text_that_is_no_json_is_no_error(self, subtests: pytest.Subtests) -> None:
        for text in ("}", "]]", "nonsense", '"', "\\"):
            with subtests.test(text=text):
                assert not isinstance(job_cells.decoded(text), dict | list)
