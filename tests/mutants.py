"""Finds what can be changed in the code, one small thing at a time, and draws a sample. `mutation.py` runs the tests on it."""

import ast
import itertools
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {  # the token of an operator, and what takes its place
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
    ast.And: (r"\band\b", "or"),
    ast.Or: (r"\bor\b", "and"),
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitOr: (r"\|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # to swap these negates the condition


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes of a file from `start` to `end` become `text`. `lines` are tried in turn to find its tests."""

    package: str
    file: str
    kind: str
    start: int
    end: int
    text: str
    lines: tuple[tuple[int, int], ...]
    at_import: bool

    def apply(self, source: bytes) -> bytes:
        """Writes the mutant into the file. The number of lines stays, so that functions keep their line numbers."""
        missing = "\n" * (source[self.start : self.end].count(b"\n") - self.text.count("\n"))
        text = f"({self.text}{missing})" if missing and self.text != "pass" else self.text + missing
        return source[: self.start] + text.encode() + source[self.end :]


class Finder:
    """All mutants of a file, in order. Left alone: docstrings, types, `__all__`, f-strings, and texts with a space: messages."""

    def __init__(self, package: str, file: str, source: bytes) -> None:
        self.package, self.file, self.source, self.found = package, file, source, list[Mutant]()
        self.line_starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
        self.is_in_function, self.wide = False, (1, len(self.line_starts))
        self.statement = self.wide
        self.visit(ast.parse(source))

    def begin(self, node: ast.expr | ast.stmt) -> int:
        return self.line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        return self.line_starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def add(self, kind: str, start: int, end: int, text: str) -> None:
        own = (self.source.count(b"\n", 0, start) + 1, self.source.count(b"\n", 0, end) + 1)
        lines = (own, self.statement) if self.is_in_function else (self.wide, (1, len(self.line_starts)))
        self.found.append(Mutant(self.package, self.file, kind, start, end, text, lines, not self.is_in_function))

    def swap(self, kind: str, left: ast.expr, operator: ast.AST, right: ast.expr) -> None:
        if swap := OPERATORS.get(type(operator)):
            start, end = self.end(left), self.begin(right)
            self.add(kind, start, end, re.sub(swap[0], swap[1], self.source[start:end].decode(), count=1))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            self.statement = (node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or 0)
        self.find(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            outer = self.is_in_function, self.wide
            self.wide = (node.lineno, node.end_lineno or node.lineno)
            self.visit_all([*node.decorator_list, node.args])
            self.is_in_function = True
            self.visit_all(node.body)
            self.is_in_function, self.wide = outer
        else:
            self.visit_all(parts(node))

    def visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def find(self, node: ast.AST) -> None:
        """The mutants of this node itself, without its children."""
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for (left, right), operator in zip(itertools.pairwise(operands), node.ops, strict=True):
                    self.swap("comparison", left, operator, right)
            case ast.BoolOp():
                for left, right in itertools.pairwise(node.values):
                    self.swap("boolean", left, node.op, right)
            case ast.BinOp() if self.is_in_function or not isinstance(node.op, ast.BitOr):  # elsewhere it joins types
                self.swap("arithmetic", node.left, node.op, node.right)
            case ast.UnaryOp(op=ast.Not()):
                self.add("not removed", self.begin(node), self.begin(node) + len("not"), "")
            case ast.Constant(value=bool(value)):
                self.add("constant", self.begin(node), self.end(node), str(not value))
            case ast.Constant(value=int(value) | float(value)):
                for other in (value + 1, value - 1):
                    self.add("constant", self.begin(node), self.end(node), repr(other))
            case ast.Constant(value=str(value)) if " " not in value:
                self.add("constant", self.begin(node), self.end(node), '""' if value else '"x"')
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                self.add("return None", self.begin(value), self.end(value), "None")
            case ast.If(test=test) | ast.IfExp(test=test):
                is_opposite = isinstance(test, ast.Compare) and isinstance(test.ops[0], OPPOSITES)
                if not is_opposite and not isinstance(test, ast.UnaryOp):
                    start, end = self.begin(test), self.end(test)
                    self.add("condition", start, end, f"not ({self.source[start:end].decode()})")
            case ast.AugAssign():
                self.swap("arithmetic", node.target, node.op, node.value)
            case _:
                pass
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
        is_assignment = isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None
        if self.is_in_function and isinstance(node, ast.stmt) and (is_call or is_assignment):
            self.add("statement removed", self.begin(node), self.end(node), "pass")


def parts(node: ast.AST) -> Iterable[ast.AST | None]:
    """The child nodes of a node that mutants may change."""
    match node:
        case ast.JoinedStr() | ast.Expr(value=ast.Constant()) | ast.Subscript(value=ast.Name("Literal")):
            return []
        case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Assign(targets=[ast.Name("__all__")]):
            return []
        case ast.Call(func=ast.Name("cast" | "TypeVar" | "NewType")):
            return node.args[1:]
        case ast.Call(func=ast.Name("isinstance" | "issubclass")):
            return node.args[:1]
        case ast.arguments():
            return [*node.defaults, *node.kw_defaults]
        case ast.AnnAssign():
            return [node.value]
        case _:
            return ast.iter_child_nodes(node)


def draw(package: str, size: int, seed: int) -> Iterator[Mutant]:
    """A sample in an order that depends on the seed and the package's mutants only."""
    files = sorted((ROOT / "src/viva" / package).rglob("*.py"))
    every = [found for file in files for found in Finder(package, str(file.relative_to(ROOT)), file.read_bytes()).found]
    random.Random(f"{seed} {package}").shuffle(every)
    return itertools.islice(filter(is_valid, every), size)


def is_valid(mutant: Mutant) -> bool:
    source = (ROOT / mutant.file).read_bytes()
    try:
        return ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False
