"""Tests of batches in the admin."""
