#!/usr/bin/env python3
"""Fails if a public class or function of the package weftsync has no docstring."""
import sys

import griffe

MODULES = ("weftsync", "weftsync.torch", "weftsync.torch.ddp", "weftsync.jax", "weftsync.lightgbm")


def undocumented(owner, name):
    """Yields the names of classes and functions without a docstring, the owner itself included."""
    target = owner.final_target if owner.is_alias else owner
    if not target.is_class and not target.is_function:
        return
    if not target.has_docstring:
        yield f"{name} ({target.relative_package_filepath}:{target.lineno})"
    if target.is_class:
        for member, value in target.all_members.items():
            if not member.startswith("_"):
                yield from undocumented(value, f"{name}.{member}")


def public(module):
    """Returns the names in __all__, without one those that the module defines. weftsync.torch imports some when they are needed."""
    names = [getattr(name, "name", name) for name in module.exports or ()]
    names = names or [name for name, member in module.members.items() if not member.is_alias and not name.startswith("_")]
    return [name for name in names if name in module.members]


def main():
    loader = griffe.GriffeLoader(search_paths=["python"])
    loader.load("weftsync")
    loader.resolve_aliases(implicit=True, external=False)
    problems, checked = [], 0
    for module in (loader.modules_collection[name] for name in MODULES):
        for name in public(module):
            checked += 1
            problems += undocumented(module.members[name], f"{module.path}.{name}")
    print("\n".join(f"no docstring: {one}" for one in sorted(set(problems))) or f"docs: {checked} public names have docstrings")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
