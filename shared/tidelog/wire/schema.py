"""The one mapper of dataclasses to CBOR maps and back: two functions for each class, made once.

Theory. The functions' source is generated from the class's annotations, as ``dataclasses`` does for ``__init__``: a
loop over field descriptions was three times slower, and these run for every message. What is generated for
``ProduceAck`` begins so::

    def encode(x, id=None, re=None):            def decode(m, payload=None):
        d = {'id': x.id}                            if type(m) is not dict: diagnose(cls, m, payload)
        if x.offset != default1:                    get = m.get
            d['offset'] = x.offset                  v0 = get('id')
        …                                           if type(v0) is not int or not 0 <= v0 <= MAX: diagnose(…)
        return d                                    …
                                                    if len(m) == 1: return cls(v0, default1, …)
                                                    v1 = get('offset', default1)
                                                    …
                                                    return cls(v0, v1, …)

Most fields are absent as a rule: if a map has only the required keys, the others are not looked up. A class with a
required field that may be null always looks.
A missing or wrong field fails one cheap test; only then ``_diagnose`` reads the whole map again, and raises an
error that says what is wrong.

A ``Schema`` says what differs between those that are written so:

    ============  ==============  =================  ===============  =========================
    schema        unknown fields  left out           integers         error
    ============  ==============  =================  ===============  =========================
    ``WIRE``      ignored         every default      0 to 2**63 - 1   ``ProtocolError``
    ``STRICT``    refused         every default      0 to 2**63 - 1   ``ProtocolError``
    ``STORED``    refused         ``later`` fields   any              ``ValueError``
    ============  ==============  =================  ===============  =========================

``WIRE`` is for messages and their parts, which a peer sends. ``STRICT`` is for the requests of a client that has
agreed on the capability ``strict`` with its gateway: a condition that this release does not know must not be passed
over. ``STORED`` is for what a server wrote and reads again
itself: snapshots of the metadata, records of ``__groups`` and ``__transactions``. A release that meets a field it
does not know must not drop what it means, so it refuses. The commands of the metadata log and the metadata images
have a schema of their own, beside what they are. In every schema a field that is absent has its default: an earlier
release wrote the map.

An ``int``, ``bool``, ``str`` or ``bytes`` is itself, exactly; a dataclass a map, a tuple an array, a dict a map in
its own order. A field that may be of several dataclasses is the first of them that has all the fields of the map.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

from tidelog.errors import ProtocolError
from tidelog.wire.fields import MAX_INT, default_of, is_later, is_payload, lowest_of, optional_of, typed_fields
from tidelog.wire.messages import Message

CLOSE_PROTOCOL = 1002
"""Close code for well-formed CBOR that is not a message of the protocol."""
RESERVED = frozenset({"op", "id", "re"})
"""Header keys that are not fields."""
T = TypeVar("T")
_Function = Callable[..., Any]
_PLAIN = (str, int, bool, bytes)


def unknown_keys(label: str, names: list[str]) -> ProtocolError:
    """Return the ``ProtocolError`` for a map of a client with keys that this release does not know. Its code is
    ``UNSUPPORTED``, and the detail ``key`` has the first of the keys. ``label``: the op or the part."""
    text = f"{label} has no key {', '.join(names)[:200]}: it is misspelt, or belongs to another release"
    return ProtocolError(text, code="UNSUPPORTED", key=names[0][:64], close_code=CLOSE_PROTOCOL)


def malformed(text: str) -> ProtocolError:
    """Return the ``ProtocolError`` for a peer's bytes that are CBOR but not a message of the protocol. Its WebSocket
    close code is 1002."""
    return ProtocolError(text, close_code=CLOSE_PROTOCOL)


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """The rules by which dataclasses of one kind (see the table of the module) are encoded as CBOR maps and decoded
    again, and the functions that were compiled for each class. Each schema is a constant of the process."""

    error: Callable[[str], Exception]
    """Makes the error that decoders raise, from its text."""
    leaves_out: Callable[[type, Field[Any]], bool]
    """Whether a given field of a given class is left out of the map if it has its default."""
    ignores_unknown: bool
    """Whether unknown keys of a map, and further items of an array of fixed length, are ignored."""
    bounds_integers: bool
    """Whether an integer must be 0 to ``MAX_INT``, or -1 if that is its default."""
    has_header: bool = False
    """Whether messages have ``op``, ``id`` and ``re`` beside their fields, and their payload after the map. An absent
    field without a default that may be null is null then."""
    _encoders: dict[Any, _Function] = field(default_factory=dict, repr=False)
    _decoders: dict[Any, _Function] = field(default_factory=dict, repr=False)

    def encoder(self, hint: Any) -> _Function:
        """Return the function that converts a value of this type to maps, arrays and plain values for cbor2. It is
        compiled at the first call. For a message class of a schema with headers the function takes message, id and
        re, and returns header and payload."""
        made = self._encoders.get(hint)
        if made is None:
            made = self._encoders[hint] = _compile_encoder(hint, self)
        return made

    def decoder(self, hint: Any) -> _Function:
        """Return the function that checks the maps, arrays and plain values that cbor2 has decoded, and converts them
        to a value of this type. It is compiled at the first call. For a message class of a schema with headers the
        function takes header and payload. It raises the schema's ``error`` if a field is missing or wrong."""
        made = self._decoders.get(hint)
        if made is None:
            made = self._decoders[hint] = _compile_decoder(hint, self)
        return made

    def to_map(self, value: Any) -> dict[str, Any]:
        """Return a dataclass instance as the map that is encoded for it, with maps and arrays inside."""
        made: dict[str, Any] = self.encoder(type(value))(value)
        return made

    def from_map(self, cls: type[T], content: object) -> T:
        """Return an instance of the dataclass ``cls`` with the fields of a decoded map. Raises the schema's ``error``
        if a field is missing or wrong."""
        made: T = self.decoder(cls)(content)
        return made


