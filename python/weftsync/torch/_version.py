"""Compares the installed PyTorch with the versions that this package is written for."""
from __future__ import annotations

import torch

NAME = "torch 2.13"  # which the tests use
_TESTED = (2, 13)


def _version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def is_tested() -> bool:
    """Return True for the version that the tests use."""
    return _version() == _TESTED


def is_older() -> bool:
    """Return True for a version that comes before the one that the tests use."""
    return _version() < _TESTED


def has_python_backends() -> bool:
    """Return True for torch 2.14 and later: a backend in Python may be a Backend, not only a whole process group."""
    return _version() >= (2, 14)
