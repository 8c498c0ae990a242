"""The engine for Python programs: the tasks in this process, without HTTP; and files answered by it."""
