"""The real world behind `actors.env`: clock, files and processes, and the guardian
that starts and ends these."""
