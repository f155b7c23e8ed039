"""Tasks and the rules about them: the record and the table, orders, places, ends."""
