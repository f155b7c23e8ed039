"""One run: who takes each step, what time it is, what strikes, and what is wrong."""
