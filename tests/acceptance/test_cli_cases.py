"""Single-turn and static cases from `-i` to the report, as a stranger writes them."""

from project import Project

SHOP = '''
"""A shop's assistant: it keeps an order for each conversation and uses its tools."""


class Shop:
    def __init__(self):
        self.items = []

    def reply(self, messages, options):
        text = messages[-1]["content"].lower()
        if "buy" in text:
            item = text.split()[-1].strip(".")
            self.items.append(item)
            call = {"id": "1", "name": "shop__add_item", "arguments": {"item": item, "count": 1}, "result": {"items": len(self.items)}}
            return {"content": f"Added {item}. Anything else?", "tool_calls": [call], "awaiting_input": True}
        if "pay" in text:
            order = {"order": {"status": "paid", "items": self.items, "total": 12.5}}
            return {
                "content": "Paid. Thank you for your order-4711.",
                "data": order,
                "tool_calls": [{"name": "charge", "arguments": {"amount": 12.5}, "result": order}],
                "awaiting_input": False,
                "usage": {"input_tokens": 100, "output_tokens": 20, "cost_usd": 0.002},
            }
        return "What would you like to buy?"
'''


def shop(project: Project) -> None:
    project.write("shop.py", SHOP)
    project.write(
        "viva.toml", '[agents."shop.assistant"]\nuse = "python:./shop.py:Shop"\ndescription = "sells things"\n'
    )


def test_a_static_case_of_several_turns_passes_with_checks_of_every_kind(project: Project):
    """Text, tools, data, limits, combinations, and final assertions on the whole conversation."""
    shop(project)
    project.write(
        "suite.yaml",
        """
- id: buys
  name: Buys two things and pays
  turns:
    - input: Hello
      assertions:
        - { type: contains, value: BUY, ignore_case: true }
        - { type: not_contains, value: sorry }
        - { type: regex, pattern: 'buy\\?$' }
    - input: I buy a lamp
      assertions:
        - { type: tool_called, name: add_item, arguments: { item: lamp }, times: 1, status: ok }
        - { type: tool_not_called, name: charge }
        - type: all
          assertions:
            - { type: contains, value: lamp }
            - { type: not, assertion: { type: contains, value: chair } }
    - input: I buy a chair.
      assertions: { type: tool_result, name: add_item, result: { items: 2 } }
    - input: Now I pay
      assertions:
        - { type: json_path, path: $.order.status, value: paid }
        - { type: json_path, path: order.total, gte: 12, lt: 13 }
        - { type: json_path, path: "$.order.items", value: [lamp, chair] }
        - { type: type, path: $.order.total, value: number }
        - { type: json_schema, schema: { type: object, required: [order] } }
        - { type: any, assertions: [{ type: contains, value: nothing }, { type: regex, value: 'order-\\d+' }] }
        - { type: max_tokens, value: 120 }
        - { type: max_cost, value: 0.01 }
        - { type: max_latency, value: 20s }
  final_assertions:
    - { type: tool_sequence, names: [add_item, add_item, charge], exact: true }
    - { type: json_path, path: $.order.status, value: paid }
    - { type: max_turns, value: 4 }
    - { type: contains, value: Thank you }
""",
    )
    ended, records = project.report("-i", "suite.yaml", agent=None, code=0)  # N25, N12, N35
    assert [record["status"] for record in records] == ["passed"]
    assert "1 passed" in ended.out


def test_every_key_of_the_sample_is_in_a_record(project: Project):
    """Keys and values are those of the specification's JSONL sample."""
    shop(project)
    project.suite(
        {
            "id": "T1",
            "name": "A flow",
            "turns": [
                {"input": "Hello"},
                {"input": "buy a lamp", "assertions": [{"type": "tool_called", "name": "add_item"}]},
            ],
            "final_assertions": [{"type": "tool_called", "name": "shop__add_item"}],
        }
    )
    _, (record,) = project.report(agent=None)
    assert record["id"] == "T1"  # N34
    assert record["name"] == "A flow"
    assert record["status"] == "passed"
    assert record["total_turns"] == 2
    assert record["duration_ms"] >= 0
    first, second = record["turns"]
    assert (first["turn"], first["input"], first["input_source"]) == (1, "Hello", "static")
    assert (first["output"], first["awaiting_input"]) == ("What would you like to buy?", True)
    assert (first["tool_calls"], first["assertions"]) == ([], [])
    assert first["duration_ms"] >= 0
    assert first["awaiting_reason"] == "content_is_question"
    assert second["awaiting_reason"] == "agent_declared"
    (call,) = second["tool_calls"]
    assert (call["name"], call["args"], call["result"]) == (
        "shop__add_item",
        {"item": "lamp", "count": 1},
        {"items": 1},
    )
    (checked,) = second["assertions"]
    assert {"type": "tool_called", "name": "add_item", "passed": True}.items() <= checked.items()
    (final,) = record["final_assertions"]
    assert final["passed"] is True
    assert (record["trial"], record["attempt"]) == (1, 1)  # N33
