"""Objects of agent frameworks as agents. Viva depends on no framework: an adapter imports what the user has installed."""
