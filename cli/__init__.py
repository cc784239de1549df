"""Commands, options, progress, reporters and exit codes: the only room that reads arguments, prints or exits."""
