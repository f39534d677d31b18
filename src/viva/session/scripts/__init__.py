"""Script tests and hooks: functions of the project that call agents and record results."""
