"""What people see of a run: one HTML page, its plots, and a table in the terminal."""
