"""Names that moved to run_options.py and saved_options.py."""

from viva.session.run_options import RunOptions
from viva.session.saved_options import AGENT_OPTION_FLAGS, dump_options, restore_options, restore_secrets

__all__ = ["AGENT_OPTION_FLAGS", "RunOptions", "dump_options", "restore_options", "restore_secrets"]
