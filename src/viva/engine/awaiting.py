from viva.model.talk import Awaiting
def detect(reply, confirmation_tools=frozenset()):
    if reply.declared: return Awaiting(reply.declared=="awaiting","agent_declared")
    return Awaiting(reply.content.rstrip().endswith("?"),"content_is_question" if reply.content.rstrip().endswith("?") else "completed")
