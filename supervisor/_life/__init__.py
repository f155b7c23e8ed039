"""What becomes of a task, from an order to the record of its end."""
