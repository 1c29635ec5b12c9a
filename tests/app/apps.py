from django.apps import AppConfig


class TestAppConfig(AppConfig):
    """The app of the test suite: the tasks that the tests run, and the rows those tasks leave behind."""

    name = "tests.app"
    label = "testapp"
    default_auto_field = "django.db.models.BigAutoField"