WIRE = Schema(malformed, lambda cls, field: True, ignores_unknown=True, bounds_integers=True, has_header=True)
STRICT = Schema(malformed, lambda cls, field: True, ignores_unknown=False, bounds_integers=True, has_header=True)
STORED = Schema(ValueError, lambda cls, field: is_later(field), ignores_unknown=False, bounds_integers=False)


# --- encoders ------------------------------------------------------------------------------------------------


def _compile_encoder(cls: Any, schema: Schema) -> _Function:
    """Generate the source of the function that encodes values of a type by the schema's rules, compile it, and return
    the function (see ``Schema.encoder``). Raises ``TypeError`` if a field's type cannot be encoded."""
    names: dict[str, Any] = {"cls": cls}
    if not _is_class(cls):
        expression = _encode_expression("x", cls, names, schema)
        return _build(["def encode(x):", f"    return {expression}"], names, "encode")
    always: list[str] = []
    sometimes: list[str] = []
    payload = "b''"
    for number, (known, hint) in enumerate(typed_fields(cls)):
        value = f"x.{known.name}"
        if schema.has_header and is_payload(hint):
            payload = value
            continue
        expression = _encode_expression(value, hint, names, schema)
        default = default_of(known)
        if default is not MISSING and schema.leaves_out(cls, known):
            names[f"default{number}"] = default
            test = f"{value} is not None" if default is None else f"{value} != default{number}"
            sometimes += [f"    if {test}:", f"        d[{known.name!r}] = {expression}"]
        elif sometimes and not schema.has_header:  # on the wire what is always there comes first
            sometimes.append(f"    d[{known.name!r}] = {expression}")
        else:
            always.append(f"{known.name!r}: {expression}")
    lines = []
    is_message = schema.has_header and issubclass(cls, Message)
    if is_message:
        _check_message(cls)
        if cls.OP:
            request = cls.ANSWER is not None
            always.insert(0, f"'op': {cls.OP!r}" + (", 'id': id" if request else ""))
            lines += [f"    assert re is None and (id is not None) is {request}, 'wrong id or re for {cls.OP}'"]
        else:
            always.insert(0, "'re': re")
            lines += ["    assert re is not None and id is None, 'an answer needs re'"]
    result = f"d, {payload}" if is_message else "d"
    head = f"    d = {{{', '.join(always)}}}"
    lines = ["def encode(x, id=None, re=None):", *lines, head, *sometimes, f"    return {result}"]
    return _build(lines, names, "encode")


def _check_message(cls: type[Message]) -> None:
    taken = {known.name for known, _ in typed_fields(cls)} & (RESERVED if cls.OP else RESERVED | {"error"})
    assert not taken, f"{cls.__name__} uses reserved header keys: {sorted(taken)}"


