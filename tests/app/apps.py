from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """The app of the test suite: the tasks that the tests run, and a table for rows that these tasks write."""

    name = "tests.app"
    label = "testapp"
    default_auto_field = "django.db.models.BigAutoField"
