"""Measured runs of whole engines: workloads, reports and their charts."""