def _encode_expression(value: str, hint: Any, names: dict[str, Any], schema: Schema) -> str:
    """Return the generated expression that encodes the expression ``value`` of a type. Functions that the expression
    calls are added to ``names``. Raises ``TypeError`` for a type that cannot be encoded."""
    inner = optional_of(hint)
    if inner is not None:
        expression = _encode_expression(value, inner, names, schema)
        return value if expression == value else f"(None if {value} is None else {expression})"
    if hint in (int, bool, str):
        return value
    if hint is bytes:
        return f"bytes({value})"  # a view would silently become an array of integers
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        expression = _encode_expression("i", arguments[1], names, schema)
        return value if expression == "i" else f"{{k: {expression} for k, i in {value}.items()}}"
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        expression = _encode_expression("i", arguments[0], names, schema)
        return f"list({value})" if expression == "i" else f"[{expression} for i in {value}]"
    if origin is tuple:
        items = [_encode_expression(f"{value}[{n}]", item, names, schema) for n, item in enumerate(arguments)]
        return f"[{', '.join(items)}]"
    if _is_union(hint):
        names["any_of"] = partial(_encode_any, schema)
        return value if all(kind in _PLAIN for kind in arguments) else f"any_of({value})"
    if _is_class(hint):
        name = f"encode_{hint.__name__}"
        names[name] = schema.encoder(hint)
        return f"{name}({value})"
    raise TypeError(f"no encoding for {hint}")


def _encode_any(schema: Schema, value: Any) -> Any:
    return value if value is None or isinstance(value, _PLAIN) else schema.encoder(type(value))(value)


# --- decoders ------------------------------------------------------------------------------------------------


def _compile_decoder(cls: Any, schema: Schema) -> _Function:
    """Generate the source of the function that checks and decodes values of a type by the schema's rules, compile it,
    and return the function (see ``Schema.decoder``). Raises ``TypeError`` if a field's type cannot be decoded."""
    names: dict[str, Any] = {"cls": cls, "MISSING": MISSING, "diagnose": partial(_diagnose, schema), "MAX": MAX_INT}
    if not _is_class(cls):
        lines = _decode_lines("m", cls, 0, "", names, schema)
        return _build(["def decode(m, payload=None):", *lines, "    return m"], names, "decode")
    required: list[str] = []
    optional: list[str] = []
    arguments: list[str] = []
    defaults: list[str] = []
    is_message = schema.has_header and issubclass(cls, Message)
    counted = 0 if not is_message else 2 if cls.OP and cls.ANSWER is not None else 1  # keys of ``RESERVED``
    may_be_absent = takes_payload = False
    known = sorted(typed_fields(cls), key=lambda pair: pair[0].kw_only is True)  # the order of arguments of a call
    for number, (one, hint) in enumerate(known):
        v = f"v{number}"
        name = f"{one.name}=" if one.kw_only else ""
        arguments.append(name + v)
        if schema.has_header and is_payload(hint):
            takes_payload = True
            arguments[-1] = name + "b'' if payload is None else payload"
            defaults.append(arguments[-1])
            continue
        default = default_of(one)
        if default is MISSING:
            counted += 1
            if optional_of(hint) is None:
                required.append(f"    {v} = get({one.name!r})")
            elif schema.ignores_unknown or schema.has_header:
                may_be_absent = True  # which means None
                required.append(f"    {v} = get({one.name!r})")
            else:
                required.append(f"    {v} = get({one.name!r}, MISSING)")
                required.append(f"    if {v} is MISSING: diagnose(cls, m, payload)")
            required += _decode_lines(v, hint, lowest_of(one), "", names, schema)
            defaults.append(arguments[-1])
        else:
            stands_for = f"default{number}"
            names[stands_for] = default
            optional += [f"    {v} = get({one.name!r}, {stands_for})"]
            optional += _decode_lines(v, hint, lowest_of(one), stands_for, names, schema)
            defaults.append(name + ("{}" if typing.get_origin(hint) is dict else stands_for))
    lines = ["    if type(m) is not dict: diagnose(cls, m, payload)", "    get = m.get", *required]
    if not takes_payload and is_message:
        lines.append("    if payload is not None: diagnose(cls, m, payload)")
    if not may_be_absent:  # with as many keys as are required there is no room for others
        lines.append(f"    if len(m) == {counted}: return cls({', '.join(defaults)})")
    if not schema.ignores_unknown:
        names["fields"] = _names_of(cls, schema)
        lines.append("    if not m.keys() <= fields: diagnose(cls, m, payload)")
    lines = ["def decode(m, payload=None):", *lines, *optional, f"    return cls({', '.join(arguments)})"]
    return _build(lines, names, "decode")


