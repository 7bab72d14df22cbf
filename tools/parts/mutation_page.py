"""The page of what tools/mutate.py found: one row for each mutation."""

KILLED, SURVIVED, SKIPPED, BROKEN = "killed", "SURVIVED", "SKIPPED", "BROKEN"
COMMAND = "python tools/mutate.py -table docs/mutations.md"
HEAD = ("| mutation | killed by | seconds |", "| --- | --- | ---: |")


def row(result):
    """Return a row of the table, in Markdown."""
    by = f"`{result.mutation.test}`" if result.state == KILLED else f"**{result.state}**: {result.text}"
    return f"| `{result.mutation.name}` | {by.replace('|', '/')} | {result.seconds:.0f} |"


def count(rows):
    """Return one line: how many were killed."""
    survived, skipped, broken = (sum(f"**{state}**" in one for one in rows) for state in (SURVIVED, SKIPPED, BROKEN))
    text = f"{len(rows)} mutations: {len(rows) - survived - skipped - broken} killed, {survived} survived"
    return text + (f", {skipped} skipped" if skipped else "") + (f", {broken} broken" if broken else "")


def rows_of_page(path):
    """Return {name of a mutation: its row} of a page, nothing where there is none yet."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


def page(mutations, rows):
    """Return the results, {name: row}, as a page."""
    rows = {mutation.name: rows[mutation.name] for mutation in mutations}
    lines = [
        "# Mutations",
        "",
        f"*Written by `{COMMAND}`. Each row is a fault that was planted in a copy of the project, and the test that "
        "found it; seconds are those of that test alone, the start of Python and Paddle included. The faults "
        "themselves, and what each would do to a user, stand in [tests/mutations.yaml](../tests/mutations.yaml).*",
        "",
        f"{count(rows.values())}.",
        "",
        *HEAD,
        *rows.values(),
    ]
    return "\n".join(lines) + "\n"
