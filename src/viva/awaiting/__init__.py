"""Does the agent wait for the user? `detector.detect` answers from a reply, without a model."""
