"""Filters for texts that a scorer evaluates as Python or by sympy: only small computations pass."""

from __future__ import annotations

import ast
import re
import string

LENGTH = 2_000  # Most characters of a text that is evaluated

LITERALS = re.compile(r"[\w\s\[\],'\"-]*")
"""Characters of lists and tables, which allow neither calls nor attributes."""

LOOP = re.compile(r"\bfor\b")
DIGITS = 12
POWERS = 2  # Most nested powers
EXPONENT = 99

SYMBOLS = frozenset(string.ascii_letters) | {"pi", "oo"}
FUNCTIONS = frozenset(
    ("exp", "log", "ln", "sqrt", "Abs", "erf", "erfi", "Integral", "Rational")
) | {
    f"{arc}{name}{of}"
    for arc in ("", "a")
    for name in ("sin", "cos", "tan", "cot", "sec", "csc")
    for of in ("", "h")
}


def is_literal(text: str) -> bool:
    """Returns whether `eval` of a text can only make lists, numbers and strings, or raise."""
    return len(text) <= LENGTH and bool(LITERALS.fullmatch(text)) and not LOOP.search(text)


def is_sum(text: str) -> bool:
    """Returns whether a text is an expression of numbers with + − * / and brackets, without powers."""
    return _is_expression(text, frozenset(), frozenset(), powers=0)


def is_formula(text: str) -> bool:
    """Returns whether a text is an expression of numbers, symbols of one letter, small powers and known functions."""
    return _is_expression(text, SYMBOLS, FUNCTIONS, POWERS)


def _is_expression(
    text: str, symbols: frozenset[str], functions: frozenset[str], powers: int
) -> bool:
    if len(text) > LENGTH or not text.isascii():
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False

    def permitted(node: ast.AST, powers: int) -> bool:
        if isinstance(node, ast.Constant):
            return type(node.value) in (int, float) and len(str(node.value)) <= DIGITS
        if isinstance(node, ast.Name):
            return node.id in symbols
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.UAdd | ast.USub) and permitted(node.operand, powers)
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in functions
            return known and not node.keywords and all(permitted(a, powers) for a in node.args)
        if not isinstance(node, ast.BinOp):
            return False
        if isinstance(node.op, ast.Pow):
            small = powers > 0 and _is_small(node.right, symbols)
            return small and permitted(node.left, powers - 1)
        plain = isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div)
        return plain and permitted(node.left, powers) and permitted(node.right, powers)

    try:
        return permitted(tree.body, powers)
    except RecursionError:
        return False


def _is_small(node: ast.AST, symbols: frozenset[str]) -> bool:
    """Returns whether an exponent is a small number, a fraction of two, or a symbol."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_small(node.operand, symbols)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_small(node.left, symbols) and _is_small(node.right, symbols)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and abs(node.value) <= EXPONENT
    return isinstance(node, ast.Name) and node.id in symbols
