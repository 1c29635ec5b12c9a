"""The URLs of the test project: the admin, and the metrics of the queue."""

from django.contrib import admin
from django.urls import path

from django_skipqueue.console.metrics.page import view

urlpatterns = [path("admin/", admin.site.urls), path("metrics/skipqueue", view)]
