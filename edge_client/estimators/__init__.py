"""Estimate a step's gradient: a module for each estimator, and one row in `registry`."""
