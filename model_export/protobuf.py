"""Protobuf messages declared by field number, for formats of which only a few fields matter; Google's own parser reads them."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

Field = tuple[str, int, str]  # name, number, type: of TYPES or another message; "[type]" is repeated
TYPES = {"float": 2, "int64": 3, "int32": 5, "fixed32": 7, "string": 9, "bytes": 12, "message": 11}
OPTIONAL, REPEATED = 1, 3


class DamagedError(Exception):
    """The bytes are no such message."""


def message_classes(package: str, layout: Mapping[str, Sequence[Field]], defaults: Mapping[str, str]) -> dict[str, Any]:
    """A class for each message of `layout`; `defaults`: field name -> the value it has where the bytes are silent."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in layout.items():
        kind = file.message_type.add(name=name)
        for field, number, stated in fields:
            of = stated.strip("[]")
            added = kind.field.add(
                name=field,
                number=number,
                label=OPTIONAL if of == stated else REPEATED,
                type=TYPES.get(of, TYPES["message"]),
            )
            if of in layout:
                added.type_name = f".{package}.{of}"
            if field in defaults:
                added.default_value = defaults[field]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in layout}


def parsed(kind: Any, content: bytes) -> Any:
    """Raises DamagedError where `content` is no message of this kind."""
    one = kind()
    try:
        one.ParseFromString(content)
    except message.DecodeError as error:
        raise DamagedError(str(error)) from error
    return one
