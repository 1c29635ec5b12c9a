"""The table of deployments: what was deployed when."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_skipqueue.models import Deployment
from django_skipqueue.parts.history.deployments import NoteDeployment, deployments, prune_deployments
from django_skipqueue.supervisor.services import services
from django_skipqueue.values.records import NEVER

from ...app.rows import DEFAULT, make_worker

pytestmark = pytest.mark.django_db


def test_the_first_supervisor_with_a_deployment_notes_it_once(settings: Any) -> None:
    all_services = [make_service(DEFAULT) for make_service in services()]
    [service] = [service for service in all_services if isinstance(service, NoteDeployment)]
    assert service.due_at == 0
    service.run(0.0)
    assert service.due_at == NEVER
    assert not Deployment.objects.exists()
    settings.SKIPQUEUE = {"DEPLOYMENT": "4f2a"}
    NoteDeployment(DEFAULT).run(0.0)
    deployment_before = Deployment.objects.get()
    NoteDeployment(DEFAULT).run(0.0)
    deployment_after = Deployment.objects.get()
    assert (deployment_after.name, deployment_after.first_at) == ("4f2a", deployment_before.first_at)


def test_the_last_deployments_come_first() -> None:
    for name, days in (("a", 9), ("b", 2), ("c", 1)):
        Deployment.objects.create(name=name, first_at=Now() - timedelta(days=days))
    since = Deployment.objects.get(name="b").first_at.timestamp()
    assert [name for name, _ in deployments(DEFAULT, since)] == ["c", "b"]


def test_old_deployments_are_deleted_unless_a_worker_runs_them() -> None:
    for name, days in (("old", 9), ("old, and runs", 9), ("young", 1)):
        Deployment.objects.create(name=name, first_at=Now() - timedelta(days=days))
    make_worker(deployment="old, and runs")
    prune_deployments(DEFAULT, 5 * 86_400.0)
    assert set(Deployment.objects.values_list("name", flat=True)) == {"old, and runs", "young"}
