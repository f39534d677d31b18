"""The history of runs: with several processes in parallel, and from any folder of a project."""

from project import Ended, Project, case


def test_the_folder_of_runs_is_beside_the_config_and_ignored_by_git(project: Project):
    project.write("viva.toml", '[agents.echo]\nuse = "python:./agent.py:agent"\n')
    project.suite(case("a"), name="deep/suite.jsonl")
    deep = Project(project.folder / "deep")
    deep.test(agent=None, code=0)
    assert (project.folder / ".viva" / ".gitignore").read_text() == "*\n"
    assert not (deep.folder / ".viva").exists()
    assert len(deep.viva("runs").out.splitlines()) == 2  # the heading and the run


def test_two_runs_at_once_are_both_kept(project: Project):
    project.suite(*(case(f"c{n}") for n in range(40)))
    arguments = ("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "-q")
    both = [project.start(*arguments) for _ in range(3)]
    said = [Ended(process.wait(), *process.communicate(timeout=300)) for process in both]
    assert [ended.code for ended in said] == [0, 0, 0], said
    rows = project.list_runs()
    assert [row["summary"]["passed"] for row in rows] == [40, 40, 40]
