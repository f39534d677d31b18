"""Does the agent wait for the user? `detector.detect_awaiting` answers from a reply, without a model."""
