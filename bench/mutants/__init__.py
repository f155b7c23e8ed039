"""``python -m bench.mutants``: is every broken promise found by the simulator alone?"""
