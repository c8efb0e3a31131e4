"""The rooms of tfsim and which may import which (docs/architecture.md), read from the imports."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tfsim"

# Highest first. A room imports from lower levels and from itself, never from its own level.
LEVELS = [
    {"cli"},
    {"reports", "plots"},
    {"scenario"},
    {"validation", "measure"},
    {"sizing", "comparison"},
    {"training", "serving"},
    {"economics", "intervals"},
    {"timing"},
    {"software", "hardware", "models", "scaling"},
    {"operators"},
]
LEVEL = {room: len(LEVELS) - depth for depth, rooms in enumerate(LEVELS) for room in rooms}
GROUND = {"units", "_unit_tables", "files", "errors", "plain", "palette"}  # everybody stands on these
TORCH_ROOM = "measure"


def room_of(module: str) -> str:
    """The room of "tfsim.timing.matmul" is "timing"; of "tfsim" itself ""."""
    return (module + ".").split(".")[1]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute module of each import, those inside functions too, TYPE_CHECKING's not."""
    package = ["tfsim", *path.relative_to(PACKAGE).parent.parts]
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo.extend(node.orelse)
            continue
        todo.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:  # "from tfsim import units" imports tfsim.units
                yield node.lineno, f"{module}.{alias.name}"


def modules() -> list[tuple[Path, str]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found.append((path, "" if parts == ("__init__",) else parts[0]))
    return found


def allowed(importer: str, imported: str) -> bool:
    if importer == imported or imported in GROUND:
        return importer not in GROUND or imported in GROUND
    if importer in GROUND:
        return False
    if imported == "":  # the public face: only the command line may look at it, for the version
        return importer == "cli"
    return LEVEL[importer] > LEVEL[imported]


def test_every_room_has_a_level() -> None:
    rooms = {room for _, room in modules()} - {""} - GROUND
    assert rooms <= LEVEL.keys(), f"not in the plan: {sorted(rooms - LEVEL.keys())}"


def test_rooms_import_downwards_only() -> None:
    wrong = []
    for path, room in modules():
        if room == "":
            continue  # tfsim/__init__.py names them all, lazily
        for line, module in imports(path):
            if module.split(".")[0] != "tfsim":
                continue
            target = room_of(module)
            if target not in LEVEL and target not in GROUND:
                target = ""  # a name of tfsim/__init__.py
            if not allowed(room, target):
                wrong.append(f"{path.relative_to(PACKAGE.parent)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_only_measure_imports_torch() -> None:
    users = {room for path, room in modules() for _, m in imports(path) if m.split(".")[0] == "torch"}
    assert users <= {TORCH_ROOM}


def test_nothing_below_the_command_line_prints_or_reads_a_terminal() -> None:
    wrong = []
    for path, room in modules():
        if room == "cli":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        used = {m.split(".")[0] for _, m in imports(path)}
        wrong += [
            f"{path.relative_to(PACKAGE.parent)}: {word}"
            for word in sorted((names & {"print", "input"}) | (used & {"typer", "rich", "argparse"}))
        ]
    assert not wrong, "\n".join(wrong)


def test_the_rule_itself() -> None:
    assert allowed("cli", "models")
    assert allowed("timing", "timing")
    assert allowed("operators", "units")
    assert not allowed("operators", "models")
    assert not allowed("training", "serving")
    assert not allowed("models", "hardware")
    assert not allowed("files", "operators")
    assert not allowed("models", "")
