"""A method that can be called on the class, with an id, and on an instance, without one."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

T = TypeVar("T")
ClassArgs = ParamSpec("ClassArgs")
ClassResult = TypeVar("ClassResult")
InstanceArgs = ParamSpec("InstanceArgs")
InstanceResult = TypeVar("InstanceResult")


class Dual(Generic[T, ClassArgs, ClassResult, InstanceArgs, InstanceResult]):
    """`Sandbox.kill(id)` and `sandbox.kill()` under one name."""

    def __init__(
        self,
        on_class: Callable[Concatenate[type[T], ClassArgs], ClassResult],
        on_instance: Callable[Concatenate[T, InstanceArgs], InstanceResult],
    ) -> None:
        # In the body of a class a classmethod is not yet bound: what it wraps is wanted.
        self._on_class: Callable[..., Any] = getattr(on_class, "__func__", on_class)
        self._on_instance = on_instance
        self.__doc__ = on_class.__doc__

    @overload
    def __get__(self, instance: None, owner: type[T]) -> Callable[ClassArgs, ClassResult]: ...

    @overload
    def __get__(self, instance: T, owner: type[T]) -> Callable[InstanceArgs, InstanceResult]: ...

    def __get__(self, instance: T | None, owner: type[T]) -> Callable[..., Any]:
        if instance is None:
            return MethodType(self._on_class, owner)
        return MethodType(self._on_instance, instance)
