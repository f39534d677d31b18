"""What differs between two runs beside their results."""

from pathlib import Path

from project import Project, case
from viva.history.index import History
from viva.testing import OpenAIServer
from viva.viewer.differences import RunDifference, describe_side, list_differences

CONFIG = """
[connectors.shop]
base_url = "{url}"
api_key_env = "SHOP_KEY"
model = "{model}"

[agents.support]
type = "chat"
connector = "shop"
system = "{system}"
"""


def test_two_runs_differ_in_model_and_prompt_and_nothing_is_said_twice(tmp_path: Path):
    project = Project(tmp_path)
    project.env["SHOP_KEY"] = "k"
    project.suite(case("a"))
    with OpenAIServer(["hello", "hello"]) as server:
        for model, system in (("small", "Be brief."), ("large", "Be brief and kind.")):
            project.write("viva.toml", CONFIG.format(url=server.url, model=model, system=system))
            project.test("-n", "support", code=0)
    history = History(project.folder / ".viva")
    head, base = (describe_side(row, "support") for row in history.list_runs(limit=2))
    assert list_differences(history, base, head) == [
        RunDifference("model", "small", "large"),
        RunDifference("agent system", "Be brief.", "Be brief and kind."),
    ]
