"""Frozen values at the price of open ones.

A frozen dataclass fills its fields through ``object.__setattr__``, which takes two thirds of the
time of a decision that makes some twenty of them. Here an object is filled while it is open, as any
other object is, and then becomes one of a subclass that is frozen: made thrice as fast, and nearly
as fast as one that stays open (``bench decide`` shows it).
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick(cls: type[T]) -> type[T]:
    """For a ``@dataclass(frozen=True, slots=True)``, above that line.

    A ``__post_init__`` looks at the object while it is still open.
    """
    made: Any = cls
    kept = {name: made.__dict__[name] for name in ("__setattr__", "__delattr__")}
    for name in kept:
        delattr(made, name)
    made.__init__ = _init(cls, _frozen(made, kept))
    return cls


def _frozen(cls: Any, kept: dict[str, Any]) -> Any:
    """What an object of the class is once it is filled. Copies are made by the class itself."""
    names = [field.name for field in fields(cls)]
    frozen: Any = type(
        cls.__name__,
        (cls,),
        {
            "__slots__": (),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "__new__": lambda _, *values, **named: cls(*values, **named),
            "__init__": lambda *_, **__: None,
            "__reduce__": lambda self: (cls, tuple(getattr(self, name) for name in names)),
            **kept,
        },
    )
    frozen.__slots__ = cls.__slots__  # for who asks an object; it adds none of its own
    return frozen


def _init(cls: Any, frozen: type) -> Any:
    scope: dict[str, Any] = {"Frozen": frozen, "MISSING": MISSING}
    parameters, lines = ["self"], []
    for field in fields(cls):
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            scope[f"make_{name}"] = field.default_factory
            value = f"make_{name}() if {name} is MISSING else {name}"
            parameters.append(f"{name}=MISSING")
        elif field.default is not MISSING:
            scope[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
        else:
            parameters.append(name)
        lines.append(f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    source = "\n".join((f"def __init__({', '.join(parameters)}):", *lines))
    # Of names and constants, as dataclasses make their __init__:
    exec(f"{source}\n    self.__class__ = Frozen", scope)  # noqa: S102  # nosec B102
    scope["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return scope["__init__"]
