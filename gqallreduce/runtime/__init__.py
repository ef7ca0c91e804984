"""One rank's side of a call: its arguments, its plan, its values, and what it keeps for the next one."""
