"""Figures as functions of round records."""
