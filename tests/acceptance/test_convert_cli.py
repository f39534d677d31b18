"""`viva convert`: a converted suite runs; nothing is overwritten."""

from project import Project

CONFIG = """\
prompts: ["{{word}}"]
tests:
  - vars: { word: Hello }
    assert: [{ type: icontains, value: hello }]
  - vars: { word: World }
    assert: [{ type: rouge-n, value: x }]
"""


def test_a_converted_suite_runs(project: Project):
    project.write("promptfooconfig.yaml", CONFIG)
    ended = project.viva("convert", "promptfooconfig.yaml", "-o", "tests/shop.yaml")
    assert ended.code == 0, ended
    assert "promptfooconfig.yaml:6: $.tests[1].assert[0]:" in ended.err
    ran = project.viva("test", "-i", "tests/shop.yaml", "-n", "python:./agent.py:agent", "-q")
    # The case whose only assertion was lost has no checks: it does not pass.
    assert "1 passed" in ran.out, ran
    assert "1 skipped" in ran.out, ran


def test_misuse(project: Project):
    project.write("promptfooconfig.yaml", CONFIG)
    project.write("tests/kept.yaml", "mine")
    for arguments, message in (
        (("-o", "tests/kept.yaml"), "exists already"),
        (("-o", "tests/x.txt"), "must end in .yaml or .jsonl"),
        (("-o", "tests/kept.yaml/x.yaml"), "cannot be written"),
        (("--strict", "-o", "tests/new.yaml"), "$.tests[1].assert[0]"),
        (("--from", "inspect"), "is not a file of inspect"),
    ):
        ended = project.viva("convert", "promptfooconfig.yaml", *arguments)
        assert ended.code == 4, ended
        assert message in ended.err
    assert (project.folder / "tests/kept.yaml").read_text() == "mine"
    assert not (project.folder / "tests/new.yaml").exists()
