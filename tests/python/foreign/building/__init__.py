"""Tiny models of other packages with random weights, each with an example call. Nothing is downloaded."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from .built import Built, NotBuilt

__all__ = ["PACKAGES", "Built", "NotBuilt", "build", "installed", "names"]

PACKAGES = {
    "transformers": "of_transformers",
    "timm": "of_timm",
    "torchvision": "of_torchvision",
    "diffusers": "of_diffusers",
    "torch_geometric": "of_torch_geometric",
    "segmentation_models_pytorch": "of_segmentation",
    "x_transformers": "of_x_transformers",
    "monai": "of_monai",
}
"""By the name that is imported, the module here that builds its models."""


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def names(package: str) -> list[str]:
    """Of each model that is tried."""
    listed: list[str] = _of(package).names()
    return listed


def parts(package: str) -> set[str]:
    """Of these the ones that another of them contains."""
    names: set[str] = getattr(_of(package), "parts", set)()
    return names


def build(package: str, name: str) -> Built:
    """The model in float64, in training mode; raises `NotBuilt`."""
    built: Built = _of(package).build(name)
    return built


def _of(package: str) -> Any:
    return importlib.import_module(f".{PACKAGES[package]}", __name__)
