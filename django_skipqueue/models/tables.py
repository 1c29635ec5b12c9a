"""The names of the queue's tables."""

from django.apps import apps


def table_names() -> list[str]:
    """All tables of this app's models, in any database."""
    models = apps.get_app_config("django_skipqueue").get_models(include_auto_created=True)
    return [model._meta.db_table for model in models]
