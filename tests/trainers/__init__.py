"""Rows in the trainers' own losses: `make test-trainers`."""