def _names_of(cls: type, schema: Schema) -> frozenset[str]:
    """Return the keys that the map of a class may have: its fields, and ``RESERVED`` in the header of a message."""
    names = {one.name for one, hint in typed_fields(cls) if not (schema.has_header and is_payload(hint))}
    return frozenset(names | RESERVED if schema.has_header and issubclass(cls, Message) else names)


def _decode_lines(v: str, hint: Any, lowest: int, default: str, names: dict[str, Any], schema: Schema) -> list[str]:
    """Return the generated statements that check the variable ``v`` and convert it to a field's type. ``lowest`` is
    the least integer; ``default`` names the value that ``v`` has if the map lacks the field ("": the field is
    required). Functions that the statements call are added to ``names``."""
    wrong = "diagnose(cls, m, payload)"
    inner = optional_of(hint)
    if inner is not None:
        lines = _decode_lines(v, inner, lowest, "", names, schema)
        return [f"    if {v} is not None:", *[f"    {line}" for line in lines]]
    if hint is int:
        bounds = f" or not {lowest} <= {v} <= MAX" if schema.bounds_integers else ""
        return [f"    if type({v}) is not int{bounds}: {wrong}"]
    if hint in (bool, str, bytes):
        return [f"    if type({v}) is not {hint.__name__}: {wrong}"]
    if hint == dict[str, str]:
        names["texts"] = _is_texts
        lines = [f"    if not texts({v}): {wrong}"]
        return [*lines, f"    if {v} is {default}: {v} = {{}}"] if default else lines
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        if arguments[0] in (str, bytes, int):
            names["items"] = _items_of if schema.bounds_integers else _unbounded_items_of
            return [f"    {v} = items({v}, {arguments[0].__name__})", f"    if {v} is None: {wrong}"]
        name = _decoder_name(arguments[0], names, schema)
        return [
            f"    if type({v}) is list: {v} = tuple([{name}(i) for i in {v}])",
            f"    elif type({v}) is not tuple: {wrong}",
        ]
    lines = _decode_parts(v, hint, wrong, names, schema)
    if not default or typing.get_origin(hint) is dict:  # each instance gets a dict of its own
        return lines
    return [f"    if {v} is not {default}:", *[f"    {line}" for line in lines]]


def _decode_parts(v: str, hint: Any, wrong: str, names: dict[str, Any], schema: Schema) -> list[str]:
    """Return the generated statements that check and convert the variable ``v`` if its type is a dict, an array of
    fixed length, a union or a dataclass."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        key, one = [_decoder_name(each, names, schema) for each in arguments]
        return [
            f"    if type({v}) is not dict: {wrong}",
            f"    {v} = {{{key}(k): {one}(i) for k, i in {v}.items()}}",
        ]
    if origin is tuple:
        less = "<" if schema.ignores_unknown else "!="
        parts = [f"{_decoder_name(each, names, schema)}({v}[{n}])" for n, each in enumerate(arguments)]
        return [
            f"    if type({v}) is not list or len({v}) {less} {len(arguments)}: {wrong}",
            f"    {v} = ({', '.join(parts)},)",
        ]
    if _is_union(hint):
        name = f"choose{len(names)}"
        names[name] = _decoder_of_any(hint, schema)
        return [f"    {v} = {name}({v})"]
    return [f"    {v} = {_decoder_name(hint, names, schema)}({v})"]


def _decoder_of_any(hint: Any, schema: Schema) -> _Function:
    """Return a function that decodes a value of a union type: null, a plain value, or a map for the first dataclass
    of the union that has all keys of the map. The function raises the schema's error if none fits."""
    kinds = typing.get_args(hint)
    plain = [kind for kind in kinds if kind in _PLAIN or kind is type(None)]
    classes = [(schema.decoder(kind), {one.name for one in fields(kind)}) for kind in kinds if is_dataclass(kind)]

    def decode(value: Any) -> Any:
        if type(value) in plain:
            return value
        for decode_one, names in classes:
            if type(value) is dict and value.keys() <= names:
                return decode_one(value)
        raise schema.error(f"{value!r} is not of {hint}")

    return decode


def _decoder_name(hint: Any, names: dict[str, Any], schema: Schema) -> str:
    """Return a name, added to ``names``, by which generated code calls the decoder of a type. Raises ``TypeError``
    for a type that cannot be decoded."""
    if _is_class(hint):
        name = f"decode_{hint.__name__}"
    elif hint in _PLAIN or typing.get_origin(hint) in (tuple, dict) or _is_union(hint):
        name = f"decode{len(names)}"
    else:
        raise TypeError(f"no decoding for {hint}")
    names[name] = schema.decoder(hint)
    return name


