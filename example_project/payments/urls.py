"""The URLs of the app."""

from django.urls import path

from . import views

urlpatterns = [path("", views.home, name="home")]
