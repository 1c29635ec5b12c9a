"""The shop's addresses."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("payments.urls")),
    path("admin/", admin.site.urls),
]
