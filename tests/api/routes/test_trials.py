"""Trials with their peaks, metrics and logs, in pages, over a real database; and addresses that are wrong."""

from __future__ import annotations
