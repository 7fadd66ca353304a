"""Commands for the paper's evidence: `python -m paper check`, `update`, `costs [FILE]`.

All other arguments are those of `lcrbnn reproduce`.
"""

from __future__ import annotations

import sys

from lcrbnn.cli.main import run

USAGE = """usage: python -m paper check         compare documents and tables with the records, name what is out of date
       python -m paper update        write the tables, and the figures of marked passages, from the records
       python -m paper costs [FILE]  print the paper's cost table next to our counts; write it as a record
       python -m paper ...           the same as lcrbnn reproduce ...
"""


def main() -> None:
    """Run the command that is named by the arguments."""
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if command in ("-h", "--help"):
        print(USAGE, end="")
    elif command == "check":
        sys.exit(check_documents())
    elif command == "update":
        update_documents()
    elif command == "costs":
        from paper.tables.cost_table import main as print_costs

        print_costs(arguments)
    else:
        sys.argv[1:] = ["reproduce", *sys.argv[1:]]
        run()


def check_documents() -> int:
    """Print each table or passage that is out of date. Return 1 if there are any, otherwise 0."""
    from paper.passages import collect_passages, find_stale_passages, read_documents
    from paper.tables.render_tables import find_stale_tables

    passages = collect_passages()
    problems = [*find_stale_tables(), *find_stale_passages(passages, read_documents(passages))]
    for problem in problems:
        print(problem)
    print(
        f"{len(problems)} tables or passages are out of date" if problems else "All tables and passages are up to date"
    )
    return 1 if problems else 0


def update_documents() -> None:
    """Write paper/docs/results.md and the figures of all marked passages. Print the names of the changed files."""
    from lcrbnn.runs.atomic_files import write_atomic
    from paper.passages import ROOT, collect_passages, read_documents, update_figures
    from paper.tables.render_tables import RESULTS_DOCUMENT, render_committed_results

    passages = collect_passages()
    texts = read_documents(passages)
    updated_texts = dict(texts)
    for passage in passages:
        updated_texts[passage.document] = update_figures(updated_texts[passage.document], passage)
    updated_texts[str(RESULTS_DOCUMENT.relative_to(ROOT))] = render_committed_results()
    for document, text in updated_texts.items():
        if text != texts[document]:
            write_atomic(ROOT / document, [text.encode()])
            print(document)


if __name__ == "__main__":
    main()
