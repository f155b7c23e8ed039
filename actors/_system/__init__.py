"""The real world behind `actors.env`: clock, ids, files and processes.

`actors.env.real_env` alone imports it.
"""

# General layout:
# files          files
# share          who else uses a directory: locks
# opening        how both open files
# posix          clock, ids, and processes, which a guardian starts
# process        one process tree, with process_input and process_output
# guardian       the process that starts commands and ends what is left of them