def _is_class(hint: Any) -> bool:
    return is_dataclass(hint) and isinstance(hint, type)


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType)


def _is_texts(value: object) -> bool:
    return type(value) is dict and all([type(k) is str and type(v) is str for k, v in value.items()])


def _items_of(value: object, kind: type) -> tuple[Any, ...] | None:
    """Return a list of texts, byte strings or integers as a tuple. Return None if the value is no list, an item has
    another type, or an integer is not 0 to ``MAX_INT``."""
    if type(value) is not list and type(value) is not tuple:
        return None
    for item in value:
        if type(item) is not kind or (isinstance(item, int) and not 0 <= item <= MAX_INT):
            return None
    return tuple(value)


def _unbounded_items_of(value: object, kind: type) -> tuple[Any, ...] | None:
    """Return a list of texts, byte strings or integers as a tuple. Return None if the value is no list or an item has
    another type."""
    if type(value) is not list and type(value) is not tuple:
        return None
    return tuple(value) if all([type(item) is kind for item in value]) else None


def _build(lines: list[str], names: dict[str, Any], name: str) -> _Function:
    """Define the function ``name`` from lines of source, and return it. The source is compiled first: where Ctrl-C
    interrupts ``exec`` of a text, Python later ends the process by SIGINT, even if the program has caught it."""
    exec(compile("\n".join(lines), __name__, "exec"), names)
    made: _Function = names[name]
    return made


# --- what is wrong -------------------------------------------------------------------------------------------


def _diagnose(schema: Schema, cls: Any, m: object, payload: object) -> None:
    """Raise the schema's error with the reason why a decoded map is no instance of ``cls``: unknown or missing keys,
    the first wrong field, or a payload that the class does not take. Called only after a check has failed."""
    if not _is_class(cls):
        raise schema.error(f"{m!r} is not {_describe(cls, 0, schema)}")
    label = getattr(cls, "OP", "") or getattr(cls, "__name__", "")
    if type(m) is not dict:
        raise schema.error(f"{label}: not a map")
    known = [(one, hint) for one, hint in typed_fields(cls) if not (schema.has_header and is_payload(hint))]
    allowed = _names_of(cls, schema)
    if not schema.ignores_unknown and (unknown := [str(name) for name in m if name not in allowed]):
        if schema.has_header:
            raise unknown_keys(label, unknown)
        raise schema.error(f"{label} has no {', '.join(unknown)}: a later release wrote it; upgrade this one")
    missing = [one.name for one, _ in known if one.name not in m and default_of(one) is MISSING]
    if missing:
        raise schema.error(f"{label}: missing {', '.join(missing)}")
    for one, hint in known:
        if one.name in m and not _fits(m[one.name], hint, lowest_of(one), schema):
            raise schema.error(f"{label}: {one.name} is not {_describe(hint, lowest_of(one), schema)}")
    raise schema.error(f"{label}: takes no payload" if payload is not None else f"{label}: malformed")


def _fits(value: object, hint: Any, lowest: int, schema: Schema) -> bool:
    """Return whether a decoded value may be one of a field's type, as far as a diagnosis needs it."""
    inner = optional_of(hint)
    if inner is not None:
        return value is None or _fits(value, inner, lowest, schema)
    if hint is int:
        return type(value) is int and (not schema.bounds_integers or lowest <= value <= MAX_INT)
    if hint in (bool, str, bytes):
        return type(value) is hint
    if hint == dict[str, str]:
        return _is_texts(value)
    if typing.get_origin(hint) is tuple:
        item, *others = typing.get_args(hint)
        return type(value) is list and (others != [...] or all(_fits(i, item, 0, schema) for i in value))
    return _is_union(hint) or type(value) is dict


def _describe(hint: Any, lowest: int, schema: Schema) -> str:
    """Return the values that a field of a type may have, in words for an error text."""
    inner = optional_of(hint)
    if inner is not None:
        return f"{_describe(inner, lowest, schema)} or null"
    if hint is int:
        return f"an integer from {lowest} to 2**63-1" if schema.bounds_integers else "an integer"
    if hint == dict[str, str]:
        return "a map of texts"
    if typing.get_origin(hint) is tuple:
        return "an array of the right items"
    return {bool: "a boolean", str: "a text", bytes: "a byte string"}.get(hint, "a map")
