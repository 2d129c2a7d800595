"""What pytest leaves alone here: a program for the runner, which imports the modules that the runner makes."""

collect_ignore = ["programs.py"]
