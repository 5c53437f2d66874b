"""Write the generated part of an NVML library.

In a library that implements NVML, every other function returns NVML_ERROR_NOT_SUPPORTED. A library that wraps the
real one forwards every other function to it.
"""

from vendorapi.complete import head, refuse_unknown
from vendorapi.header import Function

from nvmlapi.header import ERROR_STRING, EXPORT_TABLE, HEADER, PREAMBLE, Api


def source(api: Api, implemented: set[str], wrap: bool) -> str:
    """Return the C file that completes the library."""
    refuse_unknown(implemented, {*api.functions, ERROR_STRING, EXPORT_TABLE}, HEADER)
    body = _passage if wrap else _stub
    rest = [body(function) for name, function in api.functions.items() if name not in implemented]
    return "\n".join([head("nvmlapi", PREAMBLE), *rest, ""])


def coverage(api: Api, implemented: set[str], _wrap: bool) -> dict[str, object]:
    """Return the state of every symbol as JSON data."""
    symbols = {name: "implemented" if name in implemented else "missing" for name in api.functions}
    return {"nvml": api.release, "symbols": symbols}


def _stub(function: Function) -> str:
    return f'{function.prototype} {{ return nvmlapi_missing("{function.symbol}"); }}'


def _passage(function: Function) -> str:
    return (
        f"{function.prototype}\n{{\n    static __typeof__(&{function.symbol}) next;\n"
        f'    if (!next && !(next = (__typeof__(next))nvmlapi_next("{function.symbol}")))\n'
        f"        return NVML_ERROR_FUNCTION_NOT_FOUND;\n    return next({function.arguments});\n}}"
    )
