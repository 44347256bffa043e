"""Types of elements as PyTorch's profiler writes them, as StableHLO names them, and their bytes."""

from __future__ import annotations

#: StableHLO's name of a type, bytes of an element, PyTorch's number of it (an argument `dtype`), and
#: its names in profiles: C++'s, PyTorch's, Python's, those of process groups and execution traces.
_TYPES: tuple[tuple[str, int, int | None, str], ...] = (
    ("f32", 4, 6, "float, Float, float32"),
    ("f64", 8, 7, "double, Double, float64"),
    ("bf16", 2, 15, "c10::BFloat16, BFloat16, bfloat16"),
    ("f16", 2, 5, "c10::Half, Half, float16"),
    ("i64", 8, 4, "long int, long, Long, int64"),
    ("i32", 4, 3, "int, c10::qint32, Int, int32"),
    ("i16", 2, 2, "short int, short, Short, int16"),
    ("i8", 1, 1, "signed char, char, c10::qint8, Char, int8"),
    ("ui8", 1, 0, "unsigned char, c10::quint8, Byte, uint8"),
    ("ui16", 2, None, "unsigned short"),
    ("ui32", 4, None, "unsigned int"),
    ("ui64", 8, None, "unsigned long"),
    ("i1", 1, 11, "bool, Bool"),
    ("complex<f32>", 8, 9, "c10::complex<float>, ComplexFloat"),
    ("complex<f64>", 16, 10, "c10::complex<double>, ComplexDouble"),
    ("complex<f16>", 4, 8, "c10::complex<c10::Half>"),
    ("f8E4M3FN", 1, 24, "c10::Float8_e4m3fn, Float8_e4m3fn"),
    ("f8E5M2", 1, 23, "c10::Float8_e5m2, Float8_e5m2"),
    ("f8E4M3FNUZ", 1, 26, "c10::Float8_e4m3fnuz, Float8_e4m3fnuz"),
    ("f8E5M2FNUZ", 1, 25, "c10::Float8_e5m2fnuz, Float8_e5m2fnuz"),
    ("f8E8M0FNU", 1, None, "c10::Float8_e8m0fnu"),
    ("float4_e2m1fn_x2", 1, None, "c10::Float4_e2m1fn_x2"),
)
_BYTES = {name: size for name, size, _, _ in _TYPES}
_BY_NAME = {n: (name, size) for name, size, _, names in _TYPES for n in names.split(", ")}
_BY_NUMBER = {number: name for name, _, number, _ in _TYPES}
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
    return _BY_NAME.get(name)


def type_of_number(number: int) -> str | None:
    """StableHLO's name of the type that PyTorch gives this number (6 is float), None if unknown."""
    return _BY_NUMBER.get(number)


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
