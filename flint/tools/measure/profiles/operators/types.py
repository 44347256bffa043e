"""Types of elements as PyTorch's profiler writes them, as StableHLO names them, and their bytes."""

from __future__ import annotations

#: Name of a type in a profile (C++'s, PyTorch's, Python's) to (StableHLO's name, bytes).
_TYPES: dict[str, tuple[str, int]] = {
    "float": ("f32", 4),
    "double": ("f64", 8),
    "c10::BFloat16": ("bf16", 2),
    "c10::Half": ("f16", 2),
    "long int": ("i64", 8),
    "long": ("i64", 8),
    "int": ("i32", 4),
    "short int": ("i16", 2),
    "short": ("i16", 2),
    "signed char": ("i8", 1),
    "char": ("i8", 1),
    "unsigned char": ("ui8", 1),
    "unsigned short": ("ui16", 2),
    "unsigned int": ("ui32", 4),
    "unsigned long": ("ui64", 8),
    "bool": ("i1", 1),
    "c10::complex<float>": ("complex<f32>", 8),
    "c10::complex<double>": ("complex<f64>", 16),
    "c10::complex<c10::Half>": ("complex<f16>", 4),
    "c10::Float8_e4m3fn": ("f8E4M3FN", 1),
    "c10::Float8_e5m2": ("f8E5M2", 1),
    "c10::Float8_e4m3fnuz": ("f8E4M3FNUZ", 1),
    "c10::Float8_e5m2fnuz": ("f8E5M2FNUZ", 1),
    "c10::Float8_e8m0fnu": ("f8E8M0FNU", 1),
    "c10::Float4_e2m1fn_x2": ("float4_e2m1fn_x2", 1),
    "c10::qint8": ("i8", 1),
    "c10::quint8": ("ui8", 1),
    "c10::qint32": ("i32", 4),
}
#: How process groups and execution traces name the same types.
_OTHER_NAMES = {
    "Float": "float",
    "float32": "float",
    "Double": "double",
    "float64": "double",
    "BFloat16": "c10::BFloat16",
    "bfloat16": "c10::BFloat16",
    "Half": "c10::Half",
    "float16": "c10::Half",
    "Long": "long int",
    "int64": "long int",
    "Int": "int",
    "int32": "int",
    "Short": "short int",
    "int16": "short int",
    "Char": "signed char",
    "int8": "signed char",
    "Byte": "unsigned char",
    "uint8": "unsigned char",
    "Bool": "bool",
    "Float8_e4m3fn": "c10::Float8_e4m3fn",
    "Float8_e5m2": "c10::Float8_e5m2",
    "Float8_e4m3fnuz": "c10::Float8_e4m3fnuz",
    "Float8_e5m2fnuz": "c10::Float8_e5m2fnuz",
    "ComplexFloat": "c10::complex<float>",
    "ComplexDouble": "c10::complex<double>",
}
#: PyTorch's number of a type (an argument `dtype`), by its name.
_NUMBERS = {
    0: "unsigned char",
    1: "signed char",
    2: "short int",
    3: "int",
    4: "long int",
    5: "c10::Half",
    6: "float",
    7: "double",
    8: "c10::complex<c10::Half>",
    9: "c10::complex<float>",
    10: "c10::complex<double>",
    11: "bool",
    15: "c10::BFloat16",
    23: "c10::Float8_e5m2",
    24: "c10::Float8_e4m3fn",
    25: "c10::Float8_e5m2fnuz",
    26: "c10::Float8_e4m3fnuz",
}
#: Order in which types win where operands differ, within floating point and within whole numbers.
_WIDTHS = (
    "i1",
    "ui8",
    "i8",
    "i16",
    "i32",
    "i64",
    "f8E4M3FN",
    "f8E5M2",
    "f16",
    "bf16",
    "f32",
    "f64",
)


def element_type(name: str) -> tuple[str, int] | None:
    """StableHLO's name and the bytes of a type as a profile names it; None for what is not a tensor."""
    return _TYPES.get(_OTHER_NAMES.get(name, name))


def type_of_number(number: int) -> str | None:
    """StableHLO's name of the type that PyTorch gives this number (6 is float), None if unknown."""
    found = _NUMBERS.get(number)
    return None if found is None else _TYPES[found][0]


_BYTES = dict(_TYPES.values())


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a type that `element_type` gave."""
    return _BYTES[dtype]


def promoted(types: list[tuple[str, bool]]) -> str:
    """The type of a result of operands (type, whether it has dimensions), as PyTorch promotes them.

    An operand without dimensions counts where its kind is another (a whole number, floating point,
    complex), or all are so. Two 16-bit floating types that differ make f32.
    """
    arrays = [t for t, has_dims in types if has_dims]
    scalars = [t for t, has_dims in types if not has_dims]
    if not arrays:
        return _widest(scalars)
    found = _widest(arrays)
    above = [t for t in scalars if _rank(t) > _rank(found)]
    if not above:
        return found
    return "f32" if _rank(above[0]) == 2 else _widest(above)


def _widest(types: list[str]) -> str:
    if {"f16", "bf16"} <= set(types):
        types = [*types, "f32"]
    return max(types, key=lambda t: (_rank(t), _WIDTHS.index(t) if t in _WIDTHS else len(_WIDTHS)))


def _rank(dtype: str) -> int:
    """Truth, whole numbers, floating point, complex: the kinds in order."""
    if dtype == "i1":
        return 0
    if dtype.startswith(("i", "ui")):
        return 1
    return 3 if dtype.startswith("complex") else 2
